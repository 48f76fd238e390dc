"""The default strategy: a proven bound, plans rounded from it, and searches around these plans."""

from typing import Final, final

import numpy as np

from costmodels.sharding import Plan, ShardingType
from planner.search.base import OPTIMALITY_GAP, AbstractStrategy, Record, SearchOutcome
from planner.search.bounds.proofs import Proofs, price_all_above_floor
from planner.search.common.linear import LinearModel
from planner.search.common.schedule import USUAL
from planner.search.construct.greedy import offer_first
from planner.search.construct.handed import translated
from planner.search.construct.packing import is_tight, offer_exact_packing, offer_packings
from planner.search.construct.walk import can_price_all
from planner.search.improve.ruin import Improver
from planner.search.improve.second_search import SecondSearch
from planner.search.improve.single_changes import follow_chain, kernel_changes

_COLUMNS: Final = frozenset({ShardingType.COLUMN_WISE})
"""Whole tables (columns in one piece) and tables cut by columns. These plans need the fewest
collectives, and their space is so small that a short search finds good ones."""


@final
class Auto(AbstractStrategy):
    """Bounds by linear programs, plans rounded from them, sampled prices, ruin and recreate.

    Ends by itself when the gap is closed or nothing helps any more. The folders ``bounds``,
    ``construct`` and ``improve`` beside this module hold the parts, each with its explanation;
    ``docs/search.md`` explains them for users.

    Args:
        near: a plan of the same tables on the same ranks, from which the search begins too.
        is_second: whether it runs beside another search, which alone proves bounds.
    """

    def __init__(self, near: Plan | None = None, *, is_second: bool = False) -> None:
        """Keep what each search needs; nothing is searched yet."""
        self._near, self._is_second = near, is_second

    def search(self, record: Record, *, seed: int) -> SearchOutcome:
        """Search until the plan is proven optimal, nothing helps, or the budget is spent."""
        evaluate, space = record.evaluate, record.evaluate.space
        has_all = space.listing.has_every_kernel
        if has_all and can_price_all(space, evaluate.meter.left_s):
            price_all_above_floor(record)
        else:
            _start_under_rules(record)
            offer_first(record)
            if record.best is not None and not record.stopped:
                better = kernel_changes(evaluate, record.best, lambda: record.stopped)
                record.consider(better, "kernels")
            _Run(record, seed, self._near, is_second=self._is_second).search()
            _finish_under_rules(record, seed=seed)
        return record.outcome(proves=True)


class _Run:
    """One search: its parts, and the phases in which they take turns."""

    def __init__(self, record: Record, seed: int, near: Plan | None, *, is_second: bool) -> None:
        self.space, self.record, self.seed = record.evaluate.space, record, seed
        self.near, self.is_second = near, is_second
        self.meter = record.evaluate.meter
        model = LinearModel(self.space, record.evaluate.objective)
        self.proofs = Proofs(model, record, proves=not is_second)
        self.starts = self.proofs.starts
        self.improver = Improver(record, self.proofs, np.random.default_rng(seed))
        self.second: SecondSearch | None = None

    def search(self) -> None:
        """Go through the phases, and take what the other processes have found.

        A phase does nothing if the budget is spent.
        """
        plans_before_bounds = (
            self._offer_near,  # a plan of the same tables, as it is with these options
            self._bound_at_once,  # one linear bound, plans rounded from it, the second search
            self._early_plans,  # a short cycle, for budgets that end soon
            self.proofs.relax_type_sets,  # a linear bound for each set of sharding types
        )
        plans_and_bounds = (
            self.proofs.limit_moves,  # the bound under a limit on moves
            self._make_starts,  # plans of greedy planners and rounded ones, and the first boxes
            self._first_cycles,  # sampled prices, ruin and recreate in each set of types
            self._pack,  # the bound by how shards share ranks, and plans from it
            self.proofs.split_boxes,  # boxes, and plans rounded in them
            self._refine,  # cycles and sampled prices in turn, while they help
            self._begin_anew,  # with other prices and plans, while the gap is wide
        )
        try:
            for phase in plans_before_bounds:
                phase()
            if not self.proofs.none_fits:
                for later in plans_and_bounds:
                    later()
            if self.second is not None and not self.record.proven:
                plan = self.second.plan(lambda: self.record.cut)
                if plan is not None:
                    self.record.consider(plan, "second search")
        finally:
            if self.second is not None:
                self.second.close()

    # -- until every set of sharding types has its bound ------------------------------------------

    def _offer_near(self) -> None:
        if self.near is not None:
            found = translated(self.space, self.near, self.record.evaluate.objective)
            if found is not None:
                self.record.consider(found, "plan handed on")
                self.starts.found.append(found)

    def _bound_at_once(self) -> None:
        """The first bound and the first rounded plans; then a second search may begin.

        If there is much work, the bound under a limit on moves follows at once.
        """
        self.proofs.relax_at_once()
        self.starts.round(self.proofs.relaxed[None])
        if not self.is_second and SecondSearch.worth_it(self.record.evaluate):
            strategy = Auto(self.near, is_second=True)
            self.second = SecondSearch(strategy, self.record.evaluate, self.seed)
        if self.meter.planned_s > USUAL.further_s:
            self.proofs.limit_moves()

    def _early_plans(self) -> None:
        """Plans of columns, and a short cycle around the best plan."""
        if self.proofs.none_fits or self.record.stopped:
            return
        if frozenset(o.sharding_type for o in self.space.options) > _COLUMNS:
            columns = self.proofs.bounds.relax(_COLUMNS)
            if columns.shares is not None:
                self.starts.round(columns)
        if self.record.best is not None:
            most_s = USUAL.start_share * self.meter.planned_s
            self.improver.cycle(self.record.best, USUAL.least_effort, late=True, most_s=most_s)

    # -- plans and bounds in turn -----------------------------------------------------------------

    def _make_starts(self) -> None:
        most_s = USUAL.start_share * self.meter.planned_s
        self.starts.greedy(most_s)
        self.starts.promising(self.proofs.relaxed.values(), most_s)
        self.proofs.split_boxes(most_s=most_s)

    def _first_cycles(self) -> None:
        """Sampled prices, then one cycle for the best start of each set of sharding types.

        Boxes take turns with the cycles, up to a share of the work done so far.
        """
        self.improver.explore(USUAL.most_effort if self.second is None else 1.0)
        for start in self.improver.families(self.starts.found):
            most_s = USUAL.turn_share * self.meter.left_s
            self.improver.cycle(start, USUAL.least_effort, most_s=most_s)
            left_s = USUAL.turn_share * self.meter.spent_s - self.proofs.boxes_s
            self.proofs.split_boxes(most_s=left_s)

    def _pack(self) -> None:
        """Raise the bound by how shards share ranks, and improve plans of the choices it names."""
        packing = self.proofs.pack()
        if packing is not None:
            for choice in packing.others:
                made = self.starts.place(choice)
                if made:
                    best = min(made, key=self.record.evaluate.value)
                    self.improver.cycle(best, USUAL.least_effort)
            for choice in packing.choices:
                self.starts.place(choice)

    def _refine(self) -> None:
        """Rounds of cycles and sampled prices, until several rounds in a row do not help.

        A way that has helped gets more effort in the next round. One that has not gets less, unless
        none has helped: then all get more.
        """
        ways = (self.improver.around, self.improver.explore)
        efforts = [1.0] * len(ways)
        idle = 0
        while idle < USUAL.idle_rounds and not self.improver.done:
            helped = []
            for way, effort in zip(ways, efforts, strict=True):
                value = self.record.value
                way(effort)
                helped.append(self.record.value < value * (1 - OPTIMALITY_GAP))
                self.proofs.split_boxes()
            idle = 0 if any(helped) else idle + 1
            for i, gained in enumerate(helped):
                factor = USUAL.effort_factor
                effort = efforts[i] * (factor if gained or idle else 1.0 / factor)
                efforts[i] = min(max(effort, USUAL.least_effort), USUAL.most_effort)

    def _begin_anew(self) -> None:
        """Forget prices, then sample and refine, while the gap is wide."""
        if self.is_second:
            return
        for _ in range(USUAL.fresh_starts):
            gap = self.record.gap_ratio
            if self.improver.done or gap is None or gap < USUAL.wide_gap_ratio:
                break
            self.improver.forget()
            self.improver.explore(USUAL.most_effort)
            self._refine()


def _start_under_rules(record: Record) -> None:
    """Look for plans that keep the rules, before the search proper.

    The plan in use is offered, also if nothing limits moves away from it. Under a limit on moves,
    a chain of moves from it follows. If there are rules, or memory is tight, packings follow.

    Args:
        record: is offered every plan.
    """
    space = record.evaluate.space
    if space.start is not None:
        record.consider(space.start, "plan in use")
        if space.rules.budget is not None:
            meter = record.evaluate.meter
            until_s = meter.spent_s + USUAL.turn_share * meter.planned_s
            follow_chain(record, space.start, until_s=until_s)
    if not (space.rules or is_tight(space)):
        return
    offer_packings(record, share=USUAL.start_share, first_only=not space.rules)


def _finish_under_rules(record: Record, *, seed: int) -> None:
    """If the search has found no plan, look for packings, and ask CP-SAT if there are none either.

    Args:
        record: is offered every plan.
        seed: of the random numbers.
    """
    if record.best is None and not (record.bound is not None and np.isinf(record.bound)):
        offer_packings(record)
        if record.best is None:
            offer_exact_packing(record, seed=seed)
