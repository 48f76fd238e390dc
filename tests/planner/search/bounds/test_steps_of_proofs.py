"""The steps of a search that raise its bound: when they are taken, for how long, what they tell."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.sharding import ShardingType
from planner.objectives import objective_named
from planner.search.base import Record
from planner.search.bounds import proofs as module
from planner.search.bounds.bound_program import Relaxation, TypeSet, type_sets
from planner.search.bounds.proofs import Proofs
from planner.search.common.linear import LinearModel
from planner.space.evaluation import Assignment, Budget, SearchSpace
from tests.planner import cases
from tests.planner.fullest_device import FullestDevice
from tests.planner.search.bounds.test_proofs_by_hand import alike, space_of

A, B, C = (
    frozenset({kind})
    for kind in (ShardingType.TABLE_WISE, ShardingType.ROW_WISE, ShardingType.COLUMN_WISE)
)
PLAN = Assignment(options=(0, 0, 0), places=((0,), (0,), (1,)))
"""The best plan for three equal tables on two ranks: two of them share a rank."""
WORST = Assignment(options=(0, 0, 0), places=((0,), (0,), (0,)))


class Steps:
    """The proofs of a search for three equal tables on two ranks, and the record of the search."""

    def __init__(
        self,
        name: str = "memory",
        *,
        plan: Assignment | None = WORST,
        budget: Budget = Budget(),  # noqa: B008
        proves: bool = True,
        space: SearchSpace | None = None,
    ) -> None:
        self.space = space_of(alike(3), cases.topology(1, 2)) if space is None else space
        self.stopped = False
        objective = (
            FullestDevice(self.space)
            if name == FullestDevice.name
            else objective_named(name, self.space)
        )
        evaluate = cases.Timeless(self.space, objective, budget)
        self.record = Record(evaluate, should_stop=lambda: self.stopped)
        if plan is not None:
            self.record.consider(plan, "given")
        model = LinearModel(self.space, objective)
        self.proofs = Proofs(model, self.record, proves=proves)
        self.rounded: list[Relaxation] = []

    def keep_rounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Keep what would be rounded to plans; each makes the same plan."""

        def kept(relaxation: Relaxation) -> list[Assignment]:
            self.rounded.append(relaxation)
            return [PLAN]

        monkeypatch.setattr(self.proofs.starts, "round", kept)


def solved(bound: float, types: TypeSet | None = A, *, shares: bool = True) -> Relaxation:
    return Relaxation(types=types, bound=bound, shares=np.ones(3) if shares else None)


# ------------------------------------------------------------------ linear programs


def test_each_set_of_types_takes_the_place_of_all_plans_together() -> None:
    """Afterwards the bound is the least one of them."""
    steps = Steps("iteration", space=cases.tiny(0), plan=None)
    proofs, record = steps.proofs, steps.record
    proofs.relax_at_once()
    together = record.bound
    assert together == proofs.relaxed[None].bound
    steps.stopped = True
    record.evaluate.meter.spend(1.0)
    proofs.relax_type_sets()
    assert list(proofs.relaxed) == [None], "a search that ends keeps what holds for all plans"
    steps = Steps("iteration", space=steps.space, plan=None)
    steps.proofs.relax_at_once()
    steps.proofs.relax_type_sets()
    relaxed = steps.proofs.relaxed
    assert list(relaxed) == type_sets(steps.space)
    assert steps.record.bound == max(together, min(r.bound for r in relaxed.values()))
    assert steps.record.bound > together
    assert not steps.proofs.none_fits


def test_an_objective_that_is_the_same_for_all_types_has_one_program() -> None:
    steps = Steps("memory")
    steps.proofs.relax_at_once()
    steps.proofs.relax_type_sets()
    assert list(steps.proofs.relaxed) == [None]


def test_nothing_fits_where_tables_take_more_than_all_memory() -> None:
    space = space_of(alike(3), cases.topology(1, 2))
    each = float((space.pool @ space.device).max())
    for room, none_fits in ((1.4, True), (1.6, False)):  # half of three tables is 1.5
        space.pipeline.device_limits[:] = room * each
        steps = Steps("phases", space=space, plan=None)
        steps.proofs.relax_at_once()
        assert steps.proofs.none_fits is none_fits


# ------------------------------------------------------------------ packing


def with_prices(monkeypatch: pytest.MonkeyPatch, space: SearchSpace) -> None:
    """Bytes of the fullest device are a sum of largest loads: a byte of each rank is one byte."""
    monkeypatch.setattr(FullestDevice, "prices", property(lambda _: space.device))


def test_packing_tells_that_two_of_three_tables_share_a_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The linear bound is one and a half tables, the packing bound two; the options are named."""
    steps = Steps()
    with_prices(monkeypatch, steps.space)
    each = steps.record.value / 3
    steps.proofs.relax_at_once()
    assert steps.record.bound == pytest.approx(1.5 * each, rel=1e-6)
    spent_s = steps.record.evaluate.meter.spent_s
    found = steps.proofs.pack()
    assert found is not None
    assert found.bound == steps.record.bound
    assert (1 - 4e-3) * 2 * each < found.bound <= 2 * each
    assert [choice.tolist() for choice in found.choices] == [[0, 0, 0]]
    assert steps.record.evaluate.meter.spent_s > spent_s, "its programs are work of the search"


def test_packing_is_asked_only_where_it_can_prove_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not without prices, a bound or a plan; nor where all is proven, or the search has ended."""
    without_prices = Steps()
    without_prices.proofs.relax_at_once()
    assert without_prices.proofs.pack() is None
    with_prices(monkeypatch, without_prices.space)
    assert without_prices.proofs.pack() is not None
    assert Steps().proofs.pack() is None, "there is no bound yet"
    steps = Steps()
    steps.proofs.relax_at_once()
    steps.stopped = True
    assert steps.proofs.pack() is None
    for steps in (Steps(plan=None), Steps(proves=False)):
        steps.proofs.relax_at_once()
        assert steps.proofs.pack() is None
    steps = Steps(plan=PLAN)
    steps.record.raise_bound(steps.record.value, "given")
    assert steps.proofs.pack() is None


# ------------------------------------------------------------------ boxes


class Row:
    """Instead of branching: boxes whose bounds rise by 1, each after one second of work."""

    def __init__(self, steps: Steps, monkeypatch: pytest.MonkeyPatch, solutions: str) -> None:
        self._meter, self._solutions = steps.record.evaluate.meter, list(solutions)
        self.asked = 0
        self.possible = True
        monkeypatch.setattr(module, "Branching", lambda *_: self)
        steps.keep_rounded(monkeypatch)

    def step(self, incumbent: float) -> Relaxation | None:
        """Nothing at the end, and no shares for a box that is named ``-``."""
        self.asked += 1
        if not self._solutions:
            return None
        self._meter.spend(1.0)
        at = float(self.asked)
        return solved(at, shares=self._solutions.pop(0) != "-")

    def bound(self, incumbent: float) -> float:
        return float(self.asked)


@pytest.mark.parametrize(
    ("solutions", "most", "done", "rounded"),
    [
        ("x" * 20, 60, 21, [1.0]),
        ("-xxxxxxx", 60, 9, []),
        ("x" * 20, 8, 8, [1.0]),
        ("", 60, 1, []),
    ],
)
def test_the_first_box_of_a_row_is_rounded(
    monkeypatch: pytest.MonkeyPatch, solutions: str, most: int, done: int, rounded: list[float]
) -> None:
    """Until nothing is left to split, or the row is at its end; the bound follows every box."""
    steps = Steps()
    row = Row(steps, monkeypatch, solutions)
    with cases.scheduled(boxes=most):
        steps.proofs.split_boxes()
    assert row.asked == done
    assert [relaxation.bound for relaxation in steps.rounded] == rounded
    assert steps.record.bound == done
    assert steps.proofs.boxes_s == pytest.approx(min(len(solutions), done))


def test_a_row_of_boxes_ends_when_its_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """After three seconds no further box begins; the work of all rows adds up."""
    steps = Steps()
    steps.record.evaluate.meter.spend(7.0)
    row = Row(steps, monkeypatch, "x" * 20)
    for most_s, boxes in ((2.9, 3), (2.1, 6), (0.0, 6)):
        steps.proofs.split_boxes(most_s=most_s)
        assert row.asked == boxes
        assert steps.proofs.boxes_s == pytest.approx(boxes)


def test_no_box_is_split_where_none_is_left_or_the_search_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for proves, possible, stopped in (
        (False, True, False),
        (True, False, False),
        (True, True, True),
    ):
        steps = Steps(proves=proves)
        row = Row(steps, monkeypatch, "xx")
        row.possible, steps.stopped = possible, stopped
        steps.proofs.split_boxes()
        assert not steps.rounded
        assert row.asked == 0
        assert steps.record.bound is None


def test_a_row_of_boxes_takes_its_share_of_all_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A box takes one second here; four of them are begun within 6 % of 60 s."""
    steps = Steps()
    steps.record.evaluate.meter.planned_s = 60.0
    row = Row(steps, monkeypatch, "x" * 20)
    steps.proofs.split_boxes()
    assert row.asked == 4
