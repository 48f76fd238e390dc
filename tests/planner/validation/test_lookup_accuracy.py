"""FBGEMM's lookups that others published, on an H100 and a V100, against the model.

The law of FBGEMM's kernels is fitted to none of them. The rows of the H100 have one size of call,
unpooled, and caches that are still filling.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.lookup_gpu import error_groups, errors, main, v100_groups
from costmodels.uncertainty import CACHED_GROUPS, LOOKUP_GROUPS


@pytest.mark.parametrize(
    ("location", "rows", "target"), [("hbm", 7, 0.18), ("uvm", 19, 0.20), ("uvm_caching", 23, 0.26)]
)
def test_rows_never_fitted_stay_within_the_target(location: str, rows: int, target: float) -> None:
    known = errors()
    found = np.concatenate([known[role, location] for role in ("calibrate", "validate")])
    assert len(found) == rows
    assert np.abs(found).mean() <= target


def test_the_script_prints_every_group(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    printed = capsys.readouterr().out
    assert printed.count("validate") >= 3


def test_intervals_rest_on_the_groups_that_the_script_prints() -> None:
    groups = error_groups()
    assert groups["in device memory"] == pytest.approx(LOOKUP_GROUPS, abs=0.002)
    assert groups["behind a cache"] == pytest.approx(CACHED_GROUPS, abs=0.002)


@pytest.mark.parametrize("group", ["fbgemm", "per_index", "small"])
def test_kernels_on_v100(group: str) -> None:
    """MAPE of what was not fitted is at most 15 %, and 80 % is inside the intervals."""
    found = v100_groups()[group, "validate"]
    assert len(found) == {"fbgemm": 2, "per_index": 8, "small": 10}[group]
    assert np.mean([abs(c.error_ratio) for c in found]) <= 0.15
    assert np.mean([c.is_inside for c in found]) >= 0.8
