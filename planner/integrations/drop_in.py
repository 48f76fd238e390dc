"""The search of ``ShardPlanner``: by our count of memory, or else by TorchRec's.

A job that TorchRec can plan must not fail here because we count more memory. If nothing fits by our
count, the search runs again by TorchRec's count, with a warning that says what this leaves out.

Finds plans under which TorchRec computes what the module computes. Means that it would divide too
often, and unpooled tables in columns of several widths, are kept out by every search
(:mod:`planner.solving.run`); TorchRec's own plan is not used if it has them.

**Outputs that are not fp32.** The tables of a module with the same sharding type share an exchange.
A rank sends and expects the output type of its own tables, or fp32 if it has none of them. Training
fails if ranks expect different types. Such a module is then searched again, with only those
sharding types under which every rank has a part of its tables.

**Memory.** The search minimises time alone. Its plan can fill one rank with tables that would cost
the same time on another rank, or as a single copy instead of many. Predictions of lookups in host
memory have an error of their own, so that a plan with tables there may be predicted a little faster
than one without. :func:`roomiest` moves such tables.
"""

import contextlib
import copy
import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from torch import nn
from torchrec.distributed.planner import types as torchrec_types
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.types import ShardingType as TorchrecShardingType

from costmodels.datatypes import FloatArray
from costmodels.errors import CostModelError
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType
from costmodels.topology import Topology
from costmodels.units import format_bytes
from costmodels.workload import DataType, Workload
from planner import api, io
from planner.errors import InfeasibleError, InvalidInputError, PlannerError, refuse
from planner.integrations.torchrec_plan import plan_of
from planner.integrations.translate import constraints, private_names, reading
from planner.integrations.translate.settings import Sharders, ShardPlannerError, said
from planner.models import pipeline_of
from planner.options import enumeration, table_limits, torchrec_rules
from planner.problem import Constraints, PlanningProblem
from planner.result import Candidate, PlanningResult
from planner.scenarios import ScenarioRule
from planner.search.improve.single_changes import single_changes
from planner.settings import SearchSettings
from planner.solving.prepare import objective_value, search_objective, search_space
from planner.solving.run import runs
from planner.space.budget import default_work_s, priced_plans
from planner.space.evaluation import Assignment, Budget, Evaluator, SearchSpace
from planner.space.objective import MakePipeline
from planner.torchrec_terms import TorchrecPipeline

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


_DRAW_RATIO: Final = 1e-6
_LEAST_SEARCH_RATIO: Final = 0.2
"""A search gets at least this share of the time limit, however long the steps before it took."""


class Rival(NamedTuple):
    """The plan that ``EmbeddingShardingPlanner`` makes with the same arguments.

    ``plan`` is None if there is nothing to compare with; ``reason`` then says why. ``rating_ms`` is
    TorchRec's own rating of its plan: the largest sum of shard costs of a rank.
    """

    plan: Plan | None = None
    rating_ms: float | None = None
    reason: str = ""


NO_RIVAL: Final = Rival()

RIVAL: Final = "torchrec"
"""The name of TorchRec's own plan among the baselines of a result."""


class Count(NamedTuple):
    """One count of memory: what is counted, the memory that is left, and what prices plans."""

    workload: Workload
    topology: Topology
    make_pipeline: MakePipeline

    def problem(self, limits: Constraints) -> PlanningProblem:
        """The problem under some limits."""
        return PlanningProblem(workload=self.workload, topology=self.topology, constraints=limits)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A model to plan, the memory that is left for its tables by both counts, and how to search.

    Attributes:
        model: the tables, and what is known of them.
        limits: limits of the search, one rule for each table.
        topology: TorchRec's topology.
        ours: our count of memory, of all that is not a table too.
        theirs: TorchRec's count of the tables, in the memory that its reservation leaves; None if
            that is nothing.
        left_by: in words, what keeps memory free.
        search: how to search. Without ``max_evaluations`` a search has a budget of work that
            follows from the problem's size, so that it ends at the same point every time.
        limit_s: most seconds of the planning, which is only a safety.
        ends_s: when they are over, by ``time.perf_counter``.
        rival: TorchRec's own plan. It is reported among the baselines, and is the best plan if it
            fits and is predicted to be at least as fast.
    """

    model: reading.ModelDescription
    limits: Constraints
    topology: torchrec_types.Topology
    ours: Count
    theirs: Count | None
    left_by: str
    search: SearchSettings
    limit_s: float
    ends_s: float
    rival: Rival = NO_RIVAL

    @property
    def settings(self) -> SearchSettings:
        """The settings of a search that begins now."""
        left_s = max(self.ends_s - time.perf_counter(), _LEAST_SEARCH_RATIO * self.limit_s)
        return replace(self.search, time_limit_s=left_s)

    def solved(self, count: Count, work_s: float, **changes: Any) -> PlanningResult:
        """The best plan by one of the counts.

        Args:
            count: the count.
            work_s: nominal seconds of work: about those of one core of a machine of 2023. Without a
                budget of the user, the search has so much work that it ends at the same point every
                time.
            changes: other settings of the search.
        """
        problem, search = count.problem(self.limits), replace(self.settings, **changes)
        if search.max_evaluations is None:
            most = priced_plans(work_s, pipeline_of(problem, count.make_pipeline))
            search = replace(search, max_evaluations=most)
        return api.solve(problem, search=search, make_pipeline=count.make_pipeline)


def best_plan(job: Job) -> PlanningResult:
    """The best plan by our count of memory, or else by TorchRec's.

    TorchRec's objectives count memory by TorchRec's estimates alone.

    Raises:
        ShardPlannerError: nothing fits by either count; ``error_type`` says whether all memory is
            too small, or only under these constraints.
    """
    counts = [job.ours, job.theirs]
    if job.search.objective.startswith("torchrec"):
        counts = [job.theirs]
        if job.model.key_values:
            names = [*job.model.key_values][:5]
            refuse(said("unrated", objective=job.search.objective, names=names))
    failed: list[tuple[Count, InfeasibleError]] = []
    for count in filter(None, counts):
        work_s = planning_work_s(len(count.workload.tables), count.topology.world_size)
        try:
            result = job.solved(count, work_s)
            if job.rival.plan is not None:
                result = _against(job.rival.plan, result, count.make_pipeline)
            result = roomiest(result, count.make_pipeline)
        except InfeasibleError as error:
            failed.append((count, error))
            continue
        if failed:
            logger.warning(said("theirs", reason=failed[0][1]))
        return result
    raise _nothing_fits(job, *failed[-1]) from failed[-1][1]


def _against(rival: Plan, result: PlanningResult, make_pipeline: MakePipeline) -> PlanningResult:
    """The result with TorchRec's plan for comparison, or in place of ours if it is as good.

    It fits by the count of TorchRec's objectives, for TorchRec's planner has placed it by that.
    """
    problem, solver = result.problem, result.solver
    pipeline = pipeline_of(problem, make_pipeline)
    try:
        value = objective_value(problem, rival, solver.objective, make_pipeline=make_pipeline)
        theirs = Candidate.of(RIVAL, rival, pipeline)
    except (CostModelError, PlannerError) as error:
        logger.debug("TorchRec's plan cannot be priced: %s", error)
        return result
    if not isinstance(pipeline, TorchrecPipeline) and fullest_ratio(pipeline, rival) > 1.0:
        return replace(result, unfit_baselines=(*result.unfit_baselines, RIVAL))
    result = replace(result, baselines=(*result.baselines, theirs))
    if value > solver.value * (1.0 + _DRAW_RATIO):
        return result
    return replace(result, best=theirs, solver=replace(solver, value=value))


def _nothing_fits(job: Job, count: Count, error: InfeasibleError) -> ShardPlannerError:
    """The error with the memory that was left, and with TorchRec's reason.

    TorchRec tells whether all devices together have too little memory (``INSUFFICIENT_STORAGE``),
    or only some rank or table has (``STRICT_CONSTRAINTS``).
    """
    pipeline = pipeline_of(count.problem(job.limits), count.make_pipeline)
    limits = np.maximum(pipeline.device_limits, 0.0)
    ordinary = (t for t in count.workload.tables if t.name not in job.model.key_values)
    left = f"{format_bytes(float(limits.min()))} on each of {len(limits)} ranks"
    lines = [str(error), f"left for tables: {left}, after {job.left_by}"]
    lines += [f"would help: {line}" for line in error.advice]
    kind = torchrec_types.PlannerErrorType.INSUFFICIENT_STORAGE
    if sum(map(count.workload.trained_bytes, ordinary)) <= float(limits.sum()):
        lines.append("all devices together have room: widen the constraints or sharding types")
        kind = torchrec_types.PlannerErrorType.STRICT_CONSTRAINTS
    return ShardPlannerError("\n".join(lines), kind)


def soundest_plan(job: Job) -> PlanningResult:
    """The best plan under which TorchRec computes what the model computes.

    If there is no such plan, the search is done without this rule, and a warning says so.

    Raises:
        ShardPlannerError: there is no plan, even without the rules of this module.
    """
    workload, best = job.ours.workload, best_plan(job)
    outputs = {f.table.name: f.output_dtype for f in job.model.tables}
    told = workload, outputs, job.ours.topology.world_size
    uneven = uneven_outputs(best.plan, *told)
    # Tables of these modules are left only types under which every rank has a part.
    gone = set(ShardingType) - {ShardingType.DATA_PARALLEL, ShardingType.ROW_WISE}
    rules = tuple(
        (enumeration.without_types(rule, gone) or rule) if table.module in uneven else rule
        for table, rule in zip(workload.tables, job.limits.tables, strict=True)
    )
    if rules != job.limits.tables:
        everywhere = replace(job.limits, tables=rules)
        with contextlib.suppress(ShardPlannerError):
            best = best_plan(replace(job, limits=everywhere, rival=NO_RIVAL))
            uneven = uneven_outputs(best.plan, *told)
    if uneven:
        logger.warning(said("uneven outputs", modules=uneven[:5]))
    for line in torchrec_rules.runtime_warnings(best.plan, workload):
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
        outputs: the output type of each table; fp32 for those that are not named.
        world_size: number of ranks.
    """
    modules = {t.name: t.module for t in workload.tables}
    seen: dict[tuple[str, ShardingType], list[set[DataType]]] = {}
    for placed in plan.placements:
        if placed.sharding_type is not ShardingType.DATA_PARALLEL:
            key = modules[placed.table], placed.sharding_type
            ranks = seen.setdefault(key, [set() for _ in range(world_size)])
            for rank in placed.ranks:
                ranks[rank].add(outputs.get(placed.table, DataType.FP32))
    expected = {
        key: {min(types) if len(types) == 1 else DataType.FP32 for types in ranks}
        for key, ranks in seen.items()
    }
    return sorted({module for (module, _), types in expected.items() if len(types) > 1})


# ------------------------------------------------------------------ memory

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


def host_bytes(pipeline: CostPipeline, plan: Plan) -> float:
    """Bytes of tables in host memory, over all hosts."""
    return float(pipeline.host_bytes(pipeline.plan_work(plan)).sum())


def fullest_ratio(pipeline: CostPipeline, plan: Plan) -> float:
    """Share of its memory for tables that the fullest rank uses."""
    held = pipeline.device_bytes(pipeline.plan_work(plan))
    return float((held / np.maximum(pipeline.device_limits, 1.0)).max())


def _fullness(pipeline: CostPipeline, work: FloatArray) -> FloatArray:
    """``[...]`` how far and how full the memory of plans is: a norm over ranks, and host bytes."""
    shares = pipeline.device_bytes(work) / np.maximum(pipeline.device_limits, 1.0)
    norm = (shares**_POWER).sum(axis=-1) ** (1.0 / _POWER)
    far = pipeline.host_bytes(work).sum(axis=-1) / max(float(pipeline.device_limits.sum()), 1.0)
    return np.asarray(_FAR * far + _FINEST_RATIO * np.ceil(norm / _FINEST_RATIO))


class _Fullness(Evaluator):
    """Values plans by their memory in the place of their time.

    Infinite are those of plans that take longer than ``most_s`` seconds, and that are not better
    than ``least``, which are not priced.
    """

    def __init__(self, space: SearchSpace, start: Assignment, most_s: float) -> None:
        super().__init__(space, search_objective("iteration", space, ScenarioRule.WORST), Budget())
        self._most_s, self.least = most_s, math.inf
        self.least = float(self.values(space.work(start)[None])[0])

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
            start = space.assignment(plan)
            evaluate, most = _Fullness(space, start, most_s), _MOST_LOOKING_S
            if math.isfinite(evaluate.least):
                can_run = partial(lambda on, new: runs(on.plan(new), problem.workload), space)
                start = single_changes(evaluate, start, lambda: False, most_s=most, runs=can_run)
            return space.plan(start)
    return plan


def roomiest(result: PlanningResult, make_pipeline: MakePipeline) -> PlanningResult:
    """The result with the plan in the nearest and emptiest memory, among those about as fast.

    These are plans that are at most 1 % slower than the best one, and not slower than TorchRec's.
    Of these, the one with the fewest bytes in host memory is taken; its tables go from there to
    device memory if they have room; and then it is made to leave most device memory free.

    Args:
        result: the result of a search.
        make_pipeline: makes what prices the plans.
    """
    if result.solver.objective != "iteration":
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
    chosen = Candidate.of(start.name, found, pipeline)
    slower = chosen.estimate.time.time_s / best.estimate.time.time_s - 1
    told = {"pace": f"{abs(slower):.2%} {'slower' if slower >= 0 else 'faster'}"}
    told |= {"now": f"{now:.0%}", "then": f"{filled:.0%}"}
    if kept < far:
        told |= {"now": format_bytes(kept), "then": format_bytes(far)}
    line = said("nearer" if kept < far else "emptier", **told)
    return replace(result, best=chosen, warnings=(*result.warnings, line))


# ------------------------------------------------------------------ plans that are given

MOST_COMPARED: Final = 512
"""TorchRec's planner makes a plan for comparison if tables times ranks are at most this many."""

_MOST_WORK: Final = 60_000
"""TorchRec's planner may try proposals up to this many tables times ranks times proposals, which
takes about 1 s. A limit by the clock would make the result depend on how busy the machine is."""

_WHOLE_LIMIT_S: Final = 5.0
"""TorchRec's planner gets all of this with a time limit of so many seconds; with less, a share."""


def in_order(enumerator: torchrec_types.Enumerator) -> torchrec_types.Enumerator:
    """A copy of an enumerator that sorts the options of each table by type and kernel.

    TorchRec's enumerator takes them from sets, whose order differs from one start of a job to the
    next, and its planner keeps the first of several options with the same cost.
    """
    made, types = copy.copy(enumerator), [kind.value for kind in TorchrecShardingType]

    def enumerate_in_order(
        module: nn.Module, sharders: Sharders
    ) -> list[torchrec_types.ShardingOption]:
        found = type(enumerator).enumerate(made, module, sharders)
        names = dict.fromkeys((*(o.fqn for o in found), *types))
        places = {name: i for i, name in enumerate(names)}

        def place(option: torchrec_types.ShardingOption) -> tuple[int, int, str]:
            kind = places.get(option.sharding_type, len(places))
            return places[option.fqn], kind, option.compute_kernel

        return sorted(found, key=place)

    made.enumerate = enumerate_in_order
    return made


def ended(proposer: torchrec_types.Proposer, most: int) -> torchrec_types.Proposer:
    """The proposer, which from now on ends after ``most`` proposals."""
    propose, left = proposer.propose, iter(range(most))
    proposer.propose = lambda: None if next(left, None) is None else propose()
    return proposer


def rival_plan(
    theirs: EmbeddingShardingPlanner, job: Job, module: nn.Module, sharders: Sharders
) -> Rival:
    """The plan that ``EmbeddingShardingPlanner`` makes with the same arguments.

    There is none for models for which it takes long, if it fails, if we cannot express its plan, or
    if the plan breaks a rule of TorchRec's runtime. With a short time limit it gets less work.

    Args:
        theirs: TorchRec's planner with these arguments; the number of proposals of each of its
            proposers is limited here.
        job: the model, and the limits of the search. If the rule of a table names only one cache
            load factor, TorchRec's runtime uses this one for a plan without any.
        module: the model.
        sharders: its sharders.
    """
    topology, workload = job.topology, job.ours.workload
    share = min(job.limit_s / _WHOLE_LIMIT_S, 1.0)
    size, most = len(workload.tables) * topology.world_size, int(share * MOST_COMPARED)
    if size > most:
        within = f" within {job.limit_s:g} s" if share < 1.0 else ""
        return Rival(reason=f"not asked for: more than {most} tables times ranks{within}")
    rules = {t.name: rule for t, rule in zip(workload.tables, job.limits.tables, strict=True)}
    factors = ((name, rule.cache_load_factors) for name, rule in rules.items())
    pinned = {name: given[0] for name, given in factors if len(given) == 1}
    try:
        for proposer in private_names.proposers_of(theirs):
            ended(proposer, max(int(share * _MOST_WORK / size) // 2, 1))
        with quiet():
            theirs.plan(module, sharders)
        options = private_names.last_options(theirs)
        plan = plan_of(options, pinned)
        rating_ms = float(NoopPerfModel(topology).rate(options))
    except Exception as error:  # an error in this comparison must not stop the job
        logger.debug("TorchRec's planner gives no plan to compare with: %s", error)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return Rival(reason=f"none: {(lines or [type(error).__name__])[0][:200]}")
    wrong = runtime_problems(plan, job) + [
        f"table {placed.table!r} as {placed.sharding_type} on {topology.compute_device}"
        for placed in plan.placements
        if placed.sharding_type not in rules[placed.table].sharding_types
    ]
    if wrong:
        return Rival(reason=f"cannot run: {wrong[0]}")
    if problems := torchrec_rules.pooling_problems(plan, workload):
        return Rival(reason=f"changes the model: {problems[0]}")
    return Rival(plan=plan, rating_ms=rating_ms)


def runtime_problems(plan: Plan, job: Job) -> list[str]:
    """One line for each rule that keeps TorchRec from running a plan on one of its devices."""
    workload, device = job.ours.workload, constraints.OUR_DEVICE[job.topology.compute_device]
    layout = torchrec_rules.layout_problems(plan, workload, job.ours.topology, device=device)
    return [*layout, *torchrec_rules.width_problems(plan, workload).values()]


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Sharding spec not found for ")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A context without logs of TorchRec's planner, which writes lines for each proposal.

    To the root logger it writes that each replicated table has no sharding spec, as it should.
    """
    noisy = logging.getLogger("torchrec.distributed.planner")
    before = noisy.level
    noisy.setLevel(logging.CRITICAL + 1)
    logging.root.addFilter(_is_news)
    try:
        yield
    finally:
        logging.root.removeFilter(_is_news)
        noisy.setLevel(before)


def load_for_model(path: Path, job: Job) -> Plan:
    """Load a plan; it has to be one for exactly this model on this many ranks.

    A plan that breaks constraints, or does not fit in memory, is used with a warning.

    Args:
        path: a ``plan.json``, ours or TorchRec's.
        job: the model, and the memory that is left for its tables.

    Raises:
        ShardPlannerError: the file cannot be read; the plan was made for another number of ranks or
            for other tables (there is a line for each that differs); or TorchRec cannot run it.
    """
    problem = job.ours.problem(job.limits)
    try:
        plan = io.load_plan(path, problem.workload, problem.topology).plan
        problems = runtime_problems(plan, job)
    except InvalidInputError as error:
        plan, problems = Plan(placements=()), list(error.problems)
    if problems:
        message = "\n".join([f"the plan {path} does not fit this job:", *problems])
        raise ShardPlannerError(message, torchrec_types.PlannerErrorType.PLAN_LOADING_FAILED)
    lines = [
        f"{line}, against its constraint" for line in table_limits.broken_constraints(problem, plan)
    ]
    fullest = pipeline_of(problem, job.ours.make_pipeline).memory(plan).fullest
    if fullest.headroom_bytes < 0:
        lacking = format_bytes(-fullest.headroom_bytes)
        lines.append(said("overfull", fullest=fullest, lacking=lacking))
    for line in lines:
        logger.warning("the plan %s is used, although %s", path, line)
    return plan
