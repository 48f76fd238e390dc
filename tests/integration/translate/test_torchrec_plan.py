"""Random legal plans are accepted by TorchRec, tile their tables, and come back unchanged."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torchrec")

from torchrec.distributed.planner.planners import to_sharding_plan as torchrec_to_sharding_plan
from torchrec.distributed.planner.planners import (
    validate_compute_kernels,
    validate_modules_inclusion_in_sharding_plan,
    validate_rank_assignment,
)
from torchrec.distributed.planner.types import ParameterConstraints, ShardingOption
from torchrec.distributed.planner.types import Shard as TorchrecShard
from torchrec.distributed.sharding_plan import (
    calculate_shard_sizes_and_offsets,
    get_default_sharders,
)
from torchrec.distributed.types import CacheParams, ParameterSharding, ShardingPlan

from costmodels.sharding import ComputeKernel, Plan, ShardingType, Spread, place
from costmodels.sharding import ShardingOption as OurOption
from costmodels.workload import Pooling
from planner.errors import InvalidInputError
from planner.integrations.torchrec_plan import plan_of, to_sharding_options, to_sharding_plan
from planner.integrations.torchrec_workload import ModelDescription, describe_model
from planner.options.torchrec_rules import layout_problems, legal_types_and_kernels
from tests.integration.builders import make_topology, placed
from tests.integration.models import Model, bags, sequences, torchrec_topology
from tests.integration.read_back import from_sharding_plan
from tests.merged_pieces import merged_pieces

pytestmark = pytest.mark.torchrec

BATCH = 16


@dataclass(frozen=True)
class Case:
    """A model, its description, and a random legal plan of it."""

    model: Model
    described: ModelDescription
    plan: Plan
    hosts: int
    local: int


def describe(model: Model) -> ModelDescription:
    described = describe_model(model, batch_size=BATCH)
    assert described is not None
    return described


@st.composite
def cases(draw: st.DrawFn) -> Case:
    hosts, local = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    shape = st.tuples(st.integers(1, 90), st.integers(1, 12))
    pooled = draw(st.lists(shape, min_size=1, max_size=4))
    unpooled = draw(st.lists(st.integers(1, 90), max_size=2))
    width = 4 * draw(st.integers(1, 8))
    model = Model(
        bags([(f"p{i}", r, 4 * d) for i, (r, d) in enumerate(pooled)]),
        sequences([(f"u{i}", r, width) for i, r in enumerate(unpooled)]) if unpooled else None,
    )
    described = describe(model)
    placements = []
    for table in described.workload.tables:
        legal = legal_types_and_kernels(table)
        sharding_type = draw(st.sampled_from(sorted(legal)))
        kernel = draw(st.sampled_from(legal[sharding_type]))
        quads = table.embedding_dim // 4
        cuts = draw(st.sets(st.integers(1, max(1, quads - 1)), max_size=3)) if quads > 1 else set()
        splits = sharding_type in (
            ShardingType.COLUMN_WISE,
            ShardingType.TABLE_COLUMN_WISE,
            ShardingType.GRID_SHARD,
        )
        edges = [0, *sorted(cuts if splits else ()), quads]
        option = OurOption(
            table=table.name,
            sharding_type=sharding_type,
            kernel=kernel,
            column_widths=tuple(4 * int(w) for w in np.diff(edges)),
            cache_load_factor_ratio=0.3 if kernel is ComputeKernel.FUSED_UVM_CACHING else None,
        )
        if option.spread is Spread.HOSTS:
            places = st.integers(0, hosts - 1)
        elif sharding_type is ShardingType.TABLE_COLUMN_WISE:
            host = draw(st.integers(0, hosts - 1))
            places = st.integers(host * local, host * local + local - 1)
        else:
            places = st.integers(0, hosts * local - 1)
        where = tuple(draw(places) for _ in range(option.num_pieces))
        placements.append(
            place(
                option,
                table.num_embeddings,
                where,
                world_size=hosts * local,
                local_world_size=local,
            )
        )
    plan = merged_pieces(Plan(placements=tuple(placements)))
    return Case(model, described, plan, hosts, local)


def coverage(sharding: ParameterSharding, rows: int, columns: int) -> np.ndarray:
    cells = np.zeros((rows, columns), dtype=int)
    for shard in sharding.sharding_spec.shards:
        (r, c), (n, m) = shard.shard_offsets, shard.shard_sizes
        cells[r : r + n, c : c + m] += 1
    return cells


@given(case=cases())
def test_torchrec_accepts_every_legal_plan(case: Case) -> None:
    world, workload = case.hosts * case.local, case.described.workload
    ours = make_topology(num_hosts=case.hosts, local=case.local)
    assert layout_problems(case.plan, workload, ours) == []
    sharding_plan = to_sharding_plan(
        case.plan, workload, compute_device="cuda", local_world_size=case.local
    )
    theirs, sharders = torchrec_topology(world, case.local), get_default_sharders()
    options = to_sharding_options(case.plan, case.described, theirs)
    validate_modules_inclusion_in_sharding_plan(sharding_plan, case.model, sharders)
    validate_rank_assignment(sharding_plan, theirs)
    validate_compute_kernels(options)
    for found in case.described.tables:
        table = found.table
        sharding = sharding_plan.plan[found.path][found.parameter_name]
        if sharding.sharding_type == ShardingType.DATA_PARALLEL:
            assert sharding.sharding_spec is None
            assert sharding.ranks == list(range(world))
            continue
        cells = coverage(sharding, table.num_embeddings, table.embedding_dim)
        assert (cells == 1).all()
        assert [s.placement.rank() for s in sharding.sharding_spec.shards] == sharding.ranks
        for shard in sharding.sharding_spec.shards:
            rank = shard.placement.rank()
            assert str(shard.placement) == f"rank:{rank}/cuda:{rank % case.local}"
    assert from_sharding_plan(sharding_plan, workload) == case.plan == plan_of(options)
    assert dump(torchrec_to_sharding_plan(options, theirs)) == dump(sharding_plan)


def dump(plan: ShardingPlan) -> str:
    kernels = {m: {t: repr(p.cache_params) for t, p in ps.items()} for m, ps in plan.plan.items()}
    return json.dumps([plan._serialize(), kernels], sort_keys=True, default=str)


@pytest.mark.parametrize("rows", [1, 5, 10, 16, 17])
@pytest.mark.parametrize(
    "sharding_type",
    [ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.TABLE_WISE],
)
def test_layouts_equal_those_of_torchrecs_enumerator(
    sharding_type: ShardingType, rows: int
) -> None:
    described = describe(Model(bags([("t", rows, 8)])))
    table = described.workload.table("t")
    where = () if sharding_type is ShardingType.ROW_WISE else (1,)
    shards = placed(sharding_type, where, table=table).shards
    sizes, offsets = calculate_shard_sizes_and_offsets(
        tensor=described.tables[0].parameter,
        world_size=8,
        local_world_size=4,
        sharding_type=str(sharding_type),
    )
    assert [[s.num_rows, s.num_cols] for s in shards] == sizes
    assert [[s.row_offset, s.col_offset] for s in shards] == offsets


# ------------------------------------------------------------------ one table at a time


def one_table(sharding_type: ShardingType, where: tuple[int, ...] = (), **how: object):
    described = describe(Model(bags([("t", 10, 16)])))
    table = described.workload.table("t")
    plan = Plan(placements=(placed(sharding_type, where, table=table, **how),))
    return described, plan


def converted(described: ModelDescription, plan: Plan, **how: object) -> ParameterSharding:
    sharding_plan = to_sharding_plan(
        plan, described.workload, compute_device="cuda", local_world_size=4, **how
    )
    return sharding_plan.plan["sparse.bags"]["t"]


def test_cpu_placements_have_no_index() -> None:
    described, plan = one_table(ShardingType.TABLE_WISE, (5,))
    sharding_plan = to_sharding_plan(
        plan, described.workload, compute_device="cpu", local_world_size=4
    )
    (shard,) = sharding_plan.plan["sparse.bags"]["t"].sharding_spec.shards
    assert str(shard.placement) == "rank:5/cpu"


def test_settings_of_the_user_pass_through() -> None:
    described, plan = one_table(
        ShardingType.TABLE_WISE, (0,), kernel=ComputeKernel.FUSED_UVM_CACHING, ratio=0.25
    )
    given_params = CacheParams(load_factor=0.9, reserved_memory=1.0)
    constraints = {"t": ParameterConstraints(cache_params=given_params, enforce_hbm=True)}
    sharding = converted(described, plan, constraints=constraints)
    assert sharding.cache_params == CacheParams(load_factor=0.25, reserved_memory=1.0)
    assert sharding.enforce_hbm is True
    assert given_params.load_factor == 0.9


def options_of(described: ModelDescription, plan: Plan) -> list[ShardingOption]:
    return to_sharding_options(plan, described, torchrec_topology(8, 4))


def test_a_caching_table_without_factor_has_torchrecs_default() -> None:
    described, plan = one_table(
        ShardingType.TABLE_WISE, (0,), kernel=ComputeKernel.FUSED_UVM_CACHING, ratio=0.25
    )
    (option,) = options_of(described, plan)
    option.cache_params = None
    assert plan_of([option]).placement("t").cache_load_factor_ratio == 0.2
    assert plan_of([option], {"t": 0.3}).placement("t").cache_load_factor_ratio == 0.3


def test_foreign_kernels_and_types_and_shards_without_ranks_are_refused() -> None:
    described, plan = one_table(ShardingType.TABLE_WISE, (0,))
    for field, value in (("compute_kernel", "key_value"), ("sharding_type", "diagonal")):
        (wrong,) = options_of(described, plan)
        setattr(wrong, field, value)
        with pytest.raises(InvalidInputError, match=f"table 't': .*'{value}'.* no cost model"):
            plan_of([wrong])
    (unplaced,) = options_of(described, plan)
    unplaced.shards[0].rank = None
    with pytest.raises(InvalidInputError, match="table 't': a shard has no rank yet"):
        plan_of([unplaced])


def test_torchrec_plans_that_would_fail_later_are_caught() -> None:
    described, plan = one_table(ShardingType.TABLE_ROW_WISE, (1,))
    (half,) = options_of(described, plan)
    half.shards = [
        TorchrecShard(size=[5, 16], offset=[5 * i, 0], rank=rank) for i, rank in enumerate((4, 5))
    ]
    problems = layout_problems(plan_of([half]), described.workload, make_topology())
    assert any("needs all 4 ranks of one host in order" in p for p in problems)


def test_namesakes_in_two_modules_are_told_apart() -> None:
    model = Model(bags([("t", 10, 16), ("only", 5, 4)]), sequences([("t", 20, 8)]))
    described = describe(model)
    names = {t.name: (t.module, t.pooling) for t in described.workload.tables}
    assert names == {
        "sparse.bags.t": ("sparse.bags", Pooling.SUM),
        "only": ("sparse.bags", Pooling.SUM),
        "history.t": ("history", Pooling.NONE),
    }
    plan = Plan(
        placements=tuple(placed(ShardingType.ROW_WISE, table=t) for t in described.workload.tables)
    )
    theirs = to_sharding_plan(plan, described.workload, compute_device="cuda", local_world_size=4)
    assert set(theirs.plan["sparse.bags"]) == {"t", "only"}
    assert set(theirs.plan["history"]) == {"t"}
    assert from_sharding_plan(theirs, described.workload) == plan
