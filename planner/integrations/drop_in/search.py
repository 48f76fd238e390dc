"""The search of ``ShardPlanner``: by our count of memory, or else by TorchRec's.

A job that TorchRec can plan must not fail here because we count more memory. If nothing fits by our
count, the search runs again by TorchRec's count, with a warning that says what this leaves out.

Finds plans under which TorchRec computes what the module computes. Means that it would divide too
often, and unpooled tables in columns of several widths, are kept out by every search
(:mod:`planner.solving.runnable`); TorchRec's own plan is not used if it has them.

**Outputs that are not fp32.** The tables of a module with the same sharding type share an exchange.
A rank sends and expects the output type of its own tables, or fp32 if it has none of them. Training
fails if ranks expect different types. Such a module is then searched again, with only those
sharding types under which every rank has a part of its tables.

**Memory.** The search minimises time alone. Its plan can fill one rank with tables that would cost
the same time on another rank, or as a single copy instead of many. Predictions of lookups in host
memory have an error of their own, so that a plan with tables there may be predicted a little faster
than one without. :func:`roomiest` moves such tables.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from torchrec.distributed.planner.types import PlannerErrorType, StorageReservation
from torchrec.distributed.planner.types import Topology as TorchrecTopology

from costmodels.datatypes import FloatArray
from costmodels.errors import CostModelError
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType
from costmodels.topology import Topology
from costmodels.units import format_bytes
from costmodels.workload import DataType, Workload
from planner import api
from planner.errors import InfeasibleError, InvalidInputError, PlannerError
from planner.integrations.drop_in.others import NO_RIVAL, Rival
from planner.integrations.drop_in.remarks import RIVAL, narrow_outputs
from planner.integrations.torchrec_topology import torchrec_machine
from planner.integrations.translate.pricing import (
    KeyValuePipeline,
    TorchrecMemoryPipeline,
    described,
    is_shortage,
)
from planner.integrations.translate.settings import ShardPlannerError
from planner.models import pipeline_of
from planner.options.cuts import without_types
from planner.options.torchrec_rules import runtime_warnings
from planner.problem import Constraints, PlanningProblem
from planner.result import Candidate, PlanningResult
from planner.scenarios import ScenarioRule
from planner.search.improve.single_changes import single_changes
from planner.settings import SearchSettings
from planner.solving.prepare import objective_value, search_objective, search_space
from planner.solving.runnable import runs
from planner.space.budget import default_work_s, priced_plans
from planner.space.evaluation import Assignment, Budget, Evaluator, SearchSpace
from planner.space.objective import MakePipeline
from planner.torchrec_terms import TorchrecPipeline, TorchrecPricing

if TYPE_CHECKING:
    from planner.integrations.torchrec_workload import ModelDescription

logger: Final = logging.getLogger(__name__)


_LEAST_WORK_S: Final = 0.55
"""Nominal seconds of the shortest search; with its proof it takes about a second by the clock."""
_SMALL_S: Final = 7.0
"""Our planning shall not take longer than TorchRec's planner if that takes at most this long."""
_SMALL_SHARE, _SHARE = 0.2, 0.6
"""Share of TorchRec's time that our search gets, up to ``_SMALL_S`` and beyond. The rest is for
TorchRec's plan, and for what a search takes by the clock beyond its nominal seconds."""
_TORCHREC_S: Final = 3e-4
"""Seconds of TorchRec's planner, divided by tables squared and by ranks (1.8, every kernel of cuda,
5 x 2 to 64 x 8 and 16 x 32 tables x ranks, one core of a machine of 2023)."""


def planning_work_s(num_tables: int, world_size: int) -> float:
    """Nominal seconds of a search: a share of the time of TorchRec's planner, between two limits.

    Args:
        num_tables: number of tables.
        world_size: number of ranks.
    """
    theirs_s = _TORCHREC_S * num_tables * num_tables * world_size
    work_s = _SMALL_SHARE * min(theirs_s, _SMALL_S) + _SHARE * max(theirs_s - _SMALL_S, 0.0)
    return min(max(work_s, _LEAST_WORK_S), default_work_s(num_tables, world_size, None))


def evaluations_within(
    limit_s: float | None, workload: Workload, topology: Topology, make_pipeline: MakePipeline
) -> int:
    """A time limit as a budget in priced plans, which does not depend on how busy a machine is.

    Args:
        limit_s: seconds, which are nominal ones: about those of one core of a machine of 2023; None
            for the budget of ``shardplan plan`` without a limit.
        workload: the workload.
        topology: the system.
        make_pipeline: makes what prices the plans.
    """
    work_s = default_work_s(len(workload.tables), topology.world_size, limit_s)
    problem = PlanningProblem(workload=workload, topology=topology)
    return priced_plans(work_s, pipeline_of(problem, make_pipeline))


_DRAW_RATIO: Final = 1e-6
_LEAST_SEARCH_RATIO: Final = 0.2
"""A search gets at least this share of the time limit, however long the steps before it took."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A model to plan, the memory that is left for its tables by both counts, and how to search.

    Attributes:
        model: the tables, and what is known of them.
        workload: that of the model; without its dense part, if a reservation keeps room for that.
        limits: limits of the search, one rule for each table.
        topology: TorchRec's topology.
        reservation: TorchRec's storage reservation.
        ledger: the system for our count of memory, with room for everything that it counts.
        torchrec: the system for TorchRec's count; None if its reservation leaves nothing.
        whole: the system before TorchRec's default reservation, which its objectives take off
            themselves; None if the user chose a reservation, which is already taken off then.
        kept_bytes: device memory of each rank that the user keeps free in addition.
        headroom_ratio: share of the memory for tables that stays free; it is already taken off.
        search: strategy, objective, seed and ``max_evaluations``. Without the latter a search has a
            budget of work that follows from the problem's size, so that it ends at the same point
            every time.
        limit_s: most seconds of the planning, which is only a safety.
        ends_s: when they are over, by ``time.perf_counter``.
        rival: TorchRec's own plan. It is reported among the baselines, and is the best plan if it
            fits and is predicted to be at least as fast.
    """

    model: ModelDescription
    workload: Workload
    limits: Constraints
    topology: TorchrecTopology
    reservation: StorageReservation
    ledger: Topology
    torchrec: Topology | None
    whole: Topology | None
    kept_bytes: float
    headroom_ratio: float
    search: Mapping[str, Any] = field(default_factory=dict)
    limit_s: float
    ends_s: float
    rival: Rival = NO_RIVAL

    @property
    def make_pipeline(self) -> partial[KeyValuePipeline]:
        """Makes what prices plans by our count of memory."""
        model = self.model
        told: dict[str, Any] = {"knows_optimizer": model.knows_optimizer}
        return partial(KeyValuePipeline, key_values=model.key_values, **told)

    @property
    def rating(self) -> TorchrecPricing:
        """Makes the pipeline for one of TorchRec's objectives."""
        return TorchrecPricing(machine=torchrec_machine(self.topology), inputs=self.model.inputs)

    @property
    def by_torchrecs_count(self) -> partial[TorchrecMemoryPipeline]:
        """Makes what prices plans by our times and TorchRec's count of memory."""
        told = self.make_pipeline.keywords
        return partial(TorchrecMemoryPipeline, rating=self.rating, **told)

    @property
    def lighter(self) -> Workload:
        """The workload where TorchRec counts memory, whose reservation has the dense part."""
        return replace(self.workload, reserved_bytes=self.kept_bytes)

    @property
    def settings(self) -> SearchSettings:
        """The settings of a search that begins now."""
        left_s = max(self.ends_s - time.perf_counter(), _LEAST_SEARCH_RATIO * self.limit_s)
        return SearchSettings(time_limit_s=left_s, **self.search)

    def uneven_outputs(self, plan: Plan) -> list[str]:
        """Modules in which ranks expect different output types in one exchange."""
        outputs = narrow_outputs(self.model.tables)
        return uneven_outputs(plan, self.workload, outputs, self.ledger.world_size)


def best_plan(job: Job) -> PlanningResult:
    """The best plan by our count of memory, or else by TorchRec's.

    TorchRec's objectives count memory by TorchRec's estimates alone.

    Raises:
        ShardPlannerError: nothing fits by either count; ``error_type`` says whether all memory is
            too small, or only under these constraints.
    """
    if str(job.search["objective"]).startswith("torchrec"):
        if job.model.key_values:
            message = (
                f"objective {job.search['objective']!r} cannot rate key-value tables "
                f"({[*job.model.key_values][:5]}); use objective 'iteration'"
            )
            raise ShardPlannerError(message, PlannerErrorType.STRICT_CONSTRAINTS)
        pricing = replace(job.rating, is_reserved=job.whole is None)
        try:
            return _roomiest(job, job.lighter, job.whole or job.torchrec or job.ledger, pricing)
        except InfeasibleError as error:
            raise _nothing_fits(error, job, job.lighter, job.ledger) from error
    try:
        return _roomiest(job, job.workload, job.ledger, job.make_pipeline)
    except InfeasibleError as error:
        strict = error
    if job.torchrec is None:
        raise _nothing_fits(strict, job, job.workload, job.ledger) from strict
    try:
        result = _roomiest(job, job.lighter, job.torchrec, job.by_torchrecs_count)
    except InfeasibleError as error:
        raise _nothing_fits(error, job, job.lighter, job.torchrec) from error
    logger.warning(
        "by our count %s; the plan fits by TorchRec's count, which leaves out a second batch of "
        "inputs, gradients of outputs, received embeddings and the state of optimizers among "
        "fused_params, and counts outputs of narrow weights as narrow: it may run out of memory",
        strict,
    )
    return result


def _roomiest(
    job: Job, workload: Workload, topology: Topology, make_pipeline: MakePipeline
) -> PlanningResult:
    """The best plan by one count of memory, moved to emptier memory where that costs little.

    The search has the user's budget of work, or one that follows from the size.
    """
    search = replace(job.settings, with_baselines=False)
    problem = PlanningProblem(workload=workload, topology=topology, constraints=job.limits)
    if search.max_evaluations is None:
        work_s = planning_work_s(len(workload.tables), topology.world_size)
        most = priced_plans(work_s, pipeline_of(problem, make_pipeline))
        search = replace(search, max_evaluations=most)
    result = api.solve(problem, search=search, make_pipeline=make_pipeline)
    return roomiest(_against(job.rival.plan, result, make_pipeline), make_pipeline)


def _against(
    rival: Plan | None, result: PlanningResult, make_pipeline: MakePipeline
) -> PlanningResult:
    """The result with TorchRec's plan for comparison, or in place of ours if it is as good.

    It fits by the count of TorchRec's objectives, for TorchRec's planner has placed it by that.
    """
    if rival is None:
        return result
    problem, solver = result.problem, result.solver
    pipeline = pipeline_of(problem, make_pipeline)
    try:
        value = objective_value(problem, rival, solver.objective, make_pipeline=make_pipeline)
        estimate, memory = pipeline.estimate(rival), pipeline.memory(rival)
    except (CostModelError, PlannerError) as error:
        logger.debug("TorchRec's plan cannot be priced: %s", error)
        return result
    if not isinstance(pipeline, TorchrecPipeline) and fullest_ratio(pipeline, rival) > 1.0:
        return replace(result, unfit_baselines=(*result.unfit_baselines, RIVAL))
    theirs = Candidate(name=RIVAL, plan=rival, estimate=estimate, memory=memory)
    result = replace(result, baselines=(*result.baselines, theirs))
    if value > solver.value * (1.0 + _DRAW_RATIO):
        return result
    return replace(result, best=theirs, solver=replace(solver, value=value))


def _nothing_fits(
    error: InfeasibleError, job: Job, workload: Workload, topology: Topology
) -> ShardPlannerError:
    pipeline = job.by_torchrecs_count(workload, topology)
    short = is_shortage(pipeline)
    kind = PlannerErrorType.INSUFFICIENT_STORAGE if short else PlannerErrorType.STRICT_CONSTRAINTS
    left = format_bytes(float(pipeline.device_limits.min()))
    lines = [
        str(error),
        f"left for tables: {left} on each of {topology.world_size} ranks, after "
        f"{described(job.reservation)}",
        *(f"would help: {line}" for line in error.advice),
    ]
    if job.headroom_ratio:
        share = f"memory_headroom={job.headroom_ratio:g}"
        lines.append(f"{share} keeps that share of it free: lower it")
    if not short:
        lines.append("all devices together have room: widen the constraints or sharding types")
    return ShardPlannerError("\n".join(lines), kind)


def soundest_plan(job: Job) -> PlanningResult:
    """The best plan under which TorchRec computes what the model computes.

    If there is no such plan, the search is done without this rule, and a warning says so.

    Raises:
        ShardPlannerError: there is no plan, even without the rules of this module.
    """
    best = best_plan(job)
    uneven = job.uneven_outputs(best.plan)
    everywhere = _on_every_rank(job.workload, job.limits, uneven)
    if everywhere != job.limits:
        with contextlib.suppress(ShardPlannerError):
            best = best_plan(replace(job, limits=everywhere, rival=NO_RIVAL))
            uneven = job.uneven_outputs(best.plan)
    if uneven:
        logger.warning(
            "training may fail: tables of modules %s have outputs that are not fp32, and not every "
            "rank has some of them; allow data_parallel and row_wise for these tables, or take "
            "fp32",
            uneven[:5],
        )
    for line in runtime_warnings(best.plan, job.workload):
        if line not in best.warnings:
            logger.warning(line)
    return best


def uneven_outputs(
    plan: Plan, workload: Workload, outputs: Mapping[str, DataType], world_size: int
) -> list[str]:
    """Modules in which ranks expect different output types in one exchange.

    Args:
        plan: a plan of the workload.
        workload: the tables, with the module of each.
        outputs: the output types that are not fp32, by table.
        world_size: number of ranks.
    """
    if not outputs:
        return []
    modules = {t.name: t.module for t in workload.tables}
    seen: dict[tuple[str, ShardingType], list[set[DataType]]] = {}
    for placed in plan.placements:
        if placed.sharding_type is ShardingType.DATA_PARALLEL:
            continue
        key = modules[placed.table], placed.sharding_type
        ranks = seen.setdefault(key, [set() for _ in range(world_size)])
        for rank in placed.ranks:
            ranks[rank].add(outputs.get(placed.table, DataType.FP32))
    return sorted(
        {
            module
            for (module, _), ranks in seen.items()
            if len({min(types) if len(types) == 1 else DataType.FP32 for types in ranks}) > 1
        }
    )


def _on_every_rank(workload: Workload, limits: Constraints, modules: Sequence[str]) -> Constraints:
    """Limits that leave tables of some modules only types under which every rank has a part."""
    gone = set(ShardingType) - {ShardingType.DATA_PARALLEL, ShardingType.ROW_WISE}
    rules = tuple(
        (without_types(rule, gone) or rule) if table.module in modules else rule
        for table, rule in zip(workload.tables, limits.tables, strict=True)
    )
    return limits if rules == limits.tables else replace(limits, tables=rules)


# ------------------------------------------------------------------ memory

TIME: Final = "iteration"
"""The objective whose values are predicted iteration times."""
_SLOWER_RATIO: Final = 0.01
"""A plan that leaves more memory free on its fullest rank may be slower by this share."""
_LEAST_GAIN_RATIO: Final = 0.01
"""Another plan is used only if it frees at least this share of a device on the fullest rank."""
_FINEST_RATIO: Final = 1e-3
"""Share of a device by which a single change has to lower the norm of how full ranks are."""
_POWER: Final = 8
"""Power of that norm, in which the fullest ranks count most."""
_FAR: Final = 1e6
"""Weight of bytes in host memory beside that norm."""
_MOST_SHARDS: Final = 20_000
"""Single tables are moved only if tables times ranks are at most this many."""
_LOOKING_S, _LOOKING_ENTRY_S = 5e-5, 2e-9
"""Nominal seconds to look at the memory of some plans, and for each number of their work."""
_MOST_LOOKING_S: Final = 1.0
"""Nominal seconds after which no further table is moved."""


def with_memory(topology: Topology, *, ratio: float = 1.0, more_bytes: float = 0.0) -> Topology:
    """The topology with a share of the memory of its devices, and so many bytes more on each."""
    capacity = topology.device.hbm_capacity_bytes * ratio + more_bytes
    by_rank = tuple(c * ratio + more_bytes for c in topology.hbm_capacity_by_rank_bytes)
    return replace(
        topology,
        device=replace(topology.device, hbm_capacity_bytes=capacity),
        hbm_capacity_by_rank_bytes=by_rank,
    )


def host_bytes(pipeline: CostPipeline, plan: Plan) -> float:
    """Bytes of tables in host memory, over all hosts."""
    return float(pipeline.host_bytes(pipeline.plan_work(plan)).sum())


def fullest_ratio(pipeline: CostPipeline, plan: Plan) -> float:
    """Share of its memory for tables that the fullest rank uses."""
    return float(_shares(pipeline, pipeline.plan_work(plan)).max())


def _shares(pipeline: CostPipeline, work: FloatArray) -> FloatArray:
    """``[..., W]`` share of its memory for tables that each rank uses."""
    return np.asarray(pipeline.device_bytes(work) / np.maximum(pipeline.device_limits, 1.0))


def _fullness(pipeline: CostPipeline, work: FloatArray) -> FloatArray:
    """``[...]`` how far and how full the memory of plans is: a norm over ranks, and host bytes."""
    norm = (_shares(pipeline, work) ** _POWER).sum(axis=-1) ** (1.0 / _POWER)
    room = max(float(pipeline.device_limits.sum()), 1.0)
    far = pipeline.host_bytes(work).sum(axis=-1) / room
    return np.asarray(_FAR * far + _FINEST_RATIO * np.ceil(norm / _FINEST_RATIO))


class _Fullness(Evaluator):
    """Values plans by their memory in the place of their time.

    Infinite are those of plans that take longer than ``most_s`` seconds, and that are not better
    than ``least``, which are not priced.
    """

    def __init__(self, space: SearchSpace, most_s: float) -> None:
        super().__init__(space, search_objective(TIME, space, ScenarioRule.WORST), Budget())
        self._most_s, self.least = most_s, math.inf

    def values(self, work: FloatArray) -> FloatArray:
        """``[n]`` how full memories are under plans with work ``[n, W, F]``."""
        self.meter.spend(_LOOKING_S + _LOOKING_ENTRY_S * work.size)
        found = _fullness(self.space.pipeline, work)
        better = np.flatnonzero(found <= self.least)
        values = np.full(len(found), np.inf)
        if len(better):
            fast = better[super().values(work[better]) <= self._most_s]
            values[fast] = found[fast]
        return values


def emptier(
    plan: Plan, problem: PlanningProblem, make_pipeline: MakePipeline, most_s: float
) -> Plan:
    """The plan after changes of single tables to nearer and emptier memory.

    Args:
        plan: a plan that fits.
        problem: the problem of the plan; its constraints are kept.
        make_pipeline: makes what prices the plans.
        most_s: predicted iteration time that no plan may exceed, in seconds.
    """
    if len(plan.placements) * problem.topology.world_size > _MOST_SHARDS:
        return plan
    for every_kernel in (False, True):
        space = search_space(problem, make_pipeline, every_kernel=every_kernel)
        with contextlib.suppress(InvalidInputError):
            return space.plan(_moved(space, space.assignment(plan), most_s))
    return plan


def _moved(space: SearchSpace, start: Assignment, most_s: float) -> Assignment:
    """The plan after changes of single tables."""
    evaluate = _Fullness(space, most_s)
    evaluate.least = float(evaluate.values(space.work(start)[None])[0])
    if not math.isfinite(evaluate.least):
        return start

    def can_run(changed: Assignment) -> bool:
        return runs(space.plan(changed), space.problem.workload)

    most = _MOST_LOOKING_S
    return single_changes(space, evaluate, start, lambda: False, most_s=most, runs=can_run)


def roomiest(result: PlanningResult, make_pipeline: MakePipeline) -> PlanningResult:
    """The result with the plan in the nearest and emptiest memory, among those about as fast.

    These are plans that are at most 1 % slower than the best one, and not slower than TorchRec's.
    Of these, the one with the fewest bytes in host memory is taken; its tables go from there to
    device memory if they have room; and then it is made to leave most device memory free.

    Args:
        result: the result of a search.
        make_pipeline: makes what prices the plans.
    """
    if result.solver.objective != TIME:
        return result
    problem, best = result.problem, result.best
    pipeline = pipeline_of(problem, make_pipeline)
    theirs = [c.estimate.time.time_s for c in result.baselines if c.name == RIVAL]
    most_s = min([best.estimate.time.time_s * (1.0 + _SLOWER_RATIO), *theirs])
    near = [c for c in (*result.runners_up, *result.baselines) if c.estimate.time.time_s <= most_s]
    start = min(
        (best, *(c for c in near if runs(c.plan, problem.workload))),
        key=lambda c: float(_fullness(pipeline, pipeline.plan_work(c.plan))),
    )
    found = emptier(start.plan, problem, make_pipeline, most_s)
    filled, far = fullest_ratio(pipeline, best.plan), host_bytes(pipeline, best.plan)
    now, kept = fullest_ratio(pipeline, found), host_bytes(pipeline, found)
    if kept >= far and filled - now < _LEAST_GAIN_RATIO:
        return result
    estimate = pipeline.estimate(found)
    slower = estimate.time.time_s / best.estimate.time.time_s - 1
    pace = f"{slower:.2%} slower" if slower >= 0 else f"{-slower:.2%} faster"
    why = f"its fullest rank uses {now:.0%} of the memory for embeddings instead of {filled:.0%}"
    if kept < far:
        why = f"it has {format_bytes(kept)} of tables in host memory instead of {format_bytes(far)}"
    return replace(
        result,
        best=replace(start, plan=found, estimate=estimate, memory=pipeline.memory(found)),
        warnings=(
            *result.warnings,
            f"a plan predicted {pace} than the fastest one was taken, because {why}",
        ),
    )
