"""The bounds of one search, and the steps that raise them.

Each step solves programs and tells the record of the search what they prove.
"""

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from costmodels.sharding import ShardingType
from planner.search.base import OPTIMALITY_GAP, Record
from planner.search.bounds import bound_program
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.bound_program import Relaxation, TypeSet
from planner.search.bounds.boxes import Box
from planner.search.bounds.makespan import Makespan, Packing
from planner.search.bounds.move_bound import MoveBound
from planner.search.bounds.rounding import Starts
from planner.search.common.linear import LinearModel
from planner.search.common.schedule import USUAL
from planner.search.construct.walk import price_all
from planner.space.evaluation import ROUNDING, SearchSpace
from planner.space.objective import AbstractObjective

# ------------------ branch and bound over boxes of phase maxima
#
# A node is a set of sharding types with a box and with the options that its plans may have. Its
# bound is that of the rank-free program with the box's own cuts. If a set of types leaves open
# whether tables are replicated, plans that replicate some tables and plans that replicate none
# begin as nodes of their own.
#
# The node with the least bound is split in two at a value of one phase. So the least bound over all
# nodes rises towards the best bound that is possible without ranks. Nodes whose bound is above the
# best plan are dropped.
#
# A narrower box helps in three ways. Chords come closer to the models. Options with a shard above
# the box's limit are left out. And the limit of a phase says on how many ranks a fused call has to
# be at least.

_BISECTIONS: Final = 40
"""Times that the interval of a first box's upper limit is halved, to about 1e-12 of its width."""
_LEAST_WIDTH: Final = 1e-3
"""Sides narrower than this share of their upper limit are not split: their chords are close enough.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node:
    """Plans of one set of sharding types that are bounded together.

    Attributes:
        types: the set.
        bound: no plan of the node has a smaller objective.
        relaxation: the solution that gave the bound.
        box: limits of the phases of its plans; None for a node that has no box yet.
        kept: ``[n]`` True for options that its plans may have; None for all of the set.
        done: whether nothing can be split any more.
    """

    types: TypeSet
    bound: float
    relaxation: Relaxation
    box: Box | None = None
    kept: BoolArray | None = None
    done: bool = False


class Branching:
    """The open nodes of one search: those whose plans may be better than the best plan.

    Args:
        bounds: solves the rank-free programs; its objective makes the boxes.
        relaxed: the linear bound of each set of sharding types.
    """

    def __init__(self, bounds: RankFreeBound, relaxed: dict[TypeSet | None, Relaxation]) -> None:
        """Begin with a node for each set of sharding types."""
        self._bounds = bounds
        make_box: Callable[..., Box | None] | None = getattr(bounds.model.objective, "box", None)
        self._make_box = make_box
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Node]] = []
        self._loose = math.inf
        for types, relaxation in relaxed.items():
            if types is None:
                self._loose = min(self._loose, relaxation.bound)
            else:
                self._push(Node(types=types, bound=relaxation.bound, relaxation=relaxation))

    @property
    def possible(self) -> bool:
        """Whether there are nodes, and boxes for this objective."""
        return self._make_box is not None and bool(self._heap) and math.isinf(self._loose)

    def bound(self, incumbent: float) -> float:
        """The least bound of the open nodes, or the incumbent's objective if that is less."""
        return min([incumbent, *(b for b, _, _ in self._heap[:1])])

    def step(self, incumbent: float) -> Relaxation | None:
        """Split the node with the least bound.

        Args:
            incumbent: the objective of the best plan; nodes with a higher bound are dropped.

        Returns:
            The new relaxation of least bound, for rounding it to plans; None if nothing was done.
        """
        if not self._heap or self._heap[0][0] >= incumbent or self._heap[0][2].done:
            return None
        if not math.isfinite(incumbent):
            return None
        node = heapq.heappop(self._heap)[2]
        if node.box is None:
            parts = self._first_boxes(node, incumbent)
        else:
            parts = self._split(node, incumbent)
        for part in parts:
            if part.bound < incumbent:
                self._push(part)
        if not parts:
            self._push(replace(node, done=True))
            return None
        return min(parts, key=lambda part: part.bound).relaxation

    def _push(self, node: Node) -> None:
        heapq.heappush(self._heap, (node.bound, next(self._order), node))

    # -- boxes ------------------------------------------------------------------------------------

    def _first_boxes(self, node: Node, incumbent: float) -> list[Node]:
        """The node in a box; or two nodes, for its plans with replicated tables and without any.

        Replicating has two costs that do not depend on the size: the start of the last all-reduce,
        and a fused call on every rank. If a set leaves open whether its plans replicate tables, a
        box for all of them may not count these costs. Of the two nodes, the plans of one have both
        costs, and the plans of the other have no replicated option.
        """
        kind = ShardingType.DATA_PARALLEL
        certain = self._bounds.certain(node.types)
        left_open = node.types - certain
        if kind not in left_open:
            return [self._boxed(node, certain, left_open, incumbent)]
        without = ~bound_program.uses(frozenset({kind}), self._bounds.space)
        none = replace(node, kept=without if node.kept is None else node.kept & without)
        left_open -= {kind}
        return [
            self._boxed(node, certain | {kind}, left_open, incumbent),
            self._boxed(none, certain, left_open, incumbent),
        ]

    def _boxed(self, node: Node, certain: TypeSet, left_open: TypeSet, incumbent: float) -> Node:
        """The node with the smallest box that holds all its plans better than the incumbent.

        Args:
            node: its set of types, and the options that its plans may have.
            certain: the types that each of these plans has.
            left_open: the types that each of them may have or not.
            incumbent: the objective of the best plan.
        """
        box = self._make_box and self._make_box(certain, optional=left_open)
        if box is None:
            return replace(node, done=True)
        low = self._bounds.least_phases(node.types)[box.first]
        if not np.isfinite(low).all():
            return replace(node, bound=incumbent, done=True)
        flat = ~np.isin(box.first, self._bounds.model.used)
        tight = box.part(low, self._highest(box, low, incumbent), flat=flat)
        return self._relaxed(node, tight, incumbent, rounds=8)

    def _highest(self, box: Box, low: FloatArray, incumbent: float) -> FloatArray:
        """``[L]`` the largest phase of each side with which a plan can be as good as the incumbent.

        With a larger one even the shortest iteration, all other phases at ``low``, is longer.
        """
        same = box.first[:, None] == box.first
        inside, outside = low.copy(), low + incumbent

        def fits(phases: FloatArray) -> BoolArray:
            points = np.where(same, phases[:, None], low)
            return np.asarray(box.exact_times(points) <= incumbent)

        for _ in range(_BISECTIONS):
            middle = 0.5 * (inside + outside)
            below = fits(middle)
            inside = np.where(below, middle, inside)
            outside = np.where(below, outside, middle)
        return outside

    # -- splits -----------------------------------------------------------------------------------

    def _split(self, node: Node, incumbent: float) -> list[Node]:
        """Both parts of a box that is split at its solution; none if all sides are narrow."""
        box, phases = node.box, node.relaxation.phases
        if box is None or phases is None:
            return []
        where = split_of(box, phases)
        if where is None:
            return []
        sides = box.first == box.first[where[0]]
        halves = (
            box.part(box.low, np.where(sides, where[1], box.high)),
            box.part(np.where(sides, where[1], box.low), box.high),
        )
        return [self._relaxed(node, half, incumbent, rounds=2) for half in halves]

    def _relaxed(self, node: Node, box: Box, incumbent: float, *, rounds: int) -> Node:
        """The node in a box, with the bound and the options that a linear program leaves it."""
        loads = self._bounds.largest_loads(box)
        kept: BoolArray = np.asarray((loads <= box.high * ROUNDING).all(axis=-1))
        kept = kept if node.kept is None else kept & node.kept
        start = node.relaxation.basis
        found = self._bounds.relax(node.types, box=box, rounds=rounds, kept=kept, start=start)
        bound = max(node.bound, found.bound)
        if found.reduced_costs is not None:
            kept = kept & (found.bound + found.reduced_costs <= incumbent)
        return replace(node, box=box, bound=bound, relaxation=found, kept=kept)


def split_of(box: Box, phases: FloatArray) -> tuple[int, float] | None:
    """The side of a box whose chord lowers the iteration most, and the value at which to split it.

    That is its value in the solution, a tenth of the side from either end at least. None if every
    side is too narrow.

    Args:
        box: the box to split.
        phases: ``[K]`` the phases of the solution.
    """
    width, errors = box.high - box.low, box.errors(phases)
    errors = np.where(~box.flat & (width > _LEAST_WIDTH * box.high), errors, -math.inf)
    side = int(np.argmax(errors))
    if math.isinf(errors[side]):
        return None
    low, high = box.low[side] + 0.1 * width[side], box.high[side] - 0.1 * width[side]
    return side, float(np.clip(phases[box.first[side]], low, high))


# ------------------ the bounds of one search


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
        self.relaxed: dict[TypeSet | None, Relaxation] = {}
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
        found: dict[TypeSet | None, Relaxation] = {}
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
            self._branching = Branching(self.bounds, self.relaxed)
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
    def _least(self) -> Relaxation:
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
