"""What ``explain`` prints of ranks and of changes."""

from __future__ import annotations

import sys

import pytest

from costmodels.sharding import ComputeKernel, ShardingOption, ShardingType, place
from planner.cli.commands.explain import costs_section, table_section
from planner.cli.console import console_of
from planner.explain.explainer import ConstraintCost, OptionCost, TableExplanation
from planner.report.base import Section
from planner.report.figures import where
from planner.report.terminal import print_sections


def show(section: Section) -> None:
    print_sections(console_of(sys.stdout), (section,))


@pytest.mark.parametrize(
    ("kind", "rows", "ranks", "shown"),
    [
        (ShardingType.ROW_WISE, 1000, (), "0-15"),
        (ShardingType.ROW_WISE, 3, (), "0-2"),
        (ShardingType.COLUMN_WISE, 100, (9, 1, 0, 2), "0-2, 9"),
        (ShardingType.COLUMN_WISE, 100, (14, 2, 4, 6, 8, 10, 12), "7 ranks"),
    ],
)
def test_ranks_are_those_that_hold_a_part_in_order(
    kind: ShardingType, rows: int, ranks: tuple[int, ...], shown: str
) -> None:
    option = ShardingOption(
        table="t",
        sharding_type=kind,
        kernel=ComputeKernel.FUSED,
        column_widths=(4,) * max(len(ranks), 1),
    )
    placed = place(option, rows, ranks, world_size=16, local_world_size=8)
    assert where(placed) == shown


def test_a_constraint_that_costs_nothing_is_not_written_as_minus_zero(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cheap = ConstraintCost(constraint="free", kept_s=1.0, time_s=0.99999)
    dear = ConstraintCost(constraint="dear", kept_s=1.0, time_s=0.9)
    show(costs_section([cheap, dear]))
    shown = capsys.readouterr().out
    assert "no change" in shown
    assert "-10.00 %" in shown
    assert "0.00 %" not in shown.replace("-10.00 %", "")


def test_gains_are_shares_of_the_search_with_all_constraints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not of the plan that is explained, which may break them and be faster."""
    show(costs_section([ConstraintCost(constraint="dear", kept_s=2.0, time_s=1.5)]))
    kept, dear = (line.split() for line in capsys.readouterr().out.splitlines() if " s " in line)
    assert kept == ["with", "all", "constraints", "2", "s"]
    assert dear == ["without", "dear", "1.5", "s", "-25.00", "%"]


def test_searches_that_the_clock_cut_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    """Each on its line, and no column for them where there are none."""
    whole = ConstraintCost(constraint="whole", kept_s=2.0, time_s=1.5)
    cut = ConstraintCost(constraint="short", kept_s=2.0, time_s=1.5, is_cut=True)
    show(costs_section([whole, cut]))
    lines = {
        line.split()[1]: line.split()[-1]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(" without ")
    }
    assert lines["short"] == "cut"
    assert lines["whole"] == "%"
    show(costs_section([whole]))
    assert "search" not in capsys.readouterr().out


def test_a_long_list_of_options_says_what_it_leaves_out_and_keeps_the_plans_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The plan's own option may be the slowest; rules that leave out others are named."""
    option = ShardingOption(
        table="t",
        sharding_type=ShardingType.TABLE_WISE,
        kernel=ComputeKernel.FUSED,
        column_widths=(4,),
    )
    options = tuple(
        OptionCost(
            placement=place(option, 100, (rank,), world_size=64, local_world_size=8),
            lookup_forward_s=1.0,
            lookup_backward_s=1.0,
            exchanged_bytes=0.0,
            device_bytes=0.0,
            plan_time_s=1.0 + rank,
            is_chosen=rank == 40,
        )
        for rank in range(41)
    )
    rules = ("t: fused", "device_memory 2 GiB")
    show(
        table_section(
            TableExplanation(table="t", plan_time_s=41.0, options=options, rules=rules, num_stuck=2)
        )
    )
    shown = capsys.readouterr().out
    assert "41 options" in shown
    assert "24 are shown, --json has all" in " ".join(shown.split())
    assert [line.split()[3] for line in shown.splitlines() if line.startswith(" *")] == ["40"]
    assert "t: fused" in shown
    assert "device_memory 2 GiB" in shown
    assert "2 more options have no place" in shown
