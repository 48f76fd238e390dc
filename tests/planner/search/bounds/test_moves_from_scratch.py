"""Bounds under a limit on moves, against the program of their documentation written down anew."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from costmodels.datatypes import FloatArray
from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType, Spread, place
from planner.objectives import objective_named
from planner.problem import Constraints, MoveLimit
from planner.rules.placement_rules import received_bytes
from planner.search.base import Record
from planner.search.bounds.bound_program import Relaxation, TypeSet, type_sets
from planner.search.bounds.move_bound import MoveBound, _least_move
from planner.search.bounds.proofs import Proofs
from planner.search.common.linear import LinearModel
from planner.search.random import random_assignment
from planner.space.effort import Meter
from planner.space.evaluation import Assignment, Budget, Evaluator, SearchSpace
from planner.space.objective import Cut
from tests.planner import cases

KINDS = tuple(
    ShardingType(kind)
    for kind in ("table_wise", "row_wise", "column_wise", "table_row_wise", "data_parallel")
)


def free_space(seed: int, hosts: int, local: int) -> SearchSpace:
    """Three tables, cut in every way, that nothing holds where they are."""
    rng = np.random.default_rng(seed)
    tables = tuple(
        cases.table(f"t{i}", int(10 ** rng.uniform(3, 6)), 4 * int(rng.integers(2, 9)), pooling)
        for i, pooling in enumerate(rng.uniform(1.0, 60.0, 3).tolist())
    )
    kernels = (ComputeKernel.FUSED, ComputeKernel.DENSE)
    rules = Constraints(sharding_types=KINDS, kernels=kernels)
    model = cases.workload(tables, batch=2048)
    return cases.space(model, cases.topology(hosts, local), rules)


def limited(space: SearchSpace, limit: MoveLimit) -> SearchSpace:
    return SearchSpace(replace(space.problem, move_limit=limit), space.pipeline, space.listing)


def start_of(space: SearchSpace, kind: ShardingType, rng: np.random.Generator) -> Plan:
    """A plan in use with one sharding type, at random places."""
    options, places = [], []
    for table in space.tables:
        own = [i for i, o in enumerate(table.options) if o.sharding_type is kind]
        index = int(rng.choice(own))
        option = table.options[index]
        count = space.num_hosts if option.spread is Spread.HOSTS else space.world_size
        pieces = 0 if option.is_uniform else option.num_pieces
        options.append(index)
        places.append(tuple(rng.integers(count, size=pieces).tolist()))
    return space.plan(Assignment(options=tuple(options), places=tuple(places)))


def moved_to(
    space: SearchSpace, start: Plan, option: ShardingOption
) -> dict[tuple[int, ...], float]:
    """Bytes that ranks receive for an option in each of its places."""
    count = space.num_hosts if option.spread is Spread.HOSTS else space.world_size
    repeat = 0 if option.is_uniform else option.num_pieces
    (table,) = (t for t in space.problem.workload.tables if t.name == option.table)
    sizes = {"world_size": space.world_size, "local_world_size": space.local_world_size}
    before = start.placement(option.table)
    return {
        where: received_bytes(
            before,
            place(option, table.num_embeddings, where, **sizes),
            table,
            space.problem.workload,
        )
        for where in itertools.product(range(count), repeat=repeat)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """An option in the only places where nothing has to move."""

    flat: int
    places: tuple[int, ...]


def moves(space: SearchSpace) -> tuple[FloatArray, list[Stay]]:
    """Least bytes of each option in places where it does not stay, and those that can stay."""
    limit = space.problem.move_limit
    assert limit is not None
    least, stays = [], []
    for flat, option in enumerate(space.options):
        found = moved_to(space, limit.start, option)
        nothing = [where for where, moved in found.items() if moved <= 0.5]
        if len(nothing) == 1 and len(found) > 1:
            stays.append(Stay(flat=flat, places=nothing[0]))
            del found[nothing[0]]
        least.append(min(found.values()))
    return np.array(least), stays


@pytest.mark.parametrize(("seed", "hosts", "local"), [(0, 2, 2), (1, 1, 3), (2, 3, 1)])
def test_what_options_move_at_least_is_that_of_the_best_places(
    seed: int, hosts: int, local: int
) -> None:
    """All places of every option are tried, beside a plan in use of each sharding type."""
    free = free_space(seed, hosts, local)
    rng = np.random.default_rng(seed)
    seen = set()
    for kind in sorted({o.sharding_type for o in free.options}):
        space = limited(free, MoveLimit(start=start_of(free, kind, rng), max_tables=1))
        assert space.rules.budget is not None
        least, stays = moves(space)
        staying = {stay.flat: stay.places for stay in stays}
        for flat, option in enumerate(space.options):
            moved, places = _least_move(space.rules.budget, option)
            assert places == staying.get(flat)
            assert moved == pytest.approx(least[flat], abs=1e-6)
            seen.add((option.is_uniform, places is None, moved > 0.5))
    assert len(seen) == 5, "what moves, what stays at one place, and what stays at several"


def written(
    space: SearchSpace, model: LinearModel, types: TypeSet | None, cuts: Sequence[Cut]
) -> float:
    """Least v over y, stay, z and v, every row as the documentation of ``move_bound`` has it."""
    limit = space.problem.move_limit
    assert limit is not None
    unit = 1e-5  # seconds
    moved, stays = moves(space)
    count, used = len(space.options), list(model.used)
    owner = [*space.table_of, *(space.table_of[s.flat] for s in stays)]
    chosen = len(owner)
    rows, most = [], []
    for gradient, phase in zip(model.tangents, model.phase, strict=True):
        on_rank = np.zeros((space.world_size, chosen))
        mean = np.zeros(chosen)
        for flat in range(count):
            own = space.pool[space.rows[flat]] @ gradient
            mean[flat] = own.sum() / space.world_size
            if space.options[flat].is_uniform:
                on_rank[:, flat] = own
        for i, stay in enumerate(stays, start=count):
            table = int(space.table_of[stay.flat])
            index = stay.flat - int(space.first[table])
            for rank, row in zip(*space.placed_rows(table, index, stay.places), strict=True):
                on_rank[rank, i] += row @ gradient
            mean[i] = on_rank[:, i].mean()
        for loads in (*on_rank, mean):
            row = np.concatenate([loads / unit, np.zeros(len(used) + 1)])
            row[chosen + used.index(phase)] = -1.0
            rows.append(row)
            most.append(0.0)
    for cut in cuts:
        rows.append(np.concatenate([np.zeros(chosen), cut.slopes[model.used], [-1.0]]))
        most.append(-cut.base / unit)
    padding = np.zeros(len(stays) + len(used) + 1)
    if limit.max_tables is not None:
        rows.append(np.concatenate([moved > 0.5, padding]))
        most.append(limit.max_tables)
    if limit.max_bytes is not None:
        scale = max(limit.max_bytes, 1.0)
        rows.append(np.concatenate([moved / scale, padding]))
        most.append(limit.max_bytes / scale * (1 + 1e-9))
    one = np.zeros((space.num_tables, len(rows[0])))
    one[owner, np.arange(chosen)] = 1.0
    inside = [types is None or o.sharding_type in types for o in space.options]
    upper = np.full(len(rows[0]), np.inf)
    upper[:chosen] = [*inside, *(inside[s.flat] for s in stays)]
    cost = np.zeros(len(rows[0]))
    cost[-1] = 1.0
    found = milp(
        cost,
        bounds=Bounds(0.0, upper),
        constraints=[
            LinearConstraint(np.array(rows), -np.inf, most),
            LinearConstraint(one, 1.0, 1.0),
        ],
    )
    return math.inf if found.status == 2 else float(found.fun) * unit


def limits_of(space: SearchSpace, start: Plan, rng: np.random.Generator) -> list[MoveLimit]:
    """Tables, bytes, and both."""
    total = float(sum(t.weight_bytes for t in space.problem.workload.tables))
    some = float(rng.uniform(0.1, 0.9)) * total
    return [
        MoveLimit(start=start, max_tables=0),
        MoveLimit(start=start, max_tables=1),
        MoveLimit(start=start, max_bytes=some),
        MoveLimit(start=start, max_tables=2, max_bytes=1.3 * some),
    ]


@pytest.mark.parametrize(("seed", "hosts", "local"), [(0, 2, 2), (1, 1, 3)])
def test_bounds_are_those_of_the_written_program(seed: int, hosts: int, local: int) -> None:
    """Whatever the limit, the sharding types, and the value that programs are scaled by."""
    free = free_space(seed, hosts, local)
    rng = np.random.default_rng(seed)
    home = random_assignment(free, rng)
    start = free.plan(home)
    now = float(objective_named("phases", free).values(free.work(home)))
    infeasible = 0
    for i, limit in enumerate(limits_of(free, start, rng)):
        space = limited(free, limit)
        objective = objective_named("phases", space)
        model, meter = LinearModel(space, objective), Meter()
        assert space.rules.budget is not None
        most = now * 10 ** rng.uniform(0.0, 0.5)
        bounds = MoveBound(model, space.rules.budget, meter, most=most)
        for types in (None, type_sets(space)[-1 - i]):
            spent_s = meter.spent_s
            found = bounds.bound(types, [objective.always()])
            assert meter.spent_s > spent_s
            expected = written(space, model, types, [objective.always()])
            assert found <= expected * (1 + 2e-6)
            if found < most:  # else whole tables would not help the search either
                assert found == pytest.approx(expected, rel=2e-4)
            infeasible += math.isinf(expected)
    assert infeasible, "no limit leaves nothing, which is what a bound has to say too"


def crowded(count: int) -> tuple[SearchSpace, Plan]:
    """Whole tables on three ranks, all of them on the second one."""
    tables = tuple(cases.table(f"t{i}", 10_000, 32, 5.0 + i) for i in range(count))
    kinds = (ShardingType.TABLE_WISE, ShardingType.ROW_WISE)
    rules = Constraints(sharding_types=kinds, kernels=(ComputeKernel.FUSED,))
    space = cases.space(cases.workload(tables, batch=4096), cases.topology(1, 3), rules)
    return space, start_of_all(space, (0,) * count, ((1,),) * count)


def start_of_all(
    space: SearchSpace, options: tuple[int, ...], places: tuple[tuple[int, ...], ...]
) -> Plan:
    return space.plan(Assignment(options=options, places=places))


def test_the_busiest_ranks_are_those_that_are_looked_at() -> None:
    """As many as there may be loads of tables that stay; tangents lie at what ranks have now."""
    free, _ = crowded(5)
    start = start_of_all(free, (0,) * 5, ((2,), (1,), (1,), (1,), (1,)))
    space = limited(free, MoveLimit(start=start, max_tables=1))
    objective = objective_named("phases", space)
    budget = space.rules.budget
    assert budget is not None
    every = MoveBound(LinearModel(space, objective), budget, Meter(), most=1e-3)
    each = 5 * every._model.num_tangents  # whole tables, each where it is
    now = space.work(space.assignment(start))
    exact = space.pipeline.phases.times(now).max(axis=0)[every._model.used]
    known = every._model.phase_maxima(every._model.loads(now).max(axis=0))
    assert known == pytest.approx(exact, rel=1e-3)
    found = {}
    for entries, ranks in ((1, [1]), (each, [1]), (2 * each, [1, 2]), (3 * each, [0, 1, 2])):
        model = LinearModel(space, objective)
        with cases.scheduled(program_entries=entries):
            bounds = MoveBound(model, budget, Meter(), most=1e-3)
        assert bounds._ranks.tolist() == ranks
        found[entries] = bounds.bound(None, [objective.always()])
    unlimited = limited(free, MoveLimit(start=start))
    anywhere = written(unlimited, every._model, None, [objective.always()])
    assert found[1] == pytest.approx(found[3 * each], rel=1e-6)
    assert found[1] > 1.05 * anywhere


@pytest.mark.parametrize("name", ["phases", "iteration"])
def test_a_search_is_told_the_least_over_all_sets_of_types(name: str) -> None:
    """Of each set the better of both bounds; the best plan where all sets are above it."""
    free, start = crowded(3)
    space = limited(free, MoveLimit(start=start, max_tables=1))
    objective = objective_named(name, space)
    evaluate = Evaluator(space, objective, Budget())
    record = Record(evaluate)
    model, always = LinearModel(space, objective), objective.always()
    assert space.rules.budget is not None
    sets = type_sets(space)

    def told(relaxed: dict[TypeSet | None, float], found: Record) -> float | None:
        given = {t: Relaxation(types=t, bound=bound) for t, bound in relaxed.items()}
        proofs = Proofs(model, found, proves=False)
        proofs.relaxed.update(given)
        proofs.limit_moves()
        return found.bound

    assert told(dict.fromkeys(sets, 0.0), record) is None, "there is no plan yet"
    record.consider(space.assignment(start), "start")
    best = record.value
    moves_of = MoveBound(model, space.rules.budget, Meter(), most=best)
    own = {t: moves_of.bound(t, [always], t) for t in sets}
    without = {t: moves_of.bound(t, [always]) for t in sets}
    assert all(own[t] >= without[t] * (1 - 1e-6) for t in sets)
    if name == "iteration":
        assert max(own[t] / without[t] for t in sets if math.isfinite(own[t])) > 1.05
    optimum = cases.least_value(space, objective)
    assert min(own.values()) <= optimum * (1 + 1e-9)
    rng = np.random.default_rng(0)
    for _ in range(6):
        relaxed = {t: best * rng.uniform(0.2, 1.2) for t in sets}
        fresh = Record(evaluate)
        fresh.consider(space.assignment(start), "start")
        expected = min(best, *(max(relaxed[t], own[t]) for t in sets))
        assert told(relaxed, fresh) == pytest.approx(expected, rel=1e-6)
    unlimited = Record(Evaluator(free, objective_named(name, free), Budget()))
    unlimited.consider(free.assignment(start), "start")
    Proofs(LinearModel(free, objective), unlimited, proves=False).limit_moves()
    assert unlimited.bound is None, "there is no limit on moves"
