"""Steps of a planning that depend only on the arguments of the planner."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

from torch import nn
from torchrec.distributed.planner.types import (
    Enumerator,
    ShardingOption,
    StorageReservation,
)
from torchrec.distributed.planner.types import Topology as TorchrecTopology

from costmodels.sharding import Plan
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.integrations.drop_in.request import Request, Sharders
from planner.integrations.drop_in.search import Memories, memories_left
from planner.integrations.torchrec_topology import topology_from_torchrec
from planner.integrations.torchrec_workload import ModelDescription
from planner.integrations.translate.constraints import (
    narrowed_to_options,
    runnable_on_cpu,
    within_groups,
)
from planner.integrations.translate.errors import ShardPlannerError
from planner.options.torchrec_rules import layout_problems
from planner.problem import Constraints

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


def reserved_memories(
    request: Request,
    base: Topology,
    *,
    kept_bytes: float,
    by_user: bool,
    headroom_ratio: float,
    rates_from_base: bool,
) -> Memories:
    """The memory for tables by both counts; the arguments are those of :func:`memories_left`.

    Raises:
        InfeasibleError: nothing is left.
        PlannerError: TorchRec's error, for the same reason.
    """

    def left_by(one: StorageReservation) -> Topology:
        reserved = one.reserve(
            topology=request.topology,
            batch_size=request.batch_size,
            module=request.module,
            sharders=request.sharders,
            constraints=request.constraints,
        )
        return topology_from_torchrec(reserved, base, rates_from_base=rates_from_base)

    return memories_left(
        left_by, request.reservation, kept_bytes, by_user=by_user, headroom_ratio=headroom_ratio
    )
