"""Laws of prices and bounds over random plans, and unusual problems against all of their plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodels.layers.dcn import Dcn
from costmodels.layers.hstu import Hstu
from costmodels.layers.mmoe import Mmoe
from costmodels.layers.moe import Moe
from costmodels.layers.transformer import Transformer
from costmodels.layers.two_tower import TwoTower
from costmodels.sharding import ShardingType
from costmodels.workload import DenseArch, DenseParallelism, Pipeline
from planner.objectives.iteration import IterationTime
from planner.scenarios import ScenarioRule
from tests.differential import laws
from tests.differential.check import assert_answers, assert_sound
from tests.differential.drawing.problems import (
    draw_calibrated,
    draw_days,
    draw_dense,
    draw_unusual,
)
from tests.differential.drawing.small_cases import case_of
from tests.differential.stored import load, save
from tests.planner.cases import first

pytestmark = pytest.mark.usefixtures("no_process_beside")


@pytest.mark.parametrize("seed", first(range(60), 4))
def test_laws_hold(seed: int) -> None:
    found = laws.broken_laws(draw_unusual(seed), seed)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("seed", [45, 147, 239])
def test_laws_hold_where_the_dense_part_runs_beside_exchanges_that_it_outlasts(seed: int) -> None:
    """Floors gave one rank the longer of both lookups, as if ranks waited for one another there."""
    case = draw_calibrated(seed)
    device = replace(case.topology.device, single_stream=False)
    case = replace(
        case,
        topology=replace(case.topology, device=device),
        workload=replace(case.workload, pipeline=Pipeline.HUGECTR),
    )
    assert laws.broken_laws(case, seed) == []


def test_types_that_are_cut_alike_keep_their_turn_on_the_streams() -> None:
    """On hosts of one rank tables by rows of a host are whole tables; row-wise ones stand apart."""
    seed = 1_000_027
    assert laws.broken_laws(draw_unusual(seed), seed) == []


def slower_on_better_machines(seed: int) -> list[str]:
    """What is wrong with the plans of a problem that the dense part decides."""
    priced = laws.PricedPlans(draw_dense(seed), np.random.default_rng(seed))
    assert priced.plans
    return list(laws._faster_machines(priced))


def test_a_faster_network_does_not_lead_to_other_curves() -> None:
    """With twice the bandwidth it was no longer like the one that curves were measured on."""
    assert slower_on_better_machines(2252) == []


@pytest.mark.parametrize("seed", [110, 296])
def test_faster_lookups_lengthen_the_dense_part_by_no_more_than_they_gain(seed: int) -> None:
    """Plans whose own lookups did not gain took up to 1.4 % longer."""
    assert slower_on_better_machines(seed) == []


@pytest.mark.parametrize("seed", first(range(60), 3))
def test_unusual_problems(seed: int) -> None:
    assert_answers(draw_unusual(seed))


@pytest.mark.parametrize("seeds", first([(6, 9, 17, 19, 23), range(30)], 1))
def test_unusual_problems_have_what_others_lack(tmp_path: Path, seeds: Sequence[int]) -> None:
    cases = [draw_unusual(seed) for seed in seeds]
    workloads = [c.workload for c in cases]
    assert {w.dense_parallelism.value for w in workloads} == {"ddp", "fsdp"}
    assert any(w.lookahead_batches for w in workloads)
    assert any(w.batch_share_ratio for w in workloads)
    assert any(w.dense.layers for w in workloads)
    assert any(t.deduplicates_indices for w in workloads for t in w.tables)
    assert any(c.topology.fitted for c in cases)
    assert any(c.topology.network_link.pod_hosts for c in cases)
    assert any(rule.pairs for c in cases for rule in c.constraints.tables)
    for case in cases[:: max(1, len(cases) // 8)]:
        save(case, tmp_path / "case.json", ["nothing"])
        assert load(tmp_path / "case.json") == case


def test_a_planted_floor_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(1, 2, 16, 32)
    assert laws.broken_laws(case, 0) == []
    honest = IterationTime.separable_value

    def raised(
        self: IterationTime, work: laws.FloatArray, types: frozenset[ShardingType]
    ) -> float | None:
        found = honest(self, work, types)
        return None if found is None else 1.01 * found

    monkeypatch.setattr(IterationTime, "separable_value", raised)
    priced = laws.PricedPlans(case, np.random.default_rng(0))
    assert any(line.startswith("floor of") for line in laws._floors(priced))


def test_a_price_that_depends_on_the_order_of_tables_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = case_of(1, 2, 16, 32)
    workload = replace(case.workload, dense=DenseArch())
    monkeypatch.setattr(
        laws.PricedPlans, "times_by", lambda self, pipeline: self.times * (1.0 + 1e-6)
    )
    priced = laws.PricedPlans(replace(case, workload=workload), np.random.default_rng(0))
    assert any(line.startswith("order of tables") for line in laws._same_prices(priced))


# ------------------------------------------------------------------ dense parts


@pytest.mark.parametrize("seed", first(range(60), 3))
def test_problems_that_the_dense_part_decides(seed: int) -> None:
    assert_sound(draw_dense(seed), seed)


@pytest.mark.parametrize("seeds", first([(7, 9, 24, 26, 27, 35, 36), range(40)], 1))
def test_dense_parts_of_every_kind_are_drawn_and_stored(
    tmp_path: Path, seeds: Sequence[int]
) -> None:
    cases = [draw_dense(seed) for seed in seeds]
    workloads = [c.workload for c in cases]
    assert {w.pipeline for w in workloads} == set(Pipeline) - {Pipeline.PRIORITIZED}
    assert {w.dense_parallelism for w in workloads} == set(DenseParallelism)
    kinds = {type(layer) for w in workloads for layer in w.dense.layers}
    assert {Transformer, Hstu, Moe, Dcn, TwoTower, Mmoe} <= kinds
    assert any(w.dense.top_mlp and not w.dense.layers for w in workloads)
    for case in cases[:: max(1, len(cases) // 8)]:
        save(case, tmp_path / "case.json", ["nothing"])
        assert load(tmp_path / "case.json") == case


@pytest.mark.parametrize("seed", first(range(60), 3))
def test_problems_of_unlike_days(seed: int) -> None:
    assert_answers(draw_days(seed))


@pytest.mark.parametrize("seeds", first([(0, 18), range(20)], 1))
def test_days_differ_in_what_is_trained(seeds: Sequence[int]) -> None:
    cases = [draw_days(seed) for seed in seeds]
    for field in ("dense", "pipeline", "batch_size_per_rank", "optimizer"):
        assert any(
            getattr(day, field) != getattr(c.workload, field) for c in cases for day in c.scenarios
        )
    assert {c.robust for c in cases} == set(ScenarioRule)
