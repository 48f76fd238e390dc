"""Plans on one rank, and sends the plan or the error to all ranks, so that none waits for ever."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import torch
import torch.distributed as dist
from torchrec.distributed.types import ShardingPlan

from planner.integrations.translate.errors import Failure, ShardPlannerError, as_failure

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
    outcome: list[ShardingPlan | Failure | None] = [None]
    cause: Exception | None = None
    if dist.get_rank(pg) == 0:
        try:
            outcome = [make()]
        except Exception as error:  # the other ranks have to get every error
            logger.exception("planning failed")
            cause, outcome = error, [as_failure(error)]
    try:
        dist.broadcast_object_list(outcome, src=dist.get_global_rank(pg, 0), group=pg)
    except RuntimeError as error:  # torch has no narrower error for a lost rank
        raise ShardPlannerError(_lost(pg, error)) from (cause or error)
    answer = outcome[0]
    if isinstance(answer, Failure):
        raise answer.raised() from cause
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
    if timeout_s is None or (limit_s is not None and limit_s <= _SHARE_OF_TIMEOUT * timeout_s):
        return limit_s
    if limit_s is None:
        return _SHARE_OF_TIMEOUT * timeout_s
    shortened = _SHARE_OF_TIMEOUT * timeout_s
    logger.warning(
        "timeout_seconds=%g does not leave the waiting ranks time before the process group's "
        "timeout of %g s; the search ends after %g s",
        limit_s,
        timeout_s,
        shortened,
    )
    return shortened


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
