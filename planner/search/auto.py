"""The default: a proven bound, plans rounded from it, and local search on the full objective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, final

import numpy as np

from costmodels.sharding import ShardingType
from planner.search.base import (
    AbstractStrategy,
    ProgressCallback,
    Record,
    SearchOutcome,
    StopCallback,
)
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.branching import Branching
from planner.search.bounds.makespan import Makespan
from planner.search.bounds.move_bound import bound_by_moves
from planner.search.bounds.proving import Prover, left_s
from planner.search.bounds.relaxation import (
    Relaxation,
    TypeSet,
    type_sets,
    usual_optional_types,
)
from planner.search.bounds.rounding import Starts
from planner.search.common.leave_out import SearchPart
from planner.search.common.linear import LinearModel
from planner.search.construct.greedy import offer_first
from planner.search.construct.handed import HandedPlan, offered
from planner.search.construct.walk import can_price_all, price_all
from planner.search.improve.improving import Improver
from planner.search.improve.neighbours import Neighbours
from planner.search.improve.rule_search import finish_under_rules, start_under_rules
from planner.search.improve.second_search import SecondSearch
from planner.space.evaluation import Assignment, Evaluator, SearchSpace

_IDLE: Final = 2
"""Rounds in a row without a better plan after which it ends; one beside boxes and a second one."""
_ANEW, _WORTH_ANEW_RATIO = 3, 0.01
"""Times the search for plans begins anew while the gap is above this."""
_GAIN: Final = 1e-5
"""Share of the objective that counts as a better plan."""
_LEAST_EFFORT, _MOST_EFFORT = 0.5, 4.0
_FIRST_EFFORT: Final = 4.0
"""Effort of the first sampling of prices, where no second search does so too."""
_NODES_TIMES_OPTIONS: Final = 50_000
_LEAST_NODES, _MOST_NODES = 4, 60
"""Boxes looked at in a row; one takes time in proportion to the number of options."""
_EARLY_NODES: Final = 25
"""Where fewer are looked at in a row, boxes come after each step of the search, not after all."""
_ROUND_EVERY: Final = 8
"""Boxes between two whose options are rounded to plans."""
_WHOLE_TABLES: Final = 400
"""Above this many tables the linear bound is within a per mille of the mixed-integer one."""
_WHOLE_OPTIONS, _WHOLE_SHARE = 2_500, 0.1
"""Most options of a mixed-integer program in a box, and the share of the time left that it gets."""
_LONG_S: Final = 1.0
"""Nominal seconds of a search that looks at a limit on moves before the first plans."""
_EARLY_SHARE, _MOST_EARLY_SHARE = 0.3, 0.25
"""Share of the work left for one cycle before there is a bound for each set of types, and of all
work after which nothing more begins there if a second search looks for plans anyway."""
_GREEDY_SHARE, _ROUNDING_SHARE = 0.03, 0.06
"""Shares of all work for starts from greedy planners and from rounding, once there is a plan."""
_FIRST_BOXES_SHARE, _BOXES_SHARE = 0.06, 0.3
"""Share of all work for boxes before the first cycles; of the work done so far, during them."""
_CYCLE_SHARE: Final = 0.25
"""Share of the work left that one of the first cycles may take."""
_COLUMNS: Final = frozenset({ShardingType.COLUMN_WISE})
"""Whole tables and columns: the fewest collectives, and a space that is searched soon."""
_PROOFS: Final = 60
"""Programs solved at most for the bound alone, each with a cycle from a new plan beside it."""
_PACKINGS: Final = 3
"""Times the packing bound is asked for other choices of options once nothing else helps."""


@final
class Auto(AbstractStrategy):
    """Rank-free bound, LP rounding with vector LPT, ruin and recreate, local search.

    Ends by itself when the gap is closed or cycles stop helping. The folders ``bounds``,
    ``construct`` and ``improve`` beside this module hold the parts, each with its explanation.
    """

    __slots__ = ("_handed", "_without")

    def __init__(
        self, without: frozenset[SearchPart] = frozenset(), handed: Sequence[HandedPlan] = ()
    ) -> None:
        """Search without some parts (benchmarks see what they give), from handed plans too."""
        self._without, self._handed = without, handed

    def search(
        self,
        space: SearchSpace,
        evaluate: Evaluator,
        *,
        seed: int,
        progress: ProgressCallback | None = None,
        should_stop: StopCallback | None = None,
    ) -> SearchOutcome:
        """Search until optimal, stuck, or out of budget."""
        record = Record(evaluate, progress, should_stop)
        has_all = SearchPart.EXHAUSTIVE not in self._without and space.listing.has_every_kernel
        if has_all and can_price_all(space, evaluate.meter.left_s):
            price_all(space, record)
        else:
            start_under_rules(space, record, seed=seed)
            if SearchPart.GREEDY not in self._without:
                offer_first(space, record)
            _Run(space, record, seed, self._without, self._handed).search()
            finish_under_rules(space, record, seed=seed)
        return record.outcome(proves=True)


class _Run:
    """One search."""

    def __init__(
        self,
        space: SearchSpace,
        record: Record,
        seed: int,
        without: frozenset[SearchPart],
        handed: Sequence[HandedPlan],
    ) -> None:
        self.without, self.handed = without, handed
        self.space, self.record, self.seed = space, record, seed
        self.rng = np.random.default_rng(seed)
        self.model = LinearModel(space, record.evaluate.objective)
        self.meter = record.evaluate.meter
        optional = usual_optional_types(space)
        self.bounds = RankFreeBound(
            self.model, optional=optional, meter=self.meter, cut=lambda: record.cut
        )
        self.relaxed: dict[TypeSet | None, Relaxation] = {}
        self.improver = Improver(
            space, record, self.bounds, self.relaxed, rng=self.rng, without=without
        )
        self.neighbours = Neighbours(space, record)
        self.branching: Branching | None = None
        self.boxes_s = 0.0
        self.starts = Starts(self.bounds, record, without)
        self.prover: Prover | None = None
        self.second: SecondSearch | None = None

    def search(self) -> None:
        """Find plans and bounds, with a second search beside it where that is worth it."""
        try:
            self._search()
            if self.prover is not None:
                self.prover.collect(self.record)
            if self.second is not None and not self.record.proven:
                plan = self.second.plan(lambda: self.record.cut)
                if plan is not None:
                    self.record.consider(plan, "second search")
        finally:
            for other in (self.second, self.prover):
                if other is not None:
                    other.close()

    def _search(self) -> None:
        """Bound, greedy plans, rounding, descent, tighter bound and its plans, local search."""
        self.starts.found += offered(self.handed, self.space, self.record)
        self._relax_at_once()
        if self.meter.planned_s > _LONG_S:
            self._bound_by_moves()
        self._early_plans()
        self._relax()
        if math.isinf(self._least().bound):
            return
        self._bound_by_moves()
        planned_s = self.meter.planned_s
        starts = self.starts.greedy(_GREEDY_SHARE * planned_s)
        starts += self.starts.promising(self.relaxed.values(), _ROUNDING_SHARE * planned_s)
        starts += self._branch(self._nodes, most_s=_FIRST_BOXES_SHARE * planned_s)
        self._look_for_plans([*self.starts.found[: len(self.handed)], *starts])

    def _look_for_plans(self, starts: list[Assignment]) -> None:
        """The phases after the first bounds and plans, in this order; each ends with the budget."""
        phases = (
            self._prove,  # stronger programs for the bound begin in another process
            self._first_cycles,  # ruin and recreate from the best plan of each set of types
            lambda: self.improver.improve(starts),  # descents from rounded and greedy plans
            self.neighbours.improve,  # every change of one table, where choices are few
            lambda: self.improver.improve(self._pack()),  # bound by how shards share ranks
            lambda: self.improver.improve(self._branch(self._nodes)),  # boxes of phase maxima
            self._choose_whole_options,  # the same bound by whole options, without boxes
            self._refine,  # cycles, kicks and sampled prices in turn, while they help
            self._pack_again,  # for sums of largest loads
            self.neighbours.improve,
            self._wait_for_proofs,  # plans from sampled prices until the programs are solved
            self._begin_anew,  # with other prices and plans, while the gap is wide
        )
        for phase in phases:
            phase()

    def _choose_whole_options(self) -> None:
        if not self._boxes and self.space.num_tables <= _WHOLE_TABLES:
            self.improver.improve(self._tighten())

    def _pack_again(self) -> None:
        for _ in range(_PACKINGS if self.record.evaluate.objective.prices is not None else 0):
            self.improver.improve(self._pack())
            self._refine()

    def _wait_for_proofs(self) -> None:
        for _ in range(_PROOFS):
            if self.record.stopped or self.record.proven or not self._prove():
                break
            self.improver.explore(1.0)

    def _begin_anew(self) -> None:
        for _ in range(_ANEW if SearchPart.PROOFS not in self.without and not self._boxes else 0):
            gap = self.record.gap_ratio
            if self.improver.done or gap is None or gap < _WORTH_ANEW_RATIO:
                break
            self.improver.forget()
            self.improver.explore(_FIRST_EFFORT)
            self._refine()

    # -- bounds -----------------------------------------------------------------------------------

    def _relax_at_once(self) -> None:
        """One linear bound for all sets of sharding types, which is quick, and plans from it."""
        self.relaxed[None] = self.bounds.relax(None)
        self.record.raise_bound(self._least().bound, "linear bound")
        self.starts.round(self.relaxed[None])
        self._begin_second()

    def _early_plans(self) -> None:
        """Descents and short cycles before more is proven, from whole tables and columns too."""
        if math.isinf(self._least().bound):
            return
        value = self.record.evaluate.value
        starts = [] if self.record.best is None else [self.record.best]
        if frozenset(o.sharding_type for o in self.space.options) > _COLUMNS:
            self.relaxed[_COLUMNS] = self.bounds.relax(_COLUMNS)
            if self.relaxed[_COLUMNS].shares is not None:
                made = self.starts.round(self.relaxed[_COLUMNS])
                starts += sorted(made, key=value)[:1]
        share = math.inf if self.second is None else _MOST_EARLY_SHARE
        most_s = self.meter.spent_s + share * self.meter.planned_s
        for start in sorted(starts, key=value):
            if self.meter.spent_s >= most_s:
                break
            before = self.record.best
            self.improver.improve([start])
            best, has_time = self.record.best, self.meter.spent_s < most_s
            if best is not None and has_time and (best != before or best == start):
                self.improver.short_cycle(best, _EARLY_SHARE * self.meter.left_s)
        self.relaxed.pop(_COLUMNS, None)

    def _relax(self) -> None:
        """Linear bound for each set of sharding types."""
        found: dict[TypeSet | None, Relaxation] = {}
        if not self.record.evaluate.objective.sees_types:
            return
        for types in type_sets(self.space, self.bounds.optional):
            if self.record.stopped:
                return
            found[types] = self.bounds.relax(types)
        del self.relaxed[None]
        self.relaxed.update(found)
        self.record.raise_bound(self._least().bound, "linear bound")

    def _bound_by_moves(self) -> None:
        bounds = self.bounds
        bound_by_moves(self.model, self.record, bounds.cuts, self.relaxed, bounds.certain)

    def _begin_second(self) -> None:
        """A search for plans on another core, once there is a first plan."""
        evaluate = self.record.evaluate
        if SearchPart.SECOND not in self.without and SecondSearch.worth_it(evaluate):
            without = self.without | {SearchPart.SECOND, SearchPart.PROOFS}
            self.second = SecondSearch(Auto(without, self.handed), evaluate, self.seed)

    def _pack(self) -> list[Assignment]:
        """Bound by how shards share ranks, where the objective is a plain sum of largest loads."""
        if SearchPart.PROOFS in self.without:
            return []
        prices = self.record.evaluate.objective.prices
        done = self.record.stopped or self.record.proven or math.isinf(self.record.value)
        if prices is None or self.record.bound is None or done:
            return []
        makespan = Makespan(self.space, prices, self.meter)
        found = makespan.bound(self.record.bound, self.record.value, lambda: self.record.stopped)
        self.record.raise_bound(found.bound, "packing bound")
        value = self.record.evaluate.value
        for start in (min(p, key=value) for c in found.others if (p := self.starts.place(c))):
            self.improver.cycle(start, 0.5)
        return [a for choice in found.choices for a in self.starts.place(choice)]

    def _tighten(self) -> list[Assignment]:
        """Whole options instead of shares where the bound is least, until that lifts it no more."""
        starts: list[Assignment] = []
        done: set[TypeSet | None] = set()
        while not self.record.stopped and SearchPart.PROOFS not in self.without:
            least = self._least()
            if least.types in done or least.bound >= self.record.value:
                break
            done.add(least.types)
            limit_s = 0.5 * left_s(self.record)
            whole = self.bounds.solve_whole(least.types, time_limit_s=limit_s, rounds=2)
            self.relaxed[least.types] = replace(least, bound=max(least.bound, whole.bound))
            self.record.raise_bound(self._least().bound, "whole options")
            if whole.shares is not None:
                starts += self.starts.round(whole)
        return starts

    def _branch(self, steps: int, *, most_s: float = math.inf) -> list[Assignment]:
        """Boxes: a tighter bound, and plans where it is least; none begins after ``most_s``."""
        if SearchPart.PROOFS in self.without:
            return []
        if self.branching is None:
            objective = self.record.evaluate.objective
            self.branching = Branching(self.bounds, objective, self.relaxed, self.bounds.certain)
        starts: list[Assignment] = []
        exact = self.space.num_tables <= _WHOLE_TABLES and len(self.space.options) <= _WHOLE_OPTIONS
        begun_s = self.meter.spent_s
        for step in range(steps):
            late = self.meter.spent_s >= begun_s + most_s
            if late or self.record.stopped or not self.branching.possible:
                break
            limit_s = _WHOLE_SHARE * left_s(self.record) if exact else None
            found = self.branching.step(self.record.value, whole_limit_s=limit_s)
            self.record.raise_bound(self.branching.bound(self.record.value), "boxes")
            if found is None:
                break
            if found.shares is not None and step % _ROUND_EVERY == 0:
                starts += self.starts.round(found)
        self.boxes_s += self.meter.spent_s - begun_s
        self.improver.refresh()
        return starts

    @property
    def _boxes(self) -> bool:
        return self.branching is not None and self.branching.possible

    def _least(self) -> Relaxation:
        return min(self.relaxed.values(), key=lambda r: r.bound)

    def _refine(self) -> None:
        """Cycles, kicks and sampled prices in turn, until none helps any more.

        What has helped gets more effort the next time, what has not gets less.
        """
        ways = (self.improver.around, self.improver.kick, self.improver.explore)
        efforts = [1.0] * len(ways)
        most = 1 if self.second is not None and self._boxes else _IDLE
        idle = most if SearchPart.RESTARTS in self.without else 0
        while idle < most and not self.improver.done:
            helped = []
            for way, effort in zip(ways, efforts, strict=True):
                value = self.record.value
                way(effort)
                helped.append(self.record.value < value * (1 - _GAIN))
                if self._nodes < _EARLY_NODES or way == ways[-1]:
                    self.improver.improve(self._branch(self._nodes))
                self._prove(waits=False)
            self.neighbours.improve()
            idle = 0 if any(helped) else idle + 1
            for i, gained in enumerate(helped):
                factor = 2.0 if gained or idle else 0.5
                efforts[i] = min(max(efforts[i] * factor, _LEAST_EFFORT), _MOST_EFFORT)

    def _prove(self, *, waits: bool = True) -> bool:
        """Take and begin programs for the bound, unless there are boxes; False if there are none.

        Unless it ``waits``, the search goes on until it has done as much work as they may take.
        """
        if self.branching is None or self._boxes or self.space.num_tables > _WHOLE_TABLES:
            return False
        self.prover = self.prover or Prover(self.bounds, self.relaxed)
        due = waits or self.prover.is_due(self.meter.spent_s)
        return not due or self.prover.advance(self.record)

    def _first_cycles(self) -> None:
        """One cycle for the best start of each set of sharding types, then sampled prices."""
        starts: list[Assignment] = []
        for start in self.improver.families(self.starts.found):
            self.improver.cycle(start, 0.5, most_s=_CYCLE_SHARE * self.meter.left_s)
            left_s = _BOXES_SHARE * self.meter.spent_s - self.boxes_s
            starts += self._branch(self._nodes, most_s=left_s)
            self._prove(waits=False)
        self.improver.improve(starts)
        if self._nodes < _EARLY_NODES:
            self.improver.improve(self._branch(self._nodes))
        if self.second is None or not self._boxes:
            self.improver.explore(_FIRST_EFFORT if self.second is None else 1.0)

    @property
    def _nodes(self) -> int:
        count = _NODES_TIMES_OPTIONS // max(len(self.space.options), 1)
        return max(_LEAST_NODES, min(count, _MOST_NODES))
