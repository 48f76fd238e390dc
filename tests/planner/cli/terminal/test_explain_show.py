"""What ``explain`` prints of ranks and of changes."""

from __future__ import annotations

import pytest

from costmodels.sharding import ComputeKernel, ShardingOption, ShardingType, place
from planner.cli.printing.explain_show import print_costs, where
from planner.explain import ConstraintCost


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
    cheap = ConstraintCost(constraint="free", kept_s=1.0, time_s=0.99999, gain_s=1e-5)
    dear = ConstraintCost(constraint="dear", kept_s=1.0, time_s=0.9, gain_s=0.1)
    print_costs([cheap, dear])
    shown = capsys.readouterr().out
    assert "as is" in shown
    assert "-10.00 %" in shown
    assert "0.00 %" not in shown.replace("-10.00 %", "")


def test_gains_are_shares_of_the_search_with_all_constraints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not of the plan that is explained, which may break them and be faster."""
    print_costs([ConstraintCost(constraint="dear", kept_s=2.0, time_s=1.5, gain_s=0.5)])
    kept, dear = (line.split() for line in capsys.readouterr().out.splitlines() if " s " in line)
    assert kept == ["nothing", "2", "s"]
    assert dear == ["dear", "1.5", "s", "-25.00", "%"]
