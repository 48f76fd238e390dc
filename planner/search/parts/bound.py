"""A lower bound from the problem without ranks.

Ranks of a host are interchangeable, so a relaxation that places shards has nothing to say beyond
the mean over ranks; leaving ranks out makes it small enough to solve exactly. Variables: ``y[o]``,
one option per table; ``z[k]``, the maximum of phase k over ranks; ``u[c]``, the least load that
uniform options put on every rank; ``t``, the objective. Every plan that fits satisfies, for each
tangent c of phase k:

- the mean over ranks is at most the maximum: ``sum_o mean[o, c] y[o] <= z[k]``;
- the largest shard of a table lies on some rank: ``sum_o largest[o, c] y[o] + u[c] <= z[k]``;
- uniform options alone load every rank: ``sum_o load[o, r, c] y[o] <= z[k]``;

the same for memory with its limit in place of z, and ``t >= base + slopes @ z`` for each cut of the
objective. Cuts hold for one set of sharding types, so there is one such problem per set, and the
least of their solutions is a bound for every plan. Rows, tangents and cuts are added where the last
solution breaks them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.sharding import ShardingType, Spread
from planner.evaluation import ROUNDING, BoolArray, Cut, FloatArray
from planner.search.parts.boxes import Box
from planner.search.parts.linear import LinearModel
from planner.search.parts.programs import Program, Rows, Solution, solve
from planner.search.parts.relaxation import Relaxation, TypeSet

_TOLERANCE: Final = 1e-5
_SAFETY: Final = 1e-6
"""Share taken off a bound for the solver's tolerances."""
_EXACT_TABLES: Final = 400
"""Above this many tables the least maximum of a phase is not worth a program of its own."""


class RankFreeBound:
    """Solves the rank-free problem, again and again as tangents, rows and cuts are added."""

    def __init__(self, model: LinearModel, *, merged: bool = False) -> None:
        """Begin with the rows on means alone.

        Args:
            model: tangents and options.
            merged: let sets with ``data_parallel`` stand for those without it as well, which halves
                their number and gives up the launches of replicated tables.
        """
        self._merged = merged
        self.model = model
        self.space = model.space
        spreads = [o.spread is Spread.UNIFORM for o in self.space.options]
        self._uniform: BoolArray = np.array(spreads, dtype=bool)
        self._shards = np.array(
            [0 if u else r.size for u, r in zip(spreads, self.space.rows, strict=True)]
        )
        self._uniform_rows = np.array(
            [self.space.rows[i] for i in np.flatnonzero(self._uniform)], dtype=np.int64
        )
        self._types = [o.sharding_type for o in self.space.options]
        self._table_rows: set[tuple[int, int]] = set()
        self._rank_rows: set[tuple[int, int]] = set()
        self._extremes: dict[tuple[str, int], FloatArray] = {}
        self.cuts: dict[TypeSet | None, list[Cut]] = {}

    def relax(
        self,
        types: TypeSet | None,
        *,
        kept: BoolArray | None = None,
        more: Rows | None = None,
        rounds: int = 12,
        box: Box | None = None,
    ) -> Relaxation:
        """Bound by the linear program, cut until it stops rising.

        Args:
            types: the set of sharding types, None for all.
            kept: options to choose from, flat; the bound then holds for those alone.
            more: further rows, as in :meth:`packable`.
            rounds: most programs solved.
            box: only plans whose phases lie in it.
        """
        result = Relaxation(types=types, bound=-math.inf)
        for _ in range(rounds):
            program = self._program(types, whole=False, kept=kept, more=more, box=box)
            solution = solve(program)
            if solution.infeasible:
                return Relaxation(types=types, bound=math.inf)
            if solution.x is None:
                break
            last, result = result.bound, self._relaxation(solution, types)
            new = self._add_rows(solution.x, types, box)
            if result.bound > last + _TOLERANCE * abs(result.bound):
                mean = solution.x[: len(self._types)] @ self.space.mean_work
                new = self.model.add_tangents(mean) or new
            if not new:
                break
        return result

    def packable(self, relaxation: Relaxation, slack_ratio: float) -> Relaxation:
        """Solve again for options that whole shards can be packed from; for rounding, no bound.

        A share of a giant shard is small, the whole of it is not. With the solution's loads raised
        by ``slack_ratio`` as room: no shard is larger than the room; of those larger than half of
        it no more than one goes to a rank, of those larger than a third no more than two.
        """
        if relaxation.shares is None:
            return relaxation
        groups = self.model.phase_maxima(self._peaks(relaxation.shares)[-1])
        room = (groups * (1 + slack_ratio) + 1e-9 * float(groups.max()))[self.model.phase_index]
        share = self._extreme(np.maximum)[:, : len(room)] / room
        kept = self._uniform | (share <= 1.0).all(axis=-1)
        taken = np.where(share > 0.5, 1.0, np.where(share > 1 / 3, 0.5, 0.0))
        counted = taken * self._shards[:, None]
        rows = self._below(
            counted / self.space.world_size, range(len(room)), base=False, fixed=True
        )
        return self.relax(relaxation.types, kept=kept, more=rows, rounds=4)

    def solve_whole(
        self,
        types: TypeSet | None,
        *,
        time_limit_s: float = math.inf,
        gap_ratio: float = 1e-3,
        rounds: int = 4,
        box: Box | None = None,
    ) -> Relaxation:
        """Bound by the mixed-integer program: one whole option per table."""
        best = Relaxation(types=types, bound=-math.inf)
        for _ in range(rounds):
            solution = solve(
                self._program(types, whole=True, box=box),
                time_limit_s=time_limit_s,
                gap_ratio=gap_ratio,
            )
            if solution.infeasible:
                return Relaxation(types=types, bound=math.inf)
            result = self._relaxation(solution, types)
            if result.bound >= best.bound or best.shares is None:
                best = result
            if solution.x is None or not self._add_rows(solution.x, types, box):
                break
        return best

    def least_phase(self, types: TypeSet | None, phase: int, most: float) -> float:
        """The least maximum that a phase can have in plans whose objective is at most ``most``."""
        where = np.flatnonzero(self.model.used == phase)
        if not len(where):
            return 0.0
        if self.space.num_tables > _EXACT_TABLES:
            return self._least_sum(types, int(where[0]))
        program = self._program(types, whole=False)
        cost, upper = np.zeros_like(program.cost), program.upper.copy()
        cost[len(self._types) + int(where[0])] = 1.0
        upper[-1] = most / self._scale
        solution = solve(replace(program, cost=cost, upper=upper))
        if solution.infeasible:
            return math.inf
        return max(0.0, solution.bound * self._scale * (1 - 1e-6))

    def _least_sum(self, types: TypeSet | None, phase: int) -> float:
        """The mean over ranks if every table took the option that spares this phase most."""
        members = self._members(phase)
        inside = np.array([types is None or t in types for t in self._types])
        loads = np.where(inside[:, None], self.model.mean[:, members.start : members.stop], np.inf)
        least = np.minimum.reduceat(loads, self.space.first[:-1], axis=0).sum(axis=0)
        return float(least.max()) * (1 - _SAFETY) if np.isfinite(least).all() else 0.0

    def phases_of(self, relaxation: Relaxation) -> FloatArray:
        """``[K]`` phases at a relaxation's shares."""
        shares = np.zeros(len(self._types)) if relaxation.shares is None else relaxation.shares
        peaks = self._peaks(shares)[-1]
        return self.model.all_phases(self.model.phase_maxima(peaks))

    # -- building ---------------------------------------------------------------------------------

    @property
    def _scale(self) -> float:
        typical = (
            float(self.model.mean[:, : self.model.num_tangents].mean()) * self.space.num_tables
        )
        return typical if typical > 0 else 1.0

    def _program(
        self,
        types: TypeSet | None,
        *,
        whole: bool,
        kept: BoolArray | None = None,
        more: Rows | None = None,
        box: Box | None = None,
    ) -> Program:
        model, scale = self.model, self._scale
        options, phases, loads = len(self._types), len(model.used), model.num_tangents + 2
        size = options + phases + loads + 1
        cost = np.zeros(size)
        cost[-1] = 1.0
        upper = np.full(size, math.inf)
        upper[:options] = [1.0 if types is None or t in types else 0.0 for t in self._types]
        if kept is not None:
            upper[:options] *= kept
        unit = np.concatenate([np.full(model.num_tangents, scale), self._limits()])
        parts = [self._one_option_each(), self._means(unit), self._uniform_base(unit)]
        parts += [self._largest(t, k, unit) for t, k in sorted(self._table_rows)]
        parts += [self._on_rank(r, k, unit) for r, k in sorted(self._rank_rows)]
        parts.append(self._paths(types, scale, box))
        if box is not None:
            parts.append(self._inside(box, scale))
        if more is not None:
            parts.append(more)
        integer = np.zeros(size, dtype=bool)
        integer[:options] = whole
        return Program(cost=cost, upper=upper, rows=Rows.stack(parts), integer=integer)

    def _inside(self, box: Box, scale: float) -> Rows:
        """``low <= z <= high`` for the phases that a box limits."""
        options, phases = len(self._types), len(self.model.used)
        limits = [
            (int(where[0]), low, high)
            for phase, low, high in zip(box.first, box.low, box.high, strict=True)
            if len(where := np.flatnonzero(self.model.used == phase))
        ]
        matrix = np.zeros((len(limits), options + phases + self.model.num_tangents + 3))
        for i, (k, _, _) in enumerate(limits):
            matrix[i, options + k] = 1.0
        lower = np.array([low / scale for _, low, _ in limits]) * (1 - 1e-9)
        upper = np.array([high / scale for _, _, high in limits]) * (1 + 1e-9)
        return Rows.dense(matrix, lower, upper)

    def _paths(self, types: TypeSet | None, scale: float, box: Box | None) -> Rows:
        """``slopes @ z - t <= -base`` for each cut."""
        cuts = [self.model.objective.always(), *self.cuts.get(types, [])]
        cuts += [] if box is None else box.cuts
        options, phases = len(self._types), len(self.model.used)
        matrix = np.zeros((len(cuts), options + phases + self.model.num_tangents + 3))
        for i, cut in enumerate(cuts):
            matrix[i, options : options + phases] = cut.slopes[self.model.used]
        matrix[:, -1] = -1.0
        upper = np.array([-cut.base / scale for cut in cuts])
        return Rows.dense(matrix, np.full(len(cuts), -math.inf), upper)

    def _limits(self) -> FloatArray:
        pipeline = self.space.pipeline
        host = float(pipeline.host_limits.mean()) / self.space.local_world_size
        limits = np.array([float(pipeline.device_limits.mean()), host])
        return np.asarray(np.maximum(limits, 1.0) * ROUNDING)

    def _one_option_each(self) -> Rows:
        count = len(self.space.options)
        ones = np.ones(self.space.num_tables)
        return Rows(
            row=self.space.table_of,
            column=np.arange(count),
            values=np.ones(count),
            lower=ones,
            upper=ones,
        )

    def _means(self, unit: FloatArray) -> Rows:
        return self._below(self.model.mean / unit, range(len(unit)), base=False)

    def _uniform_base(self, unit: FloatArray) -> Rows:
        """``u`` equals the least load of the uniform options."""
        least = np.where(self._uniform[:, None], self._extreme(np.minimum) / unit, 0.0)
        start = len(least) + len(self.model.used)
        matrix = np.zeros((len(unit), start + len(unit)))
        matrix[:, : len(least)] = least.T
        matrix[:, start:] = -np.eye(len(unit))
        zero = np.zeros(len(unit))
        return Rows.dense(matrix, zero, zero)

    def _largest(self, table: int, group: int, unit: FloatArray) -> Rows:
        start, stop = self.space.first[table], self.space.first[table + 1]
        loads = np.zeros_like(self.model.mean)
        inside = ~self._uniform[start:stop, None]
        loads[start:stop] = np.where(inside, self._extreme(np.maximum)[start:stop] / unit, 0.0)
        return self._below(loads, self._members(group), base=True)

    def _on_rank(self, rank: int, group: int, unit: FloatArray) -> Rows:
        loads = np.zeros_like(self.model.mean)
        if len(self._uniform_rows):
            loads[self._uniform] = self.model.columns[self._uniform_rows[:, rank]] / unit
        return self._below(loads, self._members(group), base=False)

    def _members(self, group: int) -> range:
        """Loads of phase ``group``; the group after the phases is memory."""
        starts = [*self.model.starts, self.model.num_tangents, self.model.num_tangents + 2]
        return range(starts[group], starts[group + 1])

    def _below(self, loads: FloatArray, chosen: range, *, base: bool, fixed: bool = False) -> Rows:
        """Rows ``loads[:, c] @ y + base u[c] <= z[phase of c]``; memory and ``fixed``: ``<= 1``."""
        options, phases = len(loads), len(self.model.used)
        tangents = self.model.num_tangents
        matrix = np.zeros((len(chosen), options + phases + tangents + 2))
        upper = np.zeros(len(chosen))
        for i, c in enumerate(chosen):
            matrix[i, :options] = loads[:, c]
            if base:
                matrix[i, options + phases + c] = 1.0
            if c < tangents and not fixed:
                matrix[i, options + self.model.phase_index[c]] = -1.0
            else:
                upper[i] = 1.0
        return Rows.dense(matrix, np.full(len(chosen), -math.inf), upper)

    def _extreme(self, reduce: np.ufunc) -> FloatArray:
        """``[n, P + 2]`` largest or least load over the rows of each option."""
        key = (reduce.__name__, self.model.num_tangents)
        if key not in self._extremes:
            loads = reduce.reduceat(self.model.columns, self.space.pool_first, axis=0)
            self._extremes[key] = np.asarray(loads)
        return self._extremes[key]

    # -- reading ----------------------------------------------------------------------------------

    def _relaxation(self, solution: Solution, types: TypeSet | None) -> Relaxation:
        scale = self._scale
        count = len(self._types)
        reduced = solution.reduced_costs
        return Relaxation(
            types=types,
            bound=solution.bound * scale * (1 - _SAFETY),
            shares=None if solution.x is None else solution.x[:count],
            reduced_costs=None if reduced is None else reduced[:count] * scale,
        )

    def _add_rows(self, x: FloatArray, types: TypeSet | None, box: Box | None = None) -> bool:
        """Add what the solution breaks; False if nothing."""
        model, count = self.model, len(self._types)
        y, z = x[:count], x[count : count + len(model.used)]
        allowed = np.concatenate([z[model.phase_index] * self._scale, self._limits()])
        slack = _TOLERANCE * max(float(allowed[: model.num_tangents].max(initial=0.0)), 1e-30)
        allowed[: model.num_tangents] += slack
        allowed[-2:] *= 1 + _TOLERANCE
        before = len(self._table_rows) + len(self._rank_rows)
        largest, everywhere, peaks = self._peaks(y)
        self._table_rows |= self._broken(largest, allowed)
        self._rank_rows |= self._broken(everywhere, allowed)
        value = float(x[-1]) * self._scale
        new = (
            self._add_cut(peaks, value, types) if box is None else self._cut_box(peaks, value, box)
        )
        return new or len(self._table_rows) + len(self._rank_rows) > before

    def _peaks(self, y: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Largest shard of each table, uniform options on each rank, and the peaks of both.

        Loads ``[T, P + 2]``, ``[W, P + 2]`` and ``[P + 2]``; the peaks are no less than the means.
        """
        uniform = np.where(self._uniform, y, 0.0)
        base = uniform @ self._extreme(np.minimum)
        single = np.where(self._uniform, 0.0, y)[:, None] * self._extreme(np.maximum)
        largest = np.add.reduceat(single, self.space.first[:-1], axis=0) + base
        everywhere = self._uniform_loads(uniform)
        peaks = np.maximum(largest.max(axis=0), everywhere.max(axis=0))
        return largest, everywhere, np.maximum(peaks, y @ self.model.mean)

    def _add_cut(self, peaks: FloatArray, value: float, types: TypeSet | None) -> bool:
        """Add the longest path at these loads, if it is longer than ``value``."""
        if types is None:
            return False
        phases = self.model.all_phases(self.model.phase_maxima(peaks))
        certain = types - {ShardingType.DATA_PARALLEL} if self._merged else types
        cut = self.model.objective.cut(phases, certain)
        if cut is None or cut.base + cut.slopes @ phases <= value * (1 + _TOLERANCE):
            return False
        known = self.cuts.setdefault(types, [])
        same = [c for c in known if np.array_equal(c.slopes, cut.slopes)]
        if any(c.base >= cut.base - _TOLERANCE * abs(cut.base) for c in same):
            return False
        known.append(cut)
        return True

    def _cut_box(self, peaks: FloatArray, value: float, box: Box) -> bool:
        """Add a box's own longest path at these loads, if it is longer than ``value``."""
        phases = self.model.all_phases(self.model.phase_maxima(peaks))
        phases[box.first] = np.clip(phases[box.first], box.low, box.high)
        cut = box.cut(phases)
        if cut is None or cut.base + cut.slopes @ phases <= value * (1 + _TOLERANCE):
            return False
        box.cuts.append(cut)
        return True

    def _broken(self, loads: FloatArray, allowed: FloatArray) -> set[tuple[int, int]]:
        groups = np.concatenate([self.model.phase_index, [len(self.model.used)] * 2])
        where = np.argwhere(loads > allowed)
        return {(int(i), int(groups[c])) for i, c in where}

    def _uniform_loads(self, uniform: FloatArray) -> FloatArray:
        """``[W, P + 2]`` loads of the uniform options."""
        loads = np.zeros((self.space.world_size, self.model.num_tangents + 2))
        chosen = uniform[self._uniform]
        for i in np.flatnonzero(chosen > _TOLERANCE):
            loads += chosen[i] * self.model.columns[self._uniform_rows[i]]
        return loads
