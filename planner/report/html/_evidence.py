"""The values that the page shows: the result, and what is computed from it for the page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from costmodels.datatypes import FloatArray
from costmodels.estimates import IterationEstimate
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.work import output_traffic_bytes
from costmodels.sharding import Plan
from costmodels.topology import Topology
from costmodels.torchrec_estimates import TorchrecMachine, TorchrecTable, shard_perf
from costmodels.workload import Workload
from planner.models import pipeline_of
from planner.report import _figures as figures
from planner.report.html._table_costs import TableCost, table_costs
from planner.result import Candidate, PlanningResult

IN_USE: Final = "the plan in use"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One plan and its forward exchange, ``[W, W]`` bytes from rank i to rank j.

    ``scale_s`` is the length of a time axis that several plans share; 0 for an axis of its own.
    """

    name: str
    plan: Candidate
    workload: Workload
    topology: Topology
    traffic_bytes: FloatArray
    scale_s: float = 0.0

    @property
    def source(self) -> str:
        """The source of predicted numbers: that of the weakest number they are computed from."""
        return f"predicted (weakest input: {self.plan.estimate.time.source.value})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The values that :func:`gather` computes.

    Attributes:
        result: the planning result.
        view: the best plan with its traffic.
        rated_s: TorchRec's rating of the best plan, the runners-up and the baselines, in this
            order.
        table_costs: what each table costs in the best plan.
        rival: the plan to compare with: the plan in use, or else TorchRec's own, or else the
            fastest baseline.
        confidence_ratio: probability that the best plan is faster than the rival.
    """

    result: PlanningResult
    view: View
    rated_s: tuple[float, ...]
    table_costs: Mapping[str, TableCost]
    rival: Candidate | None = None
    confidence_ratio: float | None = None


def gather(result: PlanningResult) -> Evidence:
    """Compute the traffic of the best plan, TorchRec's rating of all plans, and the rival."""
    problem = result.problem
    pipeline = pipeline_of(problem)
    plans = (result.best, *result.runners_up, *result.baselines)
    rival = _rival(result, pipeline)
    sure = None if rival is None else pipeline.confidence_faster(result.plan, rival.plan)
    return Evidence(
        result=result,
        view=view_of(pipeline, result.best),
        rated_s=tuple(torchrec_rating_s(p.plan, problem.workload, problem.topology) for p in plans),
        table_costs=table_costs(result.best, pipeline),
        rival=rival,
        confidence_ratio=sure,
    )


def _rival(result: PlanningResult, pipeline: CostPipeline) -> Candidate | None:
    limit = result.problem.move_limit
    if limit is not None:
        return Candidate(
            name=IN_USE,
            plan=limit.start,
            estimate=pipeline.estimate(limit.start),
            memory=pipeline.memory(limit.start),
        )
    incumbent, others = figures.split_baselines(result)
    return incumbent or min(others, key=lambda b: b.estimate.time.time_s, default=None)


def view_of(pipeline: CostPipeline, plan: Candidate) -> View:
    """A plan with its forward exchange."""
    return View(
        name=plan.name,
        plan=plan,
        workload=pipeline.workload,
        topology=pipeline.topology,
        traffic_bytes=output_traffic_bytes(pipeline.plan_work(plan.plan), pipeline.topology),
    )


def torchrec_rating_s(plan: Plan, workload: Workload, topology: Topology) -> float:
    """The value that TorchRec's planner minimises: the largest sum of estimates over ranks.

    It uses TorchRec's formulas (:mod:`costmodels.torchrec_estimates`) with the system's bandwidths.
    """
    machine = TorchrecMachine.of(topology)
    loads: defaultdict[int, float] = defaultdict(float)
    tables = {t.name: TorchrecTable.of(t, workload) for t in workload.tables}
    for placement in plan.placements:
        known: dict[int, float] = {}
        for shard in placement.shards:
            if shard.num_cols not in known:
                perf = shard_perf(
                    tables[placement.table],
                    machine,
                    placement.sharding_type,
                    placement.kernel,
                    num_cols=shard.num_cols,
                    cache_load_factor_ratio=placement.cache_load_factor_ratio,
                )
                known[shard.num_cols] = float(perf.total_s)
            loads[shard.rank] += known[shard.num_cols]
    return max(loads.values(), default=0.0)


def notable_ranks(estimate: IterationEstimate) -> tuple[tuple[str, int], ...]:
    """The rank with most of the critical path, and the slowest, median and fastest by compute."""
    order = sorted(estimate.ranks, key=lambda r: (r.compute_s, r.rank))
    found = (
        ("critical", figures.bottleneck_rank(estimate)),
        ("slowest", estimate.slowest_rank),
        ("median", order[len(order) // 2].rank),
        ("fastest", order[0].rank),
    )
    seen: dict[int, str] = {}
    for word, rank in found:
        seen.setdefault(rank, word)
    return tuple((word, rank) for rank, word in seen.items())
