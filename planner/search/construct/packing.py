"""Plans that fit into memory and keep the rules, whatever their time: first-fit decreasing.

Tables are placed by decreasing size; each takes the first of its options for which there is room.
If a table finds no room, the packing begins anew with that table first (Joslin and Clements,
Squeaky Wheel Optimization, Journal of Artificial Intelligence Research 10, 1999). Packings differ
in the order of the options and in the choice among ranks with room.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import ShardingOption, Spread
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
        packer = Packer(space, fit, preference)
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
        fit: which rank (or host) with room a piece takes. ``roomiest``: the one with most memory
            left; ``fullest``: the one with least left; ``first``: the one of lowest number. Pieces
            that are given a cost take the one with the least cost so far instead.
        preference: the order of a table's options. ``whole``: fewest shards first; ``small``:
            smallest shards first; ``even``: those on all ranks first.
    """

    def __init__(
        self, space: SearchSpace, fit: str = "roomiest", preference: str = "whole"
    ) -> None:
        """Empty all ranks."""
        self.space, self.fit, self._preference = space, fit, preference
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
        size = np.minimum.reduceat(self.space.largest_device, self.space.first[:-1])
        ruled = self._ruled
        order = sorted(
            range(self.space.num_tables), key=lambda t: (-first.get(t, 0), -ruled[t], -size[t], t)
        )
        return next((t for t in order if not self._add(t)), None)

    def place(
        self, table: int, index: int, costs: FloatArray | None = None
    ) -> tuple[int, ...] | None:
        """Place every piece of an option of a table.

        Args:
            table: its position in the workload.
            index: which of its options.
            costs: of each piece; for uniform options of the shard on each rank. Pieces with costs
                are placed in any case, where most memory is left if there is no room, and rules
                that couple tables are not looked at.

        Returns:
            The rank (or host) of each piece, nothing for uniform options; None if there is no room,
            which then has shrunk.
        """
        space, local = self.space, self.space.local_world_size
        flat = int(space.first[table]) + index
        option, rows = space.options[flat], space.rows[flat]
        device, host = space.pool_device[rows], space.pool_host[rows]
        if option.is_uniform:
            self._room = self._room - device
            self._host_room = self._host_room - host.reshape(space.num_hosts, -1).sum(axis=-1)
            if costs is not None:
                self._cost = self._cost + costs
                return ()
            fits = (self._room >= 0).all() and (self._host_room >= 0).all()
            allowed = not space.rules or self._usage.ranks_for(table).all()
            return () if fits and allowed else None
        size = local if option.spread is Spread.HOSTS else 1
        hosts = np.arange(0, space.world_size, size) // local
        places: list[int] = []
        for piece, taken in enumerate(device.reshape(len(rows), size)):
            allowed = self._allowed(table, option, places, has_cost=costs is not None)
            held = float(host[piece].sum())
            room = (self._room.reshape(-1, size) - taken).min(axis=-1)
            fits = allowed & (room >= 0) & (self._host_room[hosts] >= held)
            if costs is None and not fits.any():
                return None
            at = self._choose(fits, room, size, has_cost=costs is not None)
            at = at if fits.any() else int(np.argmax(np.where(allowed, room, -np.inf)))
            ranks = slice(at * size, (at + 1) * size)
            self._room[ranks] -= taken
            self._host_room[hosts[at]] -= held
            self._cost[ranks] += 0.0 if costs is None else costs[piece]
            places.append(at)
        return tuple(places)

    def _start(self) -> None:
        """Empty all ranks."""
        space = self.space
        self._room: FloatArray = space.pipeline.device_limits * FITTING
        self._host_room: FloatArray = space.pipeline.host_limits * FITTING
        self._cost: FloatArray = np.zeros(space.world_size)
        self._options = [0] * space.num_tables
        self._places: list[tuple[int, ...]] = [()] * space.num_tables
        self._usage = Usage(space.rules, [None] * space.num_tables)

    @cached_property
    def _ruled(self) -> IntArray:
        """``[T]`` number of rules on each table."""
        rules, found = self.space.rules, np.zeros(self.space.num_tables, dtype=np.int64)
        for members in [
            *(u.members for u in rules.unions),
            *(c.members for c in rules.caps if c.distinct),
        ]:
            if not members.all():
                found[members] += 1
        return found

    @cached_property
    def _orders(self) -> list[list[int]]:
        """The options of each table as indices, in the order in which they are tried."""
        space = self.space
        total = space.mean_work @ space.device
        shards = np.where(space.is_uniform, space.world_size, space.pieces)
        keys = {
            "whole": (total, shards),
            "small": (total, space.largest_device),
            "even": (space.largest_device, ~space.is_uniform),
        }
        order = np.lexsort((*keys[self._preference], space.table_of)) - np.repeat(
            space.first[:-1], np.diff(space.first)
        )
        return [own.tolist() for own in np.split(order, space.first[1:-1])]

    def _add(self, table: int) -> bool:
        """Place a table by the first option for which there is room; False if there is none."""
        budget = self.space.rules.budget
        for index in self._orders[table]:
            room, host_room = self._room.copy(), self._host_room.copy()
            places = self.place(table, index)
            if places is not None:
                self._usage.put(table, (self.space.option(table, index), places))
                if budget is None or bool(budget.keeps(self._usage.moved)):
                    self._options[table], self._places[table] = index, places
                    return True
                self._usage.put(table, None)
            self._room, self._host_room = room, host_room
        return False

    def _allowed(
        self, table: int, option: ShardingOption, places: list[int], *, has_cost: bool
    ) -> BoolArray:
        """The places that the next piece of an option may have, beside those of the others."""
        space, usage, local = self.space, self._usage, self.space.local_world_size
        on_hosts = option.spread is Spread.HOSTS
        allowed: BoolArray = (space.may_use_host if on_hosts else space.may_use_rank)[table]
        if space.rules and not has_cost:
            usage.put(table, (option, tuple(places)))
            allowed = allowed & (usage.hosts_for if on_hosts else usage.ranks_for)(table)
            usage.put(table, None)
        if not places or on_hosts:
            return allowed
        if option.keeps_pieces_on_host:
            allowed = allowed & (np.arange(space.world_size) // local == places[0] // local)
        if option.keeps_pieces_apart:
            left = allowed.copy()
            left[places] = False
            return left if left.any() or not has_cost else allowed
        return allowed

    def _choose(self, fits: BoolArray, room: FloatArray, size: int, *, has_cost: bool) -> int:
        """The place that cost or fit prefer, of those where a piece fits; any if it fits nowhere.

        Args:
            fits: True for places where it fits.
            room: bytes left on the fullest rank of each place.
            size: ranks of a place.
            has_cost: whether the place with the least cost is preferred.
        """
        if has_cost:
            cost = np.where(fits, self._cost.reshape(-1, size).max(axis=-1), np.inf)
            return int(np.lexsort((-room, cost))[0])
        if self.fit == "first":
            return int(np.argmax(fits))
        if self.fit == "fullest":
            return int(np.argmin(np.where(fits, room, np.inf)))
        return int(np.argmax(np.where(fits, room, -np.inf)))
