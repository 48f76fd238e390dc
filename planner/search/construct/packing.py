"""Plans that fit into memory and keep the rules, whatever their time: first-fit decreasing.

Tables are placed by decreasing size; each takes the first of its options for which there is room.
If a table finds no room, the packing begins anew with that table first (Joslin and Clements,
Squeaky Wheel Optimization, Journal of Artificial Intelligence Research 10, 1999). Packings differ
in the order of the options and in the choice among ranks with room.

If all of them fail, CP-SAT is asked. It finds a plan or proves that there is none. It counts in
whole numbers, so bytes of shards are rounded down to units, which keeps proofs valid; a plan that
this lets exceed a limit is refused when it is priced. A unit is a byte unless a device has so many
that sums would overflow.
"""

import itertools
import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import ShardingOption, Spread
from planner.problem import Level
from planner.rules.placement_rules import MOVED_BYTES, Cap, Union, Usage
from planner.search.base import Record
from planner.space.effort import placing_s
from planner.space.evaluation import FITTING, ROUNDING, Assignment, SearchSpace

_UNITS: Final = 2**40
"""Most units that the largest device has, so that sums over all shards fit into 63 bits."""
_MOST_VARIABLES: Final = 150_000
"""Variables of a model with all options, above which only some options are kept. Larger models take
CP-SAT longer than it may work."""
_KEPT: Final = 3
"""Options kept of each table and spread if all of them are too many: those with the fewest
variables and the smallest shards. Nothing is proven then; more options find plans in a few more
problems."""


def pack_exactly(
    space: SearchSpace, *, work_s: float, time_limit_s: float, seed: int
) -> tuple[Assignment | None, bool]:
    """Look for a plan that fits and keeps the rules, or for the proof that there is none.

    Args:
        space: the tables and places.
        work_s: most work, in CP-SAT's deterministic seconds, which are the same on every machine.
        time_limit_s: most seconds by the clock.
        seed: of the solver.

    Returns:
        The plan, if one was found; and whether it is proven that there is none.
    """
    kept, complete = _options(space)
    found, none_fits = _Model(space, kept).solve(work_s, time_limit_s, seed)
    return found, none_fits and complete


def _options(space: SearchSpace) -> tuple[list[list[int]], bool]:
    """The options of each table to try, as indices, and whether these are all options."""
    every = [list(range(len(t.options))) for t in space.tables]
    if sum(_size(space, f) for f in range(len(space.options))) <= _MOST_VARIABLES:
        return every, True
    largest = space.largest_device
    few = []
    for table, indices in enumerate(every):
        first = int(space.first[table])
        kept: list[int] = []
        for spread in Spread:
            alike = [i for i in indices if space.options[first + i].spread is spread]
            alike.sort(key=lambda i: (_size(space, first + i), float(largest[first + i])))
            kept += alike[:_KEPT]
        few.append(kept)
    return few, False


def _size(space: SearchSpace, flat: int) -> int:
    """Number of variables of an option, about."""
    option = space.options[flat]
    places = space.num_hosts if option.spread is Spread.HOSTS else space.world_size
    return 1 + places * option.num_pieces


class _Placed(NamedTuple):
    """The variables of one option of a table.

    Attributes:
        option: index of the table's option.
        used: whether the plan has it.
        at: for each piece and place whether the piece is there; 0 for places that are not allowed.
    """

    option: int
    used: Any
    at: list[list[Any]]


class _Model:
    """The packing problem as a CP-SAT model."""

    def __init__(self, space: SearchSpace, kept: list[list[int]]) -> None:
        from ortools.sat.python import cp_model

        self.cp = cp_model
        self.space = space
        self.model = cp_model.CpModel()
        limits = space.pipeline.device_limits
        self.unit = max(float(limits.max()) / _UNITS, 1.0)
        self.tables: list[list[_Placed]] = []
        for table, indices in enumerate(kept):
            self.tables.append([self._option(table, index) for index in indices])
            self.model.add_exactly_one(placed.used for placed in self.tables[-1])
        self._memory()
        for rule in space.rules.every:
            self._rule(rule)
        self._budget()

    def solve(
        self, work_s: float, time_limit_s: float, seed: int
    ) -> tuple[Assignment | None, bool]:
        """What :func:`pack_exactly` says, after so much work and seconds by the clock at most."""
        solver = self.cp.CpSolver()
        if math.isfinite(time_limit_s):
            solver.parameters.max_time_in_seconds = max(time_limit_s, 0.1)
        solver.parameters.max_deterministic_time = work_s
        # With it the answer does not depend on how threads take turns.
        solver.parameters.interleave_search = True
        solver.parameters.num_workers = 2
        solver.parameters.random_seed = seed
        status = solver.solve(self.model)
        if status not in (self.cp.FEASIBLE, self.cp.OPTIMAL):
            return None, status == self.cp.INFEASIBLE

        def first(variables: list[Any]) -> int:
            return next(i for i, x in enumerate(variables) if solver.boolean_value(x))

        chosen = [table[first([placed.used for placed in table])] for table in self.tables]
        return Assignment.of((p.option, tuple(map(first, p.at))) for p in chosen), False

    # -- parts ------------------------------------------------------------------------------------

    def _option(self, table: int, index: int) -> _Placed:
        """Variables of an option, and what TorchRec asks of the places of its pieces."""
        space, model = self.space, self.model
        option = space.option(table, index)
        placed = _Placed(index, model.new_bool_var(""), [])
        if option.is_uniform:
            return placed
        mask = space.allowed(table, option.spread)
        for _ in range(option.num_pieces):
            row = [model.new_bool_var("") if ok else 0 for ok in mask]
            model.add(sum(row) == placed.used)
            placed.at.append(row)
        if option.keeps_pieces_apart:
            self._apart_by_width(option.column_widths, placed)
        if option.keeps_pieces_on_host:
            local = space.local_world_size
            for row in placed.at[1:]:
                for h in range(space.num_hosts):
                    part = slice(h * local, (h + 1) * local)
                    model.add(sum(row[part]) == sum(placed.at[0][part]))
        return placed

    def _apart_by_width(self, widths: tuple[int, ...], placed: _Placed) -> None:
        """Forbid pieces of different widths on one rank, which TorchRec cannot run."""
        for column in zip(*placed.at, strict=True):
            used = [
                self._present([v for w, v in zip(widths, column, strict=True) if w == width])
                for width in sorted(set(widths))
            ]
            self.model.add(sum(used) <= 1)

    def _memory(self) -> None:
        """Keep every device and every host within its memory."""
        space, local = self.space, self.space.local_world_size
        terms: list[list[Any]] = [[] for _ in range(space.world_size + space.num_hosts)]
        for table in range(space.num_tables):
            for variable, ranks, rows in self._shards(table):
                for rank, row in () if isinstance(variable, int) else zip(ranks, rows, strict=True):
                    host = space.world_size + rank // local
                    for place, held in ((rank, space.pool_device), (host, space.pool_host)):
                        if (size := math.floor(float(held[row]) / self.unit)) > 0:
                            terms[place].append(size * variable)
        limits = np.append(space.pipeline.device_limits, space.pipeline.host_limits)
        for own, limit in zip(terms, limits.tolist(), strict=True):
            self.model.add(sum(own) <= math.ceil(limit * ROUNDING / self.unit))

    def _shards(self, table: int) -> Iterator[tuple[Any, range, IntArray]]:
        """Each piece of a table on each place: its variable, the ranks there, and rows of work."""
        space = self.space
        sizes = {Spread.UNIFORM: space.world_size, Spread.HOSTS: space.local_world_size}
        for placed in self.tables[table]:
            flat = int(space.first[table]) + placed.option
            size = sizes.get(space.options[flat].spread, 1)
            pieces = zip(
                placed.at or [[placed.used]], space.rows[flat].reshape(-1, size), strict=True
            )
            for row, rows in pieces:
                for place, variable in enumerate(row):
                    yield variable, range(place * size, (place + 1) * size), rows

    def _counts(self, members: BoolArray, level: Level) -> list[list[list[Any]]]:
        """Variables of shards, by table and place: their sum is the table's shards on the place.

        Args:
            members: ``[T]`` True for the tables to count.
            level: whether places are ranks or hosts.
        """
        step = 1 if level is Level.RANK else self.space.local_world_size
        found = []
        for table in np.flatnonzero(members):
            places: list[list[Any]] = [[] for _ in range(self.space.world_size // step)]
            for variable, ranks, _ in self._shards(int(table)):
                for rank in ranks:
                    places[rank // step].append(variable)
            found.append(places)
        return found

    def _present(self, *shards: list[Any]) -> Any:
        """A variable that is 1 if any of these lists of shards has one on its place."""
        here = self.model.new_bool_var("")
        for own in shards:
            self.model.add(sum(own) <= max(len(own), 1) * here)
        return here

    def _rule(self, rule: Cap | Union) -> None:
        """Keep a limit on shards or tables on every place, or tables together on one place."""
        places = zip(*self._counts(rule.members, rule.level), strict=True)
        if isinstance(rule, Union):
            self.model.add(sum(self._present(*tables) for tables in places) <= 1)
            return
        for tables in places:
            terms = map(self._present, tables) if rule.distinct else itertools.chain(*tables)
            self.model.add(sum(terms) <= rule.most)

    def _budget(self) -> None:
        """Keep the limit on moves: on the tables that move, and on the bytes that they receive."""
        budget = self.space.rules.budget
        if budget is None:
            return
        moved, flags = [], []
        for table, found in enumerate(self.tables):
            flags.append(self.model.new_bool_var(""))
            for placed in found:
                received = budget.piece_bytes(self.space.option(table, placed.option))
                rows = placed.at or [[placed.used]]
                for row, row_bytes in zip(rows, np.atleast_2d(received), strict=True):
                    for variable, size in zip(row, row_bytes, strict=True):
                        if size > MOVED_BYTES and not isinstance(variable, int):
                            moved.append(math.floor(size / self.unit) * variable)
                            self.model.add_implication(variable, flags[-1])
        if math.isfinite(budget.max_tables):
            self.model.add(sum(flags) <= int(budget.max_tables))
        if math.isfinite(budget.max_bytes):
            self.model.add(sum(moved) <= math.ceil(budget.max_bytes * ROUNDING / self.unit))


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


def offer_packings(record: Record, *, share: float = 1.0, first_only: bool = False) -> None:
    """Make a packing for each preference and fit with which all tables find room.

    Args:
        record: is offered the packings.
        share: share of all work of the search that this may take; those of the first preference and
            fit are tried in any case.
        first_only: whether to end with the first plan that fits.
    """
    space, meter = record.evaluate.space, record.evaluate.meter
    until_s = meter.spent_s + share * meter.planned_s
    each_s = placing_s(space.num_tables, space.world_size)
    for preference, fit in itertools.product(PREFERENCES, FITS):
        first: dict[int, int] = {}
        for _ in range(_ROUNDS):
            late = meter.spent_s > until_s or record.stopped
            if late and (fit, preference) != (FITS[0], PREFERENCES[0]):
                return
            meter.spend(each_s)
            packer = Packer(space, fit, preference)
            stuck = packer.pack(first)
            if stuck is None:
                record.consider(packer.assignment, "packing")
                if record.best is not None and (first_only or record.stopped):
                    return
                break
            first = {t: n + 1 for t, n in first.items()}
            first[stuck] = max(first.values(), default=0) + 1


def offer_exact_packing(record: Record, *, seed: int) -> None:
    """Ask CP-SAT for a plan that fits, or for the proof that there is none.

    In the latter case the bound of the record becomes infinite.
    """
    space, most_s = record.evaluate.space, max(record.evaluate.left_s, 1.0)
    found, none_fits = pack_exactly(space, work_s=_EXACT_S, time_limit_s=most_s, seed=seed)
    if found is not None:
        record.consider(found, "exact packing")
    elif none_fits:
        record.raise_bound(np.inf, "exact packing")


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
        self._room: FloatArray = space.pipeline.device_limits * FITTING
        self._host_room: FloatArray = space.pipeline.host_limits * FITTING
        self._cost: FloatArray = np.zeros(space.world_size)
        self._options = [0] * space.num_tables
        self._places: list[tuple[int, ...]] = [()] * space.num_tables
        self._usage = Usage(space.rules, [None] * space.num_tables)

    @property
    def assignment(self) -> Assignment:
        """The packing, once :meth:`pack` has placed every table."""
        return Assignment(options=tuple(self._options), places=tuple(self._places))

    def pack(self, first: dict[int, int]) -> int | None:
        """Place every table on the empty ranks.

        Tables in ``first`` come first, then those of which rules say most, then the largest.

        Args:
            first: tables that found no room before; those with the highest number come first.

        Returns:
            The first table that found no room; None if all are placed.
        """
        size = np.minimum.reduceat(self.space.largest_device, self.space.first[:-1])
        rules, ruled = self.space.rules, np.zeros(self.space.num_tables, dtype=np.int64)
        for rule in rules.every:
            if (isinstance(rule, Union) or rule.distinct) and not rule.members.all():
                ruled += rule.members
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
            has_room = (self._room >= 0).all() and (self._host_room >= 0).all()
            may_be = not space.rules or self._usage.free_for(table, option.spread).all()
            return () if has_room and may_be else None
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
        space, spread, local = self.space, option.spread, self.space.local_world_size
        allowed = space.allowed(table, spread)
        if space.rules and not has_cost:
            allowed = allowed & self._usage.free_for(table, spread, places)
        if not places or spread is Spread.HOSTS:
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
        left = room if self.fit == "fullest" else -room
        return int(np.argmin(np.where(fits, left, np.inf)))
