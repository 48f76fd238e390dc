"""Steps of a planning around its search: on the first rank, limits, memories, the log."""

from __future__ import annotations

import inspect
import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.types import Enumerator, ShardingOption
from torchrec.distributed.planner.types import Topology as TorchrecTopology
from torchrec.distributed.types import ShardingPlan

from costmodels.sharding import Plan
from costmodels.topology import Topology
from costmodels.units import format_bytes, format_time
from costmodels.workload import Workload
from planner.integrations.drop_in.others import Rival
from planner.integrations.drop_in.search import RIVAL
from planner.integrations.torchrec_workload import ModelDescription
from planner.integrations.translate.constraints import (
    narrowed_to_options,
    runnable_on_cpu,
    within_groups,
)
from planner.integrations.translate.settings import (
    Sharders,
    ShardPlannerError,
    as_planner_error,
)
from planner.options.torchrec_rules import layout_problems
from planner.problem import Constraints
from planner.result import PlanningResult
from planner.support.text import significant

logger: Final = logging.getLogger(__name__)


_SHARE_OF_TIMEOUT: Final = 0.8
"""Share of the group's timeout after which a search ends, so that waiting ranks get its plan."""


def plan_on_first_rank(
    make: Callable[[], ShardingPlan], pg: dist.ProcessGroup | None
) -> ShardingPlan:
    """Call ``make`` on the first rank of a group; every rank gets its plan or raises its error.

    If a rank dies, the others stop waiting at once (gloo) or at the group's timeout (NCCL).

    Raises:
        ShardPlannerError: ``make`` failed on the first rank, which raises the same message on every
            rank; there is no process group; or a rank was lost.
    """
    if pg is None:
        if not dist.is_initialized():
            message = (
                "collective_plan needs a process group; call init_process_group first, or "
                "plan() outside of a distributed job"
            )
            raise ShardPlannerError(message)
        pg = dist.GroupMember.WORLD
    outcome: list[ShardingPlan | ShardPlannerError | None] = [None]
    cause: Exception | None = None
    if dist.get_rank(pg) == 0:
        try:
            outcome = [make()]
        except Exception as error:  # the other ranks have to get every error
            logger.exception("planning failed")
            cause, outcome = error, [as_planner_error(error)]
    try:
        dist.broadcast_object_list(outcome, src=dist.get_global_rank(pg, 0), group=pg)
    except RuntimeError as error:  # torch has no narrower error for a lost rank
        raise ShardPlannerError(_lost(pg, error)) from (cause or error)
    answer = outcome[0]
    if isinstance(answer, ShardPlannerError):
        raise answer from cause
    if answer is None:
        message = "the first rank sent no plan"
        raise ShardPlannerError(message)
    return answer


def limit_within(pg: dist.ProcessGroup | None, limit_s: float | None) -> float | None:
    """The time limit of a search, shortened so that no rank times out while it waits.

    Args:
        pg: the group that waits; all ranks if None.
        limit_s: the user's time limit, if any.
    """
    timeout_s = _timeout_s(pg)
    if timeout_s is None:
        return limit_s
    most_s = _SHARE_OF_TIMEOUT * timeout_s
    if limit_s is not None and limit_s <= most_s:
        return limit_s
    if limit_s is not None:
        logger.warning(
            "timeout_seconds=%g does not leave the waiting ranks time before the process group's "
            "timeout of %g s; the search ends after %g s",
            limit_s,
            timeout_s,
            most_s,
        )
    return most_s


def _timeout_s(pg: dist.ProcessGroup | None) -> float | None:
    """Timeout of a group's collectives on its device; None if the backend does not say."""
    group = pg or dist.GroupMember.WORLD
    if group is None:
        return None
    for device in ("cuda", "cpu"):
        try:
            options = group._get_backend(torch.device(device)).options
        except (RuntimeError, AttributeError):
            continue
        return float(options._timeout.total_seconds())
    return None


def _lost(pg: dist.ProcessGroup, error: Exception) -> str:
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    waiting = dist.get_rank(pg) != 0
    what = (
        "the first rank of the group sent no plan: it died, or plans for longer than the group's "
        "timeout; see its own error"
        if waiting
        else "the plan could not be sent to all ranks: one of them died; see its own error"
    )
    return f"{what} ({first[:200]})"


TIME_LIMIT_S: Final = 300.0
"""The time limit of a planning if ``timeout_seconds`` is None. A search ends by a fixed budget of
work, after about 10 s at most; the limit is for machines that are far slower."""

AFTER_S: Final = 1.5e-4
"""Seconds of TorchRec's estimates and statistics of the plan, for each table on each rank."""

_MOST_AFTER_RATIO: Final = 0.4
"""At most this share of the time limit is kept for these."""

_LEAST_SEARCH_RATIO: Final = 0.2
"""A search gets at least this share of the time limit, however long the steps before it took."""

REPLACED_PARTS: Final = {
    "proposer": "its search proposes plans itself; choose one of its own with strategy=",
    "partitioner": "its search places shards itself",
    "performance_model": "it minimises its own predicted iteration time; see system=",
}
"""Parts of TorchRec's search that are accepted but not used, and what is used instead of each."""


_OF_SEARCHES: Final = ("enumerator", "strategy", "objective", "seed", "max_evaluations")
"""Arguments that say how to search, which nobody does where there is a saved plan."""


def warn_of_unused(planner: type[object], given: Mapping[str, Any]) -> None:
    """Warn of each argument without effect: replaced parts, and those of a search beside a plan.

    Args:
        planner: the class of the planner, whose signature has the usual values.
        given: all arguments by name; those with their usual values are not warned of.
    """
    usual = inspect.signature(planner).parameters
    unused = dict(REPLACED_PARTS)
    if given["plan_file"] is not None:
        why = "plan_file gives the plan, so that nothing is searched; remove one of them"
        unused |= dict.fromkeys(_OF_SEARCHES, why)
    for name, why in unused.items():
        if given[name] != usual[name].default:
            warnings.warn(f"ShardPlanner does not use {name}: {why}", UserWarning, stacklevel=3)


def search_left(
    asked: Mapping[str, Any], limit_s: float, started_s: float, num_shards: int
) -> dict[str, Any]:
    """The settings of a search, with the time that is left of the time limit.

    Args:
        asked: strategy, objective, seed and budget.
        limit_s: time limit of the whole planning, in seconds.
        started_s: when the planning began, by :func:`time.perf_counter`.
        num_shards: tables times ranks, on which the time after the search depends.
    """
    left_s = limit_s - (time.perf_counter() - started_s)
    after_s = AFTER_S * num_shards
    return {
        **asked,
        "time_limit_s": max(left_s, _LEAST_SEARCH_RATIO * limit_s),
        "kept_s": min(after_s, _MOST_AFTER_RATIO * limit_s),
    }


def search_limits(
    model: ModelDescription,
    topology: TorchrecTopology,
    enumerator: Enumerator | None,
    module: nn.Module,
    sharders: Sharders,
) -> Constraints:
    """The limits of each table by rules, sharders, constraints, and the user's enumerator.

    Args:
        model: the tables.
        topology: TorchRec's topology.
        enumerator: the user's enumerator, if any; only options that it lists are left.
        module: the model.
        sharders: its sharders.

    Raises:
        InvalidInputError: the enumerator lists nothing for a table.
    """
    constraints = within_groups(model.constraints, topology)
    if enumerator is not None:
        options: Sequence[ShardingOption] = enumerator.enumerate(module=module, sharders=sharders)
        constraints = narrowed_to_options(
            constraints,
            {t.table.name: (t.path, t.parameter_name) for t in model.tables},
            [(o.path, o.name, o.sharding_type, o.compute_kernel) for o in options],
        )
    return runnable_on_cpu(constraints, model.tables, topology)


def require_runnable(plan: Plan, workload: Workload, topology: Topology, device: str) -> None:
    """Refuse a plan that breaks a rule of TorchRec's runtime.

    Raises:
        ShardPlannerError: it breaks rules; the message names all of them.
    """
    problems = layout_problems(plan, workload, topology, device=device)
    if problems:
        message = "\n".join(["the search returned a plan that TorchRec cannot run:", *problems])
        raise ShardPlannerError(message)


_TIMES: Final = ("iteration", "phases")
"""Objectives whose values are predicted seconds."""


def planning_block(
    result: PlanningResult,
    rival: Rival,
    options: Sequence[ShardingOption],
    topology: TorchrecTopology,
    seconds: float,
) -> str:
    """One block for the log: prediction, proof, comparison with TorchRec's plan, memory, seconds.

    Args:
        result: the result of the search.
        rival: TorchRec's own plan for the same arguments, or why there is none.
        options: the plan as TorchRec's options, with TorchRec's estimates.
        topology: TorchRec's topology.
        seconds: seconds of the whole planning.
    """
    time = result.estimate.time
    rank = result.best.memory.fullest
    lines = [
        "ShardPlanner",
        f"  predicted step   {format_time(time.time_s)}, 90 % between {format_time(time.low_s)} "
        f"and {format_time(time.high_s)}",
        f"  proven bound     {_bound(result)}",
        f"  ended            {result.solver.status}, objective {result.solver.objective}, "
        f"{result.solver.evaluations:,} plans priced",
        f"  TorchRec's plan  {_theirs(result, rival)}",
        f"  by its rating    ours {_rating(options, topology)}, TorchRec's {_ms(rival.rating_ms)}",
        f"  taken            {_taken(result)}",
        f"  fullest rank     {rank.rank}: {format_bytes(rank.used_bytes)} of "
        f"{format_bytes(rank.capacity_bytes)}",
        f"  planning took    {seconds:.1f} s",
    ]
    return "\n".join(lines)


def _bound(result: PlanningResult) -> str:
    if result.bound is None:
        return "none"
    if result.solver.objective not in _TIMES:
        gap = result.gap_ratio
        shown = "unknown" if gap is None else f"{gap:.1%}"
        return f"{significant(result.bound, 4)} by objective {result.solver.objective}, gap {shown}"
    value = result.estimate.time.time_s
    gap_ratio = max(0.0, (value - result.bound) / value) if value > 0 else 0.0
    return f"{format_time(result.bound)}, gap {gap_ratio:.1%}"


def _theirs(result: PlanningResult, rival: Rival) -> str:
    priced = [c for c in result.baselines if c.name == RIVAL]
    if priced:
        return f"predicted {format_time(priced[0].estimate.time.time_s)}"
    if RIVAL in result.unfit_baselines:
        return "does not fit by our count of memory"
    return rival.reason or "cannot be priced"


def _taken(result: PlanningResult) -> str:
    if any(c.name == RIVAL and c.plan == result.plan for c in result.baselines):
        return "TorchRec's plan: none was found that is predicted to be faster"
    return "ours"


def _rating(options: Sequence[ShardingOption], topology: TorchrecTopology) -> str:
    return _ms(float(NoopPerfModel(topology).rate(list(options))))


def _ms(value: float | None) -> str:
    return "not known" if value is None else format_time(value * 1e-3)
