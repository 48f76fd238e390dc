"""A lower bound from the problem without ranks.

Ranks of a host are interchangeable, so a relaxation that places shards has nothing to say beyond
the mean over ranks; leaving ranks out makes it small enough to solve exactly. Variables: ``y[o]``,
one option per table; ``z[k]``, the maximum of phase k over ranks; ``u[c]``, the least load that
uniform options put on every rank; ``t``, the objective. Every plan that fits satisfies, for each
tangent c of phase k:

- the mean over ranks is at most the maximum: ``sum_o mean[o, c] y[o] <= z[k]``;
- the largest shard of a table lies on some rank: ``sum_o largest[o, c] y[o] + u[c] <= z[k]``,
  and so do all shards of tables that rules tie together (:mod:`planner.search.bounds.one_place`);
- uniform options alone load every rank: ``sum_o load[o, r, c] y[o] <= z[k]``;
- limits on counts hold over all places (:mod:`planner.search.bounds.counted`);

the same for memory with its limit in place of z, and ``t >= base + slopes @ z`` for each cut of the
objective. Cuts hold for one set of sharding types, so there is one such problem per set, and the
least of their solutions is a bound for every plan. Rows, tangents and cuts are added where the last
solution breaks them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from planner.search.bounds.bound_program import Name, RankFreeProgram, Scope
from planner.search.bounds.boxes import Box
from planner.search.bounds.every_rank import ranks_interchangeable
from planner.search.bounds.relaxation import Relaxation, TypeSet, uses
from planner.search.bounds.room import Room
from planner.search.common.basis import Basis
from planner.search.common.linear import LinearModel
from planner.search.common.milp import MilpProgram, Rows, Solution
from planner.search.common.programs import effort_of, node_s, solve
from planner.search.common.schedule import USUAL, Schedule
from planner.space.effort import Meter
from planner.space.objective import Cut

_TOLERANCE: Final = 1e-5
_ROUNDING: Final = 1e-9
"""Share taken off a bound for the rounding of loads: sums of many products each."""
_LEAST_ROOM: Final = 1e-60
"""Room of a phase in which nothing is ever done, so that pieces can be measured by it."""
_LARGE: Final = 0.25
"""Share of a phase's maximum from which on a piece is worth a special rank."""


class RankFreeBound:
    """Solves the rank-free problem, again and again as tangents, rows and cuts are added."""

    def __init__(
        self,
        model: LinearModel,
        *,
        optional: TypeSet = frozenset(),
        meter: Meter | None = None,
        cut: Callable[[], bool] = lambda: False,
        schedule: Schedule = USUAL,
    ) -> None:
        """Begin with the rows on means alone.

        Args:
            model: tangents and options.
            meter: told of the work done.
            optional: sharding types that plans of a set may have or not; what these cost by being
                there is given up.
            cut: whether the user or the clock ends the search; asked after each linear program.
            schedule: up to how many tables linear programs are worth their time.
        """
        self.optional = optional
        self._cut, self._schedule = cut, schedule
        self._meter = Meter() if meter is None else meter
        self.model = model
        self.space = model.space
        self._made = RankFreeProgram(model)
        self._uniform = self._made.uniform
        self._table_rows: set[Name] = set()
        self._rank_rows: set[Name] = set()
        self.cuts: dict[TypeSet | None, list[Cut]] = {}
        self._room = Room(self.space) if self._made.unlisted_bytes > 0 else None
        self._fitted: dict[tuple[TypeSet | None, float], Relaxation] = {}

    def relax(
        self,
        types: TypeSet | None,
        *,
        kept: BoolArray | None = None,
        more: Sequence[Rows] = (),
        rounds: int = 12,
        box: Box | None = None,
        special: Sequence[int] = (),
        start: Basis | None = None,
    ) -> Relaxation:
        """Bound by the linear program, cut until it stops rising.

        Args:
            types: the set of sharding types, None for all.
            kept: options to choose from, flat; the bound then holds for those alone.
            more: further rows, as in :meth:`packable`.
            rounds: most programs solved.
            box: only plans whose phases lie in it.
            special: tables of :meth:`tables_with_large_pieces`.
            start: where a similar program ended.
        """
        result = Relaxation(types=types, bound=-math.inf, basis=start)
        for _ in range(rounds):
            scope = Scope(kept=kept, more=more, box=box, special=special)
            program = self._program(types, scope, whole=False)
            solution = self._solve(program, start=result.basis)
            if solution.infeasible:
                return Relaxation(types=types, bound=math.inf)
            if solution.x is None:
                break
            last, result = result.bound, self._relaxation(solution, types)
            new = self._add_rows(solution.x, types, box)
            shares = solution.x[: len(self.space.options)]
            rises = result.bound > last + _TOLERANCE * abs(result.bound)
            new = self.model.follow(shares, types, self.optional, touches=rises) or new
            if not new or self._cut():
                break
        return result

    def listed(self, relaxation: Relaxation) -> Relaxation:
        """Solve again within the memory that listed options have; for rounding, no bound."""
        room = self._room
        if room is None or relaxation.shares is None or room.holds(relaxation.shares):
            return relaxation
        key = relaxation.types, relaxation.bound
        if key not in self._fitted:
            found = None
            if self.space.num_tables <= self._schedule.shrunk_tables:
                found = self.relax(relaxation.types, more=room.rows(), rounds=2)
            if found is None or found.shares is None:
                found = replace(relaxation, shares=room.shrunk(relaxation))
            self._fitted[key] = found
        return self._fitted[key]

    def packable(self, relaxation: Relaxation, slack_ratio: float) -> Relaxation:
        """Solve again for options that whole shards can be packed from; for rounding, no bound.

        A share of a giant shard is small, the whole of it is not. With the solution's loads raised
        by ``slack_ratio`` as room: no shard is larger than the room; of those larger than half of
        it no more than one goes to a rank, of those larger than a third no more than two.
        """
        if relaxation.shares is None:
            return relaxation
        groups = self.model.phase_maxima(self._peaks(relaxation.shares)[-1])
        room = np.maximum(groups * (1 + slack_ratio), 1e-9 * float(groups.max()) + _LEAST_ROOM)
        room = room[self.model.phase_index]
        share = self.model.extreme(np.maximum)[:, : len(room)] / room
        kept = self._uniform | (share <= 1.0).all(axis=-1)
        taken = np.where(share > 0.5, 1.0, np.where(share > 1 / 3, 0.5, 0.0))
        counted = taken * self._made.shards[:, None]
        rows = self._made.at_most_one(counted / self.space.world_size)
        more = [rows, *(self._room.rows() if self._room is not None else ())]
        return self.relax(relaxation.types, kept=kept, more=more, rounds=4)

    def solve_whole(
        self,
        types: TypeSet | None,
        *,
        time_limit_s: float = math.inf,
        gap_ratio: float = 1e-3,
        rounds: int = 4,
        box: Box | None = None,
        kept: BoolArray | None = None,
        special: Sequence[int] = (),
    ) -> Relaxation:
        """Bound by the mixed-integer program: one whole option per table."""
        best = Relaxation(types=types, bound=-math.inf)
        for _ in range(rounds):
            program = self._program(types, Scope(box=box, kept=kept, special=special), whole=True)
            solution = self._solve(program, time_limit_s=time_limit_s, gap_ratio=gap_ratio)
            if solution.infeasible:
                return Relaxation(types=types, bound=math.inf)
            result = self._relaxation(solution, types)
            if result.bound >= best.bound or best.shares is None:
                best = result
            if solution.x is None or not self._add_rows(solution.x, types, box):
                break
        return best

    def certain(self, types: TypeSet) -> TypeSet:
        """Types that all plans of a set have."""
        return types - self.optional

    @property
    def uniform(self) -> BoolArray:
        """``[n]`` options that load every rank."""
        return self._uniform

    @property
    def limits(self) -> FloatArray:
        """Device and host bytes per rank."""
        return self._made.limits

    def program(
        self, types: TypeSet | None, *, special: Sequence[int]
    ) -> tuple[MilpProgram, float]:
        """A mixed-integer program to be solved elsewhere, and the unit of its objective."""
        program = self._program(types, Scope(special=special), whole=True)
        return program, self._made.scale * (1 - _ROUNDING)

    @property
    def ranks_size(self) -> float:
        """Further variables of :meth:`whole_program`; infinite where ranks differ."""
        return self._made.every_rank.size if ranks_interchangeable(self.space) else math.inf

    def whole_program(
        self, types: TypeSet | None, *, bound: float, incumbent: float
    ) -> tuple[MilpProgram, float]:
        """The same with every rank, for plans whose objective is between these two, in seconds."""
        program = self._program(types, Scope(every_rank=True), whole=True)
        last, scale = len(program.cost) - 1, self._made.scale
        upper = program.upper.copy()
        upper[last] = incumbent / scale
        least = Rows(
            row=np.zeros(1, dtype=np.int64),
            column=np.array([last]),
            values=np.ones(1),
            lower=np.array([bound / scale]),
            upper=np.array([math.inf]),
        )
        program = replace(program, upper=upper, rows=Rows.stack([program.rows, least]))
        return program, scale * (1 - _ROUNDING)

    def least_phase(
        self,
        types: TypeSet | None,
        phase: int,
        most: float,
        *,
        box: Box | None = None,
        kept: BoolArray | None = None,
    ) -> float:
        """The least maximum that a phase can have in plans whose objective is at most ``most``."""
        where = np.flatnonzero(self.model.used == phase)
        if not len(where):
            return 0.0
        if self.space.num_tables > self._schedule.least_phase_tables:
            return self._least_sum(types, int(where[0]))
        program = self._program(types, Scope(box=box, kept=kept), whole=False)
        cost, upper = np.zeros_like(program.cost), program.upper.copy()
        cost[len(self.space.options) + int(where[0])] = 1.0
        upper[-1] = most / self._made.scale
        solution = self._solve(replace(program, cost=cost, upper=upper))
        if solution.infeasible:
            return math.inf
        return max(0.0, solution.bound * self._made.scale * (1 - _ROUNDING))

    def tables_with_large_pieces(self, relaxation: Relaxation, count: int) -> tuple[int, ...]:
        """Tables with the largest pieces, measured by the solution's maxima, most first."""
        if relaxation.shares is None or relaxation.phases is None:
            return ()
        maxima = relaxation.phases[self.model.used][self.model.phase_index]
        room = np.maximum(maxima, _TOLERANCE * float(maxima.max(initial=0.0)) + 1e-30)
        share = (self.model.extreme(np.maximum)[:, : len(room)] / room).max(axis=-1)
        share = np.where(self._uniform, 0.0, share) * relaxation.shares
        each = np.add.reduceat(share, self.space.first[:-1])
        order = np.argsort(-each, kind="stable")[:count]
        return tuple(int(t) for t in order if each[t] > _LARGE)

    def largest_loads(self, box: Box) -> FloatArray:
        """``[n, G]`` what each option puts at least on some rank, per side of a box."""
        loads = self.model.extreme(np.maximum)
        phases = np.zeros((len(loads), len(self.model.objective.weights)))
        phases[:, self.model.used] = self.model.phase_maxima(loads)
        return phases[:, box.first]

    def _least_sum(self, types: TypeSet | None, phase: int) -> float:
        """The mean over ranks if every table took the option that spares this phase most."""
        members = self._made.members(phase)
        inside = uses(types, self.space)
        loads = np.where(inside[:, None], self.model.mean[:, members.start : members.stop], np.inf)
        least = np.minimum.reduceat(loads, self.space.first[:-1], axis=0).sum(axis=0)
        return float(least.max()) * (1 - _ROUNDING) if np.isfinite(least).all() else 0.0

    def _solve(
        self,
        program: MilpProgram,
        *,
        time_limit_s: float = math.inf,
        gap_ratio: float = 1e-4,
        start: Basis | None = None,
    ) -> Solution:
        nodes = self._meter.left_s / node_s(program)
        if program.integer.any() and nodes < (program.max_nodes or math.inf):
            program = replace(program, max_nodes=max(int(nodes), 1))
        solution = solve(program, time_limit_s=time_limit_s, gap_ratio=gap_ratio, start=start)
        self._meter.spend(effort_of(program, solution))
        return solution

    # -- building ---------------------------------------------------------------------------------

    def _program(self, types: TypeSet | None, scope: Scope, *, whole: bool) -> MilpProgram:
        cuts = [self.model.objective.always(), *self.cuts.get(types, [])]
        cuts += [] if scope.box is None else scope.box.cuts
        rows = self._table_rows, self._rank_rows
        return self._made.build(types, *rows, cuts, whole=whole, scope=scope)

    # -- reading ----------------------------------------------------------------------------------

    def _relaxation(self, solution: Solution, types: TypeSet | None) -> Relaxation:
        scale = self._made.scale
        count = len(self.space.options)
        reduced = solution.reduced_costs
        return Relaxation(
            types=types,
            bound=solution.bound * scale * (1 - _ROUNDING),
            shares=None if solution.x is None else solution.x[:count],
            phases=None if solution.x is None else self._phases(solution.x),
            reduced_costs=None if reduced is None else reduced[:count] * scale,
            basis=solution.basis,
        )

    def _phases(self, x: FloatArray) -> FloatArray:
        start = len(self.space.options)
        return self.model.all_phases(x[start : start + len(self.model.used)] * self._made.scale)

    def _add_rows(self, x: FloatArray, types: TypeSet | None, box: Box | None = None) -> bool:
        """Add what the solution breaks; False if nothing."""
        model, count = self.model, len(self.space.options)
        y, z = x[:count], x[count : count + len(model.used)]
        phases = z[model.phase_index] * self._made.scale
        phases = phases + _TOLERANCE * max(float(phases.max(initial=0.0)), 1e-30)
        limits = self._made.rank_limits[self._made.ranks] * (1 + _TOLERANCE)
        on_rank = np.column_stack([np.tile(phases, (len(limits), 1)), limits])
        before = len(self._table_rows) + len(self._rank_rows)
        largest, everywhere, peaks = self._peaks(y)
        self._table_rows |= self._broken(largest, on_rank.max(axis=0))
        broken = self._broken(everywhere, on_rank)
        self._rank_rows |= {(int(self._made.ranks[rank]), g, i) for rank, g, i in broken}
        value = float(x[-1]) * self._made.scale
        new = self._add_cut(peaks, value, types) if box is None else self._cut_box(x, value, box)
        return new or len(self._table_rows) + len(self._rank_rows) > before

    def _peaks(self, y: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """What is on one place, uniform options on each rank, and the peaks of both.

        Loads ``[rows, P + 2]``, ``[ranks, P + 2]`` and ``[P + 2]``, where ranks that are alike are
        looked at once; the peaks are no less than the means.
        """
        uniform = np.where(self._uniform, y, 0.0)
        base = uniform @ self.model.extreme(np.minimum)
        largest = self._made.one_place.all_loads(y) + base
        everywhere = self._uniform_loads(uniform)
        peaks = np.maximum(largest.max(axis=0), everywhere.max(axis=0))
        return largest, everywhere, np.maximum(peaks, y @ self.model.mean)

    def _add_cut(self, peaks: FloatArray, value: float, types: TypeSet | None) -> bool:
        """Add the longest path at these loads, if it is longer than ``value``."""
        if types is None:
            return False
        maxima = self.model.phase_maxima(peaks)
        certain = self.certain(types)
        cut = self.model.longer_cut(maxima, certain, value, types - certain)
        if cut is None:
            return False
        known = self.cuts.setdefault(types, [])
        same = [c for c in known if np.array_equal(c.slopes, cut.slopes)]
        if any(c.base >= cut.base - _TOLERANCE * abs(cut.base) for c in same):
            return False
        known.append(cut)
        return True

    def _cut_box(self, x: FloatArray, value: float, box: Box) -> bool:
        """Add a box's own longest path at a solution, if it is longer than ``value``."""
        phases = self._phases(x)
        cut = box.cut(phases)
        if cut.base + cut.slopes @ phases <= value * (1 + _TOLERANCE):
            return False
        box.cuts.append(cut)
        return True

    def _broken(self, loads: FloatArray, allowed: FloatArray) -> set[Name]:
        """(row of ``loads``, phase, tangent within the phase) of loads above what is allowed."""
        phases = np.append(self.model.used, len(self.model.objective.weights))
        groups = np.concatenate([self.model.phase_index, [len(self.model.used)] * 2])
        within = (
            np.arange(len(groups)) - np.append(self.model.starts, self.model.num_tangents)[groups]
        )
        broken = loads > allowed
        where = np.argwhere(broken)
        return {(int(i), int(phases[groups[c]]), int(within[c])) for i, c in where}

    def _uniform_loads(self, uniform: FloatArray) -> FloatArray:
        """``[ranks, P + 2]`` loads of the uniform options on ranks that differ."""
        ranks = self._made.ranks
        loads = np.zeros((len(ranks), self.model.num_tangents + 2))
        chosen = uniform[self._uniform]
        for i in np.flatnonzero(chosen > _TOLERANCE):
            own = self.model.columns[self._made.uniform_rows[i, ranks]]
            loads += chosen[i] * self.model.at(own, ranks)
        return loads
