"""Fits all constants of a machine to all points that were measured on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.calibration.fit_lookup import Caches, fit_lookups
from costmodels.calibration.fit_steps import fit_steps
from costmodels.calibration.fitting import FitError, fit_counts, held_out_seconds, log_errors
from costmodels.calibration.points import CalibrationPoints, CollectivePoint, OperatorPoint
from costmodels.cpu.dense import (
    Counts,
    backward_counts,
    forward_counts,
    held_bytes,
    optimizer_counts,
)
from costmodels.cpu.exchange import all_to_all_counts, buffer_counts
from costmodels.datatypes import FloatArray
from costmodels.measured.cpu_constants import (
    OPERATOR_COUNTS,
    CollectiveConstants,
    CpuConstants,
    CpuKernel,
    OperatorConstants,
)
from costmodels.operators import Operator
from costmodels.sharding import ShardingType
from costmodels.uncertainty import MACHINE

CHAIN: Final = "chain"
"""Name of the points that are chains of operators."""
_CHAIN_WEIGHT: Final = 3
"""How often a chain counts in the fit. It counts more than a single operator, because in a chain
data and code are as cold as in a model."""

_ByClass = tuple[tuple[str, tuple[float, ...]], ...]
"""For each class of operators its name and its seconds per count."""


def fit_operators(
    points: Sequence[OperatorPoint],
) -> tuple[OperatorConstants | None, tuple[FitError, ...]]:
    """Fit the forward pass, the backward pass and the update of operators.

    All classes of operators are fitted together, because the time of a chain is that of all its
    operators.

    Args:
        points: measured operators and chains.

    Returns:
        The constants, None if there are no points, and the errors of the three fits.
    """
    if not points:
        return None, ()
    weighted = [p for p in points for _ in range(_CHAIN_WEIGHT if p.name == CHAIN else 1)]
    measured = np.array([(p.forward_s, p.backward_s) for p in weighted])
    forward, first, forward_s = _fit(weighted, forward_counts, measured[:, 0], "forward")
    backward, second, backward_s = _fit(weighted, backward_counts, measured[:, 1], "backward")
    errors = log_errors(forward_s + backward_s, measured.sum(axis=1))
    typical = [p.name == CHAIN for p in weighted]
    errors = errors[typical] if any(typical) else errors
    trained = [p for p in points if p.update_s > 0]
    update, third = fit_counts(
        np.array([optimizer_counts(p.operators) for p in trained]),
        np.array([p.update_s for p in trained]),
        "optimizer step",
        describe=lambda i: trained[i].name,
    )
    constants = OperatorConstants(
        forward_s=forward,
        backward_s=backward,
        update_s=update,
        sigma_ratio=float(np.sqrt(np.mean(np.square(errors)))),
    )
    return constants, (first, second, third)


def _fit(
    points: Sequence[OperatorPoint],
    counted: Callable[[Sequence[Operator], float], Counts],
    times_s: FloatArray,
    phase: str,
) -> tuple[_ByClass, FitError, FloatArray]:
    """Fit one pass.

    Args:
        points: measured operators and chains; a chain is in the list several times.
        counted: counts of some operators by class, given the bytes that a step holds.
        times_s: ``[points]`` measured seconds of this pass.
        phase: name of the pass.

    Returns:
        For each class its seconds per count; the errors; and the seconds that are predicted for
        each point if the point and its copies are left out of the fit.
    """
    found = [counted(p.operators, held_bytes(p.operators)) for p in points]
    names = sorted({name for counts in found for name in counts})
    table: FloatArray = np.zeros((len(points), len(names), OPERATOR_COUNTS))
    for i, counts in enumerate(found):
        for name, values in counts.items():
            table[i, names.index(name)] = values
    flat = table.reshape(len(points), -1)
    used = flat.any(axis=0)
    numbers = {id(p): i for i, p in enumerate(points)}
    groups = [numbers[id(p)] for p in points]
    fitted, error = fit_counts(
        flat[:, used],
        times_s,
        f"operators, {phase}",
        groups=groups,
        describe=lambda i: f"{points[i].name} {points[i].operators[0].shape}",
    )
    coefficients = np.zeros(flat.shape[1])
    coefficients[used] = fitted
    rows = coefficients.reshape(len(names), OPERATOR_COUNTS).tolist()
    by_class = tuple((n, tuple(row)) for n, row in zip(names, rows, strict=True))
    return by_class, error, held_out_seconds(flat[:, used], times_s, groups)


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
    """Counts of a collective, in the order of :class:`costmodels.cpu.exchange.Gloo`.

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
