"""The sentence on top of the page: whether to take the plan, why, and how sure that is."""

from __future__ import annotations

from typing import Final

from costmodels import units
from costmodels.pipeline import CostPipeline
from planner.problem import NO_CONSTRAINTS
from planner.report import figures
from planner.report.base import format_confidence, format_factor, format_share
from planner.result import TORCHREC_BASELINE, Candidate, PlanningResult

IN_USE: Final = "the plan in use"
_WORTH: Final = 0.02
_SURE: Final = {0.9: "Recommended: take this plan.", 0.6: "This plan is probably better."}
_REASON_SHARE: Final = 0.2


def rival_of(result: PlanningResult, pipeline: CostPipeline) -> Candidate | None:
    """The plan to compare with: that in use, or TorchRec's own, or the fastest baseline."""
    limit = result.problem.move_limit
    if limit is not None:
        estimate, memory = pipeline.estimate(limit.start), pipeline.memory(limit.start)
        return Candidate(name=IN_USE, plan=limit.start, estimate=estimate, memory=memory)
    incumbent, others = figures.split_baselines(result)
    return incumbent or min(others, key=lambda b: b.estimate.time.time_s, default=None)


def advice(result: PlanningResult, rival: Candidate | None, sure: float) -> str:
    """A sentence on what to do.

    Args:
        result: the planning result.
        rival: the plan to compare with, if there is one.
        sure: probability that the best plan is faster than the rival, 0..1.
    """
    if not result.best.memory.fits:
        return "Do not run this plan: it does not fit in memory."
    if rival is None:
        return ""
    who = {IN_USE: IN_USE, TORCHREC_BASELINE: "TorchRec's own plan"}.get(rival.name)
    who = who or f"the plan of {rival.name}"
    gain = figures.speedup(result.best, rival) - 1.0
    if not rival.memory.fits:
        return f"Recommended: take this plan. {who[0].upper()}{who[1:]} does not fit in memory."
    if abs(gain) < _WORTH:
        return f"Either plan will do: this one takes about as long as {who}."
    objective = result.solver.objective
    if gain < 0 and not figures.is_of_speed(objective):
        return (
            f"This plan was searched for objective {objective}, not for a short iteration: that of "
            f"{who} is {format_share(-gain)} shorter."
        )
    if gain < 0 and rival.name == IN_USE:
        return "Recommended: keep the plan in use, which is faster."
    if gain < 0:
        rules = result.problem.has_rules or result.problem.constraints != NO_CONSTRAINTS
        unheld = ", if it keeps your rules: it was not held to them" if rules else ""
        shorter = f"whose iteration is {format_share(-gain)} shorter"
        return f"Recommended: take {who} instead, {shorter}{unheld}."
    word = next((w for least, w in _SURE.items() if sure >= least), None)
    move, moved = result.reshard, ""
    if move is not None and move.payback_s is not None:
        paid = units.format_long_time(move.payback_s)
        moved = f" The move takes {units.format_time(move.time_s)} and is paid back after {paid}."
    return (
        f"{word or 'This plan may be better; measure both.'} It is {format_factor(1.0 + gain)} as "
        f"fast as {who}{_reason(result.best, rival)}, and it is the faster one with a probability "
        f"of {format_confidence(sure)} under the errors of the models and of their inputs.{moved}"
    )


def _reason(best: Candidate, rival: Candidate) -> str:
    """Words on the family of stages that the plan shortens most on the critical path."""
    ours, theirs = (figures.family_seconds(c.estimate) for c in (best, rival))
    saved = {name: s - ours.get(name, 0.0) for name, s in theirs.items()}
    name = max(saved, key=saved.__getitem__, default="")
    gained_s = rival.estimate.time.time_s - best.estimate.time.time_s
    if not name or saved[name] < _REASON_SHARE * gained_s:
        return ""
    words = f"{units.format_time(saved[name])} less {figures.FAMILIES[name]}"
    return f", mainly since its critical path has {words}"
