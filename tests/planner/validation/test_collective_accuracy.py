"""How well figures are predicted that the prediction has not seen; limits with some room."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
import pytest

from benchmarks import collectives
from benchmarks.collectives import LARGE, left_out_ranks, left_out_versions, main
from planner.validation.intervals import (
    HeldOut,
    every_other_size,
    older_versions,
    predicting_records,
)

RECORDS = predicting_records()


@functools.cache
def other_sizes() -> tuple[HeldOut, ...]:
    return tuple(every_other_size(RECORDS))


@functools.cache
def other_versions(*, newest_only: bool) -> tuple[HeldOut, ...]:
    return tuple((older_versions if newest_only else left_out_versions)(RECORDS))


def mean_errors(found: Iterable[HeldOut]) -> tuple[float, float]:
    """(below 1 MiB, from 1 MiB) in percent."""
    points = list(found)
    small = [abs(p.error_ratio) for p in points if p.size_bytes < LARGE]
    large = [abs(p.error_ratio) for p in points if p.size_bytes >= LARGE]
    return 100 * float(np.mean(small)), 100 * float(np.mean(large))


def test_sizes_that_were_left_out() -> None:
    small, large = mean_errors(other_sizes())
    assert small < 6.5  # those of ALCF Polaris jump by factors of ten from size to size
    assert large < 5.5


@pytest.mark.parametrize("newest_only", [True, False])
def test_other_versions_of_the_library(newest_only: bool) -> None:
    small, large = mean_errors(other_versions(newest_only=newest_only))
    assert small < 8
    assert large < 4.5


def test_numbers_of_ranks_that_were_left_out() -> None:
    switched = [r for r in RECORDS if r.set_name in ("h100_sxm", "h200_sxm", "b200_sxm")]
    small, large = mean_errors(left_out_ranks(switched, 4))
    assert small < 10
    assert large < 8


def test_intervals_hold_for_versions_that_were_left_out() -> None:
    points = other_versions(newest_only=False)
    inside = [p.is_inside for p in points if p.size_bytes >= LARGE]
    assert np.mean(inside) > 0.8


def test_the_report_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the figures of the tests above, which need not be computed again."""
    monkeypatch.setattr(collectives, "every_other_size", lambda _: other_sizes())
    for name, newest_only in (("older_versions", True), ("left_out_versions", False)):
        found = other_versions(newest_only=newest_only)
        monkeypatch.setattr(collectives, name, lambda _, found=found: found)
    main()
    printed = capsys.readouterr().out
    assert printed.count("\n  all ") == 11
