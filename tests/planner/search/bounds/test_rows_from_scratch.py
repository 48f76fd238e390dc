"""Programs with whole options and special ranks, against the same ones written down in full."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from costmodels.datatypes import BoolArray, FloatArray
from costmodels.sharding import ComputeKernel, ShardingType, Spread
from planner.objectives import objective_named
from planner.problem import Constraints
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.bound_program import RankFreeProgram
from planner.search.bounds.relaxation import Relaxation, TypeSet, type_sets
from planner.search.bounds.room import Room
from planner.search.bounds.roundable import Roundable
from planner.search.common.linear import LinearModel
from planner.search.common.schedule import Schedule
from planner.space.evaluation import SearchSpace
from tests.planner import cases
from tests.planner.search.bounds.test_bounds_from_scratch import ROUNDS, Written
from tests.planner.search.bounds.test_bounds_from_scratch import space_of as space_named

UNIT = 1e-4
"""Seconds that are 1 for the solver."""


class Full:
    """The rank-free program with further variables: pieces on special ranks, ``q``.

    Variables: a share of each option, the maximum of each phase in use, the objective, and ``q`` of
    every option for each special rank.
    """

    def __init__(self, bounds: RankFreeBound, types: TypeSet | None) -> None:
        self.base = Written(bounds, types)
        self.bounds, self.types, self.space = bounds, types, bounds.space
        self.model = bounds.model
        self.count = self.base.options
        self.end = self.count + self.base.phases + 1
        self.more: list[FloatArray] = []
        self.most: list[float] = []
        self.upper: list[float] = []

    def load(self, load: FloatArray, most: float = 0.0) -> None:
        """A row of the program as long as there are variables by now."""
        self.more.append(load)
        self.most.append(most)

    def special(self, tables: tuple[int, ...]) -> None:
        """The rank with the largest piece of each of these tables, as ``special_ranks`` says."""
        space, model = self.space, self.model
        world, count = space.world_size, self.count
        size = self.end + len(tables) * count
        gradients = model.tangents.T
        rows = [np.atleast_2d(space.pool[r] @ gradients) for r in space.rows]
        loads = [row.reshape(-1, row.shape[-1]) for row in rows]
        uniform = [o.is_uniform for o in space.options]
        base = np.array(
            [x.min(axis=0) if u else 0 * x[0] for x, u in zip(loads, uniform, strict=True)]
        )
        for number, table in enumerate(tables):
            q = self.end + number * count
            own = [i for i in np.flatnonzero(space.table_of == table) if not uniform[i]]
            if not own:
                self.upper += [0.0] * count
                continue
            for i, option in enumerate(space.options):
                hosts = space.local_world_size if option.spread is Spread.HOSTS else 1
                pieces = 0 if uniform[i] else len(loads[i]) // hosts
                self.upper.append(float(pieces))
                row = np.zeros(size)
                row[q + i], row[i] = 1.0, -pieces
                self.load(row)
            for i in own:
                row = np.zeros(size)
                row[q + i], row[i] = -1.0, 1.0
                self.load(row)
            for c, phase in enumerate(model.phase):
                z = self.count + list(model.used).index(phase)
                here, away = np.zeros(size), np.zeros(size)
                here[:count], away[:count] = base[:, c], base[:, c] * (world - 1)
                for i in np.flatnonzero(~np.array(uniform)):
                    here[q + i] += loads[i][:, c].min()
                    away[i] += loads[i][:, c].sum()
                    away[q + i] -= loads[i][:, c].max()
                for i in own:
                    largest = loads[i][int(np.argmax(loads[i].sum(axis=1)))]
                    here[i] += largest[c] - loads[i][:, c].min()
                here, away = here / UNIT, away / UNIT
                here[z], away[z] = -1.0, 1.0 - world
                self.load(here)
                self.load(away)

    def least(self, *, whole: bool, kept: BoolArray | None = None) -> float:
        """The least objective."""
        size = self.end + len(self.upper)
        inside = np.array(
            [self.types is None or o.sharding_type in self.types for o in self.space.options]
        )
        inside = inside if kept is None else inside & kept
        rows = np.array([np.append(r, np.zeros(size - len(r))) for r in self.base.rows])
        unit = np.where(self.base.is_limit, 1.0, UNIT)
        seconds = (np.arange(size) >= self.count) & (np.arange(size) < self.end)
        scaled = np.where(seconds, rows, rows / unit[:, None])
        most = np.array(self.base.most) / unit
        if self.more:
            scaled = np.vstack([scaled, self.more])
            most = np.concatenate([most, self.most])
        one = np.zeros((self.space.num_tables, size))
        one[self.space.table_of, np.arange(self.count)] = 1.0
        upper = np.full(size, np.inf)
        upper[: self.count] = inside
        upper[self.end :] = self.upper
        found = milp(
            (np.arange(size) == self.end - 1).astype(float),
            integrality=(np.arange(size) < self.count) & whole,
            bounds=Bounds(0.0, upper),
            constraints=[LinearConstraint(scaled, -np.inf, most), LinearConstraint(one, 1.0, 1.0)],
            options={"mip_rel_gap": 1e-6},
        )
        return math.inf if found.status == 2 else float(found.fun) * UNIT


@pytest.mark.parametrize(
    ("name", "objective"),
    [("tiny 0", "phases"), ("tiny 3", "iteration"), ("little device memory", "phases")],
)
def test_whole_options_and_special_ranks_say_what_is_written(name: str, objective: str) -> None:
    """Alone and together, over all options and over half of them."""
    space = space_named(name)
    bounds = RankFreeBound(LinearModel(space, objective_named(objective, space)))
    rng = np.random.default_rng(0)
    for types in (None, type_sets(space)[0], type_sets(space)[-1]):
        for special in ((), (0,), (1, 0)):
            kept = None if special else rng.random(len(space.options)) < 0.7
            linear = bounds.relax(types, special=special, kept=kept, rounds=ROUNDS).bound
            full = Full(bounds, types)
            full.special(special)
            assert linear == pytest.approx(full.least(whole=False, kept=kept), rel=3e-4)
            whole = bounds.solve_whole(
                types, special=special, kept=kept, rounds=ROUNDS, gap_ratio=1e-5
            ).bound
            full = Full(bounds, types)
            full.special(special)
            assert whole == pytest.approx(full.least(whole=True, kept=kept), rel=3e-4)


def hot_rows_first() -> SearchSpace:
    """Whole tables, or rows split inside a host, where one rank then gets most of the lookups."""
    tables = tuple(
        cases.table(f"t{i}", 300_000 + 90_000 * i, 64, 3.0 + 4 * i, scattered=False)
        for i in range(3)
    )
    rules = Constraints(
        sharding_types=(ShardingType.TABLE_WISE, ShardingType.TABLE_ROW_WISE),
        kernels=(ComputeKernel.FUSED,),
    )
    return cases.space(cases.workload(tables, batch=4096), cases.topology(2, 2), rules)


def test_the_largest_of_unequal_pieces_lies_on_the_special_rank() -> None:
    """It alone is what the rank surely has, and with it the bound is higher than without.

    The first rank of a host has most lookups of a table, and so tables count by their lookups.
    """
    space = hot_rows_first()
    bounds = RankFreeBound(LinearModel(space, objective_named("phases", space)))
    rows_inside_hosts = frozenset({ShardingType.TABLE_ROW_WISE})
    assert rows_inside_hosts in type_sets(space)
    relaxed = bounds.relax(rows_inside_hosts, rounds=ROUNDS)
    assert bounds.tables_with_large_pieces(relaxed, 3) == (2, 1, 0)
    for special in ((2,), (2, 1, 0)):
        found = bounds.relax(rows_inside_hosts, special=special, rounds=ROUNDS).bound
        full = Full(bounds, rows_inside_hosts)
        full.special(special)
        assert found == pytest.approx(full.least(whole=False), rel=1e-6)
        assert found > 1.002 * relaxed.bound


def test_shards_are_those_that_have_rows_of_work() -> None:
    space = hot_rows_first()
    made = RankFreeProgram(LinearModel(space, objective_named("phases", space)))
    assert made.shards.tolist() == [rows.size for rows in space.rows]
    assert set(made.shards.tolist()) == {1, 2}


@pytest.mark.parametrize("name", ["tiny 1", "tiny 3", "tiny 6", "uneven memory"])
def test_what_a_solution_puts_on_ranks(name: str) -> None:
    """Largest shards beside what lies everywhere, uniform options rank by rank, and both."""
    space = space_named(name)
    model = LinearModel(space, objective_named("phases", space))
    bounds = RankFreeBound(model)
    rng = np.random.default_rng(1)
    matrix = np.column_stack([model.tangents.T, space.device, space.host])
    loads = [space.pool[r] @ matrix for r in space.rows]
    slow = cases.slow_phases(space, model)
    for _ in range(5):
        y = rng.dirichlet(np.ones(len(space.options)) / 3)
        largest, everywhere, peaks = bounds.loads.peaks(y)
        base, mean = np.zeros(matrix.shape[1]), np.zeros(matrix.shape[1])
        by_rank = np.zeros((space.world_size, matrix.shape[1]))
        each = np.zeros((space.num_tables, matrix.shape[1]))
        for i, option in enumerate(space.options):
            flat = loads[i].reshape(-1, matrix.shape[1])
            mean += y[i] * flat.sum(axis=0) / space.world_size
            if option.is_uniform:
                base += y[i] * flat.min(axis=0)
                by_rank += y[i] * flat * slow * (y[i] > 1e-5)
            else:
                each[space.table_of[i]] += y[i] * flat.max(axis=0)
        assert largest == pytest.approx(each + base, rel=1e-9)
        assert everywhere.max(axis=0) == pytest.approx(by_rank.max(axis=0), rel=1e-9)
        expected = np.max([*(each + base), *by_rank, mean], axis=0)
        assert peaks == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("solved", ["few", "many"])
def test_room_is_kept_by_a_program_or_by_a_price(
    solved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to so many tables by the program with one more row, above by whole options."""
    monkeypatch.setattr("planner.options.enumeration._EVERY", 0)
    monkeypatch.setattr("planner.options.enumeration._SMALL_RATIO", 0.02)
    small = tuple(cases.table(f"s{i}", 140_000, 64) for i in range(20))
    large = tuple(cases.table(f"l{i}", 72_000_000, 64, 20.0) for i in range(5))
    model, system = cases.workload(small + large), cases.topology(1, 2, hbm_gib=40, ddr_gib=400)
    space = cases.space(model, system)
    most = space.num_tables if solved == "few" else space.num_tables - 1
    schedule = Schedule(shrunk_tables=most)
    bounds = RankFreeBound(LinearModel(space, objective_named("phases", space)), schedule=schedule)
    roundable = Roundable(bounds)
    found = bounds.relax(None, rounds=ROUNDS)
    unsolved = replace(found, shares=None)
    assert roundable.within_memory(unsolved) is unsolved
    listed = roundable.within_memory(found)
    device = space.mean_work @ space.device / space.pipeline.device_limits.mean()
    assert found.shares is not None
    assert listed.shares is not None
    assert found.shares @ device > 1.001
    assert listed.shares @ device <= 1 + 1e-6
    assert roundable.within_memory(found) is listed, "solved once"
    assert roundable.within_memory(listed) is listed, "it fits as it is"
    if solved == "many":
        assert set(listed.shares) == {0.0, 1.0}
        return
    assert not set(listed.shares) <= {0.0, 1.0}
    full = Full(bounds, None)
    full.load(np.concatenate([device, np.zeros(full.end - full.count)]), 1.0)
    expected = full.least(whole=False)
    assert found.bound < listed.bound <= expected * (1 + 1e-7)
    assert listed.bound - found.bound > 0.9 * (expected - found.bound)


@pytest.mark.parametrize("seed", range(6))
def test_options_shrink_along_the_lagrangian(seed: int) -> None:
    """No choice of whole options that takes no more memory costs less."""
    rng = np.random.default_rng(seed)
    space = cases.space(cases.synthetic(3, seed=seed), cases.topology(2, 2), cases.DEVICE_ONLY)
    size = space.mean_work @ space.device
    ranges = [range(a, b) for a, b in itertools.pairwise(space.first)]
    choices = np.array(list(itertools.product(*ranges)))
    bytes_of = size[choices].sum(axis=1)
    space.pipeline.device_limits[:] = np.quantile(bytes_of, rng.uniform(0.1, 0.9))
    costs = rng.exponential(size=len(size))
    found = Room(space).shrunk(Relaxation(types=None, bound=0.0, reduced_costs=costs))
    assert np.add.reduceat(found, space.first[:-1]).tolist() == [1.0] * 3
    assert found @ size <= space.pipeline.device_limits[0] * (1 + 1e-12)
    smaller = bytes_of <= found @ size * (1 - 1e-12)
    assert costs[choices].sum(axis=1)[smaller].min(initial=math.inf) >= found @ costs
    space.pipeline.device_limits[:] = 2 * bytes_of.max()
    roomy = Room(space)
    free = roomy.shrunk(Relaxation(types=None, bound=0.0, reduced_costs=costs))
    assert roomy.holds(free)
    least = np.minimum.reduceat(costs, space.first[:-1]).sum()
    assert free @ costs == pytest.approx(least, rel=1e-9)
    assert replace(Relaxation(types=None, bound=0.0), shares=free).choice(space).tolist() == [
        int(np.argmax(free[a:b])) for a, b in itertools.pairwise(space.first)
    ]


def least_price(costs: FloatArray, size: FloatArray, ranges: list[range]) -> float:
    """The least price of memory at which the cheapest options of all tables fit.

    Choices change only where two options of a table cost the same, so only these prices matter.
    """
    prices = {0.0}
    for own in ranges:
        for i, j in itertools.permutations(own, 2):
            if size[i] > size[j]:
                prices.add(max(0.0, (costs[j] - costs[i]) / (size[i] - size[j])))
    for price in sorted(prices):
        score = costs + price * (1 + 1e-9) * size
        if sum(size[min(own, key=score.__getitem__)] for own in ranges) <= 1:
            return price
    raise AssertionError


@pytest.mark.parametrize("seed", range(6))
def test_memory_has_the_least_price_at_which_all_fit(seed: int) -> None:
    """Against every price at which a choice changes."""
    rng = np.random.default_rng(seed)
    space = cases.space(cases.synthetic(4, seed=seed), cases.topology(2, 2), cases.DEVICE_ONLY)
    ranges = [range(a, b) for a, b in itertools.pairwise(space.first)]
    bytes_of = space.mean_work @ space.device
    costs = rng.exponential(size=len(bytes_of)) * 10.0 ** rng.uniform(-3, 3) / bytes_of
    least = sum(bytes_of[own].min() for own in ranges)
    cheapest = sum(bytes_of[own][costs[own].argmin()] for own in ranges)
    limit = least + rng.uniform(0.1, 0.9) * (cheapest - least)
    space.pipeline.device_limits[:] = limit
    found = Room(space).shrunk(Relaxation(types=None, bound=0.0, reduced_costs=costs))
    price = least_price(costs, bytes_of / limit, ranges)
    assert price > 0, "the case does not need what it tests"
    score = costs + price * (1 + 1e-9) * bytes_of / limit
    expected = [min(own, key=score.__getitem__) for own in ranges]
    assert np.flatnonzero(found).tolist() == expected
