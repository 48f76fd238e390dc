"""Asks CP-SAT whether any plan fits into memory and keeps the rules.

It finds a plan or proves that there is none. CP-SAT counts in whole numbers, so bytes are rounded
to units: up where a plan is looked for, down where it is to be proven that there is none. A unit is
a byte unless a device has so many that sums would overflow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np

from costmodels.datatypes import BoolArray
from costmodels.sharding import Spread
from planner.problem import Level
from planner.rules.placement_rules import Cap, Union
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


class Answer(StrEnum):
    """What is known after CP-SAT has ended: there is a plan, there is none, or neither."""

    FOUND = "found"
    NONE = "none"
    UNKNOWN = "unknown"


def pack_exactly(
    space: SearchSpace, *, work_s: float, time_limit_s: float, seed: int
) -> tuple[Answer, Assignment | None]:
    """Look for a plan that fits and keeps the rules, or for the proof that there is none.

    Half of the work and of the time is for either.

    Args:
        space: the tables and places.
        work_s: most work, in CP-SAT's deterministic seconds, which are the same on every machine.
        time_limit_s: most seconds by the clock.
        seed: of the solver.
    """
    kept, complete = _options(space)
    limits = work_s / 2, time_limit_s / 2
    found, assignment = _Model(space, kept, round_up=True).solve(*limits, seed)
    if found is not Answer.NONE or not complete:
        return (Answer.UNKNOWN if found is Answer.NONE else found), assignment
    found, _ = _Model(space, kept, round_up=False).solve(*limits, seed)
    return (Answer.NONE if found is Answer.NONE else Answer.UNKNOWN), None


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


@dataclass(slots=True, kw_only=True)
class _Placed:
    """The variables of one option of a table.

    Attributes:
        index: which of the table's options.
        used: whether the plan has it.
        at: for each piece and place whether the piece is there; 0 for places that are not allowed.
    """

    index: int
    used: Any
    at: list[list[Any]] = field(default_factory=list)


class _Model:
    """The packing problem as a CP-SAT model."""

    def __init__(self, space: SearchSpace, kept: list[list[int]], *, round_up: bool) -> None:
        from ortools.sat.python import cp_model

        self.cp = cp_model
        self.space = space
        self.model = cp_model.CpModel()
        limits = space.pipeline.device_limits
        self.unit = max(float(limits.max()) / _UNITS, 1.0)
        self.round = math.ceil if round_up else math.floor
        self.margin = FITTING if round_up else ROUNDING
        self.tables = [self._table(t, indices) for t, indices in enumerate(kept)]
        self._memory()
        for cap in space.rules.caps:
            self._cap(cap)
        for union in space.rules.unions:
            self._union(union)
        self._budget()

    def solve(
        self, work_s: float, time_limit_s: float, seed: int
    ) -> tuple[Answer, Assignment | None]:
        """Run the solver, for so much work and so many seconds by the clock at most."""
        solver = self.cp.CpSolver()
        if math.isfinite(time_limit_s):
            solver.parameters.max_time_in_seconds = max(time_limit_s, 0.1)
        solver.parameters.max_deterministic_time = work_s
        solver.parameters.interleave_search = (
            True  # the answer does not depend on how threads take turns
        )
        solver.parameters.num_workers = 2
        solver.parameters.random_seed = seed
        status = solver.solve(self.model)
        if status == self.cp.INFEASIBLE:
            return Answer.NONE, None
        if status not in (self.cp.FEASIBLE, self.cp.OPTIMAL):
            return Answer.UNKNOWN, None
        options, places = [], []
        for table in self.tables:
            chosen = next(p for p in table if solver.boolean_value(p.used))
            options.append(chosen.index)
            where = (next(i for i, x in enumerate(r) if solver.boolean_value(x)) for r in chosen.at)
            places.append(tuple(where))
        return Answer.FOUND, Assignment(options=tuple(options), places=tuple(places))

    # -- parts ------------------------------------------------------------------------------------

    def _table(self, table: int, indices: list[int]) -> list[_Placed]:
        """Variables of the options of a table, of which exactly one is used."""
        found = [self._option(table, index) for index in indices]
        self.model.add_exactly_one(p.used for p in found)
        return found

    def _option(self, table: int, index: int) -> _Placed:
        """Variables of an option, and what TorchRec asks of the places of its pieces."""
        space, model = self.space, self.model
        option = space.option(table, index)
        placed = _Placed(index=index, used=model.new_bool_var(""))
        if option.is_uniform:
            return placed
        hosts = option.spread is Spread.HOSTS
        mask = space.may_use_host[table] if hosts else space.may_use_rank[table]
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
            used = []
            for width in sorted(set(widths)):
                pieces = [v for w, v in zip(widths, column, strict=True) if w == width]
                here = self.model.new_bool_var("")
                self.model.add(sum(pieces) <= len(pieces) * here)
                used.append(here)
            self.model.add(sum(used) <= 1)

    def _memory(self) -> None:
        """Keep every device and every host within its memory."""
        space, local = self.space, self.space.local_world_size
        device: list[list[Any]] = [[] for _ in range(space.world_size)]
        host: list[list[Any]] = [[] for _ in range(space.num_hosts)]
        for rank, variable, device_bytes, host_bytes in self._shards():
            if (size := self.round(device_bytes / self.unit)) > 0:
                device[rank].append(size * variable)
            if (size := self.round(host_bytes / self.unit)) > 0:
                host[rank // local].append(size * variable)
        for terms, limit in zip(device, space.pipeline.device_limits, strict=True):
            self.model.add(sum(terms) <= self._limit(limit))
        for terms, limit in zip(host, space.pipeline.host_limits, strict=True):
            self.model.add(sum(terms) <= self._limit(limit))

    def _limit(self, limit: float) -> int:
        """A limit of memory in whole units."""
        units = float(limit) * self.margin / self.unit
        return math.floor(units) if self.round is math.ceil else math.ceil(units)

    def _shards(self) -> Any:
        """(rank, variable, device bytes, host bytes) of every shard on every rank it may be on."""
        space, local = self.space, self.space.local_world_size
        for table, found in enumerate(self.tables):
            for placed in found:
                flat = int(space.first[table]) + placed.index
                rows = space.rows[flat]
                device, host = space.pool_device[rows], space.pool_host[rows]
                spread = space.options[flat].spread
                if spread is Spread.UNIFORM:
                    for rank in range(space.world_size):
                        yield rank, placed.used, float(device[rank]), float(host[rank])
                for piece, row in enumerate(placed.at):
                    for place, variable in enumerate(row):
                        if isinstance(variable, int):
                            continue
                        if spread is Spread.RANKS:
                            yield place, variable, float(device[piece]), float(host[piece])
                            continue
                        for i in range(local):
                            rank = place * local + i
                            yield rank, variable, float(device[piece, i]), float(host[piece, i])

    def _counts(self, members: BoolArray, level: Level) -> list[list[list[Any]]]:
        """Variables of shards, by table and place: their sum is the table's shards on the place.

        Args:
            members: ``[T]`` True for the tables to count.
            level: whether places are ranks or hosts.
        """
        space, local = self.space, self.space.local_world_size
        size = space.world_size if level is Level.RANK else space.num_hosts
        found = []
        for table in np.flatnonzero(members):
            places: list[list[Any]] = [[] for _ in range(size)]
            for placed in self.tables[table]:
                spread = space.option(int(table), placed.index).spread
                if spread is Spread.UNIFORM:
                    for rank in range(space.world_size):
                        places[rank if level is Level.RANK else rank // local].append(placed.used)
                for row in placed.at:
                    for place, variable in enumerate(row):
                        hosts = spread is Spread.HOSTS
                        ranks = range(place * local, (place + 1) * local) if hosts else (place,)
                        for rank in ranks:
                            places[rank if level is Level.RANK else rank // local].append(variable)
            found.append(places)
        return found

    def _cap(self, cap: Cap) -> None:
        """Keep a limit on the number of shards, or of tables, on every place."""
        counts = self._counts(cap.members, cap.level)
        for place in range(len(counts[0]) if counts else 0):
            terms = [c[place] for c in counts]
            if not cap.distinct:
                self.model.add(sum(sum(t) for t in terms) <= cap.most)
                continue
            present = []
            for shards in terms:
                here = self.model.new_bool_var("")
                self.model.add(sum(shards) <= max(len(shards), 1) * here)
                present.append(here)
            self.model.add(sum(present) <= cap.most)

    def _union(self, union: Union) -> None:
        """Keep all tables of a group on one place."""
        counts = self._counts(union.members, union.level)
        used = []
        for place in range(len(counts[0]) if counts else 0):
            here = self.model.new_bool_var("")
            for table in counts:
                self.model.add(sum(table[place]) <= max(len(table[place]), 1) * here)
            used.append(here)
        self.model.add(sum(used) <= 1)

    def _budget(self) -> None:
        """Keep the limit on moves: on the tables that move, and on the bytes that they receive."""
        budget = self.space.rules.budget
        if budget is None:
            return
        moved, flags = [], []
        for table, found in enumerate(self.tables):
            terms = []
            for placed in found:
                received = budget.piece_bytes(self.space.option(table, placed.index))
                rows = placed.at or [[placed.used]]
                for row, row_bytes in zip(rows, np.atleast_2d(received), strict=True):
                    for variable, size in zip(row, row_bytes, strict=True):
                        if size > 0 and not isinstance(variable, int):
                            terms.append((max(self.round(size / self.unit), 1), variable))
            moved += [size * variable for size, variable in terms]
            flag = self.model.new_bool_var("")
            for _, variable in terms:
                self.model.add_implication(variable, flag)
            flags.append(flag)
        if math.isfinite(budget.max_tables):
            self.model.add(sum(flags) <= int(budget.max_tables))
        if math.isfinite(budget.max_bytes):
            count = len(moved) if self.round is math.floor else 0
            self.model.add(sum(moved) <= math.floor(budget.max_bytes / self.unit) + count)
