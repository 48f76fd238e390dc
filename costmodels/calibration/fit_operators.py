"""Constants of single operators from points that each are one operator or a chain of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from costmodels.calibration.fitting import FitError, FloatArray, fit_counts
from costmodels.calibration.points import OperatorPoint
from costmodels.cpu.constants import OperatorConstants
from costmodels.cpu.operators import (
    NUM_COUNTS,
    Counts,
    backward_counts,
    forward_counts,
    update_counts,
)
from costmodels.operators import Operator

CHAIN: Final = "chain"
"""Name of the points that are chains of operators."""
_CHAIN_WEIGHT: Final = 3
"""Times a chain counts: in it, data and code are as cold as in a model."""

_ByClass = tuple[tuple[str, tuple[float, ...]], ...]


def fit_operators(
    points: Sequence[OperatorPoint],
) -> tuple[OperatorConstants | None, tuple[FitError, ...]]:
    """Fit forward, backward and update; None without points.

    The classes are fitted together, since the times of chains are those of all their operators.

    Args:
        points: measured operators and chains.
    """
    if not points:
        return None, ()
    weighted = [p for p in points for _ in range(_CHAIN_WEIGHT if p.name == CHAIN else 1)]
    forward, first = _fit(weighted, forward_counts, [p.forward_s for p in weighted], "forward")
    backward, second = _fit(weighted, backward_counts, [p.backward_s for p in weighted], "backward")
    trained = [p for p in points if p.update_s > 0]
    update, third = fit_counts(
        np.array([update_counts(p.operators) for p in trained]),
        np.array([p.update_s for p in trained]),
        "optimizer step",
        describe=lambda i: trained[i].name,
    )
    constants = OperatorConstants(forward_s=forward, backward_s=backward, update_s=update)
    return constants, (first, second, third)


def _fit(
    points: Sequence[OperatorPoint],
    counted: Callable[[Sequence[Operator]], Counts],
    times_s: Sequence[float],
    phase: str,
) -> tuple[_ByClass, FitError]:
    """Seconds per count of every class; a chain is held out with all its copies."""
    found = [counted(p.operators) for p in points]
    names = sorted({name for counts in found for name in counts})
    table: FloatArray = np.zeros((len(points), len(names), NUM_COUNTS))
    for i, counts in enumerate(found):
        for name, values in counts.items():
            table[i, names.index(name)] = values
    flat = table.reshape(len(points), -1)
    used = flat.any(axis=0)
    numbers = {id(p): i for i, p in enumerate(points)}
    fitted, error = fit_counts(
        flat[:, used],
        np.array(times_s),
        f"operators, {phase}",
        groups=[numbers[id(p)] for p in points],
        describe=lambda i: f"{points[i].name} {points[i].operators[0].shape}",
    )
    coefficients = np.zeros(flat.shape[1])
    coefficients[used] = fitted
    rows = coefficients.reshape(len(names), NUM_COUNTS).tolist()
    return tuple((n, tuple(row)) for n, row in zip(names, rows, strict=True)), error
