"""Branch and bound over boxes of phase maxima.

A node is a set of sharding types with a box; its bound is the rank-free program with the box's own
cuts. The node of least bound is split where its chords are furthest from the models, so the least
bound over all nodes rises towards the best that the rank-free view can prove. Nodes above the
incumbent are dropped.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from planner.evaluation import AbstractObjective, BoolArray, FloatArray
from planner.search.parts.bound import RankFreeBound
from planner.search.parts.boxes import Box
from planner.search.parts.priced import Cost, TimeObjective
from planner.search.parts.relaxation import Relaxation, TypeSet

_CLOSE: Final = 3e-3
"""Chords this close to the models, as a share of the bound, are not worth a split before whole
options are."""
_BISECTIONS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node:
    """One box with its bound; ``whole`` says that the mixed-integer program gave it."""

    types: TypeSet
    bound: float
    box: Box | None = None
    relaxation: Relaxation | None = None
    whole: bool = False
    done: bool = False


class Branching:
    """The open nodes of one search.

    Args:
        bounds: solves the rank-free programs.
        objective: makes the boxes.
        relaxed: the linear bound of each set of sharding types.
        exact: types of a set that every plan in it is known to have.
    """

    def __init__(
        self,
        bounds: RankFreeBound,
        objective: AbstractObjective,
        relaxed: dict[TypeSet | None, Relaxation],
        exact: Callable[[TypeSet], TypeSet],
    ) -> None:
        """Begin with a node per set of types."""
        self._bounds, self._exact = bounds, exact
        self._time: TimeObjective | Cost | None = None
        if isinstance(objective, TimeObjective | Cost):
            self._time = objective
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
        """Whether there is anything to branch on."""
        return self._time is not None and bool(self._heap) and math.isinf(self._loose)

    def bound(self, incumbent: float) -> float:
        """Least bound of the open nodes; those above the incumbent prove the incumbent itself."""
        return min([incumbent, *(b for b, _, _ in self._heap[:1])])

    def step(self, incumbent: float, *, whole_limit_s: float | None) -> Relaxation | None:
        """Improve the node of least bound; returns its new relaxation, for rounding.

        Args:
            incumbent: value of the best plan; nodes above it are dropped.
            whole_limit_s: time for one mixed-integer program; None to solve none.
        """
        if not self._heap or self._heap[0][0] >= incumbent or self._heap[0][2].done:
            return None
        node = heapq.heappop(self._heap)[2]
        if node.box is None:
            return self._settle(self._boxed(node, incumbent))
        close = self._distance(node) < _CLOSE * node.bound
        if whole_limit_s is not None and close and not node.whole:
            return self._settle(self._whole(node, whole_limit_s))
        parts = node.box.split(self._phases(node))
        if parts is None:
            done = node.whole or whole_limit_s is None
            if done:
                self._push(replace(node, done=True))
                return None
            return self._settle(self._whole(node, whole_limit_s or math.inf))
        best: Relaxation | None = None
        for box in parts:
            child = self._relaxed(replace(node, box=box, whole=False))
            if child.bound < incumbent:
                self._push(child)
                if best is None or child.bound < best.bound:
                    best = child.relaxation
        return best

    def _settle(self, node: Node) -> Relaxation | None:
        self._push(node)
        return node.relaxation

    def _push(self, node: Node) -> None:
        heapq.heappush(self._heap, (node.bound, next(self._order), node))

    def _boxed(self, node: Node, incumbent: float) -> Node:
        """The node with the smallest box that holds every plan better than the incumbent."""
        types = self._exact(node.types)
        box = None if self._time is None else self._time.box(types)
        if box is None or self._time is None:
            return replace(node, done=True)
        if not math.isfinite(incumbent):
            return replace(node, done=True)
        low = np.zeros(len(self._time.weights))
        for phase in box.first:
            low[phase] = self._bounds.least_phase(node.types, int(phase), incumbent)
        if not np.isfinite(low).all():
            return replace(node, bound=incumbent, done=True)
        high = self._highest(box, low[box.first], incumbent)
        limits = low.copy()
        limits[box.first] = high
        tight = self._time.box(types, low, limits)
        if tight is None:
            return replace(node, done=True)
        return self._relaxed(replace(node, box=tight))

    def _highest(self, box: Box, low: FloatArray, incumbent: float) -> FloatArray:
        """Per group, the largest phase whose shortest iteration is not above the incumbent."""
        count = len(low)
        inside, outside = low.copy(), low + incumbent / box.per_second

        def fits(phases: FloatArray) -> BoolArray:
            points = np.repeat(low[None], count, axis=0)
            points[np.arange(count), np.arange(count)] = phases
            return np.asarray(box.true(points) <= incumbent)

        for _ in range(_BISECTIONS):
            middle = 0.5 * (inside + outside)
            below = fits(middle)
            inside = np.where(below, middle, inside)
            outside = np.where(below, outside, middle)
        return outside

    def _relaxed(self, node: Node) -> Node:
        found = self._bounds.relax(node.types, box=node.box, rounds=6)
        return replace(node, bound=max(node.bound, found.bound), relaxation=found)

    def _whole(self, node: Node, limit_s: float) -> Node:
        found = self._bounds.solve_whole(node.types, time_limit_s=limit_s, rounds=2, box=node.box)
        kept = found if found.shares is not None else node.relaxation
        return replace(node, bound=max(node.bound, found.bound), relaxation=kept, whole=True)

    def _phases(self, node: Node) -> FloatArray:
        if node.relaxation is None:
            return np.zeros(0)
        return self._bounds.phases_of(node.relaxation)

    def _distance(self, node: Node) -> float:
        """How far the chords are below the models at the node's solution."""
        if node.box is None:
            return math.inf
        at = np.clip(self._phases(node)[node.box.first], node.box.low, node.box.high)[None]
        return float(node.box.true(at)[0] - node.box.relaxed(at)[0])
