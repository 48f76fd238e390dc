"""The search space as arrays, and the one place that prices points of it.

A point is an :class:`Assignment`: for each table an option and the places of its pieces. The work
of a point is the sum of the rows of its tables, so a change of one table takes one subtraction and
one addition. The value of a point is a function of its work.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.cells import WorkPool
from costmodels.sharding import (
    ComputeKernel,
    Plan,
    ShardingOption,
    ShardingType,
    Spread,
    TablePlacement,
    option_of,
    place,
)
from planner.errors import refuse
from planner.options.enumeration import PLAIN_NAMES, Listing
from planner.options.table_limits import drop_unfit, memory_coefficients
from planner.problem import PlanningProblem
from planner.rules.placement_rules import PlacementRules, Usage
from planner.space.effort import Meter, priced_s
from planner.space.objective import AbstractObjective

ROUNDED: Final = 1e-9
"""Share by which sums of many numbers may differ through rounding. Proofs take it off, and values
that are closer than that count as equal."""
ROUNDING: Final = 1.0 + ROUNDED
"""Proofs allow this many times the limit of a memory."""

FITTING: Final = 1.0 + 1e-12
"""Plans may fill this many times a limit, so that rounding never refuses an exact fit."""

_MOST_ENTRIES: Final = 400_000
"""Numbers of work priced in one call; more do not fit into processor caches, and take gigabytes."""


Choice = tuple[int, tuple[int, ...]]
"""The index of an option of a table, and the ranks (or hosts) of its pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """For each table in order: index of its option, and places (ranks or hosts) of its pieces."""

    options: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, choices: Iterable[Choice]) -> Assignment:
        """The assignment of one choice for each table, in order."""
        pairs = list(choices)
        return cls(options=tuple(o for o, _ in pairs), places=tuple(p for _, p in pairs))

    def choice(self, table: int) -> Choice:
        """Option and places of a table."""
        return self.options[table], self.places[table]

    def changed(self, choices: Mapping[int, Choice]) -> Assignment:
        """The assignment with other options and places of some tables."""
        options, places = list(self.options), list(self.places)
        for table, own in choices.items():
            options[table], places[table] = own
        return Assignment(options=tuple(options), places=tuple(places))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long a search may go on; None means no limit.

    ``time_limit_s`` are seconds by the clock. ``max_evaluations`` counts work in priced plans
    (:mod:`planner.space.effort`), so that a search ends at the same point on any machine.
    """

    time_limit_s: float | None = None
    max_evaluations: int | None = None


class SearchSpace:
    """Options and places of every table, with their work.

    Attributes:
        tables: for each table the options that fit on empty devices.
        first: ``[T + 1]`` number of each table's first option in the flat list of all options.
        pool: ``[M, F]`` distinct rows of work. ``rows[i]`` numbers those of flat option i, in shape
            ``[W]``, ``[pieces]`` or ``[pieces, L]`` for its spread, from ``pool_first[i]`` on.
        pool_device, pool_host: ``[M]`` bytes of each row of ``pool``.
        options, table_of: ``[n]`` the flat list of all options, and the number of each one's table.
        is_uniform, is_on_hosts: ``[n]`` whether an option loads every rank, or whole hosts.
        pieces: ``[n]`` how many places have to be chosen for an option; 0 for uniform ones.
        largest_device: ``[n]`` device bytes of an option's largest shard.
        mean_work: ``[n, F]`` work of an option, averaged over all ranks.
        device, host: ``[F]`` bytes per unit of work.
        may_use_rank, may_use_host: ``[T, W]``, ``[T, H]`` places that constraints leave to a table.
        rules: rules on groups, counts and moves; false if there are none.
        listing: the options as they were listed.
        known: a plan that was found while options were listed; a search can begin with it.
    """

    def __init__(self, problem: PlanningProblem, pipeline: CostPipeline, listing: Listing) -> None:
        """Flatten the options of a listing."""
        self.problem = problem
        self.pipeline = pipeline
        self.device, self.host = memory_coefficients(pipeline)
        self.listing = listing
        self.known: Assignment | None = None
        self.tables = drop_unfit(listing.tables, pipeline, self.device, self.host)
        self.world_size = problem.topology.world_size
        self.local_world_size = problem.topology.local_world_size
        self.num_hosts = problem.topology.num_hosts
        self._sizes = {"world_size": self.world_size, "local_world_size": self.local_world_size}
        counts = [len(t.options) for t in self.tables]
        self.first: IntArray = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.options: tuple[ShardingOption, ...] = tuple(o for t in self.tables for o in t.options)
        self.table_of: IntArray = np.repeat(np.arange(len(counts)), counts)
        pool = WorkPool.of([w for t in self.tables for w in t.works], pipeline.num_features)
        self.pool, self.rows, self.pool_first = pool.rows, pool.index, pool.first
        self.pool_device, self.pool_host = self.pool @ self.device, self.pool @ self.host
        self.largest_device: FloatArray = np.zeros(0)
        if len(self.pool_first):
            self.largest_device = np.maximum.reduceat(self.pool_device, self.pool_first)
        self.mean_work: FloatArray = pool.summed() / self.world_size
        self.rules = PlacementRules.of(problem)
        spreads = [o.spread for o in self.options]
        self.is_uniform: BoolArray = np.array([s is Spread.UNIFORM for s in spreads], dtype=bool)
        self.is_on_hosts: BoolArray = np.array([s is Spread.HOSTS for s in spreads], dtype=bool)
        self.pieces: IntArray = np.array([len(o.column_widths) for o in self.options], dtype=int)
        self.pieces[self.is_uniform] = 0
        apart = [o.keeps_pieces_apart for o in self.options]
        near = [o.keeps_pieces_on_host and o.num_pieces > 1 for o in self.options]
        self._is_bound: BoolArray = np.array(apart, dtype=bool) | np.array(near, dtype=bool)
        self.may_use_rank = _mask([t.ranks for t in self.tables], self.world_size)
        self.may_use_host = _mask([t.hosts for t in self.tables], self.num_hosts)
        self._is_tied = not (self.may_use_rank.all() and self.may_use_host.all())

    @property
    def num_tables(self) -> int:
        """Number of tables."""
        return len(self.tables)

    @cached_property
    def type_choices(self) -> frozenset[frozenset[ShardingType]]:
        """The different sets of sharding types that tables may choose from."""
        return frozenset(frozenset(o.sharding_type for o in t.options) for t in self.tables)

    def least_options(self, values: FloatArray) -> IntArray:
        """``[T]`` number of each table's option of least value, ``[n]``; the first in a tie."""
        least = np.minimum.reduceat(values, self.first[:-1])
        at = np.flatnonzero(values == least[self.table_of])
        return np.asarray(at[np.unique(self.table_of[at], return_index=True)[1]])

    def types(self, assignment: Assignment) -> frozenset[ShardingType]:
        """The sharding types of an assignment."""
        return frozenset(self.option(t, i).sharding_type for t, i in enumerate(assignment.options))

    def option(self, table: int, index: int) -> ShardingOption:
        """Option ``index`` of a table."""
        return self.tables[table].options[index]

    def allowed(self, table: int, spread: Spread) -> BoolArray:
        """``[W]`` ranks (or ``[H]`` hosts) that constraints leave to the pieces of a table."""
        masks = self.may_use_host if spread is Spread.HOSTS else self.may_use_rank
        return np.asarray(masks[table])

    def with_kernel(
        self, table: int, index: int, kernel: ComputeKernel, cache_ratio: float | None = None
    ) -> int:
        """Index of the same pieces under another kernel; ``index`` where there are none."""
        own, options = self.option(table, index), self.tables[table].options
        wanted = replace(own, kernel=kernel, cache_load_factor_ratio=cache_ratio)
        return options.index(wanted) if wanted in options else index

    def runs(self, flat: int) -> list[tuple[IntArray, int]]:
        """The row of a piece, and the number of pieces, of each run of equal pieces of an option.

        Options that a search lists have one run; those of a plan in use may have more.

        Args:
            flat: position of an option that is not uniform among those of all tables.
        """
        found: list[tuple[IntArray, int]] = []
        at = 0
        for _, run in itertools.groupby(self.options[flat].column_widths):
            count = len(list(run))
            found.append((self.rows[flat][at], count))
            at += count
        return found

    def placed_rows(
        self, table: int, index: int, places: tuple[int, ...]
    ) -> tuple[IntArray, FloatArray]:
        """(ranks, work rows) of one table on its places; a rank may appear more than once."""
        flat = int(self.first[table]) + index
        return self.ranks_of(flat, places), self.pool[self.rows[flat].ravel()]

    def ranks_of(self, flat: int, places: tuple[int, ...]) -> IntArray:
        """The rank of each row of work of an option on its places; all ranks if it is uniform."""
        if self.is_uniform[flat]:
            return np.arange(self.world_size)
        on_hosts = self.is_on_hosts[flat]
        return self.host_ranks(places) if on_hosts else np.array(places, dtype=np.int64)

    def work_without(
        self, work: FloatArray, table: int, index: int, places: tuple[int, ...]
    ) -> FloatArray:
        """Work of a plan ``[W, F]`` without that of one of its tables."""
        rest = work.copy()
        ranks, rows = self.placed_rows(table, index, places)
        np.subtract.at(rest, ranks, rows)
        return rest

    def host_ranks(self, hosts: Sequence[int]) -> IntArray:
        """Ranks of the hosts, in order."""
        local = np.arange(self.local_world_size)
        return (np.array(hosts, dtype=np.int64)[:, None] * self.local_world_size + local).ravel()

    def work(self, assignment: Assignment) -> FloatArray:
        """Work of an assignment, summed anew over its tables, ``[W, F]``."""
        work = np.zeros((self.world_size, self.pipeline.num_features))
        flats = self.first[:-1] + np.array(assignment.options, dtype=np.int64)
        for flat in flats[self.is_uniform[flats]].tolist():
            work += self.pool[self.rows[flat]]
        placed = np.flatnonzero(~self.is_uniform[flats])
        blocks = self.is_on_hosts[flats[placed]]
        on_ranks, on_hosts = placed[~blocks].tolist(), placed[blocks].tolist()
        ranks = [r for t in on_ranks for r in assignment.places[t]]
        hosts = [h for t in on_hosts for h in assignment.places[t]]
        if ranks or hosts:
            where = np.concatenate([np.array(ranks, dtype=np.int64), self.host_ranks(hosts)])
            rows = [self.rows[flats[t]].ravel() for t in (*on_ranks, *on_hosts)]
            order = np.argsort(where, kind="stable")
            used, starts = np.unique(where[order], return_index=True)
            work[used] += np.add.reduceat(self.pool[np.concatenate(rows)[order]], starts, axis=0)
        return work

    def usage(self, assignment: Assignment) -> Usage:
        """What an assignment uses of the rules on groups, counts and moves."""
        options = (self.option(t, i) for t, i in enumerate(assignment.options))
        return Usage(self.rules, list(zip(options, assignment.places, strict=True)))

    def keeps_rules(self, assignment: Assignment) -> bool:
        """Whether an assignment keeps the rules on groups, counts and moves, and TorchRec's."""
        for table, index in enumerate(assignment.options if self._is_tied else ()):
            mask = self.allowed(table, self.option(table, index).spread)
            if not mask[list(assignment.places[table])].all():
                return False
        for t in np.flatnonzero(self._is_bound[self.first[:-1] + assignment.options]):
            option = self.option(int(t), assignment.options[t])
            if not option.may_be_at(assignment.places[t], self.local_world_size):
                return False
        return not self.rules or self.usage(assignment).kept

    def overflow_ratio(self, work: FloatArray) -> FloatArray:
        """Bytes beyond the limits over all devices and hosts, as a share of device memory."""
        over = self.pipeline.overflow_bytes(work, FITTING)
        return np.asarray(over / max(float(np.abs(self.pipeline.device_limits).sum()), 1.0))

    def overfull_ratio(self, assignment: Assignment) -> float:
        """:meth:`overflow_ratio` of an assignment."""
        return float(self.overflow_ratio(self.work(assignment)[None])[0])

    def plan(self, assignment: Assignment) -> Plan:
        """The plan of an assignment.

        If no table splits columns under a sharding type that stands for another one, the plan has
        the plain name: ``table_wise`` for ``column_wise``, ``table_row_wise`` for ``grid_shard``.
        All such tables change their name together, so that the price stays the same.
        """
        options = [self.option(t, i) for t, i in enumerate(assignment.options)]
        names = self._names(options)
        rows = (table.num_embeddings for table in self.problem.workload.tables)
        named = [
            replace(o, sharding_type=names.get(o.sharding_type, o.sharding_type)) for o in options
        ]
        placed = zip(named, rows, assignment.places, strict=True)
        return Plan(placements=tuple(place(o, n, at, **self._sizes) for o, n, at in placed))

    def assignment(self, plan: Plan) -> Assignment:
        """The assignment that gives a plan; the inverse of :meth:`plan`.

        Raises:
            InvalidInputError: the plan cuts a table in a way that is not in the space.
        """
        found = []
        for t, table in enumerate(self.problem.workload.tables):
            choice = self.located(t, plan.placement(table.name))
            if choice is None:
                refuse(f"table {table.name!r}: no option of the search space is cut like the plan")
            found.append(choice)
        return Assignment.of(found)

    @cached_property
    def in_use(self) -> list[Choice | None] | None:
        """How the plan in use has each table: index of the option and places.

        None for a table that is cut as no listed option cuts it; None instead of the list if there
        is no plan in use.
        """
        limit = self.problem.move_limit
        if limit is None:
            return None
        tables = self.problem.workload.tables
        return [self.located(t, limit.start.placement(o.name)) for t, o in enumerate(tables)]

    @cached_property
    def start(self) -> Assignment | None:
        """The plan in use; None if there is none, or if no listed option cuts a table like it."""
        found = [choice for choice in self.in_use or () if choice is not None]
        return Assignment.of(found) if self.in_use and len(found) == self.num_tables else None

    def located(self, table: int, placement: TablePlacement) -> Choice | None:
        """Index of the option, and places, of a placement; None if no option is cut like it."""
        item, options = self.problem.workload.tables[table], self.tables[table].options
        kind = placement.sharding_type
        names = {kind, self.listing.names.get(kind, kind)}
        cut = (option_of(replace(placement, sharding_type=n), item, **self._sizes) for n in names)
        index = min((options.index(o) for o in cut if o and o in options), default=None)
        if index is None:
            return None
        return index, options[index].places_of(placement.ranks, self.local_world_size)

    def _names(self, options: Sequence[ShardingOption]) -> dict[ShardingType, ShardingType]:
        """The sharding types that get another name in the plan, and this name; see :meth:`plan`."""
        names = {}
        for general, plain in PLAIN_NAMES.items():
            keeps = (
                len(o.column_widths) == 1 and o.kernel in t.kernels.get(plain, ())
                for o, t in zip(options, self.tables, strict=True)
                if o.sharding_type is general
            )
            if self.listing.names.get(plain) is general and all(keeps):
                names[general] = plain
        return names


def _mask(allowed: Sequence[tuple[int, ...]], size: int) -> BoolArray:
    """``[T, size]`` True for allowed places; tables often share a tuple, which is read once."""
    rows = {places: np.zeros(size, dtype=bool) for places in set(allowed)}
    for places, row in rows.items():
        row[list(places)] = True
    return np.array([rows[places] for places in allowed], dtype=bool).reshape(-1, size)


class Evaluator:
    """Prices work and assignments, counts the work of a search, and ends it with its budget."""

    def __init__(self, space: SearchSpace, objective: AbstractObjective, budget: Budget) -> None:
        """Start the clock."""
        self.space = space
        self.objective = objective
        self.budget = budget
        self.num_evaluations = 0
        self._plan_entries = space.world_size * space.pipeline.num_features
        self._plan_s = priced_s(1, self._plan_entries)
        most = budget.max_evaluations
        most_s = math.inf if most is None else most * self._plan_s
        self.meter = Meter(most_s, budget.time_limit_s)
        self._started = time.perf_counter()
        self._known: dict[Assignment, float] = {}

    @property
    def seconds(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self._started

    @property
    def left_s(self) -> float:
        """Seconds by the clock that are left; infinite without a time limit."""
        limit_s = self.budget.time_limit_s
        return math.inf if limit_s is None else limit_s - self.seconds

    @property
    def late(self) -> bool:
        """Whether the time limit has passed."""
        return self.left_s <= 0

    @property
    def exhausted(self) -> bool:
        """Whether the budget is spent."""
        return self.meter.spent_s >= self.meter.most_s or self.late

    @property
    def work(self) -> int:
        """The work that the search has done, in priced plans."""
        return round(self.meter.spent_s / self._plan_s)

    def values(self, work: FloatArray) -> FloatArray:
        """``[...]`` values of plans with work ``[..., W, F]``; infinite if memory is too small."""
        count = int(np.prod(work.shape[:-2]))
        self.num_evaluations += count
        self.meter.spend(priced_s(count, self._plan_entries))
        if work.ndim == 3 and work.size > _MOST_ENTRIES:
            parts = np.array_split(work, min(-(-work.size // _MOST_ENTRIES), count))
            return np.concatenate([self._price(part) for part in parts])
        return self._price(work)

    def _price(self, work: FloatArray) -> FloatArray:
        """The values, which are not counted as evaluations."""
        fits = self.space.overflow_ratio(work) <= 0
        return np.where(fits, self.objective.values(work), np.inf)

    def value(self, assignment: Assignment) -> float:
        """Value of one assignment, computed once; infinite if it breaks a rule or does not fit."""
        if assignment not in self._known:
            kept = self.space.keeps_rules(assignment)
            value = float(self.values(self.space.work(assignment)))
            self._known[assignment] = value if kept else np.inf
        return self._known[assignment]
