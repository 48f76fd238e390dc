"""A dual feasible function made for given pieces, by column generation.

A pattern is a set of pieces that fit into the room of one rank together. How many ranks do given
amounts of pieces need at least, if amounts may be fractions and each rank is filled by a pattern?
The linear program over patterns (Gilmore and Gomory, Operations Research 9, 1961) answers this, and
gives each piece a price. Let ``V(size)`` be the most that pieces of that total size can be worth at
these prices. V is superadditive: ``V(a) + V(b) <= V(a + b)``. So ``V(size) / V(room)`` adds up to
at most 1 over the shards of any rank, whatever these shards are. That is a row which holds for all
choices of options.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from planner.search.common.milp import MilpProgram, Rows
from planner.search.common.programs import solve

CELLS: Final = 2000
"""Parts of the room in which sizes are counted. They are rounded down, so that proofs stay valid;
with more parts less is lost by rounding, and patterns take longer to find."""

_MOST_ROUNDS: Final = 60
"""Most patterns that are generated for one function. Each needs a linear program; fewer give a
weaker function, but a valid one."""
_GAIN: Final = 1e-6
"""A pattern has to be worth more than a rank by this share to be added; less is rounding."""
_GRAIN: Final = 1e-5
"""Worths are rounded down to multiples of this, because solvers fail on coefficients of almost
0."""


def worth_by_size(cells: IntArray, amounts: FloatArray) -> tuple[float, FloatArray]:
    """The number of ranks that pieces need, and what a piece of each size is worth.

    Args:
        cells: the distinct sizes of the pieces, from 1 to :data:`CELLS` parts of the room.
        amounts: how many pieces of each size there are, above 0.

    Returns:
        A lower bound on the number of ranks, and ``[CELLS + 1]`` the worth of a piece of each size,
        as a share of what a full rank can be worth.
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
    """The price of each piece: the dual of ``min sum(x), patterns @ x - surplus = amounts``."""
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
    """The pattern of largest worth, by dynamic programming over sizes.

    Returns:
        ``[CELLS + 1]`` the largest worth of pieces within each total size, and the number of pieces
        of each size in the best pattern of a whole room.
    """
    values = np.zeros(CELLS + 1)
    taken: list[tuple[int, int, BoolArray]] = []
    for piece, size in enumerate(cells.tolist()):
        copies, left = 1, CELLS // size
        while left > 0:  # 1, 2, 4, ... copies at a time reach every number of copies that fits
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
