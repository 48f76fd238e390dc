"""Curves: what is kept of the points, and what is read between and beyond them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.collective._curve import (
    TimeCurve,
    between,
    cleaned,
    joined,
    left_out_residuals,
    with_floor,
)
from costmodels.collective._law import Law
from costmodels.errors import InvalidValueError
from costmodels.measured.curves import Collective, CollectiveCurve

SIZES = tuple(2.0**k for k in range(9, 30))


def curve(
    floor_s: float = 1e-5,
    rate: float = 3e11,
    *,
    ranks: int = 8,
    version: str = "",
    **changes: object,
) -> CollectiveCurve:
    """Alpha-beta in nccl-tests' sizes."""
    values: dict[str, object] = {
        "collective": Collective.ALL_TO_ALL,
        "ranks": ranks,
        "domains": 1,
        "size_bytes": SIZES,
        "time_s": tuple(floor_s + s * (ranks - 1) / ranks / rate for s in SIZES),
        "version": version,
    }
    return CollectiveCurve(**{**values, **changes})  # type: ignore[arg-type]


def table(floor_s: float = 1e-5, rate: float = 3e11, ranks: int = 8) -> TimeCurve:
    return joined([curve(floor_s, rate, ranks=ranks)], (ranks - 1) / ranks, 2e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": 1}, "ranks must be 2..2"),
        ({"ranks": 9, "domains": 2}, "do not divide"),
        ({"time_s": (1.0,)}, "as many sizes as times"),
        ({"size_bytes": (8.0, 4.0), "time_s": (1.0, 1.0)}, "rise"),
        ({"size_bytes": (8.0, 16.0), "time_s": (0.0, 1.0)}, "above 0"),
        ({"size_bytes": (8.0, 16.0), "time_s": (1.0, math.nan)}, "above 0"),
    ],
)
def test_a_curve_that_makes_no_sense_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        curve(**changes)  # type: ignore[arg-type]


def test_points_are_met_and_alpha_beta_is_followed_between_them() -> None:
    found = table()
    sizes = np.geomspace(600, 4e8, 200)
    exact = 1e-5 + sizes / 3e11
    np.testing.assert_allclose(found.time_s(sizes), exact, rtol=0.01)


def test_beyond_the_points_time_is_flat_below_and_proportional_above() -> None:
    found = table()
    assert found.time_s(np.array(1.0)) == found.time_s(np.array(400.0))
    large = found.time_s(np.array([1e10, 2e10]))
    assert large[1] == pytest.approx(2 * large[0])


@given(st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=30))
def test_any_times_become_monotone_and_never_beat_the_best_rate(times: list[float]) -> None:
    x = np.log(2.0) * np.arange(len(times))
    found = TimeCurve(x, cleaned(np.log(times)))
    at = np.exp(np.linspace(-1, float(x[-1]) + 2, 100))
    seconds = found.time_s(at)
    assert np.all(np.diff(seconds) >= -1e-12 * seconds[1:])
    assert np.all(seconds * (1 + 1e-9) >= at / found.law.rate)


def test_a_single_spike_is_forgotten_and_a_step_is_kept() -> None:
    flat = np.log([7.0, 7.0, 17.0, 7.0, 7.5, 8.0])
    assert np.exp(cleaned(flat)).max() == pytest.approx(8.0)
    step = np.log([7.0, 7.0, 14.0, 14.0, 15.0])
    np.testing.assert_allclose(cleaned(step), step)
    assert np.exp(cleaned(np.log([9.0, 3.0])))[0] == pytest.approx(math.sqrt(27))


def test_repeats_are_averaged_and_the_newest_counts_most() -> None:
    old, new = curve(version="2.9.1", floor_s=4e-5), curve(version="2.27.3", floor_s=1e-5)
    both = joined([old, new], 7 / 8, 2e-5).law.floor_s
    assert both == pytest.approx(1e-5 ** (2 / 3) * 4e-5 ** (1 / 3), rel=0.01)
    equal = joined([curve(floor_s=4e-5), curve(floor_s=1e-5)], 7 / 8, 2e-5).law.floor_s
    assert equal == pytest.approx(2e-5, rel=0.01)


def test_repeats_count_only_where_they_were_measured() -> None:
    half = curve(rate=1e11, size_bytes=SIZES[-3:], time_s=(1.0, 2.0, 4.0))
    both = joined([curve(), half], 7 / 8, 2e-5)
    assert both.time_s(np.array(1e4)) == pytest.approx(1e-5, rel=0.02)


def test_a_curve_of_large_sizes_is_continued_to_a_floor() -> None:
    whole = joined([curve(size_bytes=(1e9, 2e9), time_s=(0.01, 0.02))], 7 / 8, 2e-5)
    assert whole.time_s(np.array(1.0)) == pytest.approx(2e-5, rel=0.05)
    assert whole.time_s(np.array(1e9 * 7 / 8)) == pytest.approx(0.01)
    seconds = whole.time_s(np.geomspace(1, 1e9, 60))
    assert np.all(np.diff(seconds) >= 0)
    complete = table()
    assert with_floor(complete, 2e-5) is complete


def test_a_table_moves_to_another_floor_and_rate() -> None:
    moved = table().moved(Law(3e-5, 1e11))
    assert moved.law.floor_s == pytest.approx(3e-5, rel=0.01)
    assert moved.law.rate == pytest.approx(1e11, rel=0.01)


@pytest.mark.parametrize("ranks", [3, 4, 6])
def test_ranks_in_between_lie_in_between(ranks: int) -> None:
    low, high = table(5e-6, 2e11, 2), table(1e-5, 3e11, 8)
    found = between({2: low, 8: high}, Collective.ALL_TO_ALL, ranks).law
    assert 5e-6 < found.floor_s < 1e-5
    assert 2e11 < found.rate < 3e11


def test_more_ranks_than_measured_level_off() -> None:
    tables = {4: table(8e-6, 2.7e11, 4), 8: table(1e-5, 3e11, 8)}
    laws = [between(tables, Collective.ALL_REDUCE, n).law for n in (8, 16, 32, 64)]
    rates = [law.rate for law in laws]
    assert rates == sorted(rates)
    assert rates[-1] < 1.15 * rates[0]
    floors = [law.floor_s for law in laws]
    assert floors == sorted(floors)
    assert floors[-1] < 3 * floors[0]


def test_one_measured_number_of_ranks_serves_all() -> None:
    only = {8: table(1e-5, 3e11, 8)}
    found = between(only, Collective.ALL_GATHER, 4).law
    assert found.floor_s < 1e-5
    assert found.rate < 3e11


def test_points_left_out_of_a_smooth_curve_are_found_again() -> None:
    sizes, residuals = left_out_residuals(curve())
    assert len(sizes) == len(SIZES) - 2
    assert np.abs(residuals).max() < 0.02
