"""The search of ``ShardPlanner``: by our count of memory, or else by TorchRec's.

A job that TorchRec can plan must not fail here because we count more memory. If nothing fits by our
count, the search runs again by TorchRec's count, with a warning that says what this leaves out.

Finds plans under which TorchRec computes what the module computes.

**Mean pooling.** Under some plans TorchRec divides too often or not often enough
(:mod:`planner.options.mean_pooling`). Therefore modules with mean-pooled tables are searched in two
ways that are both correct: no such table is cut by rows, or all tables of the module are.

**Outputs that are not fp32.** The tables of a module with the same sharding type share an exchange.
A rank sends and expects the output type of its own tables, or fp32 if it has none of them. Training
fails if ranks expect different types. Such a module is then searched again, with only those
sharding types under which every rank has a part of its tables.

**Column pieces of unpooled tables** have one width in the plans of a search
(:mod:`planner.solving.runnable`). TorchRec's own plan is not used if they differ.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError as TorchrecPlannerError
from torchrec.distributed.planner.types import PlannerErrorType, StorageReservation
from torchrec.distributed.planner.types import Topology as TorchrecTopology

from costmodels.errors import CostModelError
from costmodels.memory import dense_bytes
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType
from costmodels.system_models import default_models
from costmodels.topology import Topology
from costmodels.units import format_bytes
from costmodels.workload import DataType, Workload
from planner import api
from planner.errors import InfeasibleError, NoPlanFoundError, PlannerError
from planner.integrations.drop_in.headroom import (
    LEAST_GAIN_RATIO,
    SLOWER_RATIO,
    fullest_ratio,
    roomier,
    with_headroom,
    with_more_memory,
)
from planner.integrations.drop_in.nearer import host_bytes, in_nearer_memory
from planner.integrations.translate.constraints import refused_types
from planner.integrations.translate.pricing import (
    AS_THE_WORKLOAD,
    MARGIN_RATIO,
    KeyValuePipeline,
    KeyValueTable,
    LeftToOurCount,
    TheirCount,
    TorchrecMemoryPipeline,
    described,
    is_shortage,
)
from planner.integrations.translate.settings import ShardPlannerError
from planner.models import models_of
from planner.options.cuts import pooled_alike, without_types
from planner.options.runtime_warnings import runtime_warnings, width_problems
from planner.problem import Constraints, PlanningProblem
from planner.result import Candidate, PlanningResult
from planner.search.base import SearchProgress
from planner.settings import SearchSettings
from planner.solving.prepare import objective_value
from planner.solving.runnable import runs
from planner.space.budget import default_work_s, priced_plans
from planner.space.objective import MakePipeline
from planner.support.text import counted
from planner.torchrec_terms.pipeline import TorchrecPricing

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


def planning_evaluations(
    workload: Workload, topology: Topology, make_pipeline: MakePipeline
) -> int:
    """The budget of a search in priced plans, which is how a search counts its work.

    Args:
        workload: the workload.
        topology: the system.
        make_pipeline: makes what prices the plans.
    """
    pipeline = make_pipeline(workload, topology, default_models(topology))
    return priced_plans(planning_work_s(len(workload.tables), topology.world_size), pipeline)


def evaluations_within(
    limit_s: float, workload: Workload, topology: Topology, make_pipeline: MakePipeline
) -> int:
    """A time limit as a budget in priced plans, which does not depend on how busy a machine is.

    Args:
        limit_s: seconds, which are nominal ones: about those of one core of a machine of 2023.
        workload: the workload.
        topology: the system.
        make_pipeline: makes what prices the plans.
    """
    pipeline = make_pipeline(workload, topology, default_models(topology))
    size = len(workload.tables), topology.world_size
    return priced_plans(default_work_s(*size, limit_s), pipeline)


RIVAL: Final = "torchrec"
_TIME: Final = "iteration"
_DRAW_RATIO: Final = 1e-6
_RATING: Final = TorchrecPricing()


@dataclass(frozen=True, kw_only=True)
class Memories:
    """The topology with the memory that is left for tables, by both counts.

    Attributes:
        ledger: for our count, with room for everything that it counts.
        torchrec: for TorchRec's count; None if its reservation leaves nothing.
        reservation: the storage reservation.
        kept_bytes: device memory of each rank that the user keeps free in addition.
        whole: before TorchRec's default reservation, which its objectives take off themselves; None
            if the user chose a reservation, which is already taken off then.
        headroom_ratio: the share that the user keeps free; it is already taken off all of them.
        reserved_bytes: what a reservation that the user chose keeps of a device, for all that is
            not a table; None if our count decides that.
        theirs: how TorchRec's count of memory differs from ours.
    """

    ledger: Topology
    torchrec: Topology | None
    reservation: StorageReservation
    kept_bytes: float
    whole: Topology | None = None
    headroom_ratio: float = 0.0
    reserved_bytes: float | None = None
    theirs: TheirCount = AS_THE_WORKLOAD

    def for_the_rest(self, workload: Workload) -> tuple[Workload, Memories]:
        """The workload, and memories from which its dense part is not taken off a second time.

        TorchRec's planner takes whatever a reservation leaves for room for tables. So the dense
        part has the room that a chosen reservation keeps, of whatever kind it is, and our ledger
        has both: what is left for tables, and its own count of the dense part.
        """
        if self.reserved_bytes is None:
            return workload, self
        unseen_bytes = workload.reserved_bytes - self.kept_bytes
        counted = replace(workload, reserved_bytes=self.kept_bytes)
        dense = dense_bytes(counted, self.ledger)
        rest = dense + unseen_bytes
        if rest > self.reserved_bytes:
            logger.warning(
                "%s keeps %s, and by our count all that is not a table needs %s: training may run "
                "out of memory",
                described(self.reservation),
                format_bytes(self.reserved_bytes),
                format_bytes(rest),
            )
        return counted, replace(self, ledger=with_more_memory(self.ledger, dense))


def memories_left(
    left_by: Callable[[StorageReservation], Topology],
    reservation: StorageReservation,
    kept_bytes: float,
    *,
    by_user: bool,
    headroom_ratio: float = 0.0,
) -> Memories:
    """The memory for tables by both counts.

    Args:
        left_by: returns our topology with the memory that a storage reservation leaves.
        reservation: the planner's storage reservation.
        kept_bytes: device memory of each rank that the user keeps free in addition.
        by_user: whether the user chose the reservation. Both counts then obey it; otherwise our
            count keeps only its margin free, because it counts the rest of the reservation itself.
        headroom_ratio: share of that memory that has to stay free on every rank.

    Raises:
        InfeasibleError: nothing is left.
        PlannerError: TorchRec's error, for the same reason.
    """
    theirs: Topology | None = None
    whole: Topology | None = None
    reserved_bytes: float | None = None
    if by_user:
        ours = theirs = left_by(reservation)
        if not isinstance(reservation, LeftToOurCount):
            all_of_it = left_by(LeftToOurCount()).hbm_capacities()
            reserved_bytes = float((all_of_it - ours.hbm_capacities()).min())
    else:
        try:
            theirs = left_by(reservation)
        except (TorchrecPlannerError, PlannerError) as error:
            logger.debug("TorchRec's reservation leaves nothing: %s", error)
        ours = left_by(FixedPercentageStorageReservation(percentage=MARGIN_RATIO))
        whole = left_by(LeftToOurCount())
    return Memories(
        ledger=with_headroom(ours, headroom_ratio),
        torchrec=None if theirs is None else with_headroom(theirs, headroom_ratio),
        reservation=reservation,
        kept_bytes=kept_bytes,
        whole=None if whole is None else with_headroom(whole, headroom_ratio),
        headroom_ratio=headroom_ratio,
        reserved_bytes=reserved_bytes,
    )


def best_plan(
    workload: Workload,
    memories: Memories,
    constraints: Constraints,
    asked: Mapping[str, Any],
    rival: Plan | None = None,
    *,
    key_values: Mapping[str, KeyValueTable] | None = None,
    knows_optimizer: bool = True,
    rating: TorchrecPricing = _RATING,
) -> PlanningResult:
    """The best plan by our count of memory, or else by TorchRec's.

    Args:
        workload: the workload.
        memories: the topology with memory by both counts.
        constraints: limits of the search.
        asked: strategy, objective, seed and limits of :func:`planner.api.plan`. Without
            ``max_evaluations`` the search has a budget of work that follows from the problem's
            size, so that it ends at the same point every time; a time limit is only a safety. With
            ``beaten_by``, the value of a known plan, it ends when its bound is above that value.
        rival: TorchRec's own plan. It is reported among the baselines, and is the best plan if it
            fits and is predicted to be at least as fast.
        key_values: how key-value tables are run, by name.
        knows_optimizer: whether the cost of each table's optimizer is known.
        rating: makes the pipeline for one of TorchRec's objectives.

    Raises:
        ShardPlannerError: nothing fits by either count; ``error_type`` says whether all memory is
            too small, or only under these constraints.
    """
    kept = dict(key_values or {})
    if str(asked.get("objective", "")).startswith("torchrec"):
        return _best_by_torchrec(workload, memories, constraints, asked, rival, kept, rating)
    told: dict[str, Any] = {"key_values": kept, "knows_optimizer": knows_optimizer}
    strictly = partial(KeyValuePipeline, **told)
    try:
        result = _searched(workload, memories.ledger, constraints, strictly, asked)
    except InfeasibleError as error:
        strict = error
    else:
        return _roomiest(_against(rival, result, strictly), strictly, kept)
    if memories.torchrec is None:
        raise _nothing_fits(strict, workload, memories.ledger, memories, kept) from strict
    lighter = replace(workload, reserved_bytes=memories.kept_bytes)
    by_their_count = partial(TorchrecMemoryPipeline, theirs=memories.theirs, **told)
    try:
        result = _searched(lighter, memories.torchrec, constraints, by_their_count, asked)
    except InfeasibleError as error:
        raise _nothing_fits(error, lighter, memories.torchrec, memories, kept) from error
    logger.warning(
        "by our count %s; the plan fits by TorchRec's count, which leaves out a second batch of "
        "inputs, gradients of outputs, received embeddings%s: it may run out of memory",
        strict,
        memories.theirs.words,
    )
    return _roomiest(_against(rival, result, by_their_count), by_their_count, kept)


def _searched(
    workload: Workload,
    topology: Topology,
    constraints: Constraints,
    make_pipeline: Callable[..., CostPipeline],
    asked: Mapping[str, Any],
) -> PlanningResult:
    """Run one search, with the user's budget of work or one that follows from the size."""
    chosen = dict(asked)
    beaten_by = float(chosen.pop("beaten_by", math.inf))
    proven = -math.inf

    def note(step: SearchProgress) -> None:
        nonlocal proven
        proven = max(proven, -math.inf if step.bound is None else step.bound)

    if chosen.get("max_evaluations") is None:
        chosen["max_evaluations"] = planning_evaluations(workload, topology, make_pipeline)
    return api.solve(
        PlanningProblem(workload=workload, topology=topology, constraints=constraints),
        search=SearchSettings(with_baselines=False, **chosen),
        make_pipeline=make_pipeline,
        progress=note,
        should_stop=lambda: proven > beaten_by,
    )


def _best_by_torchrec(
    workload: Workload,
    memories: Memories,
    constraints: Constraints,
    asked: Mapping[str, Any],
    rival: Plan | None,
    key_values: Mapping[str, KeyValueTable],
    rating: TorchrecPricing,
) -> PlanningResult:
    """The best plan by one of TorchRec's objectives, which count memory by TorchRec's estimates."""
    if key_values:
        message = (
            f"objective {asked['objective']!r} cannot rate key-value tables ({[*key_values][:5]}); "
            "use objective 'iteration'"
        )
        raise ShardPlannerError(message, PlannerErrorType.STRICT_CONSTRAINTS)
    topology = memories.whole or memories.torchrec or memories.ledger
    counted = replace(workload, reserved_bytes=memories.kept_bytes)
    pricing = replace(rating, is_reserved=memories.whole is None)
    try:
        result = _searched(counted, topology, constraints, pricing, asked)
    except InfeasibleError as error:
        raise _nothing_fits(error, counted, memories.ledger, memories, {}) from error
    return _against_by_torchrec(rival, result, pricing)


def require_room(
    bytes_of_tables: float, topology: TorchrecTopology, reservation: StorageReservation
) -> None:
    """Refuse tables that are larger than all memory of all ranks together.

    Raises:
        ShardPlannerError: they are larger; its type is INSUFFICIENT_STORAGE.
    """
    there = sum(d.storage.hbm + d.storage.ddr + d.storage.ssd for d in topology.devices)
    if bytes_of_tables <= there:
        return
    device = topology.devices[0].storage
    each = [f"{format_bytes(device.hbm)} device", f"{format_bytes(device.ddr)} host memory"]
    each += [f"{format_bytes(device.ssd)} SSD"] if device.ssd else []
    message = (
        f"the tables need {format_bytes(bytes_of_tables)} and all memory of "
        f"{counted(topology.world_size, 'rank')} is {format_bytes(there)} ({', '.join(each)} each, "
        f"before {described(reservation)}); use more or larger devices, or smaller tables"
    )
    raise ShardPlannerError(message, PlannerErrorType.INSUFFICIENT_STORAGE)


def _against(
    rival: Plan | None, result: PlanningResult, make_pipeline: Callable[..., CostPipeline]
) -> PlanningResult:
    """The result with TorchRec's plan for comparison, or in place of ours if it is as fast."""
    if rival is None:
        return result
    problem = result.problem
    pipeline = make_pipeline(problem.workload, problem.topology, models_of(problem))
    try:
        estimate = pipeline.estimate(rival)
    except CostModelError as error:
        logger.debug("TorchRec's plan cannot be priced: %s", error)
        return result
    if (pipeline.device_bytes(pipeline.plan_work(rival)) > pipeline.device_limits).any():
        return replace(result, unfit_baselines=(*result.unfit_baselines, RIVAL))
    theirs = Candidate(name=RIVAL, plan=rival, estimate=estimate, memory=pipeline.memory(rival))
    result = replace(result, baselines=(*result.baselines, theirs))
    draw = theirs.estimate.time.time_s <= result.estimate.time.time_s * (1.0 + _DRAW_RATIO)
    return replace(result, best=theirs) if draw and result.solver.objective == _TIME else result


def _against_by_torchrec(
    rival: Plan | None, result: PlanningResult, pricing: TorchrecPricing
) -> PlanningResult:
    """The result with TorchRec's plan in place of ours if TorchRec's objective prefers it.

    TorchRec's plan fits by the count of memory of TorchRec's objectives, because TorchRec's planner
    has placed it by that count.
    """
    if rival is None:
        return result
    problem, solver = result.problem, result.solver
    try:
        value = objective_value(problem, rival, solver.objective, make_pipeline=pricing)
        theirs = api.estimate(problem.workload, problem.topology, rival, name=RIVAL)
    except (CostModelError, PlannerError) as error:
        logger.debug("TorchRec's plan cannot be rated: %s", error)
        return result
    result = replace(result, baselines=(*result.baselines, theirs))
    if value > solver.value * (1.0 - _DRAW_RATIO):
        return result
    return replace(result, best=theirs, solver=replace(solver, value=value))


def _roomiest(
    result: PlanningResult,
    make_pipeline: Callable[..., CostPipeline],
    key_values: Mapping[str, KeyValueTable],
) -> PlanningResult:
    """The result with the plan in the nearest and emptiest memory, among those about as fast.

    These are plans that are at most 1 % slower than the best one, and not slower than TorchRec's.
    Of these, the one with the fewest bytes in host memory is taken; its tables go from there to
    device memory if they have room; and then it is made to leave most device memory free.
    """
    if result.solver.objective != _TIME:
        return result
    problem, best = result.problem, result.best
    pipeline = make_pipeline(problem.workload, problem.topology, default_models(problem.topology))
    theirs = [c.estimate.time.time_s for c in result.baselines if c.name == RIVAL]
    most_s = min([best.estimate.time.time_s * (1.0 + SLOWER_RATIO), *theirs])
    filled, far = fullest_ratio(pipeline, best.plan), host_bytes(pipeline, best.plan)
    start, emptiest, least = best, filled, far
    others = (*result.runners_up, *result.baselines)
    for other in (c for c in others if runs(c.plan, problem.workload)):
        share, beyond = fullest_ratio(pipeline, other.plan), host_bytes(pipeline, other.plan)
        is_emptier = beyond == least and share < emptiest - LEAST_GAIN_RATIO
        if other.estimate.time.time_s <= most_s and (beyond < least or is_emptier):
            start, emptiest, least = other, share, beyond
    rules = problem.constraints
    nearer = in_nearer_memory(start.plan, pipeline, rules, most_s=most_s, fixed=key_values)
    found = roomier(nearer, pipeline, rules, most_s=most_s, fixed=key_values)
    if found == best.plan:
        return result
    chosen = Candidate(
        name=start.name,
        plan=found,
        estimate=pipeline.estimate(found),
        memory=pipeline.memory(found),
    )
    why = (
        f"its fullest rank uses {fullest_ratio(pipeline, found):.0%} of the memory for embeddings "
        f"instead of {filled:.0%}"
    )
    kept = host_bytes(pipeline, found)
    if kept < far:
        why = f"it has {format_bytes(kept)} of tables in host memory instead of {format_bytes(far)}"
    remark = (
        f"a plan predicted {_slower(chosen, best)} than the fastest one was taken, because {why}"
    )
    return replace(result, best=chosen, warnings=(*result.warnings, remark))


def _slower(one: Candidate, other: Candidate) -> str:
    ratio = one.estimate.time.time_s / other.estimate.time.time_s - 1.0
    return f"{ratio:.2%} slower" if ratio >= 0 else f"{-ratio:.2%} faster"


def _nothing_fits(
    error: InfeasibleError,
    workload: Workload,
    topology: Topology,
    memories: Memories,
    key_values: Mapping[str, KeyValueTable],
) -> ShardPlannerError:
    models = default_models(topology)
    pipeline = TorchrecMemoryPipeline(workload, topology, models, key_values=key_values)
    short = is_shortage(pipeline)
    kind = PlannerErrorType.INSUFFICIENT_STORAGE if short else PlannerErrorType.STRICT_CONSTRAINTS
    left = format_bytes(float(pipeline.device_limits.min()))
    kept = described(memories.reservation)
    lines = [
        str(error),
        f"left for tables: {left} on each of {topology.world_size} ranks, after {kept}",
        *(f"would help: {line}" for line in error.advice),
    ]
    if memories.headroom_ratio:
        lines.append(
            f"memory_headroom={memories.headroom_ratio:g} keeps that share of it free: lower it"
        )
    if not short:
        lines.append("all devices together have room: widen the constraints or sharding types")
    return ShardPlannerError("\n".join(lines), kind)


def soundest_plan(
    workload: Workload,
    memories: Memories,
    limits: Constraints,
    asked: Callable[[], Mapping[str, Any]],
    rival: Plan | None = None,
    *,
    outputs: Mapping[str, DataType] = MappingProxyType({}),
    **more: Any,
) -> PlanningResult:
    """The best plan under which TorchRec computes what the model computes.

    If there is no such plan, the search is done without this rule, and a warning says so.

    Args:
        workload: the tables, with the module of each.
        memories: as in :func:`best_plan`.
        limits: limits of the search, one rule for each table.
        asked: returns the settings of a search that begins now.
        rival: TorchRec's own plan.
        outputs: the output types that are not fp32, by table.
        more: further arguments of :func:`best_plan`.

    Raises:
        ShardPlannerError: there is no plan, even without the rules of this module.
    """

    def search(
        within: Constraints, against: Plan | None, known: PlanningResult | None = None
    ) -> PlanningResult:
        beaten_by = {} if known is None else {"beaten_by": _value(known)}
        return best_plan(workload, memories, within, {**asked(), **beaten_by}, against, **more)

    world_size = memories.ledger.world_size
    best = _best_pooling(workload, limits, rival, search)
    if rival and best.plan == rival and width_problems(rival, workload):
        with contextlib.suppress(ShardPlannerError, NoPlanFoundError):
            best = _best_pooling(workload, limits, None, search)
    uneven = uneven_outputs(best.plan, workload, outputs, world_size)
    everywhere = _on_every_rank(workload, limits, uneven)
    if everywhere != limits:
        with contextlib.suppress(ShardPlannerError):
            best = _best_pooling(workload, everywhere, None, search)
            uneven = uneven_outputs(best.plan, workload, outputs, world_size)
    if uneven:
        logger.warning("training may fail: %s", _uneven_words(uneven))
    for line in runtime_warnings(best.plan, workload):
        if line not in best.warnings:
            logger.warning(line)
    return best


def _best_pooling(
    workload: Workload,
    limits: Constraints,
    rival: Plan | None,
    search: Callable[..., PlanningResult],
) -> PlanningResult:
    """The better plan of the two ways to pool means; its bound is the lower one of both.

    The second search ends as soon as its bound is above the value of the first plan.
    """
    ways = list(
        dict.fromkeys(_limited(workload, limits, by_rows=by_rows) for by_rows in (False, True))
    )
    results: list[PlanningResult] = []
    is_proven = True
    for way in ways:
        against = rival if rival and not refused_types(way, rival) else None
        try:
            results.append(search(way, against, next(iter(results), None)))
        except (ShardPlannerError, NoPlanFoundError) as error:
            if ways == [limits]:
                raise
            is_proven &= bool(results) or isinstance(error, ShardPlannerError)
    if not results:
        return search(limits, rival)
    if ways == [limits]:
        return results[0]
    # If both have the same value, TorchRec's own plan is taken.
    best = min(results, key=lambda r: (_value(r), r.best.name != RIVAL))
    bounds = [r.solver.bound for r in results if r.solver.bound is not None]
    is_proven &= len(bounds) == len(results)
    return replace(best, solver=replace(best.solver, bound=min(bounds) if is_proven else None))


def _value(result: PlanningResult) -> float:
    is_time = result.solver.objective == "iteration"
    return result.estimate.time.time_s if is_time else result.solver.value


def _limited(workload: Workload, limits: Constraints, *, by_rows: bool) -> Constraints:
    """Limits under which no mean-pooled table is cut by rows, or all tables of its module are."""
    kept = pooled_alike(workload, limits.tables, by_rows=by_rows)
    return limits if kept == limits.tables else replace(limits, tables=kept)


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


def _uneven_words(modules: Sequence[str]) -> str:
    return (
        f"tables of modules {list(modules)[:5]} have outputs that are not fp32, and not every rank "
        "has some of them; allow data_parallel and row_wise for these tables, or take fp32"
    )


def _on_every_rank(workload: Workload, limits: Constraints, modules: Sequence[str]) -> Constraints:
    """Limits that leave tables of some modules only types under which every rank has a part."""
    gone = set(ShardingType) - {ShardingType.DATA_PARALLEL, ShardingType.ROW_WISE}
    rules = tuple(
        (without_types(rule, gone) or rule) if table.module in modules else rule
        for table, rule in zip(workload.tables, limits.tables, strict=True)
    )
    return limits if rules == limits.tables else replace(limits, tables=rules)
