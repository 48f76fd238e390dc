"""Fits the constants of single operators to points of one operator, or of a chain of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from costmodels.calibration.fitting import FitError, fit_counts, held_out_seconds, log_errors
from costmodels.calibration.points import OperatorPoint
from costmodels.cpu.operators import (
    Counts,
    backward_counts,
    forward_counts,
    held_bytes,
    update_counts,
)
from costmodels.datatypes import FloatArray
from costmodels.measured.cpu_constants import OPERATOR_COUNTS, OperatorConstants
from costmodels.operators import Operator

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
        np.array([update_counts(p.operators) for p in trained]),
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
