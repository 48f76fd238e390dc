"""The search behind the adapter: by our memory ledger, else by TorchRec's count of memory.

A job that TorchRec plans must not fail here because we count more. So when nothing fits by our
ledger the search runs again by TorchRec's count, with a warning that says what that leaves out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError as TorchrecPlannerError
from torchrec.distributed.planner.types import PlannerErrorType, StorageReservation
from torchrec.distributed.planner.types import Topology as TorchrecTopology

from costmodels.errors import CostModelError
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from costmodels.topology import Topology
from costmodels.units import format_bytes
from costmodels.workload import Workload
from planner import api
from planner.errors import InfeasibleError, PlannerError
from planner.integrations.torchrec_errors import ShardPlannerError
from planner.integrations.torchrec_key_value import KeyValuePipeline, KeyValueTable
from planner.integrations.torchrec_memory import (
    MARGIN_RATIO,
    TorchrecMemoryPipeline,
    described,
    is_shortage,
)
from planner.models import default_models, models_of
from planner.problem import Constraints
from planner.result import Candidate, PlanningResult
from planner.torchrec_terms.pipeline import TorchrecPricing

logger: Final = logging.getLogger(__name__)

RIVAL: Final = "torchrec"
_TIME: Final = "iteration"
_DRAW_RATIO: Final = 1e-6


@dataclass(frozen=True, kw_only=True)
class Memories:
    """A topology with the memory left for tables, by both counts.

    ``ledger`` leaves room for what our ledger counts; ``torchrec`` is what TorchRec would plan on,
    None if its reservation leaves nothing. ``kept_bytes`` is what the user keeps on top. ``whole``
    is the memory before TorchRec's default reservation, which its objectives take off themselves;
    None under a reservation of the user's, which has been taken off already.
    """

    ledger: Topology
    torchrec: Topology | None
    reservation: StorageReservation
    kept_bytes: float
    whole: Topology | None = None


def memories_left(
    left_by: Callable[[StorageReservation], Topology],
    reservation: StorageReservation,
    kept_bytes: float,
    *,
    by_user: bool,
) -> Memories:
    """Memory for tables by both counts.

    Args:
        left_by: our topology of what a storage reservation leaves.
        reservation: the planner's.
        kept_bytes: device memory per rank that the user keeps on top.
        by_user: the user chose the reservation, and both counts obey it; else ours keeps only its
            margin, because the rest of it our ledger counts itself.

    Raises:
        InfeasibleError: nothing is left.
        PlannerError: TorchRec's, for the same reason.
    """
    theirs: Topology | None = None
    whole: Topology | None = None
    if by_user:
        ours = theirs = left_by(reservation)
    else:
        try:
            theirs = left_by(reservation)
        except (TorchrecPlannerError, PlannerError) as error:
            logger.debug("TorchRec's reservation leaves nothing: %s", error)
        ours = left_by(FixedPercentageStorageReservation(percentage=MARGIN_RATIO))
        whole = left_by(FixedPercentageStorageReservation(percentage=0.0))
    return Memories(
        ledger=ours, torchrec=theirs, reservation=reservation, kept_bytes=kept_bytes, whole=whole
    )


def best_plan(
    workload: Workload,
    memories: Memories,
    constraints: Constraints,
    asked: Mapping[str, Any],
    rival: Plan | None = None,
    *,
    key_values: Mapping[str, KeyValueTable] | None = None,
) -> PlanningResult:
    """The best plan by our ledger, else by TorchRec's count of memory.

    Args:
        workload: what is planned.
        memories: the topology, by both counts.
        constraints: limits of the search.
        asked: strategy, objective, seed and time limit of :func:`planner.api.plan`.
        rival: TorchRec's own plan. It is reported among the baselines, and is the best plan if it
            fits and is predicted to be as fast.
        key_values: how key-value tables are run, by name.

    Raises:
        ShardPlannerError: nothing fits by either count; ``error_type`` says whether memory is
            short in all, or only for these constraints.
    """
    kept = dict(key_values or {})
    if str(asked.get("objective", "")).startswith("torchrec"):
        return _best_by_torchrec(workload, memories, constraints, asked, rival, kept)
    strictly = partial(KeyValuePipeline, key_values=kept)
    try:
        result = api.plan(
            workload, memories.ledger, constraints=constraints, make_pipeline=strictly, **asked
        )
    except InfeasibleError as error:
        strict = error
    else:
        return _against(rival, result, strictly)
    if memories.torchrec is None:
        raise _nothing_fits(strict, workload, memories.ledger, memories, kept) from strict
    lighter = replace(workload, reserved_bytes=memories.kept_bytes)
    by_their_count = partial(TorchrecMemoryPipeline, key_values=kept)
    try:
        result = api.plan(
            lighter,
            memories.torchrec,
            constraints=constraints,
            make_pipeline=by_their_count,
            **asked,
        )
    except InfeasibleError as error:
        raise _nothing_fits(error, lighter, memories.torchrec, memories, kept) from error
    logger.warning(
        "by our count %s; the plan fits by TorchRec's count, which leaves out a second batch of "
        "inputs, gradients of outputs, and received embeddings: it may run out of memory",
        strict,
    )
    return _against(rival, result, by_their_count)


def _best_by_torchrec(
    workload: Workload,
    memories: Memories,
    constraints: Constraints,
    asked: Mapping[str, Any],
    rival: Plan | None,
    key_values: Mapping[str, KeyValueTable],
) -> PlanningResult:
    """The best plan by an objective of TorchRec's, which counts memory by TorchRec's estimates."""
    if key_values:
        message = (
            f"objective {asked['objective']!r} cannot rate key-value tables ({[*key_values][:5]}); "
            "use objective 'iteration'"
        )
        raise ShardPlannerError(message, PlannerErrorType.STRICT_CONSTRAINTS)
    topology = memories.whole or memories.ledger
    counted = replace(workload, reserved_bytes=memories.kept_bytes)
    pricing = TorchrecPricing(is_reserved=memories.whole is None)
    try:
        result = api.plan(
            counted, topology, constraints=constraints, make_pipeline=pricing, **asked
        )
    except InfeasibleError as error:
        raise _nothing_fits(error, counted, memories.ledger, memories, {}) from error
    return _against(rival, result, CostPipeline)


def require_room(
    bytes_of_tables: float, topology: TorchrecTopology, reservation: StorageReservation
) -> None:
    """Refuse tables that are larger than all memory of all ranks together.

    Raises:
        ShardPlannerError: as INSUFFICIENT_STORAGE.
    """
    there = sum(d.storage.hbm + d.storage.ddr + d.storage.ssd for d in topology.devices)
    if bytes_of_tables <= there:
        return
    device = topology.devices[0].storage
    message = (
        f"the tables need {format_bytes(bytes_of_tables)} and all memory of {topology.world_size} "
        f"ranks is {format_bytes(there)} ({format_bytes(device.hbm)} device and "
        f"{format_bytes(device.ddr)} host memory each, before {described(reservation)}); use more "
        "or larger devices, or smaller tables"
    )
    raise ShardPlannerError(message, PlannerErrorType.INSUFFICIENT_STORAGE)


def _against(
    rival: Plan | None, result: PlanningResult, make_pipeline: Callable[..., CostPipeline]
) -> PlanningResult:
    """The result with TorchRec's plan beside ours, or in its place on a draw."""
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
    if not short:
        lines.append("all devices together have room: widen the constraints or sharding types")
    return ShardPlannerError("\n".join(lines), kind)
