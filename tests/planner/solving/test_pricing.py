"""A plan costs what its search said: for every objective, sharding type, pipeline and scenario."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, Plan, Shard, ShardingType, TablePlacement
from costmodels.topology import Topology
from costmodels.workload import Pipeline, Workload
from planner import api
from planner.errors import InvalidInputError
from planner.objectives import objective_names
from planner.problem import Constraints, PlanningProblem
from planner.result import PlanningResult
from planner.scenarios import ScenarioRule
from planner.settings import SearchSettings
from planner.solving.prepare import objective_value
from planner.torchrec_terms import TorchrecPricing
from tests.planner import cases

PIPELINES = (Pipeline.SPARSE_DIST, Pipeline.PREFETCH_SPARSE_DIST, Pipeline.NONE)
TORCHREC = ("torchrec", "torchrec-critical-path")


def model() -> Workload:
    """Large and small tables, wide and narrow ones, two of them alike."""
    tables = (
        cases.table("wide", 400_000, 160, 12.0),
        cases.table("large", 3_000_000, 64, 3.0, exponent=0.8, scattered=False),
        cases.table("tiny", 60, 32, 1.0),
        cases.table("twin_a", 50_000, 64, 20.0),
        cases.table("twin_b", 50_000, 64, 20.0),
    )
    return cases.workload(tables, batch=512)


def system() -> Topology:
    return replace(cases.topology(2, 2), price_per_device_usd_per_hour=3.0)


def found(
    problem: PlanningProblem,
    objective: str,
    *,
    robust: ScenarioRule = ScenarioRule.WORST,
    seed: int = 0,
    figures: bool = False,
) -> PlanningResult:
    return api.solve(
        problem,
        search=SearchSettings(
            objective=objective,
            robust=robust,
            max_evaluations=4,
            time_limit_s=None,
            seed=seed,
            with_baselines=False,
        ),
        make_pipeline=TorchrecPricing(torchrec_figures=True) if figures else CostPipeline,
    )


def questions() -> list[object]:
    """Every objective with every sharding type, and with every pipeline; all three are slow."""
    kinds = [None, *ShardingType]
    return [
        pytest.param(
            *(objective, pipeline, kind),
            marks=[] if kind is None or p == (o + k) % len(PIPELINES) else pytest.mark.slow,
        )
        for o, objective in enumerate(objective_names())
        for p, pipeline in enumerate(PIPELINES)
        for k, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize(("objective", "pipeline", "sharding_type"), questions())
def test_a_plan_costs_what_its_search_said(
    objective: str, pipeline: Pipeline, sharding_type: ShardingType | None
) -> None:
    types = tuple(ShardingType) if sharding_type is None else (sharding_type,)
    problem = PlanningProblem(
        workload=replace(model(), pipeline=pipeline),
        topology=system(),
        constraints=Constraints(sharding_types=types),
    )
    result = found(problem, objective)
    value = objective_value(problem, result.plan, objective)
    assert value == pytest.approx(result.solver.value, rel=1e-9)


@pytest.mark.parametrize("objective", objective_names())
@pytest.mark.parametrize("kernel", ComputeKernel)
def test_every_kernel(objective: str, kernel: ComputeKernel) -> None:
    """Where there is little device memory: what is cached or on the host counts too."""
    problem = PlanningProblem(
        workload=model(),
        topology=replace(cases.topology(2, 2, hbm_gib=4), price_per_device_usd_per_hour=3.0),
        constraints=Constraints(kernels=(kernel,)),
    )
    result = found(problem, objective)
    value = objective_value(problem, result.plan, objective)
    assert value == pytest.approx(result.solver.value, rel=1e-9)


@pytest.mark.parametrize("robust", ScenarioRule)
@pytest.mark.parametrize("objective", [o for o in objective_names() if o not in TORCHREC])
def test_scenarios(objective: str, robust: ScenarioRule) -> None:
    workload = model()
    scenarios = [
        replace(workload, name="long", batch_size_per_rank=65_536),
        replace(workload, name="flat", tables=_flat(workload)),
    ]
    problem = PlanningProblem(workload=workload, topology=system(), scenarios=tuple(scenarios))
    result = found(problem, objective, robust=robust)
    value = objective_value(problem, result.plan, objective, robust=robust)
    assert value == pytest.approx(result.solver.value, rel=1e-9)
    alone = objective_value(replace(problem, scenarios=()), result.plan, objective)
    assert alone < value, "a larger batch takes longer, and more memory"


def _flat(workload: Workload) -> tuple[object, ...]:
    from costmodels.distribution.zipf import Zipf

    return tuple(
        replace(t, distribution=Zipf(num_embeddings=t.num_embeddings, exponent=0.1))
        for t in workload.tables
    )


@pytest.mark.parametrize("objective", TORCHREC)
def test_torchrecs_own_figures(objective: str) -> None:
    problem = PlanningProblem(workload=model(), topology=system())
    result = found(problem, objective, figures=True)
    assert result.solver.torchrec_defaults
    pricing = TorchrecPricing(torchrec_figures=True)
    value = objective_value(problem, result.plan, objective, make_pipeline=pricing)
    assert value == pytest.approx(result.solver.value, rel=1e-9)
    assert value != pytest.approx(objective_value(problem, result.plan, objective), rel=1e-3)
    assert not found(problem, objective).solver.torchrec_defaults


@pytest.mark.parametrize("objective", objective_names())
def test_plans_that_no_search_here_makes_are_priced_too(objective: str) -> None:
    """Rows over some of the ranks, as HugeCTR cuts them, and pieces of unequal widths."""
    problem = PlanningProblem(workload=model(), topology=system())
    plan = found(problem, "iteration").plan
    some = TablePlacement(
        table="large",
        sharding_type=ShardingType.ROW_WISE,
        kernel=ComputeKernel.FUSED,
        shards=tuple(
            Shard(rank=r, row_offset=1_500_000 * i, num_rows=1_500_000, col_offset=0, num_cols=64)
            for i, r in enumerate((1, 3))
        ),
    )
    uneven = TablePlacement(
        table="wide",
        sharding_type=ShardingType.COLUMN_WISE,
        kernel=ComputeKernel.FUSED,
        shards=tuple(
            Shard(rank=r, row_offset=0, num_rows=400_000, col_offset=at, num_cols=width)
            for r, at, width in ((2, 0, 100), (0, 100, 44), (1, 144, 16))
        ),
    )
    others = [p for p in plan.placements if p.table not in ("large", "wide")]
    value = objective_value(problem, Plan(placements=(*others, some, uneven)), objective)
    assert 0 < value < float("inf")


def test_what_cannot_be_priced_is_refused() -> None:
    problem = PlanningProblem(workload=model(), topology=cases.topology(2, 2))
    plan = found(problem, "iteration").plan
    with pytest.raises(InvalidInputError, match="'speed' is not one of"):
        objective_value(problem, plan, "speed")
    with pytest.raises(InvalidInputError, match="scenarios"):
        objective_value(replace(problem, scenarios=(model(),)), plan, "torchrec")
    smaller = PlanningProblem(workload=model(), topology=cases.topology(1, 2))
    with pytest.raises(InvalidInputError, match="rank"):
        objective_value(smaller, plan, "phases")


def test_more_memory_than_there_is_has_no_torchrec_rating() -> None:
    """Infinite, as a search has it; other objectives have their values all the same."""
    problem = PlanningProblem(
        workload=model(),
        topology=cases.topology(1, 2),
        constraints=Constraints(kernels=(ComputeKernel.FUSED_UVM,)),
    )
    plan = found(problem, "torchrec").plan
    small = replace(problem, topology=cases.topology(1, 2, ddr_gib=0.01))
    assert objective_value(small, plan, "torchrec") == float("inf")
    assert objective_value(small, plan, "iteration") > 0
