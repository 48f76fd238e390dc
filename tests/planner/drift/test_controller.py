"""The controller on streams whose laws move, and its rule on losses made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from planner.drift.changes import Controller, Offer
from tests.planner.drift.replay import LOOKS, replayed

MOVE_S = 8.0


def moments(losses: list[float]) -> list[int]:
    """Periods before which it moves to an offer that saves so much in each; saved loss is gone."""
    controller, moved = Controller(), []
    for period, loss in enumerate(losses):
        offer = Offer(iteration_s=1.0 - loss, move_s=MOVE_S)
        if controller.choose(1.0, [offer], 1.0) is not None:
            moved.append(period)
    return moved


def test_it_moves_when_a_quarter_of_the_move_is_lost() -> None:
    assert moments([0.5] * 8) == [3, 7]  # 4 x 0.5 s are a quarter of 8 s; then it begins anew
    assert moments([0.0, 0.0, 0.9, 0.9, 0.9]) == [4]
    assert moments([0.0] * 5) == []
    assert moments([-0.5] * 5) == []


def test_it_stays_on_an_equal_plan_and_takes_the_offer_worth_most() -> None:
    equal = Offer(iteration_s=1.0, move_s=0.0)
    assert Controller().choose(1.0, [equal], 100.0) is None
    small, large = (Offer(iteration_s=t, move_s=m) for t, m in ((0.9, 4.0), (0.8, 100.0)))
    controller = Controller()
    assert controller.choose(1.0, [equal, small, large], 20.0) == 1
    assert controller.lost_s == pytest.approx(2.0)  # half of what the large one would save


def test_even_drift_and_a_lasting_change_cost_a_quarter_more_at_most() -> None:
    """Against the best moment that one who knew the losses would choose."""
    drift = [1e-4 * p for p in range(1, 20_001)]
    controller, lost_s, level, moves = Controller(), 0.0, 0.0, 0
    for loss in drift:
        now = loss - level
        if controller.choose(1.0, [Offer(iteration_s=1.0 - now, move_s=MOVE_S)], 1.0) is not None:
            level, moves = loss, moves + 1
        else:
            lost_s += now
    best_s = min(n * MOVE_S + 1e-4 * 20_000**2 / 2 / (n + 1) for n in range(500))
    assert lost_s + moves * MOVE_S <= 1.27 * best_s
    (first,) = moments([0.01] * 250)
    assert 0.01 * first + MOVE_S <= 1.25 * MOVE_S


@pytest.mark.slow
def test_the_controller_is_close_to_an_oracle() -> None:
    found = replayed(1)
    assert found.controlled <= 1.05 * found.oracle
    assert found.controlled <= min(found.never, found.always)
    assert found.moves < 5 * LOOKS  # it does not move at every chance


@pytest.mark.slow
def test_over_many_streams_it_beats_never_and_always_moving() -> None:
    """Every stream within 5 % of the oracle; the others in the geometric mean."""
    found = [replayed(seed) for seed in range(12)]
    oracle = np.log([f.oracle for f in found])
    ratios = {
        name: np.log([getattr(f, name) for f in found]) - oracle
        for name in ("controlled", "never", "always")
    }
    assert ratios["controlled"].max() <= np.log(1.05)
    assert ratios["controlled"].mean() < min(ratios["never"].mean(), ratios["always"].mean())
