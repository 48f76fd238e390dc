from __future__ import annotations

from dataclasses import replace

import pytest

from costmodels.pipeline import CostPipeline
from costmodels.sharding import (
    ComputeKernel,
    Plan,
    ShardingOption,
    ShardingType,
    TablePlacement,
    place,
)
from costmodels.workload import Optimizer, Workload
from planner.report.comparison import (
    Comparison,
    changes,
    difference_data,
    difference_sections,
    regression_ratio,
    verdict,
)
from planner.result import Candidate
from tests.planner.report.report_samples import (
    DIM,
    make_candidate,
    make_memory,
    make_topology,
    make_workload,
)

ROWS = 1000


def compared(workload: Workload, *plans: Candidate, sure: float = 0.5) -> Comparison:
    pipeline = CostPipeline(workload, make_topology())
    return Comparison(pipeline=pipeline, plans=plans, confidences=(sure,) * (len(plans) - 1))


WORKLOAD = replace(make_workload(1), optimizer=Optimizer.SGD)
TABLE_BYTES = ROWS * DIM * 4


def placed(kind: ShardingType, *where: int, widths: tuple[int, ...] = (DIM,)) -> TablePlacement:
    replicated = kind is ShardingType.DATA_PARALLEL
    kernel = ComputeKernel.DENSE if replicated else ComputeKernel.FUSED
    option = ShardingOption(
        table="table_0", sharding_type=kind, kernel=kernel, column_widths=widths
    )
    return place(option, ROWS, where, world_size=4, local_world_size=4)


def moved_bytes(before: TablePlacement, after: TablePlacement) -> float:
    found = changes(WORKLOAD, Plan(placements=(before,)), Plan(placements=(after,)))
    return found[0].received_bytes if found else -1.0


TW, RW = ShardingType.TABLE_WISE, ShardingType.ROW_WISE
CW, DP = ShardingType.COLUMN_WISE, ShardingType.DATA_PARALLEL


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        (placed(TW, 0), placed(TW, 1), 1.0),
        (placed(TW, 0), placed(RW), 0.75),
        (placed(RW), placed(TW, 0), 0.75),
        (placed(TW, 0), placed(DP), 3.0),
        (placed(DP), placed(TW, 2), 0.0),
        (placed(TW, 0), placed(CW, 0, 1, widths=(32, 32)), 0.5),
        (placed(CW, 0, 1, widths=(32, 32)), placed(CW, 1, 0, widths=(32, 32)), 1.0),
        (placed(RW), placed(CW, 0, 1, widths=(32, 32)), 0.75),
    ],
)
def test_bytes_to_receive(before: TablePlacement, after: TablePlacement, share: float) -> None:
    assert moved_bytes(before, after) == pytest.approx(share * TABLE_BYTES)


def test_equal_placements_are_no_change() -> None:
    assert moved_bytes(placed(TW, 0), placed(TW, 0)) == -1.0


def test_optimizer_state_moves_along() -> None:
    adam = replace(WORKLOAD, optimizer=Optimizer.ADAM)
    before, after = (Plan(placements=(placed(TW, rank),)) for rank in (0, 1))
    (change,) = changes(adam, before, after)
    assert change.received_bytes == pytest.approx(3 * TABLE_BYTES)
    assert not change.changed_type


def test_sections_name_winner_and_moves() -> None:
    workload, topology = make_workload(40), make_topology()
    old = make_candidate("old", workload, topology)
    new = make_candidate("new", workload, topology, time_s=2.9e-3, shift=1)
    plans, stages, moves, _ = difference_sections(compared(workload, old, new))
    assert plans.facts[0].parts[0] == "new is 6.5 % faster than old (3.10 ms -> 2.90 ms)"
    assert [row[0] for row in stages.rows] == ["lookup_forward", "output_dist"]
    assert moves.title == "From old to new"
    assert moves.facts[0].parts[1] == "0 changed type or kernel"
    assert regression_ratio(old, new) == pytest.approx(-0.2 / 3.1)
    assert regression_ratio(new, old) > 0
    (sure, *_) = difference_sections(compared(workload, old, new, sure=0.97))
    assert sure.facts[0].parts[1] == "confidence that it is faster: 97 %"
    (sure, *_) = difference_sections(compared(workload, new, old, sure=0.03))
    assert sure.facts[0].parts[1] == "confidence that it is slower: 97 %"
    data = difference_data(compared(workload, old, new))
    assert isinstance(data["moves"], list)
    assert len(data["moves"][0]["tables"]) >= len(moves.rows)


def test_equal_plans_and_a_plan_that_does_not_fit() -> None:
    workload, topology = make_workload(), make_topology()
    old = make_candidate("old", workload, topology)
    new = replace(old, name="new", memory=make_memory(4, step_bytes=2.0**36))
    plans, _, moves, _ = difference_sections(compared(workload, old, new))
    assert plans.facts[0].parts == ("new takes as long as old (3.10 ms)",)
    assert plans.notes[1:] == ("new does not fit in memory",)
    assert moves.rows == ()


def test_a_whole_table_that_only_changed_its_type_shows_the_types() -> None:
    """Both are whole on rank 0, so "TW on 0" twice would tell nothing."""
    column = placed(CW, 0, widths=(64,))
    plans = [
        replace(make_candidate(name, WORKLOAD, make_topology()), plan=Plan(placements=(where,)))
        for name, where in (("old", placed(TW, 0)), ("new", column), ("moved", placed(CW, 1)))
    ]
    *_, same, moved, _ = difference_sections(compared(WORKLOAD, *plans))
    assert same.rows[0][1:3] == ("TW on 0, run as table_wise", "TW on 0, run as column_wise")
    assert moved.rows[0][1:3] == ("TW on 0", "TW on 1")


@pytest.mark.parametrize(
    ("before_s", "after_s", "words"),
    [
        (1e-3, 5e-3, "two takes 5.00x as long as one"),
        (5e-3, 1e-3, "two is 5.00x as fast as one"),
        (1e-3, 1.2e-3, "two is 20 % slower than one"),
        (1.2e-3, 1e-3, "two is 17 % faster than one"),
    ],
)
def test_large_differences_read_alike_from_both_sides(
    before_s: float, after_s: float, words: str
) -> None:
    """Factors from two on, shares below."""
    workload, topology = make_workload(), make_topology()
    before = make_candidate("one", workload, topology, time_s=before_s)
    after = make_candidate("two", workload, topology, time_s=after_s)
    assert words in verdict(before, after, 0.5)[0]
