"""Memory all but full: a plan where a simple packer has one, else a proof or an honest no."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodels.sharding import ShardingType
from planner import api
from planner.errors import InfeasibleError, NoPlanFoundError
from planner.objectives import objective_named
from planner.problem import Constraints
from planner.search.base import Record
from planner.search.construct.packing import offer_packings, pack_exactly
from planner.space.evaluation import Assignment, Budget, Evaluator, SearchSpace
from tests.planner import cases

WHOLE = Constraints(sharding_types=(ShardingType.TABLE_WISE,))


def tight(seed: int, fill: float, limits: Constraints = WHOLE) -> SearchSpace:
    """Tables dealt out to ranks at random; the fullest of these is full to ``fill``."""
    rng = np.random.default_rng(seed)
    hosts, local = [(1, 4), (2, 2), (2, 4), (1, 8)][seed % 4]
    count = int(rng.integers(2, 6)) * hosts * local
    tables = tuple(
        cases.table(f"t{i}", int(10 ** rng.uniform(4.5, 6.7)), int(4 * rng.integers(4, 33)), 2.0)
        for i in range(count)
    )
    model = replace(cases.workload(tables, batch=32), cuda_graph=True)
    roomy = cases.space(model, cases.topology(hosts, local, ddr_gib=1e-6), limits)
    device = roomy.pool_device[[r.flat[0] for r in roomy.rows]][roomy.first[:-1]]
    loads = np.zeros(hosts * local)
    for size in device[rng.permutation(count)]:
        loads[np.argmin(loads)] += size
    system = cases.topology(hosts, local, ddr_gib=1e-6)
    taken = float((system.hbm_capacities() - roomy.pipeline.device_limits)[0])
    gib = (loads.max() / fill + taken) / cases.GIB
    return cases.space(model, cases.topology(hosts, local, hbm_gib=gib, ddr_gib=1e-6), limits)


def first_fit_decreasing(space: SearchSpace) -> bool:
    """Whether whole tables, the largest first, each find a rank with room."""
    sizes = [
        min(float(space.pool_device[space.rows[i]].max()) for i in range(a, b))
        for a, b in zip(space.first[:-1], space.first[1:], strict=True)
    ]
    room = space.pipeline.device_limits.copy()
    for size in sorted(sizes, reverse=True):
        fits = np.flatnonzero(room >= size * (1 + 1e-9))
        if not len(fits):
            return False
        room[fits[0]] -= size
    return True


@pytest.mark.parametrize("fill", [0.95, 1.0])
@pytest.mark.parametrize("seeds", cases.first([range(6), range(6, 12)], 1))
def test_a_plan_wherever_a_packer_has_one(
    seeds: range, fill: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = 0
    for seed in seeds:
        space = tight(seed, fill)
        record = Record(Evaluator(space, objective_named("iteration", space), Budget()))
        found: list[Assignment] = []
        monkeypatch.setattr(record, "consider", lambda made, _, found=found: found.append(made))
        offer_packings(record)
        packed += first_fit_decreasing(space)
        assert bool(found) or not first_fit_decreasing(space), seed
        for assignment in found:
            assert space.pipeline.memory(space.plan(assignment)).fits
    assert packed, "no instance says anything"


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 12))]
)
def test_the_planner_finds_tight_plans(seed: int) -> None:
    space = tight(seed, 0.97)
    problem = space.problem
    result = api.plan(
        problem.workload,
        problem.topology,
        constraints=WHOLE,
        time_limit_s=1.5,
        with_baselines=False,
    )
    assert result.best.memory.fits


@pytest.mark.parametrize("seed", range(4))
def test_the_exact_packing_knows(seed: int) -> None:
    space = tight(seed, 0.999)
    found, none_fits = pack_exactly(space, work_s=10, time_limit_s=60, seed=0)
    assert not none_fits, "the instance was made from a packing"
    if found is not None:
        assert space.pipeline.memory(space.plan(found)).fits


def three_large(hbm_gib: float) -> tuple[object, object]:
    """Five tables of 0.6 GiB and ranks that each hold a few."""
    tables = tuple(cases.table(f"t{i}", 2_500_000, 64, 1.0) for i in range(5))
    model = cases.workload(tables, batch=32)
    return model, cases.topology(1, 2, hbm_gib=hbm_gib, ddr_gib=1e-6)


@pytest.mark.parametrize("hbm_gib", [1.4, 1.75])
def test_a_proof_says_what_is_short(hbm_gib: float) -> None:
    """By a sum, and where the sum fits but three tables of five do not fit on one rank."""
    model, system = three_large(hbm_gib)
    with pytest.raises(InfeasibleError, match=r"short|over|too little|more than") as caught:
        api.plan(model, system, constraints=WHOLE, time_limit_s=5)  # type: ignore[arg-type]
    assert caught.value.shortfall_bytes > 0


def test_none_found_says_what_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    model, system = three_large(1.75)
    module = "planner.search.construct.packing.pack_exactly"
    monkeypatch.setattr(module, lambda *a, **k: (None, False))
    monkeypatch.setattr("planner.solving.run.require_feasible", lambda space: None)
    with pytest.raises((NoPlanFoundError, InfeasibleError), match="over its limit"):
        api.plan(model, system, constraints=WHOLE, time_limit_s=2)  # type: ignore[arg-type]
