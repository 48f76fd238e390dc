"""The kit itself: it counts, prices and judges right, and it sees planted faults."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodels.distribution.uniform import Uniform
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType, check_plan
from costmodels.workload import Pooling
from planner.problem import Constraints, CountLimit, Level, MoveLimit, TableConstraint, TableGroup
from tests.differential import same
from tests.differential.asking import Run
from tests.differential.case import Case, limited_topology
from tests.differential.check import Kind, illegal_lines
from tests.differential.drawing.options import arrangements, documented_cuts, placements
from tests.differential.drawing.problems import MOST_PLANS, draw
from tests.differential.drawing.small_cases import FUSED_ONLY, case_of
from tests.differential.judging.enumerator import Enumerator
from tests.differential.judging.rules import broken_rules
from tests.differential.run import Settings, check_seed, main, summary
from tests.differential.stored import load, save
from tests.planner.cases import first
from tests.strategies import make_table

pytestmark = pytest.mark.usefixtures("no_process_beside")

SEEDS = first(range(12), 6)


# ------------------------------------------------------------------ counting


def counts_by_type(case: Case) -> dict[str, int]:
    found = [str(p.sharding_type) for p in placements(case, case.workload.tables[0])]
    return {kind: found.count(kind) for kind in sorted(set(found))}


def test_placements_of_one_table_on_one_host_of_two() -> None:
    assert counts_by_type(case_of(1, 2, 16)) == {
        "data_parallel": 1,
        "table_wise": 2,
        "column_wise": 2 + 3,  # whole on either rank; two halves on {00, 01, 11}
        "row_wise": 1,
        "table_row_wise": 1,
        "table_column_wise": 2 + 3,
        "grid_shard": 1,
    }


def test_placements_of_one_table_on_two_hosts_of_two() -> None:
    whole, halves, thirds = 4, 10, 20  # 24 columns: whole, 12 + 12, 8 + 8 + 8
    assert counts_by_type(case_of(2, 2, 24)) == {
        "data_parallel": 1,
        "table_wise": 4,
        "column_wise": whole + halves + thirds,
        "row_wise": 1,
        "table_row_wise": 2,
        "table_column_wise": 2 * (2 + 3),
        "grid_shard": 2 + 3,
    }


def test_host_kernels_and_load_factors_multiply() -> None:
    case = case_of(1, 2, 16, constraints=Constraints())
    assert len(placements(case, case.workload.tables[0])) == 1 + 15 * 6
    rule = TableConstraint(pattern="*", cache_load_factors=(0.3,))
    case = replace(case, constraints=Constraints(tables=(rule,)))
    assert len(placements(case, case.workload.tables[0])) == 1 + 15 * 3


def test_sequences_and_odd_dimensions_have_fewer_types() -> None:
    case = case_of(1, 2, 16)
    table = replace(case.workload.tables[0], pooling=Pooling.NONE)
    kinds = {p.sharding_type for p in placements(case, table)}
    assert kinds == {
        ShardingType.DATA_PARALLEL,
        ShardingType.TABLE_WISE,
        ShardingType.COLUMN_WISE,
        ShardingType.ROW_WISE,
    }
    odd = replace(table, embedding_dim=10)
    assert {p.sharding_type for p in placements(case, odd)} == {ShardingType.DATA_PARALLEL}


def test_constraints_leave_fewer_placements() -> None:
    rule = TableConstraint(pattern="t0", ranks=(0, 1, 2), min_column_width=8)
    case = case_of(2, 2, 16, constraints=replace(FUSED_ONLY, tables=(rule,)))
    assert counts_by_type(case) == {
        "table_wise": 3,
        "column_wise": 3 + 6,
        "table_row_wise": 1,
        "table_column_wise": 3 + 3 + 1,
        "grid_shard": 1 + 1,
    }


def test_cuts() -> None:
    assert list(documented_cuts(24, 4, 6)) == [(24,), (12, 12), (8, 8, 8), (4,) * 6]
    assert list(documented_cuts(24, 9, 6)) == [(24,), (12, 12)]
    assert list(documented_cuts(20, 4, 6)) == [(20,), (4,) * 5]
    assert list(documented_cuts(10, 4, 4)) == [(10,)]


def test_arrangements_keep_unequal_pieces_apart() -> None:
    assert set(arrangements((8, 4), (0, 1))) == {(0, 1), (1, 0)}
    assert set(arrangements((8, 8), (0, 1))) == {(0, 0), (0, 1), (1, 1)}
    assert len(list(arrangements((8, 4, 8), (0, 1, 2)))) == 3 * 2 + 3


def test_two_tables_multiply_and_rules_take_away() -> None:
    case = case_of(1, 2, 4, 4)  # 1 + 2 + 2 + 1 + 1 + 2 + 1 placements each
    space = Enumerator(case, mirrors=False)
    assert space.num_plans == 100
    assert space.optimum().num_allowed == 100
    both = (TableGroup(patterns=("*",)),)
    together = replace(case, constraints=replace(FUSED_ONLY, together=both))
    assert Enumerator(together, mirrors=False).optimum().num_allowed == 2 * 3 * 3
    apart = replace(case, constraints=replace(FUSED_ONLY, apart=both))
    assert Enumerator(apart, mirrors=False).optimum().num_allowed == 2 * 3 * 3
    one = CountLimit(most=1, level=Level.RANK, counts_shards=True)
    few = replace(case, constraints=replace(FUSED_ONLY, counts=(one,)))
    assert Enumerator(few, mirrors=False).optimum().num_allowed == 2 * 3 * 3


def test_the_wide_menu_has_all_widths() -> None:
    case = case_of(1, 2, 16)
    table = case.workload.tables[0]
    widths = {
        tuple(s.num_cols for s in p.shards)
        for p in placements(case, table, wide=True)
        if p.sharding_type is ShardingType.COLUMN_WISE
    }
    assert widths == {(16,), (8, 8), (12, 4), (8, 4, 4), (4,) * 4}


# ------------------------------------------------------------------ prices


@pytest.mark.parametrize("seed", SEEDS)
def test_prices_are_those_of_an_estimate(seed: int) -> None:
    """The pipeline simulates events of one whole plan; here placements are summed."""
    case = replace(draw(seed), objective="iteration", scenarios=())
    rng = np.random.default_rng(seed)
    space = Enumerator(case)
    if not all(space.choices):
        pytest.skip("the constraints leave a table no placement")
    topology = limited_topology(case)
    pipeline = CostPipeline(case.workload, topology)
    for _ in range(3):
        plan = space.random_plan(rng)
        expected = pipeline.estimate(plan).time.time_s
        assert space.judge.price(plan) == pytest.approx(expected, rel=1e-9)
        ledger = pipeline.memory(plan)
        fits = all(r.used_bytes <= r.capacity_bytes for r in ledger.ranks)
        fits &= all(h.used_bytes <= h.capacity_bytes for h in ledger.hosts)
        assert fits == (not space.judge.overfull(plan))


@pytest.mark.parametrize("seed", SEEDS)
def test_plans_are_well_formed_and_rules_agree(seed: int) -> None:
    """Rules on arrays say of each plan what rules in words say; TorchRec can run all of them."""
    case = draw(seed)
    rng = np.random.default_rng(seed)
    space = Enumerator(case, wide=seed % 2 == 0, mirrors=False)
    if not all(space.choices):
        return
    index = [rng.integers(len(found), size=40) for found in space.choices]
    finite = np.isfinite(space.priced(index))
    for at, good in zip(np.transpose(index), finite, strict=True):
        plan = space.plan(at.tolist())
        check_plan(plan, case.workload, case.topology.world_size)
        assert illegal_lines(case, plan) == []
        assert good == (not broken_rules(case, plan) and not space.judge.overfull(plan))


@pytest.mark.parametrize("layout", [(1, 3), (2, 2), (3, 1)])
def test_mirror_images_cost_the_same(layout: tuple[int, int]) -> None:
    case = case_of(*layout, 16, 8)
    case = replace(
        case,
        workload=replace(
            case.workload,
            tables=tuple(
                make_table(
                    t.name,
                    embedding_dim=t.embedding_dim,
                    num_embeddings=1200,
                    distribution=Uniform(num_embeddings=1200),
                )
                for t in case.workload.tables
            ),
        ),
    )
    thinned, full = Enumerator(case), Enumerator(case, mirrors=False)
    assert thinned.num_plans < full.num_plans
    values, every = thinned.all_values(), full.all_values()
    assert values.min() == pytest.approx(every.min(), rel=1e-12)
    different = np.unique(np.round(every / every.min(), 9))
    assert np.unique(np.round(values / every.min(), 9)) == pytest.approx(different)


def test_mirror_images_are_kept_where_ranks_differ() -> None:
    case = case_of(1, 2, 16)
    uneven = replace(case, topology=replace(case.topology, speed_by_rank_ratio=(1.0, 0.5)))
    assert Enumerator(uneven).num_plans == Enumerator(uneven, mirrors=False).num_plans


def test_a_plan_in_use_can_be_kept() -> None:
    """Also one whose equal pieces lie on descending ranks: their order counts for what moves."""
    case = case_of(1, 2, 16)
    table = case.workload.tables[0]
    start = next(
        p
        for p in placements(case, table)
        if p.sharding_type is ShardingType.COLUMN_WISE and p.ranks == (0, 1)
    )
    turned = replace(start, shards=tuple(replace(s, rank=1 - s.rank) for s in start.shards))
    limit = MoveLimit(start=Plan(placements=(turned,)), max_bytes=0.0)
    optimum = Enumerator(replace(case, moves=limit)).optimum()
    assert optimum.num_allowed == 2  # by either name that two pieces on one host can have
    assert optimum.plan is not None
    assert optimum.plan.placements[0].ranks == (1, 0)


# ------------------------------------------------------------------ drawing


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_problems_are_small_and_the_same_again(seed: int, tmp_path: Path) -> None:
    case = draw(seed)
    assert Enumerator(case).num_plans <= 2 * MOST_PLANS
    assert draw.__wrapped__(seed) == case
    save(case, tmp_path / "case.json", ["nothing"])
    assert load(tmp_path / "case.json") == case


@pytest.mark.parametrize("seeds", first([(3, 4, 13, 22, 25, 28, 36, 44, 46), range(60)], 1))
def test_drawn_problems_are_of_every_kind(seeds: Sequence[int]) -> None:
    cases = [draw(seed) for seed in seeds]
    assert {c.workload.pipeline.value for c in cases} == {
        "none",
        "sparse_dist",
        "prefetch_sparse_dist",
        "hugectr",
    }
    assert len({c.objective for c in cases}) == 4
    assert {c.topology.world_size for c in cases} == {1, 2, 3, 4}
    assert {c.topology.num_hosts for c in cases} >= {1, 2, 3}
    assert {len(c.workload.tables) for c in cases} == {1, 2, 3, 4}
    assert any(c.scenarios for c in cases)
    assert any(c.limits_moves for c in cases)
    for rules in ("tables", "together", "apart", "counts", "memory"):
        assert any(getattr(c.constraints, rules) for c in cases), rules


# ------------------------------------------------------------------ the command


def test_the_command_counts_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.differential import run as command

    line = check_seed(0, Settings(max_evaluations=50, runs=(Run.USERS,)))
    bad = replace(line, faults=((Run.USERS, Kind.BOUND, "far above"),))
    good = replace(line, faults=())
    monkeypatch.setattr(command, "check_seed", lambda seed, settings: good)
    assert main(["--count", "1", "--start", "5"]) == 0
    monkeypatch.setattr(command, "check_seed", lambda seed, settings: bad)
    assert main(["--count", "1", "--start", "5"]) == 1
    shown = capsys.readouterr().out
    assert "seed 0" in shown
    assert "far above" in shown
    assert summary([bad, good]).row_count > 10


def test_answers_that_differ_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "before.json"
    assert same.main(["--count", "3", "--start", "1", "--write", str(file)]) == 0
    assert same.main(["--against", str(file)]) == 0
    stored = json.loads(file.read_text())
    changed = next(s for s in stored if s["value"] is not None)
    changed["value"] *= 1 + 1e-9
    file.write_text(json.dumps(stored))
    assert same.main(["--against", str(file)]) == 1
    told = capsys.readouterr().out
    assert f"seed {changed['seed']}: value" in told
    assert "2 of 3 problems" in told
