"""Virtual time joins clocks at collectives; rankings count what a choice costs."""

from __future__ import annotations

import pytest

from costmodels.errors import InvalidValueError
from costmodels.validation import (
    ISSUE,
    WAIT,
    Event,
    Trace,
    one_scale,
    rank_tasks,
    summarize_errors,
    virtual_time,
)


def trace(end: float, *events: tuple[str, int, float]) -> Trace:
    return Trace(events=tuple(Event(kind=k, number=n, time_s=t) for k, n, t in events), end_s=end)


def test_ranks_without_collectives_run_side_by_side() -> None:
    assert virtual_time([trace(2.0), trace(3.0)]) == 3.0


def test_a_wait_ends_with_the_latest_issue() -> None:
    early = trace(3.0, (ISSUE, 0, 1.0), (WAIT, 0, 1.0))
    late = trace(4.5, (ISSUE, 0, 4.0), (WAIT, 0, 4.0))
    assert virtual_time([early, late]) == pytest.approx(6.0)
    assert virtual_time([late, early]) == pytest.approx(6.0)


def test_work_between_issue_and_wait_hides_the_waiting() -> None:
    early = trace(5.0, (ISSUE, 0, 1.0), (WAIT, 0, 4.0))
    late = trace(4.5, (ISSUE, 0, 3.0), (WAIT, 0, 3.0))
    assert virtual_time([early, late]) == pytest.approx(5.0)


def test_delays_add_up_over_collectives() -> None:
    first = trace(10.0, (ISSUE, 0, 1.0), (WAIT, 0, 1.0), (ISSUE, 1, 9.0), (WAIT, 1, 9.0))
    second = trace(6.0, (ISSUE, 0, 3.0), (WAIT, 0, 3.0), (ISSUE, 1, 4.0), (WAIT, 1, 4.0))
    assert virtual_time([first, second]) == pytest.approx(max(12.0, 11.0 + 2.0))


def test_a_missing_partner_is_an_error() -> None:
    with pytest.raises(ValueError, match="different collectives"):
        virtual_time([trace(1.0, (ISSUE, 0, 0.0), (WAIT, 0, 0.0)), trace(1.0)])


TASKS = [0, 0, 0, 1, 1, 1, 2, 2]
PREDICTED = [1.0, 2.0, 3.0, 1.1, 1.0, 3.0, 3.0, 2.0]
MEASURED = [1.0, 2.0, 3.0, 1.0, 1.04, 3.0, 1.0, 2.0]


def test_rankings_count_choices() -> None:
    ranking = rank_tasks(TASKS, PREDICTED, MEASURED)
    assert ranking["num_tasks"] == 3
    assert ranking["top_ratio"] == pytest.approx(1 / 3)
    assert ranking["within_5_ratio"] == ranking["within_10_ratio"] == pytest.approx(2 / 3)
    assert ranking["worst_regret_ratio"] == pytest.approx(1.0)
    assert ranking["mean_regret_ratio"] == pytest.approx((0.0 + 0.04 + 1.0) / 3)
    assert ranking["kendall_tau_ratio"] == pytest.approx((1 + 1 / 3 - 1) / 3)
    with pytest.raises(InvalidValueError):
        rank_tasks((0, 1), (1.0, 2.0), (1.0, 2.0))


def test_one_scale_suits_a_model_without_units() -> None:
    right = one_scale([7 * m for m in MEASURED], MEASURED)
    errors = summarize_errors(right, MEASURED)
    assert errors.worst_error_ratio == pytest.approx(0, abs=1e-9)
