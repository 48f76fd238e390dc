"""Bounds from how shards share a rank, against patterns, pigeonholes and plans that are counted."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from costmodels.sharding import ComputeKernel, ShardingType
from planner.problem import Constraints
from planner.search.bounds import makespan
from planner.search.bounds.makespan import Makespan, _dual_feasible
from planner.search.common.lp import Solution
from planner.search.construct.walk import every_assignment
from planner.space.effort import Meter
from planner.space.evaluation import ROUNDED
from tests.planner import cases
from tests.planner.search.bounds.test_proofs_by_hand import alike, space_of

# ------------------------------------------------------------------ pieces on one rank


@pytest.mark.parametrize("shared", [*range(1, 20), 24, 29, 39])
def test_pieces_of_which_so_many_share_a_rank_are_worth_their_part(shared: int) -> None:
    """No more than ``shared`` pieces a little larger than one part in ``shared + 1`` fit a rank."""
    size = np.array([1 / (shared + 1) + 1e-6])
    assert max(float(f[0]) for f in _dual_feasible(size)) >= 1 / shared - 1e-9


def by_the_papers(size: Fraction, least: Fraction) -> tuple[Fraction, Fraction]:
    """Worth of a piece: Fekete and Schepers' ``U``, and Carlier, Clautiaux and Moukrim's ``f2``."""
    dropped = Fraction(size > 1 - least) if size < least or size > 1 - least else size
    most = int(1 / least)
    if size < Fraction(1, 2):
        rounded = Fraction(int(size / least), most)
    else:
        rounded = 1 - Fraction(int((1 - size) / least), most)
    return dropped, rounded


@pytest.mark.parametrize("seed", range(4))
def test_functions_are_those_of_the_papers_for_many_thresholds(seed: int) -> None:
    """For every 50th below a half, and a little below a third, a quarter, ... a fifteenth."""
    rng = np.random.default_rng(seed)
    sizes = [Fraction(int(n), 997) for n in rng.integers(1, 997, 30)]
    known = np.array(_dual_feasible(np.array([float(s) for s in sizes])))
    little = Fraction(1, 10**6)
    thresholds = [Fraction(i, 50) for i in range(1, 25)]
    thresholds += [Fraction(1, i) - little for i in range(3, 16)]
    for least in thresholds:
        for worth in zip(*(by_the_papers(s, least) for s in sizes), strict=True):
            away = np.abs(known - np.array([float(w) for w in worth])).max(axis=1)
            assert away.min() < 1e-9, f"no function has the threshold {float(least)}"


# ------------------------------------------------------------------ plans


class Priced:
    """A small space with random prices of its work, and what every choice of options takes."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        hosts, local = ((1, 3), (2, 2), (1, 2))[seed % 3]
        tables = tuple(
            cases.table(f"t{i}", int(10 ** rng.uniform(4, 6)), 16, float(rng.uniform(1, 30)))
            for i in range((3, 3, 5)[seed % 3])
        )
        kinds = [ShardingType.TABLE_WISE, ShardingType.ROW_WISE]
        kinds += [ShardingType.TABLE_ROW_WISE] if hosts > 1 else [ShardingType.COLUMN_WISE]
        rules = Constraints(sharding_types=tuple(kinds), kernels=(ComputeKernel.FUSED,))
        self.space = cases.space(cases.workload(tables), cases.topology(hosts, local), rules)
        typical = self.space.mean_work.mean(axis=0)
        weight = rng.exponential(size=len(typical)) * (rng.random(len(typical)) < 0.5)
        self.prices = np.where(typical > 0, weight / np.where(typical > 0, typical, 1.0), 0.0)
        self.costs = [np.ravel(self.space.pool[r] @ self.prices) for r in self.space.rows]
        self.plans: list[tuple[tuple[int, ...], float]] = []
        for found, works in every_assignment(self.space):
            values = (works @ self.prices).max(axis=1)
            self.plans += zip((a.options for a in found), values.tolist(), strict=True)
        self.best = min(value for _, value in self.plans)

    def everywhere(self, choice: tuple[int, ...]) -> float:
        """What all ranks carry anyway."""
        flat = self.space.first[:-1] + choice
        return float(sum(self.costs[i].min() for i in flat if self.space.options[i].is_uniform))

    def least(self, choice: tuple[int, ...]) -> float:
        """What the fullest rank carries at least: the mean, or some of the largest shards."""
        flat = self.space.first[:-1] + choice
        uniform = [i for i in flat if self.space.options[i].is_uniform]
        shards = sorted((c for i in flat if i not in uniform for c in self.costs[i]), reverse=True)
        world, base = self.space.world_size, self.everywhere(choice)
        meeting = [(q + 1) * shards[q * world] for q in range(9) if q * world < len(shards)]
        alone = [float(self.costs[i].max()) for i in uniform]
        return max([self.mean(choice), *(base + m for m in meeting), *alone])

    def mean(self, choice: tuple[int, ...]) -> float:
        """What ranks carry on average."""
        flat = self.space.first[:-1] + choice
        return float(sum(self.costs[i].sum() for i in flat)) / self.space.world_size


@pytest.mark.parametrize(
    ("seed", "proven"), [(1, 0.92), (2, 0.993), (4, 0.905), (3, 0.929), (6, 0.997)]
)
def test_the_bound_is_near_the_best_plan(seed: int, proven: float) -> None:
    """From whatever the bound begins with."""
    case = Priced(seed)
    best, meter = case.best, Meter()
    problem = Makespan(case.space, case.prices, meter)
    for low, high in ((0.5, 1.5), (0.8, 1.0)):
        spent_s = meter.spent_s
        found = problem.bound(low * best, high * best, lambda: False)
        assert meter.spent_s > spent_s
        assert max(proven, low * (1 - 1e-5)) * best <= found.bound <= best * (1 + 1e-9)
        kept = [tuple(c) for c in (*found.choices, *found.others)]
        assert len(set(kept)) == len(kept)
        assert len(found.choices) <= 3
        if high > 1:
            assert kept, "the options of the best plan cannot be ruled out"


@pytest.mark.parametrize("seed", range(4))
def test_choices_between_two_loads_of_all_ranks(seed: int) -> None:
    """They satisfy the rows, no plan is cheaper, and there is no plan where they are missing."""
    case = Priced(seed)
    problem = Makespan(case.space, case.prices)
    rng = np.random.default_rng(seed)
    space, missing = case.space, 0
    world, first = space.world_size, space.first
    for _ in range(8):
        z = case.best * rng.uniform(0.8, 1.3)
        low, high = np.sort(rng.choice([0.0, 0.2, 0.5, 0.8, 1.0], 2, replace=False)) * z
        shares = problem._shares(z, low, high)
        plans = [
            choice
            for choice, value in case.plans
            if value <= z and low <= case.everywhere(choice) <= high
        ]
        if shares is None:
            missing += 1
            assert not plans
            continue
        assert np.add.reduceat(shares, first[:-1]) == pytest.approx(np.ones(space.num_tables))
        costs, room = case.costs, z - low
        least = np.array([cost.min() for cost in costs])
        base = float((shares * least)[space.is_uniform].sum())
        assert low - 1e-5 * z <= base <= high + 1e-5 * z
        worth = np.zeros(len(_dual_feasible(np.zeros(1))))
        for share, cost, option in zip(shares, costs, space.options, strict=True):
            if share > 1e-6 and not option.is_uniform:
                assert cost.max() <= room * (1 + 1e-9)
                sizes = np.minimum(cost / room, 1.0) * (1 - ROUNDED)
                worth += share * np.array(_dual_feasible(sizes)).sum(axis=1)
        assert worth.max() <= world * (1 + 1e-4)
        mean = sum(x * c.sum() for x, c in zip(shares, costs, strict=True)) / world
        assert mean <= z * (1 + 1e-5)
        for other in plans:
            assert mean <= case.mean(other) * (1 + 1e-3)
    assert missing, "nothing was ever ruled out"


def test_many_small_shards_are_bounded_by_what_ranks_carry_on_average() -> None:
    """Sixty equal shards on each of two ranks, too small for the rounding of other rows."""
    space = space_of(alike(120), cases.topology(1, 2))
    mean = float((space.mean_work @ space.device).sum())
    found = Makespan(space, space.device).bound(0.5 * mean, 1.5 * mean, lambda: False)
    assert (1 - 4e-3) * mean < found.bound <= mean * (1 + 1e-9)


def test_a_solver_that_gives_up_leaves_the_choice_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """No option has a share, and nothing is ruled out."""
    case = Priced(0)
    nothing = Solution(bound=0.0, x=None, reduced_costs=None, pivots=1)
    monkeypatch.setattr(makespan, "solve", lambda program, start=None: nothing)
    problem = Makespan(case.space, case.prices)
    assert problem._base.any()
    shares = problem._shares(case.best, 0.0, case.best)
    assert shares is not None
    assert not shares.any()
    low = 0.5 * case.best
    assert problem.bound(low, 1.5 * case.best, lambda: False).bound <= low


@pytest.mark.parametrize("most", range(1, 10))
def test_what_is_left_open_when_a_search_is_stopped_is_not_taken_for_proven(most: int) -> None:
    """Far above the best plan, where nothing can be ruled out."""
    case, asked = Priced(0), itertools.count()
    problem = Makespan(case.space, case.prices)
    found = problem.bound(0.5 * case.best, 10 * case.best, lambda: next(asked) >= most)
    assert found.bound <= case.best


def test_a_search_that_is_stopped_keeps_what_is_proven() -> None:
    case = Priced(0)
    problem = Makespan(case.space, case.prices)
    asked = itertools.count()
    found = problem.bound(0.5 * case.best, 1.5 * case.best, lambda: next(asked) > 6)
    assert 0.5 * case.best * (1 - 1e-5) <= found.bound <= case.best
    assert next(asked) <= 10
    nothing = problem.bound(0.5 * case.best, 1.5 * case.best, lambda: True)
    assert nothing.bound == pytest.approx(0.5 * case.best * (1 - 1e-6), rel=1e-9), "a little less"
    assert (nothing.choices, nothing.others) == ((), ())
