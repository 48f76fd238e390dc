"""The options of every table, sorted by how they are placed, so that many are priced at once.

A *run* is a number of pieces with equal work. Most options have one run; where columns do not
divide evenly, an option has two.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from costmodels.datatypes import IntArray
from costmodels.sharding import Spread
from planner.space.evaluation import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runs:
    """The runs of n options of one table that are placed in the same way.

    Attributes:
        options: ``[n]`` index of each option within the table.
        rows: row of ``space.pool`` of a piece of the first run: ``[n]``, or ``[n, L]`` for pieces
            on hosts of L ranks.
        counts: ``[n]`` number of pieces of the first run.
        more_rows: row of a piece of the last run, in the same shape.
        more: ``[n]`` number of pieces of the second run; 0 if there is none.
    """

    options: IntArray
    rows: IntArray
    counts: IntArray
    more_rows: IntArray
    more: IntArray


class Menu:
    """The options of every table of a space, with the runs of their pieces."""

    def __init__(self, space: SearchSpace) -> None:
        """Find the runs of every option; they depend on the space alone."""
        self.space = space
        self._of = [_runs_of(space, f, o.spread) for f, o in enumerate(space.options)]
        self._near = np.array([o.keeps_pieces_on_host for o in space.options], dtype=bool)

    def runs(self, flat: int) -> list[tuple[IntArray, int]]:
        """The row of a piece, and the number of pieces, of each run of an option.

        Args:
            flat: position of the option among those of all tables.
        """
        return self._of[flat]

    def near(self, flat: int) -> bool:
        """Whether all pieces of an option have to be on one host."""
        return bool(self._near[flat])

    def grouped(self, table: int, kept: IntArray) -> tuple[list[Runs], list[int]]:
        """Sort some options of a table by how they can be priced.

        Args:
            table: which table.
            kept: indices of the options.

        Returns:
            The options that are priced together: those with one or two runs of pieces on ranks, and
            those with one run of pieces on hosts. Then the indices of all others, which are priced
            one by one.
        """
        first = int(self.space.first[table])
        simple: dict[Spread, list[int]] = {Spread.RANKS: [], Spread.HOSTS: []}
        others: list[int] = []
        for option in kept:
            flat = first + int(option)
            spread = self.space.options[flat].spread
            most = 2 if spread is Spread.RANKS else 1
            if spread is Spread.UNIFORM or len(self._of[flat]) > most or self._near[flat]:
                others.append(int(option))
            else:
                simple[spread].append(int(option))
        groups = [
            Runs(
                options=np.array(members, dtype=np.int64),
                rows=self._rows(first, members, 0),
                counts=self._counts(first, members, 0),
                more_rows=self._rows(first, members, -1),
                more=self._counts(first, members, 1),
            )
            for members in simple.values()
        ]
        return groups, others

    def _rows(self, first: int, members: list[int], run: int) -> IntArray:
        return np.array([self._of[first + o][run][0] for o in members], dtype=np.int64)

    def _counts(self, first: int, members: list[int], run: int) -> IntArray:
        sizes = [[count for _, count in self._of[first + o]] for o in members]
        return np.array([(*s, 0)[run] for s in sizes], dtype=np.int64)


def _runs_of(space: SearchSpace, flat: int, spread: Spread) -> list[tuple[IntArray, int]]:
    """The runs of an option: neighbouring pieces of equal work together, in order."""
    rows = space.rows[flat]
    if spread is Spread.UNIFORM:
        return [(rows, 1)]
    alike = itertools.groupby(range(len(rows)), key=lambda i: space.pool[rows[i]].tobytes())
    runs = [list(members) for _, members in alike]
    return [(rows[members[0]], len(members)) for members in runs]
