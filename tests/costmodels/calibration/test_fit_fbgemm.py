"""Constants of FBGEMM's lookups from measured calls."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from costmodels.calibration.fit_fbgemm import (
    LookupRow,
    block_errors,
    call_seconds,
    fit_fbgemm,
    folds_of,
    left_out,
    row_parts,
)
from costmodels.errors import InvalidValueError
from costmodels.lookup.fbgemm import DEFAULTS
from costmodels.measured.fbgemm_constants import FITTED, MOST, FbgemmConstants
from planner.io.system.system_file import load_system
from planner.validation.kernels import lookup_rows

ROWS = lookup_rows()
SOME = ROWS[::4]
H200 = load_system("h200_sxm", gpus=1, gpus_per_host=1)
ROW = {"id": "a", "block": "hbm", "T": 2, "rows": 1000, "dim": 64, "L": 4, "B": 100}
ROW |= {"law": "zipf 1.1", "loc": "hbm", "wdtype": "fp16", "opt": "sgd", "pooled": True}
ROW |= {"fwd_us": 20.0, "bwd_us": 100.0}


def test_the_shipped_constants_are_those_of_the_shipped_rows() -> None:
    fit = fit_fbgemm(ROWS, H200)
    for name in FITTED:
        assert getattr(fit.constants, name) == pytest.approx(getattr(DEFAULTS, name), rel=0.03)
    errors = fit.errors
    assert errors["hbm", "forward"].mean_error_ratio < 0.08
    assert errors["hbm", "backward"].mean_error_ratio < 0.08
    assert errors["hbm", "backward"].count == 126
    assert all(e.mean_error_ratio < 0.14 for e in errors.values())


def test_constants_that_made_the_times_are_found_again() -> None:
    true = dataclasses.replace(
        DEFAULTS,
        backward_floor_s=3e-5,
        forward_bag_s=1e-9,
        gradient_passes_ratio=3.0,
        link_passes_ratio=2.0,
    )
    system = dataclasses.replace(H200, lookup_constants=true)
    rows = [
        dataclasses.replace(
            r, measured_s=call_seconds(r.kernel, [(r.shards, r.num_tables)], system)
        )
        for r in SOME
    ]
    found = fit_fbgemm(rows, H200).constants
    for name in ("backward_floor_s", "forward_bag_s", "gradient_passes_ratio", "link_passes_ratio"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.03)


def test_what_rows_do_not_tell_stays() -> None:
    in_device_memory = [row for row in SOME if row.block == "hbm"]
    found = fit_fbgemm(in_device_memory, H200).constants
    for name in ("link_passes_ratio", "cache_floor_s", "cache_insert_s"):
        assert getattr(found, name) == pytest.approx(getattr(DEFAULTS, name), rel=1e-6)


def test_a_point_is_left_out_with_all_its_rows() -> None:
    groups = folds_of(ROWS)
    by_point = {(r.block, r.point): g for r, g in zip(ROWS, groups, strict=True)}
    assert [by_point[r.block, r.point] for r in ROWS] == groups.tolist()
    assert len(set(groups.tolist())) == 10
    predicted = left_out(SOME, H200, folds_of(SOME), row_parts(SOME, H200))
    assert predicted.shape == (len(SOME), 2)
    assert np.all(predicted > 0)
    assert sum(e.count for e in block_errors(SOME, predicted).values()) == 2 * len(SOME)


def test_rows_are_read_or_refused() -> None:
    row = LookupRow.of(ROW)
    assert row.shards.num_indices == 400
    assert row.shards.num_bags == 100
    assert row.measured_s == pytest.approx((20e-6, 100e-6))
    with pytest.raises(InvalidValueError, match="nothing to fit"):
        fit_fbgemm([], H200)


@pytest.mark.parametrize("name", list(MOST))
def test_constants_have_ranges(name: str) -> None:
    for wrong in (-1.0, 2.0 * MOST[name], float("nan")):
        with pytest.raises(InvalidValueError, match=re.escape(f"lookup constants: {name} must be")):
            FbgemmConstants(**{name: wrong})
