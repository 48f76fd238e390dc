"""Writes the result of a planning as one block of text for the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.types import ShardingOption
from torchrec.distributed.planner.types import Topology as TorchrecTopology

from costmodels.units import format_bytes, format_time
from planner.integrations.drop_in.rival import Rival
from planner.integrations.drop_in.search import RIVAL
from planner.result import PlanningResult
from planner.support.digits import significant

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
