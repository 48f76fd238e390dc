"""How a planning with TorchRec ends: by work done, TorchRec's plan checked, and told in full."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torchrec")

import torch
from torch import nn
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.proposers import GreedyProposer
from torchrec.distributed.planner.types import ParameterConstraints, PlannerErrorType
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from costmodels.distribution.zipf import Zipf
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, Plan, ShardingType
from costmodels.system_models import default_models
from costmodels.topology import Topology
from costmodels.workload import DataType, DenseArch, Optimizer, Pipeline
from planner.api import solve
from planner.errors import InvalidInputError
from planner.integrations import drop_in as torchrec_search
from planner.integrations.drop_in import (
    emptier,
    ended,
    fullest_ratio,
    planning_work_s,
    quiet,
    roomiest,
)
from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.torchrec_workload import ModelDescription, WorkloadHints
from planner.integrations.translate.pricing import KeyValuePipeline
from planner.integrations.translate.settings import ShardPlannerError
from planner.problem import Constraints, PlanningProblem, TableConstraint
from planner.settings import SearchSettings
from planner.solving.prepare import objective_value
from planner.space.budget import default_work_s, priced_plans
from tests.integration.builders import make_table, make_topology, placed
from tests.integration.models import Model, bags, torchrec_topology
from tests.strategies import make_workload

pytestmark = pytest.mark.torchrec

SHARDERS = get_default_sharders()
TABLES = [(f"t{i}", 2000 * (i % 5 + 1), 32 * (i % 3 + 1)) for i in range(5)]


ENUMERATED = list(enumerate(TABLES))


def made(world: int = 4, **arguments: Any) -> ShardPlanner:
    return ShardPlanner(torchrec_topology(world, world), 256, stats=[], **arguments)


def hasty(world: int, **arguments: Any) -> ShardPlanner:
    """A planner that prices few plans."""
    return made(world, **{"max_evaluations": 20, **arguments})


@pytest.mark.parametrize("objective", ["iteration", "torchrec"])
def test_hints_reach_the_search(objective: str) -> None:
    law = Zipf(num_embeddings=TABLES[0][1], exponent=1.0)
    hints = WorkloadHints(
        distributions={"t0": law},
        dense=DenseArch(bottom_mlp=(4,), top_mlp=(1,)),
        pipeline=Pipeline.NONE,
        output_dtype=DataType.FP16,
        reserved_bytes=5e6,
    )
    planner = made(2, hints=hints, objective=objective, max_evaluations=2)
    planner.plan(bags(TABLES), SHARDERS)
    assert planner.result is not None
    workload = planner.result.problem.workload
    assert workload.table("t0").distribution == law
    assert (workload.dense, workload.pipeline) == (hints.dense, Pipeline.NONE)
    assert (workload.output_dtype, workload.reserved_bytes) == (DataType.FP16, 5e6)


# ------------------------------------------------------------------ TorchRec's plan beside ours


def test_a_plan_of_torchrecs_that_cannot_run_is_not_taken() -> None:
    """FBGEMM has no fused kernel for 10 columns; TorchRec's planner gives one none the less."""
    shapes = [(f"t{i}", 1000, 64) for i in range(5)] + [("odd", 2_000_000, 10)]
    planner = hasty(2)
    plan = planner.plan(Model(bags(shapes)), SHARDERS).plan["sparse.bags"]
    assert plan["odd"].sharding_type == "data_parallel"
    assert "cannot run: table 'odd'" in planner._rival.reason
    assert planner._rival.plan is None


def test_the_rival_is_torchrecs_own_plan_and_rating() -> None:
    planner, topology = hasty(2), torchrec_topology(2, 2)
    planner.plan(bags(TABLES), SHARDERS)
    theirs = EmbeddingShardingPlanner(topology=topology, batch_size=256, stats=[])
    theirs.plan(bags(TABLES), SHARDERS)
    rating = NoopPerfModel(topology).rate(theirs._best_plan)
    assert planner._rival.rating_ms == pytest.approx(rating)
    assert planner.result is not None
    assert planner._rival.plan in [c.plan for c in planner.result.baselines]


def test_our_estimate_is_never_above_that_of_torchrecs_plan() -> None:
    for world in (1, 2, 4):
        planner = hasty(world)
        planner.plan(bags(TABLES), SHARDERS)
        assert planner.result is not None
        theirs = [c.estimate.time.time_s for c in planner.result.baselines if c.name == "torchrec"]
        assert theirs
        assert planner.result.estimate.time.time_s <= min(theirs)


@pytest.mark.parametrize("objective", ["torchrec", "torchrec-critical-path"])
def test_by_torchrecs_objective_a_plan_is_never_worse_than_torchrecs(objective: str) -> None:
    """A search that may do next to nothing falls back on TorchRec's plan."""
    often = {n: ParameterConstraints(pooling_factors=[5.0 * i + 1]) for i, (n, _, _) in ENUMERATED}
    planner = made(4, objective=objective, max_evaluations=1, strategy="random", constraints=often)
    planner.plan(bags(TABLES), SHARDERS)
    assert planner.result is not None
    assert planner._rival.plan is not None
    problem = planner.result.problem
    ours, theirs = (
        objective_value(problem, p, objective) for p in (planner.result.plan, planner._rival.plan)
    )
    assert ours <= theirs
    assert planner.result.solver.value == pytest.approx(ours)


def test_a_proposer_ends_after_its_number_of_proposals() -> None:
    class Endless(GreedyProposer):
        def propose(self) -> list[Any]:
            return []

    counted = ended(Endless(), 3)
    assert [counted.propose() is None for _ in range(5)] == [False] * 3 + [True] * 2


def test_the_rivals_lines_stay_out_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    name = "torchrec.distributed.planner.partitioners"
    theirs = logging.getLogger(name)
    with caplog.at_level(logging.DEBUG):
        with quiet():
            theirs.warning("inside")
        theirs.warning("after")
        hasty(2).plan(bags(TABLES), SHARDERS)
    seen = [r.getMessage() for r in caplog.records if r.name == name]
    assert seen == ["after"]


# ------------------------------------------------------------------ ended by work


def test_the_same_job_gets_the_same_plan() -> None:
    plans = [hasty(4).plan(bags(TABLES), SHARDERS) for _ in range(2)]
    assert len({str(p) for p in plans}) == 1


@pytest.mark.parametrize("seconds", [None, 500])
def test_a_timeout_does_not_change_the_budget(
    monkeypatch: pytest.MonkeyPatch, seconds: int | None
) -> None:
    asked: dict[str, Any] = {}
    real = torchrec_search.api.solve

    def spy(*arguments: Any, **settings: Any) -> Any:
        asked.update(settings)
        short = replace(settings["search"], max_evaluations=5)
        return real(*arguments, **{**settings, "search": short})

    monkeypatch.setattr(torchrec_search.api, "solve", spy)
    planner = made(4, timeout_seconds=seconds)
    planner.plan(bags(TABLES), SHARDERS)
    assert planner.result is not None
    problem = planner.result.problem
    work_s = planning_work_s(len(problem.workload.tables), problem.topology.world_size)
    expected = priced_plans(work_s, CostPipeline(problem.workload, problem.topology))
    assert asked["search"].max_evaluations == expected
    assert 0 < asked["search"].time_limit_s <= (seconds or math.inf)


def test_the_number_of_evaluations_can_be_set() -> None:
    few, more = made(4, max_evaluations=2), made(4, max_evaluations=30)
    for planner in (few, more):
        planner.plan(bags(TABLES), SHARDERS)
    assert few.result is not None
    assert more.result is not None
    assert few.result.solver.work < more.result.solver.work


def test_small_models_get_little_work_and_large_ones_no_more_than_others() -> None:
    sizes = [(2, 2), (10, 8), (26, 8), (100, 64), (3000, 512)]
    works = [planning_work_s(*size) for size in sizes]
    assert works == sorted(works)
    assert works[1] < 0.6
    assert works[-1] == default_work_s(3000, 512, None)
    assert planning_work_s(300, 64) == default_work_s(300, 64, None)
    small_s = 3e-4 * 40 * 40 * 8  # of TorchRec's planner; ours asks that one for its plan, too
    assert planning_work_s(40, 8) < small_s / 4


# ------------------------------------------------------------------ told in full


def test_one_block_tells_all(caplog: pytest.LogCaptureFixture) -> None:
    planner = hasty(2)
    with caplog.at_level(logging.INFO, logger="planner"):
        planner.plan(bags(TABLES), SHARDERS)
    (block,) = [r.getMessage() for r in caplog.records if "predicted step" in r.getMessage()]
    heads = [line[:19].strip() for line in block.splitlines()]
    assert heads == [
        "ShardPlanner",
        "predicted step",
        "proven bound",
        "ended",
        "TorchRec's plan",
        "by its rating",
        "taken",
        "fullest rank",
        "planning took",
    ]
    assert "90 % between" in block
    assert "predicted" in block.splitlines()[4]


def test_a_model_too_large_to_compare_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchrec_search, "MOST_COMPARED", 1)
    with caplog.at_level(logging.INFO, logger="planner"):
        hasty(2).plan(bags(TABLES), SHARDERS)
    assert "not asked for: more than 1 tables times ranks" in caplog.text
    assert "TorchRec's not known" in caplog.text


# ------------------------------------------------------------------ an optimizer nobody knows


def test_an_unknown_optimizer_has_a_wide_interval() -> None:
    def interval(kind: type[torch.optim.Optimizer]) -> tuple[float, float]:
        tables = bags(TABLES)
        apply_optimizer_in_backward(kind, tables.parameters(), {})
        planner = made(2, max_evaluations=200)
        planner.plan(tables, SHARDERS)
        assert planner.result is not None
        time = planner.result.estimate.time
        return time.low_s, time.high_s

    (low, high), (known_low, known_high) = interval(torch.optim.Rprop), interval(torch.optim.Adam)
    assert low <= known_low
    assert high >= known_high
    assert (low, high) != (known_low, known_high)


def test_the_interval_of_a_guess_holds_the_cheapest_and_the_dearest_optimizer() -> None:
    workload = make_workload(make_table("a", rows=200_000, dim=128), batch_size_per_rank=8192)
    workload = replace(workload, optimizer=Optimizer.ADAM)
    topology = make_topology(1, 2)
    models = default_models(topology)
    plan = Plan(
        placements=(
            placed(ShardingType.TABLE_WISE, (0,), table=workload.tables[0], world=2, local=2),
        )
    )
    model = ModelDescription(
        workload=workload, constraints=Constraints(), tables=(), warnings=(), knows_optimizer=False
    )
    guess = KeyValuePipeline(workload, topology, models, model=model).estimate(plan).time
    for optimizer in (Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAM):
        sure = CostPipeline(replace(workload, optimizer=optimizer), topology, models)
        time = sure.estimate(plan).time
        assert guess.low_s <= time.low_s
        assert time.high_s <= guess.high_s


# ------------------------------------------------------------------ head-room


def crowded_plan(topology: Topology) -> tuple[Plan, CostPipeline]:
    """Four equal tables, three of them on rank 0."""
    tables = [make_table(n, rows=1_000_000, dim=64) for n in "abcd"]
    workload = make_workload(*tables, batch_size_per_rank=64)
    ranks = (0, 0, 0, 1)
    plan = Plan(
        placements=tuple(
            placed(ShardingType.TABLE_WISE, (r,), table=t, world=4, local=4)
            for r, t in zip(ranks, tables, strict=True)
        )
    )
    return plan, CostPipeline(workload, topology)


def roomier(plan: Plan, pipeline: CostPipeline, constraints: Constraints, most_s: float) -> Plan:
    """The plan after its fullest rank was relieved."""
    problem = PlanningProblem(
        workload=pipeline.workload, topology=pipeline.topology, constraints=constraints
    )
    return emptier(plan, problem, CostPipeline, most_s)


def test_tables_leave_the_fullest_rank_if_time_allows() -> None:
    plan, pipeline = crowded_plan(make_topology(1, 4))
    small = replace(pipeline.topology.device, hbm_capacity_bytes=2.0**31)
    pipeline = CostPipeline(
        pipeline.workload, replace(pipeline.topology, device=small), pipeline.models
    )
    before = fullest_ratio(pipeline, plan)
    found = roomier(plan, pipeline, Constraints(), math.inf)
    assert fullest_ratio(pipeline, found) < 0.5 * before
    assert max(found.placements[0].ranks) < 4
    assert roomier(plan, pipeline, Constraints(), 0.0) == plan


def test_the_roomier_plan_is_taken_and_said() -> None:
    plan, pipeline = crowded_plan(make_topology(1, 4))
    problem = PlanningProblem(workload=pipeline.workload, topology=pipeline.topology)
    search = SearchSettings(max_evaluations=20, with_baselines=False)
    result = solve(problem, search=search)
    crowded = replace(result.best, plan=plan, estimate=pipeline.estimate(plan))
    found = roomiest(replace(result, best=crowded, runners_up=()), CostPipeline)
    assert fullest_ratio(pipeline, found.plan) <= fullest_ratio(pipeline, plan) - 0.01
    assert found.estimate.time.time_s <= crowded.estimate.time.time_s * 1.01
    assert any("was taken, because its fullest rank" in w for w in found.warnings)
    theirs = replace(crowded, name="torchrec", estimate=result.estimate)
    kept = replace(result, best=crowded, runners_up=(), baselines=(theirs,))
    again = roomiest(kept, CostPipeline).estimate.time.time_s
    assert again <= max(result.estimate.time.time_s, crowded.estimate.time.time_s)


def test_copies_give_way_to_one_table_where_the_rules_allow() -> None:
    topology = make_topology(1, 4)
    small = replace(topology, device=replace(topology.device, hbm_capacity_bytes=2.0**30))
    table = make_table("a", rows=1_000_000, dim=64)
    other = make_table("b", rows=900_000, dim=64)
    workload = make_workload(table, other, batch_size_per_rank=64)
    pipeline = CostPipeline(workload, small)
    plan = Plan(
        placements=tuple(
            placed(ShardingType.DATA_PARALLEL, table=t, world=4, local=4) for t in (table, other)
        )
    )
    found = roomier(plan, pipeline, Constraints(), math.inf)
    assert ShardingType.DATA_PARALLEL not in {p.sharding_type for p in found.placements}
    pair = (ShardingType.DATA_PARALLEL, ComputeKernel.DENSE)
    only = Constraints(tables=(TableConstraint(pattern="*", pairs=(pair,)),))
    assert roomier(plan, pipeline, only, math.inf) == plan


def test_headroom_is_kept_free_on_every_rank() -> None:
    """0.85 GiB are left of 1 GiB; 0.2 GiB of tables on two ranks fit under half of that."""
    rows = int(0.3 * 2**30 / 256)
    model = bags([("a", rows, 64), ("b", rows, 64)])
    limits = {
        n: ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"])
        for n in "ab"
    }
    plan = hasty(2, constraints=limits, memory_headroom=0.5).plan(model, SHARDERS).plan[""]
    assert sorted(plan[n].ranks[0] for n in "ab") == [0, 1]
    with pytest.raises(ShardPlannerError, match=r"memory_headroom=0\.8 keeps that share") as caught:
        hasty(2, constraints=limits, memory_headroom=0.8).plan(model, SHARDERS)
    assert caught.value.error_type is PlannerErrorType.INSUFFICIENT_STORAGE


@pytest.mark.parametrize("ratio", [-0.1, 1.0, math.nan])
def test_a_headroom_that_is_none_is_refused(ratio: float) -> None:
    with pytest.raises(InvalidInputError, match="memory_headroom must be 0 or more and below 1"):
        hasty(2, memory_headroom=ratio)


# ------------------------------------------------------------------ what others reach for


def test_it_is_an_embedding_sharding_planner_with_its_parts() -> None:
    planner = hasty(2)
    assert isinstance(planner, EmbeddingShardingPlanner)
    assert isinstance(planner._partitioner, GreedyPerfPartitioner)
    assert isinstance(planner._perf_model, NoopPerfModel)
    assert planner._proposers


def test_private_parts_given_are_kept() -> None:
    part = GreedyPerfPartitioner()
    with pytest.warns(UserWarning, match="does not use partitioner"):
        assert hasty(2, partitioner=part)._partitioner is part


def test_a_dense_model_has_nothing_to_tell() -> None:
    planner = hasty(2)
    assert planner.plan(nn.Linear(2, 2), SHARDERS).plan == {}
    assert planner.result is None
