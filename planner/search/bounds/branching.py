"""Branch and bound over boxes of phase maxima.

A node is a set of sharding types with a box and with the options that its plans may have. Its bound
is that of the rank-free program with the box's own cuts. If a set of types leaves open whether
tables are replicated, plans that replicate some tables and plans that replicate none begin as nodes
of their own.

The node with the least bound is split in two at a value of one phase. So the least bound over all
nodes rises towards the best bound that is possible without ranks. Nodes whose bound is above the
best plan are dropped.

A narrower box helps in three ways. Chords come closer to the models. Options with a shard above the
box's limit are left out. And the limit of a phase says on how many ranks a fused call has to be at
least.
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
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.bound_program import Relaxation, TypeSet, uses
from planner.search.bounds.boxes import Box
from planner.space.evaluation import ROUNDING
from planner.space.objective import AbstractObjective

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
        box: limits of the phases of its plans; None for a node that has no box yet.
        relaxation: the solution that gave the bound; None if there is none.
        kept: ``[n]`` True for options that its plans may have; None for all of the set.
        done: whether nothing can be split any more.
    """

    types: TypeSet
    bound: float
    box: Box | None = None
    relaxation: Relaxation | None = None
    kept: BoolArray | None = None
    done: bool = False


class Branching:
    """The open nodes of one search: those whose plans may be better than the best plan.

    Args:
        bounds: solves the rank-free programs.
        objective: makes the boxes.
        relaxed: the linear bound of each set of sharding types.
    """

    def __init__(
        self,
        bounds: RankFreeBound,
        objective: AbstractObjective,
        relaxed: dict[TypeSet | None, Relaxation],
    ) -> None:
        """Begin with a node for each set of sharding types."""
        self._bounds = bounds
        self._make_box: Callable[..., Box | None] | None = getattr(objective, "box", None)
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
        without = ~uses(frozenset({kind}), self._bounds.space)
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
        box, relaxation = node.box, node.relaxation
        if box is None or relaxation is None or relaxation.phases is None:
            return []
        where = split_of(box, relaxation.phases)
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
        start = None if node.relaxation is None else node.relaxation.basis
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
