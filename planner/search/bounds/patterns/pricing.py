"""The pattern that is worth most: which pieces are worth most together among those that fit a rank.

That is a knapsack problem with one limit for each load and one for memory. Good patterns are looked
for by a beam search; that none is better is proven by a mixed-integer program. Small pieces may be
split in the program, so that what it proves holds for more patterns than there are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from planner.search.bounds.patterns.task import SLACK, Pattern, PatternTask
from planner.search.common.milp import MilpProgram, Rows
from planner.search.common.programs import solve, solve_below
from planner.space.effort import Meter, beam_s, pattern_s

_NOTHING: Final = 1e-9
"""Worth of a piece, as a share of the largest one, up to which it is only added to the bound."""
_SPLIT: Final = 0.1
"""Pieces that take no more than this share of each limit may be split in the program. With a
smaller share, more variables are whole and it takes longer; with a larger one, it proves less."""
_NODES: Final = 3_000
"""Most nodes of the program, so that its work is limited on every machine."""
_STEPS: Final = 9
"""Numbers k for which shares are rounded down to multiples of 1/k. With more of them the program
has more rows and fewer nodes."""
_SHRINK: Final = 1e-8
"""Share by which pieces count as smaller before they are rounded down, more than limits are widened
by."""
_WIDTH: Final = 300
"""Patterns that the beam search goes on with at each step. More of them find better patterns, and
take longer."""
_KEPT: Final = 40
"""Most patterns that a beam search returns."""
_DEPTH: Final = 10
"""Most different pieces in a pattern of the beam search."""
_MULTIPLES: Final = 4
"""Most pieces of one option in a pattern of the beam search."""
_CELLS: Final = 200
"""Parts that the combined limit is divided into, to look up what else could be added to a pattern.
With more of them the beam search looks better ahead, and takes longer."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Worth:
    """What pieces are worth, and the limits of a rank.

    Attributes:
        piece: ``[n]`` of a piece of each option; 0 for options that do not fit.
        room: ``[P + 1]`` the limits.
    """

    piece: FloatArray
    room: FloatArray


class Pricing:
    """Finds patterns for one task.

    Args:
        task: options of tables.
        meter: is told of the work done.
    """

    def __init__(self, task: PatternTask, meter: Meter) -> None:
        """Look for nothing yet."""
        self._task, self._meter = task, meter
        self._table_of = task.table_of

    def most(self, worth: Worth, enough: float, gap_ratio: float) -> tuple[float, Pattern]:
        """The most that a pattern can be worth, proven, and a pattern worth more than ``enough``.

        Args:
            worth: of pieces.
            enough: patterns worth no more than this need not be told apart.
            gap_ratio: share of the best pattern's worth by which the bound may be above it.

        Returns:
            The bound, at least ``enough``, infinite if nothing is proven; and a pattern, empty if
            none is worth more or none was found. Its counts need not be whole numbers.
        """
        task, used = self._task, _used(worth)
        rest = float(np.delete(worth.piece, used) @ np.delete(task.pieces, used))
        if not len(used):
            return max(rest, enough), {}
        scale = float(worth.piece[used].max())
        share = task.sizes[used] / worth.room
        upper = _most_pieces(share, task.pieces[used])
        whole = share.max(axis=1) > _SPLIT
        rows = np.vstack([share.T, _rounded(share, whole)])
        program = MilpProgram(
            cost=-worth.piece[used] / scale,
            upper=upper,
            rows=Rows.dense(rows, np.full(len(rows), -math.inf), np.ones(len(rows))),
            integer=whole,
            max_nodes=_NODES,
        )
        least = (enough - rest) / scale
        if least >= -float(program.cost @ upper):
            return enough, {}
        found = solve_below(program, -least, gap_ratio=gap_ratio)
        self._meter.spend(pattern_s(len(used), found.nodes))
        x = np.zeros(len(used)) if found.x is None else found.x
        pattern = {int(used[i]): float(x[i]) for i in np.flatnonzero(x > _NOTHING)}
        return max(-found.bound * scale + rest, enough), pattern

    def good(self, worth: Worth, enough: float) -> list[Pattern]:
        """Patterns worth more than ``enough``, the best ones that a beam search finds.

        Tables come in the order of their largest piece. A pattern is rated by what it is worth and
        what pieces of later tables could add if there were a single limit, the sum of all of them
        by their prices in the linear program.

        Args:
            worth: of pieces.
            enough: see above.
        """
        used = _used(worth)
        if not len(used):
            return []
        task = self._task
        share = task.sizes[used] / worth.room
        prices = knapsack_prices(worth.piece[used], share)
        self._meter.spend(beam_s(len(used)))
        if not prices.sum() > 0:
            return []
        times = np.minimum(_most_pieces(share, task.pieces[used]), _MULTIPLES).astype(np.int64)
        item = np.repeat(np.arange(len(used)), times)
        count = np.arange(len(item)) - np.repeat(np.cumsum(times) - times, times) + 1
        table = _by_size(self._table_of[used[item]], share[item].max(axis=1))
        order = np.argsort(table, kind="stable")
        item, count, table = item[order], count[order], table[order]
        beam = _Beam(
            worth=worth.piece[used][item] * count,
            share=share[item] * count[:, None],
            table=table,
            prices=prices / prices.sum(),
        )
        return [
            {int(used[item[i]]): float(count[i]) for i in chosen} for chosen in beam.best(enough)
        ]


class _Beam:
    """A beam search over patterns, whose items come table by table.

    Args:
        worth: ``[N]`` of each item.
        share: ``[N, P + 1]`` that it takes of each limit.
        table: ``[N]`` its table, ascending; a pattern has at most one item of each.
        prices: ``[P + 1]`` weights of the limits in the combined one; they add up to 1.
    """

    def __init__(
        self, *, worth: FloatArray, share: FloatArray, table: IntArray, prices: FloatArray
    ) -> None:
        """Compute what later tables can add within each part of the combined limit."""
        self._worth, self._share, self._table, self._prices = worth, share, table, prices
        tables = int(table[-1]) + 1
        starts = np.searchsorted(table, np.arange(tables + 1))
        cells = np.floor(share @ prices * _CELLS).astype(np.int64)
        self._later = np.zeros((tables + 1, _CELLS + 1))
        for t in range(tables - 1, -1, -1):
            after, here = self._later[t + 1], self._later[t]
            here[:] = after
            for i in range(starts[t], starts[t + 1]):
                cell = int(cells[i])
                if cell <= _CELLS:
                    with_it = worth[i] + after[: _CELLS + 1 - cell]
                    np.maximum(here[cell:], with_it, out=here[cell:])

    def best(self, enough: float) -> list[tuple[int, ...]]:
        """Items of patterns worth more than ``enough``: for each item, the best one that has it."""
        gain, left = np.zeros(1), np.ones((1, self._share.shape[1]))
        after, items = np.zeros(1, dtype=np.int64), np.zeros((1, 0), dtype=np.int64)
        found: dict[int, tuple[float, tuple[int, ...]]] = {}
        for _ in range(_DEPTH):
            fits = self._table[None] >= after[:, None]
            for d in range(left.shape[1]):
                fits &= self._share[None, :, d] <= left[:, d, None] + SLACK
            old, new = np.nonzero(fits)
            more, rest = gain[old] + self._worth[new], left[old] - self._share[new]
            cell = np.floor(np.maximum(rest, 0.0) @ self._prices * _CELLS).astype(np.int64)
            hope = more + self._later[self._table[new] + 1, np.minimum(cell, _CELLS)]
            kept = np.flatnonzero(hope > enough)
            if not len(kept):
                break
            if len(kept) > _WIDTH:
                kept = np.sort(kept[np.argpartition(-hope[kept], _WIDTH)[:_WIDTH]])
            gain, left, after = more[kept], rest[kept], self._table[new[kept]] + 1
            items = np.hstack([items[old[kept]], new[kept, None]])
            for row in np.flatnonzero(gain > enough):
                pattern = tuple(items[row].tolist())
                for i in pattern:
                    if gain[row] > found.get(i, (0.0, ()))[0]:
                        found[i] = float(gain[row]), pattern
        rated = {pattern: worth for worth, pattern in found.values()}
        return sorted(rated, key=lambda p: -rated[p])[:_KEPT]


def _rounded(share: FloatArray, whole: BoolArray) -> FloatArray:
    """``[rows, N]`` further rows that add up to at most 1 in every pattern.

    If shares add up to less than 1, then ``floor((k + 1) share) / k`` add up to at most 1 for every
    whole number k (Fekete and Schepers, Mathematical Programming 91, 2001). For example, no rank
    has two pieces that each take more than half of a limit. The program takes far fewer nodes with
    these rows.

    Args:
        share: ``[N, P + 1]`` that pieces take of each limit.
        whole: ``[N]`` True for pieces that are not split; the others count as nothing.
    """
    less = np.where(whole[:, None], share, 0.0).T * (1 - _SHRINK)
    found = [np.floor((k + 1) * less) / k for k in range(1, _STEPS + 1)]
    rows = np.unique(np.vstack(found), axis=0)
    return np.asarray(rows[rows.max(axis=1) > 0])


def knapsack_prices(worth: FloatArray, share: FloatArray) -> FloatArray:
    """``[P + 1]`` what a limit is worth if pieces may be split; 0 if the solver gives up.

    Args:
        worth: ``[N]`` of pieces.
        share: ``[N, P + 1]`` that they take of each limit.
    """
    scale = float(worth.max(initial=0.0))
    count = share.shape[1]
    if scale <= 0:
        return np.zeros(count)
    dual = MilpProgram(  # least sum of prices that pay for every piece
        cost=np.ones(count),
        upper=np.full(count, math.inf),
        rows=Rows.dense(share, worth / scale, np.full(len(worth), math.inf)),
        integer=np.zeros(count, dtype=bool),
    )
    x = solve(dual).x
    return np.zeros(count) if x is None else np.maximum(x, 0.0) * scale


def _most_pieces(share: FloatArray, pieces: IntArray) -> FloatArray:
    """``[N]`` how many pieces of each option fit a rank, of those there are."""
    fit = np.floor((1 + SLACK) / np.maximum(share.max(axis=1), _NOTHING))
    return np.asarray(np.minimum(fit, pieces))


def _used(worth: Worth) -> IntArray:
    return np.flatnonzero(worth.piece > _NOTHING * float(worth.piece.max(initial=0.0)))


def _by_size(table: IntArray, size: FloatArray) -> IntArray:
    """Tables numbered anew, those with the largest pieces first."""
    _, index = np.unique(table, return_inverse=True)
    largest = np.zeros(int(index.max()) + 1)
    np.maximum.at(largest, index, size)
    number = np.empty(len(largest), dtype=np.int64)
    number[np.argsort(-largest, kind="stable")] = np.arange(len(largest))
    return np.asarray(number[index])
