"""Rows about what has to be on one rank or one host: large shards, and tables tied together.

In every plan some rank has the largest shard of a table. Its load is at least that of the shard and
of what uniform options put on every rank. If rules tie tables to one rank, that rank has all of
their shards. If they tie tables to one host, its ranks share all of their shards, and the fullest
of them has at least the mean over the host.
"""

from __future__ import annotations

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from planner.problem import Level
from planner.search.common.linear import LinearModel


class OnePlace:
    """Loads that the fullest rank has at least.

    There is a row for each table, then one for each tied group of tables.
    """

    def __init__(self, model: LinearModel, uniform: BoolArray) -> None:
        """Find the tied groups of tables.

        Args:
            model: tangents and options.
            uniform: ``[n]`` True for options that load every rank; they add nothing to these rows.
        """
        self._model, self._uniform = model, uniform
        space = model.space
        self._groups = [
            (level, np.flatnonzero(members[space.table_of]))
            for level in Level
            for members in space.rules.tied(level)
        ]

    def options(self, row: int) -> IntArray:
        """Positions of the options that a row is about."""
        return self._row(row)[1]

    def loads(self, row: int, load: int) -> FloatArray:
        """What each of these options adds to one load of that rank; 0 for uniform ones."""
        level, options = self._row(row)
        least = self._largest if level is None else self._tied(level)
        return np.where(self._uniform[options], 0.0, least[options, load])

    def all_loads(self, shares: FloatArray) -> FloatArray:
        """``[rows, P + 2]`` the loads of each row if options have these shares, ``[n]``."""
        own = np.where(self._uniform, 0.0, shares)[:, None]
        each = own * self._largest
        tables = np.add.reduceat(each, self._model.space.first[:-1], axis=0)
        groups = [
            (own[options] * self._tied(level)[options]).sum(axis=0)
            for level, options in self._groups
        ]
        return np.stack([*tables, *groups])

    def _row(self, row: int) -> tuple[Level | None, IntArray]:
        """Where a group is tied, None for the row of one table; and the options of the row."""
        space = self._model.space
        if row < space.num_tables:
            return None, np.arange(space.first[row], space.first[row + 1])
        return self._groups[row - space.num_tables]

    @property
    def _largest(self) -> FloatArray:
        """``[n, P + 2]`` what the largest shard of an option adds to its rank."""
        return self._model.extreme(np.maximum)

    def _tied(self, level: Level) -> FloatArray:
        """``[n, P + 2]`` what all shards of an option add to their rank, or a rank of their host.

        On a host it is the mean over its ranks, which is the least that its fullest rank has.
        """
        space = self._model.space
        places = space.world_size if level is Level.RANK else space.num_hosts
        return np.asarray(self._model.mean * places)
