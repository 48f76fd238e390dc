"""Fits all constants of a machine to all points that were measured on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.calibration.fit_lookup import Caches, fit_lookups
from costmodels.calibration.fit_operators import fit_operators
from costmodels.calibration.fit_steps import fit_steps
from costmodels.calibration.fitting import FitError, fit_counts
from costmodels.calibration.points import CalibrationPoints, CollectivePoint
from costmodels.cpu.gloo import all_to_all_counts, buffer_counts
from costmodels.datatypes import FloatArray
from costmodels.measured.cpu_constants import CollectiveConstants, CpuConstants, CpuKernel
from costmodels.sharding import ShardingType
from costmodels.uncertainty import MACHINE

LATER_PACE_SIGMA: Final = 0.06
"""Log-standard deviation of the machine's pace from a calibration to later runs. Eight times fixed
work was timed beside a calibration and again minutes later, on shared virtual machines: the pace
differed by 1 to 22 %, four times by more than 5 %. Without the largest difference the root mean
square is 0.05; the median gives 0.08."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The constants of a machine, and the error of each fit."""

    constants: CpuConstants
    errors: tuple[FitError, ...]


def fit_machine(
    points: CalibrationPoints, caches: Caches, *, machine: str, world_size: int
) -> Fitted:
    """Fit every model of a machine whose ranks are CPU cores.

    Args:
        points: what was measured.
        caches: sizes of the caches of a core.
        machine: name of the machine.
        world_size: ranks that were measured.
    """
    fused, fused_errors = fit_lookups(points.lookups, caches, CpuKernel.FUSED)
    replicated, replicated_errors = fit_lookups(points.lookups, caches, CpuKernel.DENSE)
    has_sequences = any(p.kernel is CpuKernel.SEQUENCE for p in points.lookups)
    sequence, sequence_errors = (
        fit_lookups(points.lookups, caches, CpuKernel.SEQUENCE) if has_sequences else (None, ())
    )
    steps = fit_steps(points.steps, fused, replicated, caches)
    pace_sigma_ratio = math.hypot(points.pace_sigma_ratio, LATER_PACE_SIGMA)
    collective, collective_errors = _fit_collectives(points.collectives)
    operators, operator_errors = fit_operators(points.operators)
    constants = CpuConstants(
        machine=machine,
        world_size=world_size,
        l2_bytes=caches.l2_bytes,
        l3_bytes=caches.l3_bytes,
        call_s=steps.call_s,
        group=steps.fused,
        replicated_group=steps.replicated,
        fused=fused,
        replicated=replicated,
        exchange_s=steps.exchange_s,
        table_wise=steps.exchanges[ShardingType.TABLE_WISE],
        column_wise=steps.exchanges[ShardingType.COLUMN_WISE],
        row_wise=steps.exchanges[ShardingType.ROW_WISE],
        collective=collective,
        dense=steps.dense,
        gradient=steps.gradient,
        sigmas_ratio=(*steps.sigmas_ratio, (MACHINE, pace_sigma_ratio)),
        operators=operators,
        sequence=sequence,
        pace_s=points.pace_s,
    )
    errors = (
        *steps.errors,
        *fused_errors,
        *replicated_errors,
        *sequence_errors,
        *collective_errors,
        *operator_errors,
    )
    return Fitted(constants=constants, errors=errors)


def _fit_collectives(
    points: Sequence[CollectivePoint],
) -> tuple[CollectiveConstants, tuple[FitError, ...]]:
    """Fit each collective by itself."""
    found, errors = {}, []
    for operation in ("all_to_all", "reduce_scatter", "all_gather", "all_reduce"):
        seen = [p for p in points if p.operation == operation]
        counts = np.array([collective_counts(p) for p in seen])
        times = np.array([p.time_s for p in seen])
        names = [_words(p) for p in seen]
        found[f"{operation}_s"], error = fit_counts(
            counts, times, f"gloo {operation}", describe=names.__getitem__
        )
        errors.append(error)
    return CollectiveConstants(**found), tuple(errors)


def _words(point: CollectivePoint) -> str:
    """A collective in words: what one rank sends and keeps at most, for reports of odd points."""
    sent, kept = max(point.sent_bytes) / 2**10, max(point.kept_bytes) / 2**10
    even = "" if len({*point.sent_bytes}) == 1 else ", uneven"
    return f"{point.world_size} ranks, {sent:.0f} KiB sent, {kept:.0f} KiB kept{even}"


def collective_counts(point: CollectivePoint) -> FloatArray:
    """Counts of a collective, in the order of the constants of :class:`costmodels.cpu.gloo.Gloo`.

    For an all-to-all, each count is the largest of all ranks.
    """
    if point.operation == "all_to_all":
        total, world = sum(point.sent_bytes), point.world_size
        rows = []
        for rank in range(world):
            arriving = (total - point.sent_bytes[rank]) / max(world - 1, 1)
            rows.append(all_to_all_counts(point.sent_bytes[rank], arriving, point.kept_bytes[rank]))
        return np.asarray(np.max(rows, axis=0))
    held = point.kept_bytes[0]
    return buffer_counts(held if point.operation == "all_reduce" else held * point.world_size)
