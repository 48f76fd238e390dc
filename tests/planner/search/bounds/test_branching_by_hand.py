"""Branch and bound over boxes, on a problem whose optimum is known: a sum of roots over a corner.

Two phases have to add up to something, and the iteration grows with the root of each. Roots are
concave, so the best is at an end: one phase as small as it can be, the other one with all the rest.
Every chord lies below it, so that only splits find the optimum.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from scipy.optimize import linprog

from costmodels.datatypes import BoolArray, FloatArray
from costmodels.floors.floor import Leaf, Path
from costmodels.sharding import ShardingType
from planner.search.bounds.bound_program import Relaxation, TypeSet
from planner.search.bounds.boxes import Box, BoxLaunches
from planner.search.bounds.proofs import Branching, split_of
from planner.search.common.lp import ProgramBasis

TYPES = frozenset({ShardingType.TABLE_WISE})
LEAST, SUM, STEP_S = 0.01, 1.0, 0.1
COUNTS = np.array([1.0, 1.5])
LOADS = np.array([[0.02, 0.0], [0.5, 0.3], [0.0, 0.9]])
"""What each of three options puts at least on some rank in either phase."""


def exact_s(first: float, second: float) -> float:
    """The iteration at two phases."""
    return STEP_S + COUNTS[0] * math.sqrt(first) + COUNTS[1] * math.sqrt(second)


BEST_S = min(exact_s(LEAST, SUM - LEAST), exact_s(SUM - LEAST, LEAST))


class Roots:
    """One chain of two durations, the root of a phase each."""

    phases = np.array([0, 1])

    def __init__(self) -> None:
        self.leaves = tuple(
            Leaf(phase=k, is_line=False, duration_s=np.sqrt, constant_s=0.0, slope_ratio=0.0)
            for k in range(2)
        )

    def longest_path(self, leaves: FloatArray) -> Path:
        return Path(constant_s=STEP_S, counts=COUNTS)

    def seconds(self, leaves: FloatArray) -> FloatArray:
        return np.asarray(STEP_S + leaves @ COUNTS)

    def leaf_seconds(self, points: FloatArray) -> FloatArray:
        return np.sqrt(points)


class Objective:
    """Makes the boxes, each with the cut that all plans have."""

    weights = np.ones(2)

    def box(
        self,
        types: TypeSet,
        low: FloatArray | None = None,
        high: FloatArray | None = None,
        *,
        optional: TypeSet = frozenset(),
    ) -> Box:
        assert types == TYPES
        assert not optional
        launches = BoxLaunches(calls=(), seconds=np.zeros(2), num_counted=0)
        start = np.zeros(2) if low is None else low
        end = start + 1.0 if high is None else high
        return Box(cast("Any", Roots()), 2, start, end, launches)


class Bounds:
    """The linear program of the corner, instead of the one of a search; it keeps what is asked."""

    def __init__(self, reduced: FloatArray | None = None) -> None:
        self.space = SimpleNamespace(options=("a", "b", "c"))
        self.model = SimpleNamespace(used=np.arange(2), objective=Objective())
        self.boxes: list[Box] = []
        self.kept: list[BoolArray] = []
        self.solved: dict[int, Relaxation] = {}
        self.optional: TypeSet = frozenset()
        self._reduced = reduced

    def certain(self, types: TypeSet) -> TypeSet:
        return types - self.optional

    def least_phases(self, types: TypeSet) -> FloatArray:
        return np.full(2, LEAST)

    def largest_loads(self, box: Box) -> FloatArray:
        return LOADS

    def relax(
        self, types: TypeSet, *, box: Box, rounds: int, kept: BoolArray, start: ProgramBasis | None
    ) -> Relaxation:
        self.boxes.append(box)
        self.kept.append(kept)
        z = np.clip(np.full(2, SUM / 2), box.low, box.high)
        bound = -math.inf
        for _ in range(rounds):
            box.cuts.append(box.cut(z))
            found = linprog(
                [0.0, 0.0, 1.0],
                A_ub=[[*c.slopes, -1.0] for c in box.cuts] + [[-1.0, -1.0, 0.0]],
                b_ub=[-c.base for c in box.cuts] + [-SUM],
                bounds=[*zip(box.low, box.high, strict=True), (0.0, None)],
            )
            if found.status == 2:
                self.solved[id(box)] = Relaxation(types=types, bound=math.inf)
                return self.solved[id(box)]
            z, bound = found.x[:2], float(found.fun)
        self.solved[id(box)] = Relaxation(
            types=types, bound=bound, phases=z, reduced_costs=self._reduced
        )
        return self.solved[id(box)]


def branching(bounds: Bounds, first: float = 0.5) -> Branching:
    relaxed: dict[TypeSet | None, Relaxation] = {TYPES: Relaxation(types=TYPES, bound=first)}
    return Branching(cast("Any", bounds), relaxed)


def test_the_first_box_holds_every_plan_that_is_better_and_no_more() -> None:
    """From the least phases to where one of them alone makes the iteration too long."""
    bounds = Bounds()
    search = branching(bounds)
    assert search.possible
    incumbent = 1.2
    assert search.step(incumbent) is not None
    (box,) = bounds.boxes
    assert box.low == pytest.approx([LEAST, LEAST], rel=1e-12)
    assert exact_s(box.high[0], LEAST) == pytest.approx(incumbent, rel=1e-9)
    assert exact_s(LEAST, box.high[1]) == pytest.approx(incumbent, rel=1e-9)
    inside = (box.high >= LOADS).all(axis=1)
    assert bounds.kept[0].tolist() == inside.tolist()
    assert inside.tolist() == [True, True, False], "the last one alone is too much"


@pytest.mark.parametrize("slack", [1.0 + 1e-6, 1.02, 1.1])
def test_splits_find_the_optimum(slack: float) -> None:
    """The bound rises to it and never above; boxes are halves of one another."""
    bounds = Bounds()
    search = branching(bounds)
    incumbent = slack * BEST_S
    found = [search.bound(incumbent)]
    for _ in range(25):
        search.step(incumbent)
        found.append(search.bound(incumbent))
        assert found[-1] <= incumbent
    assert found == sorted(found)
    assert (np.array(found[:2]) <= BEST_S).all()
    assert 0.99 * BEST_S <= found[-1] <= max(incumbent if slack < 1.001 else BEST_S, BEST_S)
    for lower, upper in zip(bounds.boxes[1::2], bounds.boxes[2::2], strict=True):
        (cut,) = np.flatnonzero(lower.high != upper.high)
        assert lower.high[cut] == pytest.approx(upper.low[cut], rel=1e-9)
        assert lower.low.tolist() == [
            low if k != cut else lower.low[cut] for k, low in enumerate(upper.low)
        ]
        width = upper.high[cut] - lower.low[cut]
        assert 0 < lower.high[cut] - lower.low[cut] < width


def test_where_a_box_is_cut() -> None:
    """At the solution, a tenth from either end at least, on the side whose chord errs most."""
    objective = Objective()
    for high, at in (((0.6, 0.02), (0.3, 0.015)), ((0.02, 0.6), (0.015, 0.3))):
        box = objective.box(TYPES, np.full(2, LEAST), np.array(high))
        side = int(np.argmax(high))
        for solution in (0.3, LEAST, 0.6):
            phases = np.array(at)
            phases[side] = solution
            where = split_of(box, phases)
            assert where is not None
            if box.errors(phases)[side] > 0.05:  # more than is lost between two samples
                assert where == (side, pytest.approx(solution))
            cut_side, at_s = where
            assert box.low[cut_side] < at_s < box.high[cut_side]
    wide = objective.box(TYPES, np.full(2, LEAST), np.full(2, 1.0))
    inner = split_of(wide, np.array([LEAST + 0.02, LEAST]))
    assert inner == (0, pytest.approx(LEAST + 0.099)), "not closer to an end than a tenth"
    narrow = objective.box(TYPES, np.full(2, 0.5), np.full(2, 0.5004))
    assert split_of(narrow, np.full(2, 0.5)) is None
    flat = objective.box(TYPES, np.array([LEAST, 0.5]), np.array([1.0, 0.5004]))
    found = split_of(flat, np.array([LEAST, 0.5]))
    assert found == (0, pytest.approx(LEAST + 0.099)), "the other side is narrow"


def test_options_that_cost_too_much_are_left_out() -> None:
    """By what the program says they add, in this box and the boxes within it."""
    bounds = Bounds(reduced=np.array([0.0, 9.0, 0.0]))
    search = branching(bounds)
    for _ in range(3):
        search.step(1.1 * BEST_S)
    assert bounds.kept[0][1]
    assert not any(kept[1] for kept in bounds.kept[1:])
    assert all(kept[0] for kept in bounds.kept)


def test_nothing_is_done_that_cannot_help() -> None:
    for incumbent, first in ((math.inf, 0.5), (0.5, 0.5), (0.4, 0.5)):
        bounds = Bounds()
        search = branching(bounds, first)
        assert search.step(incumbent) is None
        assert bounds.boxes == []
        assert search.bound(incumbent) == min(incumbent, first)
    search = branching(Bounds())
    while search.step(0.6) is not None:
        pass
    assert search.bound(0.6) == 0.6, "no plan is below it"


def test_the_best_of_all_types_limits_what_can_be_branched_on() -> None:
    """A bound for plans of any types is none of a set; without boxes there is nothing to do."""
    one: dict[TypeSet | None, Relaxation] = {TYPES: Relaxation(types=TYPES, bound=0.5)}
    every = {**one, None: Relaxation(types=None, bound=0.4)}
    bounds = cast("Any", Bounds())
    assert not Branching(bounds, every).possible
    assert not Branching(bounds, {}).possible
    bounds.model.objective = object()
    assert not Branching(bounds, one).possible


def test_nodes_without_boxes_and_without_plans_are_left_alone() -> None:
    """Where phases say too little for a box, the bound stays; where nothing fits, it is settled."""
    first = Relaxation(types=TYPES, bound=0.5)
    no_box = SimpleNamespace(box=lambda types, low=None, high=None, optional=None: None)
    bounds = Bounds()
    bounds.model.objective = no_box
    search = Branching(cast("Any", bounds), {TYPES: first})
    assert search.step(1.0) is first
    assert search.step(1.0) is None
    assert (search.bound(1.0), bounds.boxes) == (0.5, [])
    bounds.model.objective = Objective()
    bounds.least_phases = lambda types: np.full(2, math.inf)  # type: ignore[method-assign]
    search = branching(bounds)
    search.step(1.0)
    assert (search.bound(1.0), bounds.boxes) == (1.0, [])


def test_a_box_whose_program_was_given_up_is_not_split() -> None:
    """There is no solution to split it at."""
    bounds = Bounds()
    bounds.relax = lambda types, **given: Relaxation(types=types, bound=-math.inf)  # type: ignore[method-assign]
    search = branching(bounds)
    for _ in range(4):
        search.step(1.1 * BEST_S)
    assert search.step(1.1 * BEST_S) is None
    assert search.bound(1.1 * BEST_S) == 0.5, "what was known before still holds"


def test_an_option_that_fills_a_box_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding may put its load a little above the limit that follows from it."""
    bounds = Bounds()

    def loads(box: Box) -> FloatArray:
        return np.outer([1.0, 1 + 5e-10, 1 + 1e-6], [box.high[0], 0.0])

    monkeypatch.setattr(bounds, "largest_loads", loads)
    branching(bounds).step(1.1 * BEST_S)
    assert bounds.kept[0].tolist() == [True, True, False]


def test_plans_that_replicate_and_plans_that_do_not_begin_in_boxes_of_their_own() -> None:
    """Where a set leaves open whether tables are replicated, one box has it for certain.

    The other has none of those options, and no box is asked for plans of both kinds.
    """
    replicated = frozenset({ShardingType.DATA_PARALLEL})
    kinds = (ShardingType.TABLE_WISE, ShardingType.DATA_PARALLEL, ShardingType.TABLE_WISE)
    asked: list[tuple[TypeSet, TypeSet]] = []
    inner = Objective()

    def box(types: TypeSet, *, optional: TypeSet) -> Box:
        asked.append((types, optional))
        return inner.box(TYPES)

    row_wise = frozenset({ShardingType.ROW_WISE})
    for left_open in (replicated, replicated | row_wise):
        asked.clear()
        bounds = Bounds()
        bounds.optional = left_open
        bounds.space.options = tuple(SimpleNamespace(sharding_type=kind) for kind in kinds)
        first = Relaxation(types=TYPES | left_open, bound=0.5)
        bounds.model.objective = SimpleNamespace(box=box)
        search = Branching(cast("Any", bounds), {first.types: first})
        assert search.step(1.9 * BEST_S) is not None
        rest = left_open - replicated
        assert asked == [(TYPES | replicated, rest), (TYPES, rest)]
        assert [kept.tolist() for kept in bounds.kept] == [[True] * 3, [True, False, True]]
        for _ in range(4):
            search.step(1.9 * BEST_S)
        assert len(asked) == 2, "a node is divided once"
