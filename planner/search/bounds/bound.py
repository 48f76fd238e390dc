"""A lower bound of the objective from the rank-free problem: options are chosen, but not placed.

The ranks of a host are interchangeable. A relaxation that places shards could therefore spread each
of them over all ranks, and would say no more than the mean over ranks says. Without ranks the
problem is so small that it can be solved exactly.

Variables: ``y[o]``, the share of option o, where the shares of a table add up to 1; ``z[k]``, the
largest value of phase k over ranks; ``u[c]``, the least load that uniform options put on every
rank; ``t``, the objective. Every plan that fits satisfies, for each tangent c of phase k:

- the mean over ranks is at most the maximum: ``sum_o mean[o, c] y[o] <= z[k]``;
- the largest shard of a table is on some rank: ``sum_o largest[o, c] y[o] + u[c] <= z[k]``;
- so are all shards of tables that rules tie together;
- uniform options alone load every rank r: ``sum_o load[o, r, c] y[o] <= z[k]``;
- limits on counts hold for the sum over all places.

The same rows hold for device and host memory, with their limits in place of z. For each cut of the
objective, ``t >= base + slopes @ z``. A cut holds for one set of sharding types. So there is one
such problem for each set, and the least of their solutions is a bound for every plan. Programs
begin with few rows, tangents and cuts; those that a solution breaks are added.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from planner.search.base import Record
from planner.search.bounds.bound_program import Name, RankFreeProgram, Relaxation, TypeSet, uses
from planner.search.bounds.boxes import Box
from planner.search.common.linear import LinearModel
from planner.search.common.lp import TOLERANCE, ProgramBasis, Rows, Solution, solve
from planner.space.evaluation import ROUNDED
from planner.space.objective import Cut

_LEAST_S: Final = 0.01
"""Seconds by the clock that a program gets even after the end of the search."""


class RankFreeBound:
    """Solves the rank-free problem, again and again as tangents, rows and cuts are added.

    Attributes:
        model: tangents and options.
        space: the space of the model.
        optional: sharding types that the plans of a set may have or not.
        cuts: the cuts found so far for each set of sharding types.
        builder: builds the programs.
    """

    def __init__(
        self,
        model: LinearModel,
        *,
        optional: TypeSet = frozenset(),
        record: Record | None = None,
    ) -> None:
        """Begin with the rows about means alone.

        Args:
            model: tangents and options; more tangents are added.
            optional: sharding types that the plans of a set may have or not; collectives that such
                a type would start are not counted.
            record: of the search, whose meter is told of the work done, and which is asked after
                each linear program whether the user or the clock ends the search; None outside one.
        """
        self.optional = optional
        self._record = record
        self.model = model
        self.space = model.space
        self.builder = RankFreeProgram(model)
        self._table_rows: set[Name] = set()
        self._rank_rows: set[Name] = set()
        self.cuts: dict[TypeSet | None, list[Cut]] = {}

    def relax(
        self,
        types: TypeSet | None,
        *,
        kept: BoolArray | None = None,
        more: Sequence[Rows] = (),
        rounds: int = 12,
        box: Box | None = None,
        start: ProgramBasis | None = None,
    ) -> Relaxation:
        """The bound by the linear program, solved until its bound rises no more.

        Args:
            types: the set of sharding types; None for all plans.
            kept: ``[n]`` True for options to choose from; the bound holds for these alone.
            more: further rows about the options.
            rounds: most programs to solve.
            box: limits of the phases; the bound holds for the plans in it.
            start: the basis of a similar program.
        """
        record, result = self._record, Relaxation(types=types, bound=-math.inf, basis=start)
        meter = None if record is None else record.evaluate.meter
        for _ in range(rounds):
            cuts = [self.model.objective.always(), *self.cuts.get(types, [])]
            cuts += [] if box is None else box.cuts
            rows = self._table_rows, self._rank_rows
            program = self.builder.build(types, *rows, cuts, kept=kept, box=box, more=more)
            left_s = math.inf if record is None else max(record.evaluate.left_s, _LEAST_S)
            solution = solve(program, meter, time_limit_s=left_s, start=result.basis)
            if solution.infeasible:
                return Relaxation(types=types, bound=math.inf)
            if solution.x is None:
                proven = self._relaxation(solution, types).bound
                result = replace(result, bound=max(result.bound, proven))
                break
            last, result = result.bound, self._relaxation(solution, types)
            new = self._add_rows(solution.x, types, box)
            shares = solution.x[: len(self.space.options)]
            rises = result.bound > last + TOLERANCE * abs(result.bound)
            new = self.model.follow(shares, types, self.optional, touches=rises) or new
            if not new or (record is not None and record.cut):
                break
        return result

    def certain(self, types: TypeSet) -> TypeSet:
        """The sharding types that every plan of a set has."""
        return types - self.optional

    def least_phases(self, types: TypeSet | None) -> FloatArray:
        """``[K]`` the mean over ranks of each phase if every table had its least load.

        No plan with sharding types of the set has a shorter longest phase. Infinite if the types
        leave a table no option.
        """
        loads = self.model.mean[:, : self.model.num_tangents]
        loads = np.where(uses(types, self.space)[:, None], loads, np.inf)
        least = np.minimum.reduceat(loads, self.space.first[:-1], axis=0).sum(axis=0)
        return self.model.all_phases(self.model.phase_maxima(least) * (1 - ROUNDED))

    def largest_loads(self, box: Box) -> FloatArray:
        """``[n, L]`` what each option puts at least on some rank, for each side of a box."""
        loads = self.model.largest
        phases = np.zeros((len(loads), len(self.model.objective.weights)))
        phases[:, self.model.used] = self.model.phase_maxima(loads)
        return phases[:, box.first]

    # -- reading ----------------------------------------------------------------------------------

    def _relaxation(self, solution: Solution, types: TypeSet | None) -> Relaxation:
        """The solution of a program in the units of the objective."""
        scale = self.builder.scale
        count = len(self.space.options)
        reduced = solution.reduced_costs
        return Relaxation(
            types=types,
            bound=solution.bound * scale * (1 - ROUNDED),
            shares=None if solution.x is None else solution.x[:count],
            phases=None if solution.x is None else self._phases(solution.x),
            reduced_costs=None if reduced is None else reduced[:count] * scale,
            basis=solution.basis,
        )

    def _phases(self, x: FloatArray) -> FloatArray:
        start = len(self.space.options)
        return self.model.all_phases(x[start : start + len(self.model.used)] * self.builder.scale)

    def _add_rows(self, x: FloatArray, types: TypeSet | None, box: Box | None = None) -> bool:
        """Add the rows and the cut that a solution breaks.

        Args:
            x: the value of each variable of the program.
            types: the set of sharding types that the program is about.
            box: its box, which takes the cut; None for none.

        Returns:
            False if the solution breaks nothing.
        """
        model, count = self.model, len(self.space.options)
        y, z = x[:count], x[count : count + len(model.used)]
        phases = z[model.phase_index] * self.builder.scale
        phases = phases + TOLERANCE * max(float(phases.max(initial=0.0)), 1e-30)
        limits = self.builder.rank_limits[self.builder.ranks] * (1 + TOLERANCE)
        on_rank = np.column_stack([np.tile(phases, (len(limits), 1)), limits])
        before = len(self._table_rows) + len(self._rank_rows)
        largest, everywhere, peaks = self.builder.peaks(y)
        self._table_rows |= self.builder.broken(largest, on_rank.max(axis=0))
        broken = self.builder.broken(everywhere, on_rank)
        self._rank_rows |= {(int(self.builder.ranks[rank]), g, i) for rank, g, i in broken}
        value = float(x[-1]) * self.builder.scale
        new = self._add_cut(peaks, value, types) if box is None else self._cut_box(x, value, box)
        return new or len(self._table_rows) + len(self._rank_rows) > before

    def _add_cut(self, peaks: FloatArray, value: float, types: TypeSet | None) -> bool:
        """Add the cut that is highest at these loads, ``[P + 2]``, if it is above ``value``."""
        if types is None:
            return False
        maxima = self.model.phase_maxima(peaks)
        certain = self.certain(types)
        cut = self.model.longer_cut(maxima, certain, value, types - certain)
        if cut is None:
            return False
        known = self.cuts.setdefault(types, [])
        same = [c for c in known if np.array_equal(c.slopes, cut.slopes)]
        if any(c.base >= cut.base - TOLERANCE * abs(cut.base) for c in same):
            return False
        known.append(cut)
        return True

    def _cut_box(self, x: FloatArray, value: float, box: Box) -> bool:
        """Add a box's own cut that is highest at a solution, if it is above ``value`` there."""
        phases = self._phases(x)
        cut = box.cut(phases)
        if cut.base + cut.slopes @ phases <= value * (1 + TOLERANCE):
            return False
        box.cuts.append(cut)
        return True
