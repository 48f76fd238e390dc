"""Plans that are rounded from solutions of the bound: from which ones, of what, and how many."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest

from costmodels.datatypes import BoolArray, FloatArray
from costmodels.sharding import ShardingType
from planner.objectives import objective_named
from planner.search.base import Record
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.bound_program import Relaxation, TypeSet
from planner.search.bounds.rounding import Starts
from planner.search.common.linear import LinearModel
from planner.search.common.lp import Rows
from planner.search.construct import placer
from planner.space.effort import placing_s
from planner.space.evaluation import Assignment, Budget, Evaluator
from planner.space.objective import Cut
from tests.planner import cases
from tests.planner.search.bounds.test_proofs_by_hand import WHOLE, alike, space_of

A, B, C, D = (
    frozenset({kind})
    for kind in (
        ShardingType.TABLE_WISE,
        ShardingType.ROW_WISE,
        ShardingType.COLUMN_WISE,
        ShardingType.TABLE_ROW_WISE,
    )
)
PLAN = Assignment(options=(0, 0, 0), places=((0,), (0,), (1,)))
WAYS = len(placer.POWERS)
"""Plans of one choice of options: one for each exponent."""


class Rounded:
    """The starts of a search for three equal whole tables on two ranks."""

    def __init__(self) -> None:
        self.space = space_of(alike(3), cases.topology(1, 2))
        objective = objective_named("phases", self.space)
        self.stopped = False
        evaluate = cases.Timeless(self.space, objective, Budget())
        self.record = Record(evaluate, should_stop=lambda: self.stopped)
        self.bounds = RankFreeBound(LinearModel(self.space, objective))
        self.starts = Starts(self.bounds, self.record)


def solved(types: TypeSet, bound: float, *, shares: bool = True) -> Relaxation:
    return Relaxation(types=types, bound=bound, shares=np.ones(3) if shares else None)


# ------------------------------------------------------------------ from which solutions


class Kept:
    """Instead of rounding: which solutions are asked for, each for one second of work.

    A solution whose shards can be packed as wholes has the slack as its bound.
    """

    def __init__(self, case: Rounded, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[TypeSet | None, float]] = []
        self._meter = case.record.evaluate.meter
        monkeypatch.setattr(case.starts, "round", self.round)
        monkeypatch.setattr(case.starts, "packable", lambda r, slack: solved(r.types, slack))

    def round(self, relaxation: Relaxation) -> list[Assignment]:
        self.asked.append((relaxation.types, relaxation.bound))
        self._meter.spend(1.0)
        return [PLAN]

    @property
    def sets(self) -> list[TypeSet | None]:
        """The sets of types that were asked for, in order, each once."""
        return list(dict.fromkeys(types for types, _ in self.asked))


def test_sets_close_to_the_least_bound_are_rounded_by_increasing_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Up to 10 % above it; each as it is, and twice with room for whole shards."""
    case = Rounded()
    kept = Kept(case, monkeypatch)
    relaxed = [solved(D, 1.11), solved(B, 1.09), solved(A, 1.0), solved(C, 1.05, shares=False)]
    case.starts.promising(relaxed, math.inf)
    assert kept.sets == [A, B], "one is too far above, and one has no solution"
    for types, bound in ((A, 1.0), (B, 1.09)):
        own = [value for asked, value in kept.asked if asked == types]
        assert own[0] == bound
        low, high = own[1:]
        assert 0 < low < high < 1, "little room first, then more of it"


def test_sets_that_have_no_better_plan_are_not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Rounded()
    kept = Kept(case, monkeypatch)
    case.record.consider(PLAN, "given")
    value = case.record.value
    relaxed = [solved(A, 0.97 * value), solved(B, 0.99 * value), solved(C, 1.01 * value)]
    case.starts.promising(relaxed, math.inf)
    assert kept.sets == [A, B]


def test_rounding_ends_with_its_work_but_rounds_one_solution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each set takes three seconds here; a search that ends leaves out the packable solutions."""
    for most_s, sets in ((0.0, [A]), (2.9, [A]), (3.1, [A, B]), (6.1, [A, B, C])):
        case = Rounded()
        case.record.evaluate.meter.spend(7.0)
        kept = Kept(case, monkeypatch)
        case.starts.promising([solved(A, 1.0), solved(B, 1.01), solved(C, 1.02)], most_s)
        assert kept.sets == sets
    case = Rounded()
    kept = Kept(case, monkeypatch)
    case.stopped = True
    case.starts.promising([solved(A, 1.0)], math.inf)
    assert kept.asked == [(A, 1.0)]


# ------------------------------------------------------------------ of which options


def test_a_choice_of_options_is_placed_once_with_each_exponent() -> None:
    """All of them are offered and kept, and their work is counted; the best one is optimal here."""
    case = Rounded()
    meter = case.record.evaluate.meter
    priced: list[Assignment] = []
    consider = case.record.consider

    def kept(assignment: Assignment, phase: str) -> float:
        priced.append(assignment)
        return consider(assignment, phase)

    case.record.consider = kept  # type: ignore[method-assign]
    made = case.starts.place(np.zeros(3, dtype=np.int64))
    assert len(made) == WAYS
    assert made == priced == case.starts.found
    assert {plan.options for plan in made} == {(0, 0, 0)}
    counts = np.bincount([place for (place,) in made[0].places], minlength=2)
    assert sorted(counts.tolist()) == [1, 2], "three equal tables on two ranks"
    assert case.record.value == cases.least_value(case.space, case.record.evaluate.objective)
    placing = WAYS * placing_s(3, 2)
    pricing = WAYS * case.record.evaluate._plan_s
    assert placing * (1 - 1e-9) <= meter.spent_s <= (placing + pricing) * (1 + 1e-9)
    case.starts.place(np.zeros(3, dtype=np.int64))
    assert len(case.starts.found) == 2 * WAYS


def test_a_search_that_has_ended_rounds_one_plan_if_it_has_none() -> None:
    choice = np.zeros(3, dtype=np.int64)
    case = Rounded()
    case.stopped = True
    assert len(case.starts.place(choice)) == 1
    assert case.starts.place(choice) == [], "now there is one"
    other = Rounded()
    other.record.consider(PLAN, "given")
    other.stopped = True
    assert len(other.starts.place(choice)) == 1, "none was rounded yet"


def test_a_solution_is_rounded_with_its_cuts_and_the_largest_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model knows the paths of that set of types, and no others, while shards are placed.

    Loads are measured against what these options put on a rank on average.
    """
    space = cases.tiny(0)
    objective = objective_named("iteration", space)
    record = Record(Evaluator(space, objective, Budget()))
    model = LinearModel(space, objective)
    bounds = RankFreeBound(model)
    starts = Starts(bounds, record)
    cut = Cut(base=1.0, slopes=np.ones(len(objective.weights)))
    bounds.cuts[A] = [cut]
    used: list[list[Cut]] = []
    monkeypatch.setattr(model, "use_cuts", lambda cuts: used.append(list(cuts)))
    measured: list[FloatArray] = []
    targets = model.targets

    def kept(peaks: FloatArray) -> FloatArray:
        measured.append(peaks)
        return targets(peaks)

    monkeypatch.setattr(model, "targets", kept)
    rng = np.random.default_rng(0)
    shares = rng.uniform(0.1, 0.4, len(space.options))
    largest = [int(rng.integers(a, b)) for a, b in zip(space.first, space.first[1:], strict=False)]
    shares[largest] = 0.5
    found = Relaxation(types=A, bound=0.0, shares=shares)
    expected = tuple((np.array(largest) - space.first[:-1]).tolist())
    assert {plan.options for plan in starts.round(found)} == {expected}
    starts.round(cast("Any", Relaxation(types=B, bound=0.0, shares=shares)))
    assert used == [[cut], []]
    mean = np.zeros(model.num_tangents + 2)
    for option in largest:
        work = space.pool[space.rows[option]].reshape(-1, space.pool.shape[1])
        mean += model.loads(work).sum(axis=0) / space.world_size
    for peaks in measured:
        assert peaks == pytest.approx(mean)


def test_giant_shards_are_left_out_and_large_ones_take_a_rank_or_half_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In every load: none above the room, one above a half, two above a third, counted by hand."""
    space = cases.space(cases.synthetic(4, seed=1), cases.topology(2, 2), cases.DEVICE_ONLY)
    model = LinearModel(space, objective_named("phases", space))
    bounds = RankFreeBound(model)
    shares = np.zeros(len(space.options))
    rng = np.random.default_rng(0)
    for a, b in zip(space.first, space.first[1:], strict=False):
        shares[a:b] = rng.dirichlet(np.full(b - a, 0.2))
    asked: list[tuple[BoolArray, Rows]] = []

    def relax(types: TypeSet, *, kept: BoolArray, more: list[Rows], rounds: int) -> Relaxation:
        (rows,) = more
        asked.append((kept, rows))
        return solved(types, 0.0)

    monkeypatch.setattr(bounds, "relax", relax)
    slack, count, size = 0.1, len(space.options), model.num_tangents
    record = Record(Evaluator(space, model.objective, Budget()))
    Starts(bounds, record).packable(Relaxation(types=A, bound=0.0, shares=shares), slack)
    ((kept, rows),) = asked
    matrix = np.zeros((size, count))
    matrix[rows.row, rows.column] = rows.values
    assert rows.upper == pytest.approx(np.ones(size))
    peaks = bounds.builder.peaks(shares)[-1][:size]
    seen: set[float] = set()
    for flat, option in enumerate(space.options):
        loads = model.loads(space.pool[space.rows[flat]]).reshape(-1, size + 2)[:, :size]
        fits = True
        for load in range(size):
            room = max(peaks[p] for p in range(size) if model.phase[p] == model.phase[load])
            share = loads[:, load].max() / (room * (1 + slack)) if room > 0 else 0.0
            fits = fits and share <= 1.0
            taken = (
                0.0 if option.is_uniform else 1.0 if share > 0.5 else 0.5 if share > 1 / 3 else 0.0
            )
            seen.add(taken)
            expected = taken * len(loads) / space.world_size
            assert matrix[load, flat] == pytest.approx(expected)
        assert kept[flat] == (option.is_uniform or fits)
    assert seen == {0.0, 0.5, 1.0}
    assert not kept.all()


def test_options_shrink_into_the_memory_there_is() -> None:
    """Whole tables cost nothing and do not fit; rows do: as few as need be are cut."""
    space = space_of(alike(4), cases.topology(1, 2), kinds=(*WHOLE, ShardingType.ROW_WISE))
    objective = objective_named("phases", space)
    starts = Starts(
        RankFreeBound(LinearModel(space, objective)), Record(Evaluator(space, objective, Budget()))
    )
    size = space.mean_work @ space.device
    size /= float(size.max()) * 4 * 0.6
    whole = np.isclose(size, size.max())
    starts._size = size
    solution = Relaxation(
        types=None,
        bound=0.0,
        shares=whole.astype(float),
        reduced_costs=np.where(whole, 0.0, 1.0),
    )
    found = size[space.first[:-1] + starts.choice(solution)]
    least = np.minimum.reduceat(size, space.first[:-1]).sum()
    assert least > 1 or found.sum() <= 1 + 1e-9
