"""FBGEMM's lookups on an H200 (``validate published --what lookups``), each predicted unseen.

The constants of the law are fitted anew without a tenth of the points, or to one half of the widths
of rows or of the pooling factors, and predict what was left out. NVIDIA's rows of an H100 are
predicted with the shipped constants, which know nothing of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.calibration.fit_fbgemm import (
    LOCATIONS,
    PASSES,
    LookupRow,
    folds_of,
    left_out,
)
from costmodels.datatypes import FloatArray, IntArray
from costmodels.estimates import Estimate, Source
from costmodels.lookup.fbgemm import call_sigma
from costmodels.topology import Topology
from costmodels.uncertainty import rate_sigma
from costmodels.workload import Pooling
from planner.io.library import configs_folder
from planner.io.system.system_file import load_system
from planner.predict.lookup import LOOKUP_COLUMNS, predict_lookups
from planner.predict.rows import Predicted, read_table
from planner.validation.cases import Case, Part, Prediction, json_rows, within

_FILE: Final = "gpu_h200.jsonl"
_SYSTEM: Final = "h200_sxm"
_BLOCKS: Final = ("hbm", "seq", "uvm", "uvmc")
"""The blocks of the file that hold calls of lookups; others hold steps, products and copies."""
_OTHERS: Final = "NVIDIA's rows of an H100, nothing fitted"
_OTHER_FILE, _OTHER_SYSTEM, _OTHER_DEVICE = "lookup_points.csv", "h100_sxm", "H100-SXM5-80GB"
"""Calls to which nothing is fitted: their file, the system that predicts them, and their device."""
TENTHS: Final = "a tenth of the points left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupCase(Case):
    """One pass of a call: ``calls`` says where its tables are."""

    calls: str
    direction: str


def load_rows() -> tuple[LookupRow, ...]:
    """The measured calls."""
    return tuple(LookupRow.of(row) for row in json_rows(_FILE) if row.get("block") in _BLOCKS)


def parts() -> tuple[Part, ...]:
    """A part for every way of fitting, and one of the calls to which nothing is fitted."""
    rows, topology = load_rows(), load_system(_SYSTEM, gpus=1, gpus_per_host=1)
    found = {
        way: _predictions(way, rows, left_out(rows, topology, groups), topology)
        for way, groups in ways(rows).items()
    }
    found[_OTHERS] = _of_others()
    return tuple(
        Part(
            way,
            f"FBGEMM's lookups: {way}",
            predictions,
            by={"calls": lambda c: c.calls, "direction": lambda c: c.direction},
            unit="us",
        )
        for way, predictions in found.items()
    )


def ways(rows: Sequence[LookupRow]) -> dict[str, IntArray]:
    """For each way of leaving rows out, the group of each row."""
    columns = np.array([row.shard.num_cols for row in rows])
    bags = np.array([row.shard.table.pooling_factor for row in rows])
    return {
        TENTHS: folds_of(rows),
        "wider or narrower rows left out": (columns > np.median(columns)).astype(np.int64),
        "longer or shorter bags left out": (bags > np.median(bags)).astype(np.int64),
    }


def _predictions(
    way: str, rows: Sequence[LookupRow], predicted_s: FloatArray, topology: Topology
) -> list[Prediction[LookupCase]]:
    """Both passes of every row, with the intervals that ``predict lookup`` gives."""
    return [
        Prediction(
            case=LookupCase(
                name=row.point,
                topology=topology,
                measured_s=row.measured_s[i],
                calls=row.block,
                direction=direction,
            ),
            predicted={way: within(time_s[i], sigma)},
        )
        for row, time_s in zip(rows, predicted_s.tolist(), strict=True)
        for sigma in (_sigma(row, topology),)
        for i, direction in enumerate(PASSES)
    ]


def _sigma(row: LookupRow, topology: Topology) -> float:
    """Standard deviation of ln(time) of a call."""
    pooled = row.shard.table.pooling is not Pooling.NONE
    sigma = call_sigma(topology, row.shard.kernel, is_pooled=pooled)
    return math.hypot(sigma, rate_sigma(topology, "lookup"))


def _of_others() -> list[Prediction[LookupCase]]:
    """NVIDIA's calls of 0.07 to 1.05 million unpooled rows of 128 columns."""
    table = read_table(configs_folder() / "published" / _OTHER_FILE, LOOKUP_COLUMNS)
    topology = load_system(_OTHER_SYSTEM)
    return [
        Prediction(
            case=LookupCase(
                name=row["point_id"],
                topology=topology,
                measured_s=float(row["time_us"]) * 1e-6,
                reference=row["source"],
                calls=row["location"],
                direction=row["phase"].split("+")[0],
            ),
            predicted={
                _OTHERS: Estimate(
                    time_s=p.time_s, low_s=p.low_s, high_s=p.high_s, source=Source.DEFAULT
                )
            },
        )
        for row, p in zip(table.rows, predict_lookups(table, topology), strict=True)
        if isinstance(p, Predicted) and row["device"] == _OTHER_DEVICE
        if row["location"] in LOCATIONS and row["phase"].startswith(PASSES)
    ]
