"""Plans that fit into memory and keep the rules, whatever their time: first-fit decreasing.

Tables are placed by decreasing size; each takes the first of its options for which there is room.
If a table finds no room, the packing begins anew with that table first (Joslin and Clements,
Squeaky Wheel Optimization, Journal of Artificial Intelligence Research 10, 1999). Packings differ
in the order of the options and in the choice among ranks with room.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from costmodels.sharding import Spread
from planner.rules.placement_rules import Usage
from planner.search.base import Record
from planner.search.construct.packing_exact import Answer, pack_exactly
from planner.space.effort import Meter, placing_s
from planner.space.evaluation import FITTING, Assignment, SearchSpace

_ROUNDS: Final = 12
"""Times that a packing begins anew with the table that found no room first. More times may
solve more of the tightest problems, and take time from other orders."""
_TIGHT_RATIO: Final = 0.6
"""Share of all device memory that the smallest options fill, above which packings come before the
search. With more memory free, packings would take work where plans that balance loads fit too."""

_EXACT_S: Final = 20.0
"""Work of CP-SAT, in its deterministic seconds. It begins only if everything else has found no
plan, and decides between an answer and none."""

PREFERENCES: Final = ("whole", "small", "even")
"""Orders of the options of a table, see :class:`Packer`."""
FITS: Final = ("roomiest", "fullest", "first")
"""Choices among the ranks with room, see :class:`Packer`."""


def is_tight(space: SearchSpace) -> bool:
    """Whether even the smallest options fill so much memory that plans may well not fit."""
    device = space.mean_work @ space.device
    least = float(np.minimum.reduceat(device, space.first[:-1]).sum())
    return least > _TIGHT_RATIO * float(np.maximum(space.pipeline.device_limits, 0.0).mean())


def offer_packings(
    space: SearchSpace, record: Record, *, share: float = 1.0, first_only: bool = False
) -> None:
    """Make packings of every kind and offer them to the record.

    Args:
        space: the tables and places.
        record: takes the packings.
        share: share of all work of the search that this may take.
        first_only: whether to end with the first plan that fits.
    """
    meter = record.evaluate.meter
    until_s = meter.spent_s + share * meter.planned_s
    for found in packings(space, lambda: meter.spent_s > until_s or record.stopped, meter):
        record.consider(found, "packing")
        if record.best is not None and (first_only or record.stopped):
            return


def offer_exact_packing(space: SearchSpace, record: Record, *, seed: int) -> None:
    """Ask CP-SAT for a plan that fits, or for the proof that there is none.

    In the latter case the bound of the record becomes infinite.
    """
    limit_s = record.evaluate.budget.time_limit_s
    most_s = np.inf if limit_s is None else max(limit_s - record.evaluate.seconds, 1.0)
    answer, found = pack_exactly(space, work_s=_EXACT_S, time_limit_s=most_s, seed=seed)
    if found is not None:
        record.consider(found, "exact packing")
    elif answer is Answer.NONE:
        record.raise_bound(np.inf, "exact packing")


def packings(
    space: SearchSpace,
    expired: Callable[[], bool] = lambda: False,
    meter: Meter | None = None,
) -> Iterator[Assignment]:
    """One packing for each preference and fit with which all tables find room.

    Args:
        space: the tables and places.
        expired: is asked between tries; True ends them, except those of the first preference and
            fit.
        meter: is told of the work done.
    """
    each_s = placing_s(space.num_tables, space.world_size)
    for preference, fit in itertools.product(PREFERENCES, FITS):
        packer = Packer(space, preference, fit)
        first: dict[int, int] = {}
        for _ in range(_ROUNDS):
            if expired() and (fit, preference) != (FITS[0], PREFERENCES[0]):
                return
            if meter is not None:
                meter.spend(each_s)
            stuck = packer.pack(first)
            if stuck is None:
                yield packer.assignment
                break
            first = {t: n + 1 for t, n in first.items()}
            first[stuck] = max(first.values(), default=0) + 1


class Packer:
    """Fills ranks table by table.

    Args:
        space: the tables and places.
        preference: the order of a table's options. ``whole``: fewest shards first; ``small``:
            smallest shards first; ``even``: those on all ranks first.
        fit: which rank (or host) with room a piece takes. ``roomiest``: the one with most memory
            left; ``fullest``: the one with least left; ``first``: the one of lowest number.
    """

    def __init__(self, space: SearchSpace, preference: str, fit: str) -> None:
        """Sort options and tables; both depend on the space alone."""
        self.space, self.fit = space, fit
        self._orders = self._preferred(preference)
        rules = space.rules
        self._grouped = np.zeros(space.num_tables, dtype=np.int64)
        masks = [u.members for u in rules.unions] + [c.members for c in rules.caps if c.distinct]
        for members in masks:
            if not members.all():
                self._grouped[members] += 1
        least = np.minimum.reduceat(space.largest_device, space.first[:-1])
        self._size: FloatArray = least
        self._start()

    @property
    def assignment(self) -> Assignment:
        """The packing, once :meth:`pack` has placed every table."""
        return Assignment(options=tuple(self._options), places=tuple(self._places))

    def pack(self, first: dict[int, int]) -> int | None:
        """Place every table.

        Tables in ``first`` come first, then those of which rules say most, then the largest.

        Args:
            first: tables that found no room before; those with the highest number come first.

        Returns:
            The first table that found no room; None if all are placed.
        """
        self._start()
        tables = range(self.space.num_tables)
        order = sorted(
            tables, key=lambda t: (-first.get(t, 0), -self._grouped[t], -self._size[t], t)
        )
        return next((t for t in order if not self._add(t)), None)

    def _start(self) -> None:
        """Empty all ranks."""
        space = self.space
        self._room: FloatArray = space.pipeline.device_limits * FITTING
        self._host_room: FloatArray = space.pipeline.host_limits * FITTING
        self._options = [0] * space.num_tables
        self._places: list[tuple[int, ...]] = [()] * space.num_tables
        self._usage = Usage(space.rules, [None] * space.num_tables)

    def _preferred(self, preference: str) -> list[list[int]]:
        """The options of each table as indices, in the order in which they are tried."""
        space = self.space
        total = space.mean_work @ space.device
        shards = np.where(space.is_uniform, space.world_size, space.pieces)
        keys = {
            "whole": (total, shards),
            "small": (total, space.largest_device),
            "even": (space.largest_device, ~space.is_uniform),
        }
        order = np.lexsort((*keys[preference], space.table_of)) - np.repeat(
            space.first[:-1], np.diff(space.first)
        )
        return [own.tolist() for own in np.split(order, space.first[1:-1])]

    def _add(self, table: int) -> bool:
        """Place a table by the first option for which there is room; False if there is none."""
        budget = self.space.rules.budget
        for index in self._orders[table]:
            room, host_room = self._room.copy(), self._host_room.copy()
            places = self._try(table, index)
            if places is not None:
                self._usage.put(table, (self.space.option(table, index), places))
                if budget is None or bool(budget.keeps(self._usage.moved)):
                    self._options[table], self._places[table] = index, places
                    return True
                self._usage.put(table, None)
            self._room, self._host_room = room, host_room
        return False

    def _try(self, table: int, index: int) -> tuple[int, ...] | None:
        """Places for an option of a table; None if there is no room, which then has shrunk."""
        space = self.space
        flat = int(space.first[table]) + index
        option, rows = space.options[flat], space.rows[flat]
        device, host = space.pool_device[rows], space.pool_host[rows]
        if option.is_uniform:
            self._room = self._room - device
            self._host_room = self._host_room - host.reshape(space.num_hosts, -1).sum(axis=-1)
            fits = (self._room >= 0).all() and (self._host_room >= 0).all()
            allowed = not space.rules or self._usage.ranks_for(table).all()
            return () if fits and allowed else None
        if option.spread is Spread.HOSTS:
            return self._blocks(table, device, host)
        near = option.keeps_pieces_on_host
        return self._pieces(table, index, device, host, near=near)

    def _pieces(
        self, table: int, index: int, device: FloatArray, host: FloatArray, *, near: bool
    ) -> tuple[int, ...] | None:
        """Ranks for the pieces of an option; None if one finds no room.

        Args:
            table: whose pieces they are.
            index: which of its options.
            device: device bytes of each piece.
            host: host bytes of each piece.
            near: whether all pieces have to be on one host.
        """
        space, local = self.space, self.space.local_world_size
        hosts = np.arange(space.world_size) // local
        places: list[int] = []
        allowed = space.may_use_rank[table] & self._usage.ranks_for(table)
        for piece in range(len(device)):
            if places and space.rules:
                done = (space.option(table, index), tuple(places))
                self._usage.put(table, done)
                allowed = space.may_use_rank[table] & self._usage.ranks_for(table)
                self._usage.put(table, None)
            if places and space.option(table, index).keeps_pieces_apart:
                allowed = allowed.copy()
                allowed[places] = False
            if near and places:
                allowed = allowed & (hosts == places[0] // local)
            fits = allowed & (self._room >= device[piece]) & (self._host_room[hosts] >= host[piece])
            if not fits.any():
                return None
            rank = self._choose(fits, self._room)
            self._room[rank] -= device[piece]
            self._host_room[rank // local] -= host[piece]
            places.append(rank)
        return tuple(places)

    def _blocks(self, table: int, device: FloatArray, host: FloatArray) -> tuple[int, ...] | None:
        """Hosts for pieces with bytes ``[pieces, L]``, by device and host; None without room."""
        space, local = self.space, self.space.local_world_size
        allowed = space.may_use_host[table] & self._usage.hosts_for(table)
        places: list[int] = []
        for block, host_bytes in zip(device, host.sum(axis=-1), strict=True):
            room = (self._room.reshape(-1, local) - block).min(axis=-1)
            fits = allowed & (room >= 0) & (self._host_room >= host_bytes)
            if not fits.any():
                return None
            chosen = self._choose(fits, room)
            self._room[chosen * local : (chosen + 1) * local] -= block
            self._host_room[chosen] -= host_bytes
            places.append(chosen)
        return tuple(places)

    def _choose(self, fits: BoolArray, room: FloatArray) -> int:
        """The place that the fit prefers, of those where a piece fits."""
        if self.fit == "first":
            return int(np.argmax(fits))
        if self.fit == "fullest":
            return int(np.argmin(np.where(fits, room, np.inf)))
        return int(np.argmax(np.where(fits, room, -np.inf)))
