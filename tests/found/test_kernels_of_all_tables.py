"""Tables that lie together leave a slow kernel together, since one call serves all of them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodels.sharding import ComputeKernel, Plan
from planner import io
from planner.api import solve
from planner.io.constraints import load_constraints
from planner.models import pipeline_of
from planner.settings import SearchSettings
from tests.planner.cases import first

DATA = Path(__file__).parent / "data"
KERNELS = (
    (ComputeKernel.FUSED, None),
    (ComputeKernel.FUSED_UVM, None),
    *((ComputeKernel.FUSED_UVM_CACHING, ratio) for ratio in (0.05, 0.1, 0.2, 0.4)),
)


@pytest.mark.parametrize("rule", ["{tables: '*', ranks: [0]}", "{together: ['*']}"])
def test_five_tables_that_lie_together_get_caches(rule: str, tmp_path: Path) -> None:
    """They took 1.71 and 1.70 ms without caches; none gains by a cache alone."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(f"constraints:\n  - {rule}\n", encoding="utf-8")
    problem = io.load_problem(DATA / "five_large_tables.yaml", "h100_sxm", gpus=8)
    problem = replace(
        problem, constraints=load_constraints(rules, [t.name for t in problem.workload.tables])
    )
    found = solve(problem, search=SearchSettings(with_baselines=False))
    assert found.solver.value == pytest.approx(1.2518e-3, rel=1e-3)


def with_kernel(plan: Plan, kernel: ComputeKernel, ratio: float | None, old: object) -> Plan:
    """The plan with all tables of a kernel under another one."""
    return replace(
        plan,
        placements=tuple(
            replace(p, kernel=kernel, cache_load_factor_ratio=ratio)
            if (p.kernel, p.cache_load_factor_ratio) == old
            else p
            for p in plan.placements
        ),
    )


@pytest.mark.parametrize("seed", first(range(6), 3))
def test_no_kernel_of_all_tables_betters_a_finished_plan(seed: int, tmp_path: Path) -> None:
    """Drawn tables that have to lie together and are larger than device memory."""
    rng = np.random.default_rng(seed)
    names = ["a", "b", "c", "d", "e"]
    drawn = tmp_path / "drawn.yaml"
    drawn.write_text(
        "name: drawn\ntraining: {batch_size_per_rank: 1024}\ntables:\n"
        + "".join(
            f"  - {{name: {name}, num_embeddings: {rng.integers(20_000_000, 60_000_000)}, "
            f"embedding_dim: 128, pooling_factor: {rng.integers(1, 30)}}}\n"
            for name in names
        ),
        encoding="utf-8",
    )
    rules = tmp_path / "rules.yaml"
    together = ", ".join(names[: int(rng.integers(3, 6))])
    rules.write_text(f"constraints:\n  - {{together: [{together}]}}\n", encoding="utf-8")
    problem = io.load_problem(drawn, "h100_sxm", gpus=4)
    problem = replace(problem, constraints=load_constraints(rules, names))
    found = solve(problem, search=SearchSettings(with_baselines=False, max_evaluations=600))
    pipeline = pipeline_of(problem)
    kinds = {(p.kernel, p.cache_load_factor_ratio) for p in found.plan.placements}
    for old, (kernel, ratio) in itertools.product(kinds - {(ComputeKernel.DENSE, None)}, KERNELS):
        other = with_kernel(found.plan, kernel, ratio, old)
        fits = pipeline.memory(other).fits
        time_s = pipeline.estimate(other).time.time_s
        assert not fits or time_s >= found.solver.value * (1 - 1e-5)
