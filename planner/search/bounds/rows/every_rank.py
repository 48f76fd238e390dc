"""Rows about every rank: the whole problem, for few ranks that are all alike.

Variables ``q[o, p]`` are the number of pieces of option o on place p, a rank or a host. In every
plan:

- all pieces are somewhere: ``sum_p q[o, p] = pieces[o] y[o]``;
- the loads of each rank are below the maxima of the phases and its memory: uniform options, and the
  pieces on it.

Ranks that are alike can be exchanged, so that a solver would look at the same plan many times under
other numbers. The rows therefore ask for an order. Each rank has a key that depends on the pieces
it holds: the number of pieces of a few tables, those with the largest pieces, where each table
counts ten times as much as the next. The key may not rise from rank to rank of a host, nor from the
first rank of a host to that of the next. The ranks of every plan can be renumbered so.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Final

import numpy as np

from costmodels.batch_shares import batch_ratios
from costmodels.datatypes import BoolArray, FloatArray, IntArray
from planner.search.common.linear import LinearModel
from planner.search.common.milp import Rows
from planner.space.evaluation import SearchSpace

_KEY_TABLES: Final = 5
"""Tables that the key of a rank counts. More of them tell more ranks apart, but coefficients of the
key then range over more powers of ten, which troubles solvers."""
_KEY_STEP: Final = 10.0
"""How many times as much a table counts in the key as the next one."""
_TINY: Final = 1e-9
"""Loads up to this, in the unit of the program, are left out, because they trouble the solver. The
rows stay true without them."""


def ranks_interchangeable(space: SearchSpace) -> bool:
    """Whether the ranks of a host can be exchanged with each other, and hosts with each other.

    They can if memory, speed and batch are the same everywhere, and every table may be everywhere.
    """
    limits = space.pipeline.device_limits
    hosts = space.pipeline.host_limits
    same = limits.min() == limits.max() and hosts.min() == hosts.max()
    anywhere = space.may_use_rank.all() and space.may_use_host.all()
    topology, workload = space.problem.topology, space.problem.workload
    speeds = topology.speeds()
    alike = speeds.min() == speeds.max() and batch_ratios(workload, topology) is None
    return bool(same and anywhere and alike)


class EveryRank:
    """Builds the rows over the options of one model; uniform options need no places."""

    def __init__(self, model: LinearModel) -> None:
        """Keep the model; variables are numbered when they are first needed."""
        self._model, self._space = model, model.space

    @property
    def size(self) -> int:
        """Number of variables q."""
        return int(self._counts.sum())

    @cached_property
    def _counts(self) -> IntArray:
        """Number of places of each option that is not uniform; its variables are neighbours."""
        space = self._space
        hosts = space.is_on_hosts[self._placed]
        return np.where(hosts, space.num_hosts, space.world_size)

    @cached_property
    def _placed(self) -> IntArray:
        return np.flatnonzero(~self._space.is_uniform)

    @cached_property
    def _option(self) -> IntArray:
        return np.repeat(self._placed, self._counts)

    @cached_property
    def _place(self) -> IntArray:
        starts = np.cumsum(self._counts) - self._counts
        return np.arange(self.size) - np.repeat(starts, self._counts)

    @cached_property
    def _on_host(self) -> BoolArray:
        return self._space.is_on_hosts[self._option]

    @cached_property
    def _pieces(self) -> FloatArray:
        return self._space.pieces[self._placed].astype(float)

    @property
    def upper(self) -> FloatArray:
        """``[size]`` the largest value of each variable: all pieces of its option."""
        return np.repeat(self._pieces, self._counts)

    def rows(
        self, first: int, phase: int, base: int, unit: FloatArray, *, device_room: float
    ) -> Rows:
        """All rows.

        Args:
            first: position in the program of the first variable q.
            phase: position of the first z, the maxima of the phases in use.
            base: position of the first u, the least loads of uniform options.
            unit: ``[P + 2]`` how much of each load is 1 in the program.
            device_room: bytes that a device can hold, in that unit.
        """
        parts = [self._all_placed(first), *self._loads(first, phase, base, unit)]
        parts += self._memory(first, base, unit, device_room)
        return Rows.stack([*parts, *self._ordered(first)])

    def _all_placed(self, first: int) -> Rows:
        """Rows that say that all pieces of each option are somewhere."""
        number = np.repeat(np.arange(len(self._placed)), self._counts)
        zero = np.zeros(len(self._placed))
        return Rows(
            row=np.concatenate([number, np.arange(len(self._placed))]),
            column=np.concatenate([first + np.arange(self.size), self._placed]),
            values=np.concatenate([np.ones(self.size), -self._pieces]),
            lower=zero,
            upper=zero,
        )

    def _loads(self, first: int, phase: int, base: int, unit: FloatArray) -> list[Rows]:
        """Rows about the phases of each rank.

        Pieces of an option may differ, so that each counts as the smallest one in every load.
        """
        least = self._least(unit)
        parts = []
        for rank in range(self._space.world_size):
            here = self._here(rank)
            for c in range(self._model.num_tangents):
                there = np.flatnonzero(here & (least[:, c] > _TINY))
                z = phase + int(self._model.phase_index[c])
                column = np.concatenate([first + there, [base + c, z]])
                values = np.concatenate([least[there, c], [1.0, -1.0]])
                parts.append(_row(column, values, 0.0))
        return parts

    def _memory(self, first: int, base: int, unit: FloatArray, device_room: float) -> list[Rows]:
        """Rows about the memory of each device and of each host, which its ranks share."""
        space, local = self._space, self._space.local_world_size
        least, tangents = self._least(unit), self._model.num_tangents
        parts = []
        for rank in range(space.world_size):
            there = np.flatnonzero(self._here(rank) & (least[:, tangents] > _TINY))
            column = np.concatenate([first + there, [base + tangents]])
            parts.append(_row(column, np.append(least[there, tangents], 1.0), device_room))
        host_of = np.where(self._on_host, self._place, self._place // local)
        share = least[:, -1] * np.where(self._on_host, local, 1)
        for host in range(space.num_hosts):
            there = np.flatnonzero((host_of == host) & (share > _TINY))
            column = np.concatenate([first + there, [base + tangents + 1]])
            parts.append(_row(column, np.append(share[there], float(local)), float(local)))
        return parts

    def _least(self, unit: FloatArray) -> FloatArray:
        """``[size, P + 2]`` the least load of a piece of each variable's option, in the units."""
        return np.asarray(self._model.extreme(np.minimum)[self._option] / unit)

    def _here(self, rank: int) -> BoolArray:
        """``[size]`` True for variables about pieces on a rank, or on its host."""
        place = np.where(self._on_host, rank // self._space.local_world_size, rank)
        return np.asarray(self._place == place, dtype=bool)

    def _ordered(self, first: int) -> list[Rows]:
        """Rows ``key(next) - key(this) <= 0`` about ranks of a host, and first ranks of hosts."""
        local, world = self._space.local_world_size, self._space.world_size
        largest = self._model.extreme(np.maximum)[:, : self._model.num_tangents].sum(axis=1)
        shown = np.full(len(largest), -math.inf)
        shown[self._placed] = largest[self._placed]
        each = np.maximum.reduceat(shown, self._space.first[:-1])
        tables = np.argsort(-each, kind="stable")[:_KEY_TABLES]
        weight = np.zeros(self._space.num_tables)
        weight[tables] = _KEY_STEP ** np.arange(len(tables))[::-1]
        worth = np.where(self._on_host, 0.0, weight[self._space.table_of[self._option]])
        pairs = [(r, r + 1) for r in range(world) if (r + 1) % local]
        pairs += [(h * local, (h + 1) * local) for h in range(self._space.num_hosts - 1)]
        parts = []
        for this, following in pairs:
            here = np.flatnonzero((self._place == this) & (worth > 0))
            there = np.flatnonzero((self._place == following) & (worth > 0))
            column = first + np.concatenate([there, here])
            parts.append(_row(column, np.concatenate([worth[there], -worth[here]]), 0.0))
        return parts


def _row(column: IntArray, values: FloatArray, upper: float) -> Rows:
    """One row ``values @ x <= upper``."""
    return Rows(
        row=np.zeros(len(column), dtype=np.int64),
        column=column.astype(np.int64),
        values=values,
        lower=np.array([-math.inf]),
        upper=np.array([upper]),
    )
