"""The bounds of one search, and the steps that raise them.

Each step solves programs and tells the record of the search what they prove.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.search.base import OPTIMALITY_GAP, Record
from planner.search.bounds import bound_program
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.branching import Branching
from planner.search.bounds.makespan import Makespan, Packing
from planner.search.bounds.move_bound import MoveBound
from planner.search.bounds.rounding import Starts
from planner.search.common.linear import LinearModel
from planner.search.common.schedule import USUAL
from planner.search.construct.walk import price_all
from planner.space.evaluation import SearchSpace
from planner.space.objective import AbstractObjective


class Proofs:
    """The bounds of one search.

    Attributes:
        bounds: solves the rank-free problem.
        relaxed: the relaxation of each set of sharding types; until each has one, that of all sets
            together, under None.
        starts: rounds relaxations to plans, and keeps these.
        boxes_s: nominal seconds spent on boxes so far.
    """

    def __init__(self, model: LinearModel, record: Record, *, proves: bool) -> None:
        """Prove nothing yet.

        Args:
            model: tangents and options.
            record: of the search; takes the bounds.
            proves: whether boxes are split and packings bounded.
        """
        self._model, self._record = model, record
        self._space, self._meter = model.space, record.evaluate.meter
        self._proves = proves
        self.bounds = RankFreeBound(
            model, optional=bound_program.usual_optional_types(model.space), record=record
        )
        self.relaxed: dict[bound_program.TypeSet | None, bound_program.Relaxation] = {}
        self.starts = Starts(self.bounds, record)
        self.boxes_s = 0.0
        self._idle_rows = self._rows_left_out = 0
        self._branching: Branching | None = None

    @property
    def none_fits(self) -> bool:
        """Whether it is proven that no plan fits into memory and keeps the rules."""
        return math.isinf(self._least.bound)

    # -- linear programs --------------------------------------------------------------------------

    def relax_at_once(self) -> None:
        """One linear bound for all sets of sharding types together, which is quick."""
        self.relaxed[None] = self.bounds.relax(None)
        self._record.raise_bound(self._least.bound, "linear bound")

    def relax_type_sets(self) -> None:
        """A linear bound for each set of sharding types, unless the search ends meanwhile."""
        found: dict[bound_program.TypeSet | None, bound_program.Relaxation] = {}
        if not self._record.evaluate.objective.sees_types:
            return
        for types in bound_program.type_sets(self._space, self.bounds.optional):
            if self._record.stopped:
                return
            found[types] = self.bounds.relax(types)
        del self.relaxed[None]
        self.relaxed.update(found)
        self._record.raise_bound(self._least.bound, "linear bound")

    def limit_moves(self) -> None:
        """Raise the bound by a limit on what may move from the plan in use.

        Does nothing if there is no limit or no plan yet, or if there are very many options and
        ranks. A set of sharding types whose bound is not below the best plan has no better plan,
        and needs no program.
        """
        budget, best = self._space.rules.budget, self._record.value
        size = len(self._space.options) * self._space.world_size
        if budget is None or not math.isfinite(best) or size > USUAL.most_entries:
            return
        moves = MoveBound(self._model, budget, self._meter, most=best)
        always, least = self._model.objective.always(), best
        for types, relaxation in sorted(self.relaxed.items(), key=lambda item: item[1].bound):
            if relaxation.bound >= least or self._record.stopped:
                least = min(least, relaxation.bound)
                break
            known = self.bounds.certain(types or frozenset())
            own = moves.bound(types, [always, *self.bounds.cuts.get(types, ())], known)
            least = min(least, max(own, relaxation.bound))
        self._record.raise_bound(least, "limit on moves")

    # -- further programs -------------------------------------------------------------------------

    def split_boxes(self, *, most_s: float = math.inf) -> None:
        """Split a row of boxes, and round the first solution to plans.

        The bound rises to the least of the boxes that are left.

        After a row that has not raised the bound, rows are left out: one after the first such row
        in succession, two after the second, then four, and so on. The work is for plans meanwhile.

        Args:
            most_s: nominal seconds after which no further box begins.
        """
        if not self._proves:
            return
        if self._branching is None:
            objective = self._record.evaluate.objective
            self._branching = Branching(self.bounds, objective, self.relaxed)
        if self._rows_left_out > 0:
            self._rows_left_out -= 1
            return
        meter = self._meter
        begun_s, before = meter.spent_s, self._record.bound
        until_s = begun_s + min(most_s, USUAL.start_share * meter.planned_s)
        for step in range(USUAL.boxes):
            if meter.spent_s >= until_s or self._record.stopped or not self._branching.possible:
                break
            found = self._branching.step(self._record.value)
            self._record.raise_bound(self._branching.bound(self._record.value), "boxes")
            if found is None:
                break
            if step == 0 and found.shares is not None:
                self.starts.round(found)
        self.boxes_s += meter.spent_s - begun_s
        if meter.spent_s < begun_s + most_s:
            self._count_idle(before)

    def _count_idle(self, before: float | None) -> None:
        """Count a whole row of boxes as idle unless it has raised the bound noticeably."""
        bound, value = self._record.bound, self._record.value
        if before is None or bound is None or bound - before >= OPTIMALITY_GAP * value:
            self._idle_rows = self._rows_left_out = 0
        else:
            self._rows_left_out = 2**self._idle_rows
            self._idle_rows += 1

    def pack(self) -> Packing | None:
        """The bound by how shards share ranks, for objectives that are sums of largest loads.

        Returns:
            Its choices of options; None for other objectives, and where there is nothing to prove.
        """
        prices, record = self._record.evaluate.objective.prices, self._record
        is_done = record.stopped or record.proven or math.isinf(record.value)
        if not self._proves or prices is None or record.bound is None or is_done:
            return None
        meter = self._meter
        until_s = meter.spent_s + USUAL.turn_share * meter.left_s
        makespan = Makespan(self._space, prices, meter)
        found = makespan.bound(
            record.bound, record.value, lambda: record.stopped or meter.spent_s >= until_s
        )
        record.raise_bound(found.bound, "packing bound")
        return found

    @property
    def _least(self) -> bound_program.Relaxation:
        return min(self.relaxed.values(), key=lambda r: r.bound)


# ------------------ bounds without a search

_QUICK_ROUNDS: Final = 3
"""Most programs for each set of sharding types. The second one has the cut of the longest path;
more than three raise the bound by about 1e-5 of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What is proven for every plan of a problem.

    Attributes:
        value: no plan has a smaller objective; infinite if no plan fits.
        free_bytes: device bytes that the fullest rank can have left at most; negative if no plan
            fits.
    """

    value: float
    free_bytes: float


def linear_floor(space: SearchSpace, objective: AbstractObjective) -> Floor:
    """The least bound of the rank-free programs over all sets of sharding types.

    The fullest rank has no more memory left than a rank has on average, if every table has the
    option with the fewest device bytes.
    """
    model = LinearModel(space, objective)
    value = _linear_bound(model)
    least = np.minimum.reduceat(model.mean[:, model.num_tangents], space.first[:-1]).sum()
    unlisted = bound_program.RankFreeProgram(model).unlisted_bytes / space.world_size
    limits = space.pipeline.device_limits
    return Floor(value=float(value), free_bytes=float(limits.mean() + unlisted - least))


def price_all_above_floor(record: Record) -> None:
    """Price every assignment; a search that has to end before has a bound all the same.

    Under a time limit linear programs come before the walk, because they take a small part of its
    time. Otherwise only the user can end the walk early, and one linear bound follows then.
    """
    model = LinearModel(record.evaluate.space, record.evaluate.objective)
    if record.evaluate.budget.time_limit_s is not None:
        record.raise_bound(_linear_bound(model, lambda: record.cut), "linear bound")
    price_all(record)
    if record.bound is None:
        record.raise_bound(RankFreeBound(model).relax(None).bound, "linear bound")


def _linear_bound(model: LinearModel, cut: Callable[[], bool] = lambda: False) -> float:
    """The bound over all sets of sharding types, of all at once if ``cut`` says True before."""
    bounds = RankFreeBound(model, optional=bound_program.usual_optional_types(model.space))
    value = bounds.relax(None).bound
    if not model.objective.sees_types or not math.isfinite(value) or cut():
        return value
    least = math.inf
    for types in bound_program.type_sets(model.space, bounds.optional):
        least = min(least, bounds.relax(types, rounds=_QUICK_ROUNDS).bound)
        if cut():
            return value
    return max(value, least)
