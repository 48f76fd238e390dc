"""Explanations against every placement of a table, and the figures of an option by hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, Plan, ShardingType, TablePlacement
from costmodels.topology import Topology
from costmodels.workload import Table, Workload
from planner.explain.explainer import Explainer, OptionCost
from planner.problem import Constraints, PlanningProblem
from planner.search.improve.single_changes import Placed
from tests.planner import cases
from tests.strategies import make_placement

DEVICE = Constraints(
    kernels=(ComputeKernel.DENSE, ComputeKernel.FUSED),
    sharding_types=(
        *(ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE),
        *(ShardingType.ROW_WISE, ShardingType.DATA_PARALLEL),
    ),
)
DIM = 32


def drawn_problem(seed: int, num_ranks: int = 4) -> tuple[PlanningProblem, Plan]:
    """Four tables of 32 columns on four unlike ranks, each whole on a rank drawn at random."""
    rng = np.random.default_rng(seed)
    tables = tuple(
        cases.table(f"t{i}", int(rng.integers(1, 40)) * 100_000, DIM, float(rng.integers(1, 60)))
        for i in range(4)
    )
    speeds = tuple(rng.choice([0.5, 1.0, 1.0], num_ranks).tolist())
    topology = replace(cases.topology(1, num_ranks), speed_by_rank_ratio=speeds)
    workload = cases.workload(tables, batch=4096)
    problem = PlanningProblem(workload=workload, topology=topology, constraints=DEVICE)
    whole = tuple(
        make_placement(t, ShardingType.TABLE_WISE, topology, where=(int(rng.integers(num_ranks)),))
        for t in tables
    )
    return problem, Plan(placements=whole)


def every_placement(table: Table, topology: Topology) -> list[TablePlacement]:
    """Whole, in two and in four equal pieces of columns, by rows, and replicated."""
    world = range(topology.world_size)
    found = [
        make_placement(table, ShardingType.TABLE_WISE, topology, where=(rank,)) for rank in world
    ]
    for pieces in (2, 4):
        widths = (DIM // pieces,) * pieces
        found += [
            make_placement(
                table, ShardingType.COLUMN_WISE, topology, where=where, column_widths=widths
            )
            for where in itertools.combinations_with_replacement(world, pieces)
        ]
    found.append(make_placement(table, ShardingType.ROW_WISE, topology))
    found.append(make_placement(table, ShardingType.DATA_PARALLEL, topology))
    return found


def kind_of(placement: TablePlacement) -> tuple[ShardingType, int]:
    """Sharding type and number of pieces; a table in one piece is table-wise."""
    count = len(placement.shards)
    kind = placement.sharding_type
    whole = count == 1 and kind is ShardingType.COLUMN_WISE
    return (ShardingType.TABLE_WISE if whole else kind), count


@pytest.mark.parametrize("seed", cases.first(range(8), 4))
def test_options_have_the_best_of_all_their_places(seed: int) -> None:
    """Every placement of the table is priced from scratch beside the rest of the plan."""
    problem, plan = drawn_problem(seed)
    pipeline = CostPipeline(problem.workload, problem.topology)
    explainer = Explainer(problem, plan)
    for table in problem.workload.tables[:2]:
        own = plan.placement(table.name)
        best: dict[tuple[ShardingType, int], float] = {}
        for placement in every_placement(table, problem.topology):
            if placement.shards == own.shards:
                continue
            others = tuple(placement if p.table == table.name else p for p in plan.placements)
            time_s = pipeline.estimate(Plan(placements=others)).time.time_s
            key = kind_of(placement)
            best[key] = min(time_s, best.get(key, time_s))
        told = {
            kind_of(o.placement): o.plan_time_s
            for o in explainer.table(table.name).options
            if not o.is_chosen
        }
        for key, time_s in best.items():
            assert told[key] == pytest.approx(time_s, rel=1e-9), key


@pytest.mark.parametrize(
    ("widths", "ranks", "count"),
    [
        *(((4, 4, 4), 6, 56), ((4, 4, 4), 7, 0)),
        *(((8, 4), 8, 56), ((8, 4), 9, 0)),
        *(((4, 4), 10, 55), ((4, 4), 11, 0)),
        *(((8, 8, 4, 4), 3, 12), ((8, 4, 8), 4, 24)),
        ((12,), 5, 0),
    ],
)
def test_pieces_are_tried_in_every_way_where_there_are_64_at_most(
    widths: tuple[int, ...], ranks: int, count: int
) -> None:
    """Pieces of one width may change places; a single one is tried everywhere anyway.

    Eight of the 64 ways of two unlike pieces on eight ranks cannot run, because TorchRec keeps
    pieces of unlike widths on unlike ranks.
    """
    problem, plan = drawn_problem(0, ranks)
    explainer = Explainer(problem, plan)
    placer = explainer._placer
    whole = next(o for o in explainer.space.options if not o.is_uniform)
    cut = replace(whole, sharding_type=ShardingType.COLUMN_WISE, column_widths=widths)
    none = np.zeros(0)
    found = placer._every_way(Placed(table=0, index=0, option=cut, pieces=none, work=none))
    assert len(found) == count
    ways = {tuple(sorted(zip(widths, way, strict=True))) for way in found}
    every = itertools.product(range(ranks), repeat=len(widths))
    expected = {
        tuple(sorted(zip(widths, way, strict=True)))
        for way in every
        if count and len(set(zip(widths, way, strict=True))) == len(set(way))
    }
    assert ways == expected


def options_of(workload: Workload, topology: Topology, plan: Plan) -> dict[object, OptionCost]:
    problem = PlanningProblem(workload=workload, topology=topology, constraints=DEVICE)
    told = Explainer(problem, plan).table(workload.tables[0].name).options
    return {kind_of(o.placement): o for o in told}


def test_bytes_of_an_option_by_hand() -> None:
    """One table of 100,000 x 32 in fp32 on four ranks; 512 samples a rank, 5 lookups each.

    Vectors of 4-byte elements and indices of 8 bytes with lengths of 4 travel between all pairs of
    ranks, each rank's own included. An all-reduce carries a replicated table there and back.
    """
    rows, pooling, batch, world = 100_000, 5.0, 512, 4
    topology = cases.topology(1, world)
    table = cases.table("t", rows, DIM, pooling)
    workload = cases.workload((table,), batch=batch)
    start = make_placement(table, ShardingType.TABLE_WISE, topology, where=(0,))
    told = options_of(workload, topology, Plan(placements=(start,)))
    vectors = world * batch * DIM * 4.0
    indices = world * batch * (pooling * workload.index_bytes + 4.0)
    weights = rows * DIM * 4.0
    state = told[ShardingType.TABLE_WISE, 1].device_bytes - weights
    assert told[ShardingType.TABLE_WISE, 1].exchanged_bytes == pytest.approx(vectors + indices)
    for pieces in (2, 4):
        sent = told[ShardingType.COLUMN_WISE, pieces].exchanged_bytes
        assert sent == pytest.approx(vectors + pieces * indices)
    replicated = told[ShardingType.DATA_PARALLEL, world]
    assert replicated.exchanged_bytes == pytest.approx(2 * world * weights)
    assert 0 <= state < 0.5 * weights


def test_lookups_of_an_option_are_those_of_its_largest_shard_alone() -> None:
    """As the pipeline prices a plan of the table alone, whatever else the plan has."""
    problem, plan = drawn_problem(3)
    table = problem.workload.tables[0]
    pipeline = CostPipeline(problem.workload, problem.topology)
    for option in Explainer(problem, plan).table(table.name).options:
        alone = pipeline.plan_work(Plan(placements=(option.placement,)))
        forward, backward = pipeline.lookup_times(alone)
        assert option.lookup_forward_s == pytest.approx(float(forward.max()), rel=1e-6)
        assert option.lookup_backward_s == pytest.approx(float(backward.max()), rel=1e-6)
        held = float(pipeline.device_bytes(alone).max())
        assert option.device_bytes == pytest.approx(held, rel=1e-6)


def test_lookups_of_next_to_nothing_take_next_to_no_time() -> None:
    """A millionth of a lookup in one sample: no more than the pipeline says, however little."""
    topology = cases.topology(1, 2)
    workload = cases.workload((cases.table("t", 1000, DIM, 1e-6),), batch=1)
    start = make_placement(workload.tables[0], ShardingType.TABLE_WISE, topology)
    told = options_of(workload, topology, Plan(placements=(start,)))
    pipeline = CostPipeline(workload, topology)
    for option in told.values():
        alone = pipeline.plan_work(Plan(placements=(option.placement,)))
        forward, backward = pipeline.lookup_times(alone)
        assert option.lookup_forward_s == pytest.approx(float(forward.max()), rel=1e-9, abs=0)
        assert option.lookup_backward_s == pytest.approx(float(backward.max()), rel=1e-9, abs=0)


def test_the_changes_are_the_best_option_of_each_table_on_a_critical_rank() -> None:
    problem, plan = drawn_problem(5)
    explainer = Explainer(problem, plan)
    expected = {}
    for name in explainer.critical_tables():
        others = [o for o in explainer.table(name).options if not o.is_chosen]
        expected[name] = min(o.plan_time_s for o in others if o.plan_time_s < math.inf)
    changes = explainer.changes()
    assert {c.table: c.plan_time_s for c in changes} == expected
    assert [c.plan_time_s for c in changes] == sorted(expected.values())
    assert explainer.changes(limit=1) == changes[:1]
