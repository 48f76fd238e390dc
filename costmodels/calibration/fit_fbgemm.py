"""The constants of FBGEMM's lookups from measured calls, and how far they are from other calls.

All times are linear in the constants, so that a fit is a bounded least-squares problem on relative
errors. It is solved again with the weights of its own predictions until errors count alike above
and below. What the rows do not tell stays at its starting value.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np

from costmodels.calibration.points import zipf_table
from costmodels.datatypes import FloatArray, IntArray
from costmodels.errors import require
from costmodels.lookup.base import AbstractLookupModel, LookupShards, TableColumns
from costmodels.lookup.fbgemm import DEFAULTS, Fbgemm
from costmodels.measured.fbgemm_constants import FITTED, MOST, FbgemmConstants
from costmodels.sharding import ComputeKernel
from costmodels.topology import Topology
from costmodels.validation import ErrorSummary, summarize_errors
from costmodels.workload import DataType, Optimizer, Pooling

PASSES: Final = ("forward", "backward")
"""The two passes, in the order of measured and predicted times."""
LOCATIONS: Final = {
    "hbm": ComputeKernel.FUSED,
    "uvm": ComputeKernel.FUSED_UVM,
    "uvm_caching": ComputeKernel.FUSED_UVM_CACHING,
}
"""The kernels by where rows say that the tables are."""
_LAW: Final = Fbgemm()
_FOLDS: Final = 10
"""Groups of rows that are left out in turn to tell the error of a fit."""
_ROUNDS: Final = 8
"""Repetitions with new weights; the fit of the shipped rows does not change after five."""
_PRIOR_SIGMA: Final = 20.0
"""Relative standard deviation of a constant about its starting value, where the relative errors of
the rows have a standard deviation of 1. It decides where rows say next to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupRow:
    """One measured call on alike tables.

    Attributes:
        point: name of the point; rows of one point are left out together.
        block: what kind of call it is: ``hbm``, ``seq`` (unpooled), ``uvm`` or ``uvmc`` (cached).
        num_tables: tables of the call.
        kernel: what looks them up.
        shards: one of them, whole.
        measured_s: forward and backward, as measured on the device.
    """

    point: str
    block: str
    num_tables: int
    kernel: ComputeKernel
    shards: LookupShards
    measured_s: tuple[float, float]

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """A row of ``configs/published/gpu_h200.jsonl``, or of a calibration, which was checked."""
        pooling, law = float(row["L"]), str(row["law"]).removeprefix("uniform")
        rows, exponent = int(row["rows"]), float(law[5:] or 0.0)
        table = replace(
            zipf_table(0, rows, int(row["dim"]), pooling, exponent),
            dtype=DataType(row["wdtype"]),
            pooling=Pooling.SUM if row["pooled"] else Pooling.NONE,
        )
        bags, kernel = np.array([float(row["B"])]), LOCATIONS[row["loc"]]
        shards = LookupShards.whole(
            TableColumns((table,)),
            bags * pooling,
            bags,
            kernel,
            row.get("clf") or 0.0,
            optimizer=Optimizer(row["opt"]),
        )
        return cls(
            point=str(row["id"]),
            block=str(row["block"]),
            num_tables=int(row["T"]),
            kernel=kernel,
            shards=shards,
            measured_s=(1e-6 * float(row["fwd_us"]), 1e-6 * float(row["bwd_us"])),
        )


BlockErrors = dict[tuple[str, str], ErrorSummary]
"""The errors of each kind of call and direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FbgemmFit:
    """The constants of a fit, and its errors on rows that were left out, ten groups in turn."""

    constants: FbgemmConstants
    errors: BlockErrors


def fit_fbgemm(rows: Sequence[LookupRow], topology: Topology) -> FbgemmFit:
    """Fit the constants to measured calls.

    Args:
        rows: the calls.
        topology: the system that ran them; its bandwidths turn seconds into passes.

    Raises:
        InvalidValueError: there are no rows.
    """
    require(bool(rows), "no lookups were measured, so that there is nothing to fit")
    start, parts = _start(topology), row_parts(rows, topology)
    found = _solved(parts, _measured(rows), start)
    values = {n: float(getattr(start, n) * x) for n, x in zip(FITTED, found, strict=True)}
    predicted = left_out(rows, topology, folds_of(rows), parts)
    return FbgemmFit(constants=replace(start, **values), errors=block_errors(rows, predicted))


def _start(topology: Topology) -> FbgemmConstants:
    """The constants that are kept where the rows tell nothing."""
    return replace(DEFAULTS, l2_bandwidth_bytes_per_s=topology.device.l2_bandwidth_bytes_per_s)


def folds_of(rows: Sequence[LookupRow]) -> IntArray:
    """The group of each row: points are dealt out in the order of their names within a block."""
    points = {p: i for i, p in enumerate(sorted({(row.block, row.point) for row in rows}))}
    return np.array([points[row.block, row.point] % _FOLDS for row in rows])


def left_out(
    rows: Sequence[LookupRow], topology: Topology, groups: IntArray, parts: FloatArray
) -> FloatArray:
    """Seconds ``[rows, 2]`` of each row, from fits to the rows of all other groups.

    Args:
        rows: the calls.
        topology: the system that ran them.
        groups: ``[rows]`` the group of each row.
        parts: what each constant gives to each row (:func:`row_parts`).
    """
    measured, start = _measured(rows), _start(topology)
    predicted = np.zeros_like(measured)
    for group in np.unique(groups):
        out = groups == group
        predicted[out] = parts[out] @ _solved(parts[~out], measured[~out], start)
    return predicted


def block_errors(rows: Sequence[LookupRow], predicted: FloatArray) -> BlockErrors:
    """The errors of predictions ``[rows, 2]``, for each kind of call and direction."""
    measured, blocks = _measured(rows), np.array([row.block for row in rows])
    return {
        (block, direction): summarize_errors(
            predicted[blocks == block, i], measured[blocks == block, i]
        )
        for block in dict.fromkeys(blocks.tolist())
        for i, direction in enumerate(PASSES)
    }


def _measured(rows: Sequence[LookupRow]) -> FloatArray:
    return np.array([row.measured_s for row in rows])


def row_parts(rows: Sequence[LookupRow], topology: Topology) -> FloatArray:
    """Seconds ``[rows, 2, constants]`` of each row that every constant of the start gives alone."""
    start, none = _start(topology), dict.fromkeys(FITTED, 0.0)
    systems = [
        replace(topology, lookup_constants=replace(start, **{**none, name: getattr(start, name)}))
        for name in FITTED
    ]
    each = [[call_seconds(r.kernel, [(r.shards, r.num_tables)], s) for s in systems] for r in rows]
    return np.swapaxes(np.array(each), 1, 2)


def call_seconds(
    kernel: ComputeKernel,
    tables: Sequence[tuple[LookupShards, float]],
    topology: Topology,
    model: AbstractLookupModel = _LAW,
) -> tuple[float, float]:
    """Seconds of both passes of one call, with what is fixed.

    Of a kernel alone, without the sort that belongs to a call, the least time of a kernel and the
    time of its work are joined as the square root of the sum of their squares.

    Args:
        kernel: of the call.
        tables: the tables of the call, each with how many there are of it.
        topology: the system that runs it.
        model: prices the work.
    """
    first = tables[0][0]
    model = model.for_calls(first, topology)
    each = [count * model.checked_work(shards, topology)[0] for shards, count in tables]
    work, floor = np.sum(each, axis=0), model.call_floor(kernel, topology)
    forward_s = float(model.forward_time(work, topology))
    backward_s = float(model.backward_time(work, topology))
    if first.tables.sorts[0]:
        return forward_s + (floor.fetch_s + floor.forward_s), backward_s + floor.backward_s
    forward_s = math.hypot(forward_s, floor.forward_s) + floor.fetch_s
    return forward_s, math.hypot(backward_s, floor.forward_s)


def _solved(parts: FloatArray, measured: FloatArray, start: FbgemmConstants) -> FloatArray:
    """Factors ``[constants]`` on the constants of ``start``, in the range of each.

    Args:
        parts: ``[rows, 2, constants]`` seconds.
        measured: ``[rows, 2]`` seconds.
        start: the constants.
    """
    from scipy.optimize import lsq_linear

    most = np.array([MOST[name] / getattr(start, name) for name in FITTED])
    flat, seconds = parts.reshape(-1, parts.shape[-1]), measured.ravel()
    prior = np.eye(len(FITTED)) / _PRIOR_SIGMA
    aim = np.ones(len(FITTED)) / _PRIOR_SIGMA
    factors = np.ones(len(FITTED))
    for _ in range(_ROUNDS):
        weight = 1.0 / np.sqrt(np.maximum(flat @ factors, 1e-9) * seconds)
        rows = np.concatenate([flat * weight[:, None], prior])
        factors = lsq_linear(
            rows, np.concatenate([seconds * weight, aim]), bounds=(0.0, most), method="bvls"
        ).x
    return np.asarray(factors)
