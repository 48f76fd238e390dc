"""Bounds are as high as they should be: against programs written down in full, and all plans.

That a bound is below every plan is held elsewhere; a bound that gives something away breaks nothing
there. Here all rows of a program stand side by side, where the search adds them one by one.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from costmodels.datatypes import FloatArray
from costmodels.sharding import ComputeKernel, ShardingType
from planner.objectives import objective_named
from planner.objectives.iteration import IterationTime
from planner.problem import Constraints, TableConstraint
from planner.search.base import Record
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.bound_program import TypeSet, type_sets
from planner.search.bounds.boxes import Box
from planner.search.bounds.rounding import Starts
from planner.search.common.linear import LinearModel
from planner.search.construct.walk import every_assignment
from planner.space.evaluation import Budget, Evaluator, SearchSpace
from tests.planner import cases

ROUNDS = 100
"""Enough for the last program to break no row."""


def tight(device: float, host: float, uneven: float) -> SearchSpace:
    """Three tables on two hosts with so many times the mean memory of all options."""
    tables = tuple(cases.table(f"t{i}", 400_000 * 2**i, 64 << i, 9.0 / (i + 1)) for i in range(3))
    model = replace(cases.workload(tables, batch=2048), cuda_graph=True)
    found = cases.space(model, cases.topology(2, 2))
    for limits, bytes_of, share in (
        (found.pipeline.device_limits, found.device, device),
        (found.pipeline.host_limits, found.host, host),
    ):
        each = np.maximum.reduceat(found.mean_work @ bytes_of, found.first[:-1]).sum()
        limits[:] = share * each * (1 if len(limits) == found.world_size else 2)
        limits[0] *= uneven
    return found


SPACES = {
    **{f"tiny {seed}": seed for seed in (0, 1, 3, 4, 6)},
    "little device memory": (0.5, 1.0, 1.0),
    "little of both": (0.45, 0.45, 1.0),
    "uneven memory": (0.4, 0.6, 1.5),
}


def space_of(name: str) -> SearchSpace:
    given = SPACES[name]
    return cases.tiny(given) if isinstance(given, int) else tight(*given)


class Written:
    """The rank-free program with every row, as the module ``bound`` says what they are.

    Variables: a share of each option, the maximum of each phase in use, and the objective.
    """

    def __init__(self, bounds: RankFreeBound, types: TypeSet | None) -> None:
        space, model = bounds.space, bounds.model
        self.options, self.phases = len(space.options), len(model.used)
        self.types, self.space = types, space
        self.rows: list[FloatArray] = []
        self.most: list[float] = []
        self.is_limit: list[bool] = []
        self.limits: list[tuple[float, float | None]] = [(0.0, None)] * self.phases
        matrix = np.column_stack([model.tangents.T, space.device, space.host])
        loads = [(space.pool[r] @ matrix).reshape(-1, matrix.shape[1]) for r in space.rows]
        mean = np.array([load.sum(axis=0) for load in loads]) / space.world_size
        self.model, self.mean = model, mean
        slow = cases.slow_phases(space, model)
        largest = np.array([load.max(axis=0) for load in loads])
        least = np.array([load.min(axis=0) for load in loads])
        uniform = np.array([o.is_uniform for o in space.options])
        pipeline, local = space.pipeline, space.local_world_size
        hosts = np.repeat(pipeline.host_limits, local)
        for c in range(matrix.shape[1]):
            memory = c >= len(model.phase)  # the device, then the host
            own = c - matrix.shape[1] if memory else 0
            limit = [pipeline.device_limits, hosts][own] if own < 0 else None
            on_mean = None if limit is None else limit.mean() / (local if own == -1 else 1)
            self._below(c, model, mean[:, c] / np.mean(1 / slow[:, c]), on_mean)
            for t in range(space.num_tables):
                single = np.where(space.table_of == t, largest[:, c], 0.0)
                most = None if limit is None else limit.max()
                self._below(c, model, np.where(uniform, least[:, c], single), most)
            for r in range(space.world_size):
                here = [
                    x[r, c] * slow[r, c] if u else 0.0 for x, u in zip(loads, uniform, strict=True)
                ]
                self._below(c, model, np.array(here), None if limit is None else limit[r])
        for cut in [model.objective.always(), *bounds.cuts.get(types, [])]:
            row = np.concatenate([np.zeros(self.options), cut.slopes[model.used], [-1.0]])
            self._add(row, -cut.base)

    def _below(
        self, load: int, model: LinearModel, values: FloatArray, limit: float | None
    ) -> None:
        row = np.concatenate([values, np.zeros(self.phases + 1)])
        if limit is None:
            row[self.options + list(model.used).index(model.phase[load])] = -1.0
        scale = 1.0 if limit is None else max(limit, 1.0)
        self._add(row / scale, 0.0 if limit is None else 1.0)
        self.is_limit[-1] = limit is not None

    def within(self, box: Box, phase: int | None = None) -> float:
        """The same of plans in a box, with a share of ranks for each fused call."""
        more = len(box.launches.calls)
        self.rows = [np.concatenate([row, np.zeros(more)]) for row in self.rows]
        model, mean = self.model, self.mean
        end = self.options + self.phases + 1
        for cut in box.cuts:
            row = np.zeros(end + more)
            row[self.options : end] = [*cut.slopes[model.used], -1.0]
            self._add(row, -cut.base)
        calls = [(o.sharding_type, o.kernel) for o in self.space.options]
        for g, side in enumerate(box.first):
            if side not in model.used:
                continue
            k = list(model.used).index(side)
            of_phase = np.flatnonzero(model.phase == side)
            for p in of_phase if box.launches.seconds[g] > 0 else ():
                row = np.zeros(end + more)
                row[: self.options], row[self.options + k] = mean[:, p], -1.0
                row[end:] = box.launches.seconds[g]
                self._add(row, box.launches.seconds[g])
            for i, call in enumerate(box.launches.calls):
                row = np.zeros(end + more)
                row[: self.options] = mean[:, of_phase[0]] * [c == call for c in calls]
                row[end + i] = -box.high[g]
                self._add(row, 0.0)
            self.limits[k] = (box.low[g], box.high[g])
        return self.least(phase, shares=more)

    def _add(self, row: FloatArray, most: float) -> None:
        self.rows.append(row)
        self.most.append(most)
        self.is_limit.append(False)

    def least(self, phase: int | None = None, most: float = math.inf, *, shares: int = 0) -> float:
        """The least objective, or phase in use of plans with at most this objective."""
        inside = [self.types is None or o.sharding_type in self.types for o in self.space.options]
        tables = np.arange(self.space.num_tables)[:, None] == self.space.table_of
        end = self.options + self.phases + 1
        cost = np.zeros(end + shares)
        cost[end - 1 if phase is None else self.options + phase] = 1.0
        unit = 1e-3  # seconds
        seconds = (np.arange(len(cost)) >= self.options) & (np.arange(len(cost)) < end)
        rows = np.array(self.rows)
        by_limit = np.array(self.is_limit)
        scaled = np.where(seconds, rows, np.where(by_limit[:, None], rows, rows / unit))
        upper = np.where(by_limit, 1.0, np.array(self.most) / unit)
        done = linprog(
            cost,
            A_ub=scaled,
            b_ub=upper,
            A_eq=np.hstack([tables, np.zeros((len(tables), self.phases + 1 + shares))]),
            b_eq=np.ones(len(tables)),
            bounds=[(0.0, float(i)) for i in inside]
            + [(low / unit, None if high is None else high / unit) for low, high in self.limits]
            + [(0.0, None if math.isinf(most) else most / unit)]
            + [(0.0, 1.0)] * shares,
        )
        return math.inf if done.status == 2 else float(done.fun) * unit


@pytest.mark.parametrize("name", SPACES)
def test_row_by_row_is_the_same_as_all_at_once(name: str) -> None:
    """Not below the written program but for what counts as broken, and never above it."""
    space = space_of(name)
    for objective in ("iteration", "phases"):
        bounds = RankFreeBound(LinearModel(space, objective_named(objective, space)))
        for types in [None, *type_sets(space)[:4]]:
            found = bounds.relax(types, rounds=ROUNDS).bound
            expected = Written(bounds, types).least()
            assert found == pytest.approx(expected, rel=3e-4)
            assert not found > expected * (1 + 1e-7)


def least_of_plans(bounds: RankFreeBound, types: TypeSet) -> float:
    """The minorant of the best plan with these types: tangents and cuts, all plans looked at."""
    space, model = bounds.space, bounds.model
    cuts = [model.objective.always(), *bounds.cuts.get(types, [])]
    best = math.inf
    for assignments, works in every_assignment(space):
        inside = [
            all(space.option(t, i).sharding_type in types for t, i in enumerate(a.options))
            for a in assignments
        ]
        phases = model.phase_maxima(model.loads(works).max(axis=1))
        values = np.max([c.base + phases @ c.slopes[model.used] for c in cuts], axis=0)
        good = np.array(inside) & (space.overflow_ratio(works) <= 0)
        best = min(best, float(values[good].min(initial=math.inf)))
    return best


@pytest.mark.parametrize("slack", [0.0, 0.3])
@pytest.mark.parametrize("seed", [0, 2])
def test_packable_options_are_no_larger_than_the_room(seed: int, slack: float) -> None:
    """What is asked of them: nothing above the room, half of it once a rank, a third twice."""
    space = cases.space(cases.synthetic(5, seed=seed), cases.topology(2, 2), cases.DEVICE_ONLY)
    bounds = RankFreeBound(LinearModel(space, objective_named("phases", space)))
    relaxed = bounds.relax(type_sets(space)[0], rounds=ROUNDS)
    starts = Starts(bounds, Record(Evaluator(space, bounds.model.objective, Budget())))
    found = starts.packable(relaxed, slack)
    unsolved = replace(relaxed, shares=None)
    assert starts.packable(unsolved, slack) is unsolved
    assert relaxed.shares is not None
    assert found.shares is not None
    model = bounds.model
    uniform = np.array([o.is_uniform for o in space.options])
    largest = np.array([model.loads(space.pool[r]).reshape(-1, model.num_tangents + 2).max(0)
                        for r in space.rows])[:, : model.num_tangents]  # fmt: skip
    least = np.array([model.loads(space.pool[r]).reshape(-1, model.num_tangents + 2).min(0)
                      for r in space.rows])[:, : model.num_tangents]  # fmt: skip
    base = np.where(uniform[:, None], least, 0.0).T @ relaxed.shares
    single = np.where(uniform[:, None], 0.0, largest) * relaxed.shares[:, None]
    on_some = np.array([single[space.table_of == t].sum(axis=0) for t in range(5)]) + base
    mean = model.mean[:, : model.num_tangents].T @ relaxed.shares
    peaks = np.maximum(on_some.max(axis=0), mean)
    room = model.phase_maxima(peaks)[model.phase_index] * (1 + slack)
    share = largest / np.maximum(room, 1e-300)
    where = room > 1e-6 * room.max()
    taken = ~uniform & (found.shares > 1e-6)
    everywhere = np.array([model.loads(space.pool[r]).reshape(-1, model.num_tangents + 2).max(0)
                           for r in space.rows])[uniform & (found.shares > 1e-6)]  # fmt: skip
    if not len(everywhere):  # uniform options may raise the room
        assert (share[taken][:, where] <= 1 + 1e-6).all()
        shards = np.array([r.size for r in space.rows])
        for weight, least_share in ((1.0, 0.5), (0.5, 1 / 3)):
            large = np.where(taken[:, None] & (share > least_share * (1 + 1e-9)), weight, 0.0)
            count = (found.shares * shards) @ large[:, where]
            assert (count <= space.world_size * (1 + 1e-5)).all()
    assert found.bound >= relaxed.bound * (1 - 1e-3)


@pytest.mark.parametrize("width", [1.01, 1.3])
def test_a_box_says_what_its_calls_cost(width: float) -> None:
    """The written program with the limits, cuts and fused calls of a box.

    A call's share of ranks is at least its mean over the box's limit, and each call after the first
    of a rank adds to the phase. One table is looked up often, and the other one is wide.
    """
    tables = (cases.table("often", 10**6, 8, 100.0), cases.table("wide", 10**6, 256, 1.0))
    kinds = (ShardingType.COLUMN_WISE, ShardingType.TABLE_ROW_WISE)
    rules = Constraints(
        kernels=(ComputeKernel.FUSED,),
        tables=tuple(
            TableConstraint(pattern=table.name, sharding_types=(kind,))
            for table, kind in zip(tables, kinds, strict=True)
        ),
    )
    space = cases.space(cases.workload(tables, batch=512), cases.topology(2, 2), rules)
    objective = IterationTime(space)
    bounds = RankFreeBound(LinearModel(space, objective))
    types = frozenset(kinds)
    first = bounds.relax(types, rounds=ROUNDS)
    assert first.phases is not None
    box = cases.box(objective, types, np.zeros_like(first.phases), first.phases * width)
    assert box is not None
    assert len(box.launches.calls) >= 2
    assert (box.launches.seconds > 0).any()
    found = bounds.relax(types, box=box, rounds=ROUNDS).bound
    assert found == pytest.approx(Written(bounds, types).within(box), rel=3e-4)


def test_least_phases_are_the_least_sum_of_each_tangent() -> None:
    space = cases.tiny(0)
    model = LinearModel(space, objective_named("iteration", space))
    rng = np.random.default_rng(0)
    for _ in range(40):
        model.add_tangents(space.pool[rng.integers(len(space.pool))])
    bounds = RankFreeBound(model)
    assert len(model.phase) >= len(model.used)
    for types in type_sets(space):
        for phase in model.used:
            own = model.tangents[model.phase == phase]
            sums = []
            for tangent in own:
                loads = space.mean_work @ tangent
                inside = [o.sharding_type in types for o in space.options]
                tables = range(space.num_tables)
                each = [loads[inside & (space.table_of == t)].min() for t in tables]
                sums.append(sum(each))
            found = bounds.least_phases(types)[phase]
            assert found == pytest.approx(max(sums), rel=1e-6, abs=1e-15)
