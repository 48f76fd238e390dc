"""FBGEMM's lookups on an H200 (``validate published --what lookups``), each predicted unseen.

The constants of the law are fitted anew without a tenth of the points, or to one half of the widths
of rows or of the pooling factors, and predict what was left out. NVIDIA's rows of an H100 are
predicted with the shipped constants, which know nothing of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from costmodels.calibration.fit_fbgemm import (
    PASSES,
    BlockError,
    LookupRow,
    block_error,
    block_errors,
    folds_of,
    left_out,
)
from costmodels.datatypes import FloatArray, IntArray
from costmodels.estimates import Z90
from costmodels.lookup.fbgemm import call_sigma
from costmodels.topology import Topology
from costmodels.uncertainty import rate_sigma
from costmodels.workload import Pooling
from planner.io.library import configs_folder
from planner.io.system.system_file import load_system
from planner.predict.lookup import LOOKUP_COLUMNS, predict_lookups
from planner.predict.rows import Predicted, read_table
from planner.validation.cases import json_rows

_FILE: Final = "gpu_h200.jsonl"
_SYSTEM: Final = "h200_sxm"
_BLOCKS: Final = ("hbm", "seq", "uvm", "uvmc")
"""The blocks of the file that hold calls of lookups; others hold steps, products and copies."""
_OTHERS: Final = ("lookup_points.csv", "h100_sxm", "H100-SXM5-80GB")
"""Calls to which nothing is fitted: their file, the system that predicts them, and their device."""
TENTHS: Final = "a tenth of the points left out"


Outcome = tuple[str, BlockError, float]
"""How constants were fitted, the errors of a kind of call that they predict, and what share of its
measurements is inside their 90 % intervals."""


def load_rows() -> tuple[LookupRow, ...]:
    """The measured calls."""
    return tuple(LookupRow.of(row) for row in json_rows(_FILE) if row.get("block") in _BLOCKS)


def errors() -> tuple[Outcome, ...]:
    """The errors of every way of fitting, and of the calls to which nothing is fitted."""
    rows, topology = load_rows(), load_system(_SYSTEM, gpus=1, gpus_per_host=1)
    found: list[Outcome] = []
    for way, groups in ways(rows).items():
        found += _errors(way, rows, left_out(rows, topology, groups), topology)
    return (*found, *_of_others())


def ways(rows: Sequence[LookupRow]) -> dict[str, IntArray]:
    """For each way of leaving rows out, the group of each row."""

    def halves(of: Callable[[LookupRow], float]) -> IntArray:
        values = np.array([of(row) for row in rows])
        return np.asarray(values > np.median(values)).astype(np.int64)

    return {
        TENTHS: folds_of(rows),
        "wider or narrower rows left out": halves(lambda r: r.shard.num_cols),
        "longer or shorter bags left out": halves(lambda r: r.shard.table.pooling_factor),
    }


def _errors(
    way: str, rows: Sequence[LookupRow], predicted: FloatArray, topology: Topology
) -> list[Outcome]:
    measured = np.array([row.measured_s for row in rows])
    wide = np.array([_half_width(row, topology) for row in rows])
    inside = np.abs(np.log(predicted / measured)) <= wide[:, None]
    blocks = np.array([row.block for row in rows])
    return [
        (way, e, float(inside[blocks == e.block, PASSES.index(e.direction)].mean()))
        for e in block_errors(rows, predicted)
    ]


def _half_width(row: LookupRow, topology: Topology) -> float:
    """Logarithm of half the 90 % interval of a call, as ``predict lookup`` gives it."""
    pooled = row.shard.table.pooling is not Pooling.NONE
    sigma = call_sigma(topology, row.shard.kernel, is_pooled=pooled)
    return Z90 * math.hypot(sigma, rate_sigma(topology, "lookup"))


def _of_others() -> list[Outcome]:
    """NVIDIA's calls of 0.07 to 1.05 million unpooled rows of 128 columns."""
    file, system, device = _OTHERS
    table = read_table(configs_folder() / "published" / file, LOOKUP_COLUMNS)
    pairs = [
        (row, p)
        for row, p in zip(table.rows, predict_lookups(table, load_system(system)), strict=True)
        if isinstance(p, Predicted) and row["device"] == device and "eval" not in row["phase"]
    ]
    found = []
    for place in ("hbm", "uvm", "uvm_caching"):
        for direction in PASSES:
            here = [
                (float(r["time_us"]) * 1e-6, p)
                for r, p in pairs
                if r["location"] == place and r["phase"].startswith(direction)
            ]
            ratio = np.array([p.time_s / measured_s for measured_s, p in here])
            inside = np.mean([p.low_s <= measured_s <= p.high_s for measured_s, p in here])
            error = block_error(place, direction, ratio)
            found.append(("NVIDIA's rows of an H100, nothing fitted", error, float(inside)))
    return found
