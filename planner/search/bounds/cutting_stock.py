"""The strongest dual feasible function against given pieces, by column generation.

How many ranks of one room do given (also fractional) amounts of pieces need, if pieces may be cut
along patterns? The linear program over patterns (Gilmore and Gomory, Operations Research 9, 1961)
prices each piece; the most that pieces of a total size can be worth at these prices, ``V``, is a
function of that size that is superadditive. So ``V(size) / V(room)`` adds up to at most 1 over the
shards of any rank, whatever the shards are: a row that holds for all choices of options.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from planner.search.common.milp import MilpProgram, Rows
from planner.search.common.programs import solve

CELLS: Final = 2000
"""Sizes are counted in this many parts of the room, rounded down, so that proofs stay valid."""

_MOST_ROUNDS: Final = 60
_GAIN: Final = 1e-6
_GRAIN: Final = 1e-5
"""Worth is rounded down to this: solvers choke on coefficients that are all but nothing."""


def worth_by_size(cells: IntArray, amounts: FloatArray) -> tuple[float, FloatArray]:
    """Ranks needed, and what pieces of each size are worth, as a share of a rank.

    Args:
        cells: distinct sizes, 1 to :data:`CELLS`.
        amounts: how much there is of each, above 0.

    Returns:
        A lower bound on the ranks needed, and ``[CELLS + 1]`` worth by size.
    """
    patterns = np.diag(CELLS // cells).astype(float)
    values = np.zeros(CELLS + 1)
    needed = 0.0
    for _ in range(_MOST_ROUNDS):
        prices = _prices(patterns, amounts)
        if prices is None:
            break
        found, counts = _best_pattern(cells, prices)
        bound = float(prices @ amounts) / float(found[-1])
        if bound > needed:
            needed, values = bound, np.floor(found / found[-1] / _GRAIN) * _GRAIN
        if found[-1] <= 1 + _GAIN:
            break
        patterns = np.column_stack([patterns, counts])
    return needed, values


def _prices(patterns: FloatArray, amounts: FloatArray) -> FloatArray | None:
    """Dual prices of ``min sum(x), patterns @ x - surplus = amounts``."""
    pieces, count = patterns.shape
    matrix = np.hstack([patterns, -np.eye(pieces)])
    cost = np.concatenate([np.ones(count), np.zeros(pieces)])
    size = count + pieces
    solution = solve(
        MilpProgram(
            cost=cost,
            upper=np.full(size, np.inf),
            rows=Rows.dense(matrix, amounts, amounts),
            integer=np.zeros(size, dtype=bool),
        )
    )
    if solution.reduced_costs is None:
        return None
    return np.asarray(np.maximum(solution.reduced_costs[count:], 0.0))


def _best_pattern(cells: IntArray, prices: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Most worth within each size ``[CELLS + 1]``, and the pieces of the best full pattern."""
    values = np.zeros(CELLS + 1)
    taken: list[tuple[int, int, BoolArray]] = []
    for piece, size in enumerate(cells.tolist()):
        copies, left = 1, CELLS // size
        while left > 0:  # 1, 2, 4, ... copies at a time, as many as fit in all
            copies = min(copies, left)
            step = copies * size
            worth = values[:-step] + copies * prices[piece]
            better = np.zeros(CELLS + 1, dtype=bool)
            better[step:] = worth > values[step:]
            values = values.copy()
            values[step:][better[step:]] = worth[better[step:]]
            taken.append((piece, copies, better))
            left -= copies
            copies *= 2
    counts = np.zeros(len(cells))
    size = CELLS
    for piece, copies, better in reversed(taken):
        if better[size]:
            counts[piece] += copies
            size -= copies * int(cells[piece])
    return values, counts
