"""Random models fit small machines, random plans are legal, and indices follow their law."""

from __future__ import annotations

import types

import numpy as np
import pytest

from costmodels.calibration.points import random_plan
from costmodels.cpu.lookup import Accesses, CpuLookup
from costmodels.distribution.zipf import Zipf
from costmodels.measured.cpu_constants import CpuKernel
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ShardingType, check_plan
from costmodels.system_models import cpu_models
from planner import load_system
from planner.errors import NoPlanFoundError
from planner.integrations.measure.microbench_lookup import IndexSampler, bag_lengths
from planner.options.torchrec_rules import layout_problems
from planner.validation import tasks
from planner.validation.tasks import BLOCK_TASKS
from tests.costmodels.cpu.machines import MACHINE, cpu_topology, whole_shards
from tests.index_laws import range_share


@pytest.mark.parametrize("seed", range(8))
def test_random_models_are_small_and_repeatable(seed: int) -> None:
    workload = tasks.random_workload(seed)
    assert workload == tasks.random_workload(seed)
    assert 6 <= len(workload.tables) <= 12
    assert workload.weight_bytes <= 6e8
    assert all(8 <= t.embedding_dim <= 128 for t in workload.tables)
    assert all(1 <= t.pooling_factor <= 50 for t in workload.tables)


@pytest.mark.parametrize("shares", [(0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.2, 0.4, 0.3)])
def test_random_plans_are_legal(shares: tuple[float, float, float]) -> None:
    workload = tasks.random_workload(1)
    plan = random_plan(workload, 2, shares, np.random.default_rng(0))
    check_plan(plan, workload, 2)
    for placement in plan.placements:
        large = workload.table(placement.table).weight_bytes > 8e6
        assert not (large and placement.sharding_type is ShardingType.DATA_PARALLEL)
    assert not list(layout_problems(plan, workload, cpu_topology()))


def test_searched_plans_come_first_and_all_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    workload, topology = tasks.random_workload(2), cpu_topology()
    searched = random_plan(workload, 2, (0.1, 0.1, 0.1), np.random.default_rng(5))
    greedy = random_plan(workload, 2, (0.5, 0.1, 0.1), np.random.default_rng(6))
    result = types.SimpleNamespace(
        best=types.SimpleNamespace(plan=searched),
        baselines=(
            types.SimpleNamespace(name="torchrec_greedy", plan=greedy),
            types.SimpleNamespace(name="size_lookup_greedy", plan=searched),
        ),
    )
    monkeypatch.setattr(tasks.api, "plan", lambda *a, **k: result)
    plans = tasks.choose_plans(workload, topology, 6, 0)
    assert [origin for _, origin in plans[:3]] == ["searched", "torchrec_greedy", "random"]
    assert len(dict(plans)) == len(plans) == 6


def test_random_plans_do_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        message = "none"
        raise NoPlanFoundError(message)

    monkeypatch.setattr(tasks.api, "plan", refuse)
    plans = tasks.choose_plans(tasks.random_workload(3), cpu_topology(), 4, 0)
    assert [origin for _, origin in plans] == ["random"] * 4


@pytest.mark.parametrize("scattered", [True, False])
def test_indices_follow_their_law(scattered: bool) -> None:
    law = Zipf(num_embeddings=5000, exponent=1.1, scattered=scattered)
    sampler = IndexSampler(law, np.random.default_rng(0))
    drawn = sampler.draw(200_000, np.random.default_rng(1))
    assert drawn.min() >= 0
    assert drawn.max() < 5000
    counts = np.sort(np.bincount(drawn, minlength=5000))[::-1]
    assert counts[:50].sum() / 200_000 == pytest.approx(law.access_share(50), rel=0.03)
    unique = len(np.unique(drawn[:20_000]))
    assert unique == pytest.approx(law.expected_unique_rows(20_000), rel=0.03)
    first = float((drawn < 2500).mean())
    chance = 0.2 if scattered else 0.01  # where the few hottest rows happen to lie
    assert first == pytest.approx(range_share(law, 0, 2500), abs=chance)


def test_bags_have_the_asked_mean() -> None:
    rng = np.random.default_rng(0)
    assert (bag_lengths(1.0, 10, rng) == 1).all()
    assert bag_lengths(7.0, 10_000, rng).mean() == pytest.approx(7.0, rel=0.03)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("models", BLOCK_TASKS)
def test_models_with_blocks_are_small_repeatable_and_priced(models: str, seed: int) -> None:
    workload, blocks = BLOCK_TASKS[models](seed)
    assert (workload, blocks) == BLOCK_TASKS[models](seed)
    assert len({t.embedding_dim for t in workload.tables}) == 1
    assert workload.tables[0].embedding_dim % blocks.heads == 0
    plan = random_plan(workload, 2, (0.3, 0.2, 0.2), np.random.default_rng(seed))
    check_plan(plan, workload, 2)
    models_here = cpu_models(MACHINE)
    assert CostPipeline(workload, cpu_topology(), models_here).estimate(plan).time.time_s > 0


def test_unpooled_tables_on_cores_without_a_calibration_are_warned_of() -> None:
    workload, _ = BLOCK_TASKS["sequence"](0)
    plan = random_plan(workload, 2, (0.0, 0.0, 0.0), np.random.default_rng(0))
    topology = load_system("cpu_gloo", gpus=2)
    assert (
        "run 'shardplan calibrate'" in CostPipeline(workload, topology).estimate(plan).warnings[-1]
    )


def test_unpooled_tables_cost_more_backward_the_more_distinct_rows_they_meet() -> None:
    """Each distinct row has entries in hash maps, which grow beyond the caches."""
    each = []
    for rows in (10**3, 10**4, 10**5, 10**6):
        lookup = CpuLookup(constants=MACHINE)
        seen = Accesses(whole_shards(rows, 32, 1e5, 0.0, bags=1e5))
        backward_s = float(lookup.seconds(seen, CpuKernel.SEQUENCE)[1][0])
        each.append(backward_s / float(seen.distinct[0]))
        assert backward_s > float(lookup.seconds(seen, CpuKernel.FUSED)[1][0]) or rows == 10**3
    assert each[1] < each[2] < each[3]
