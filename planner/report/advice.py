"""The sentence on top of the page: whether to take the plan, why, and how sure that is."""

from __future__ import annotations

from typing import Final

from costmodels import units
from planner.problem import NO_CONSTRAINTS
from planner.report import figures
from planner.report.base import format_confidence, format_factor, format_share
from planner.report.evidence import FAMILIES, IN_USE, Evidence, family_seconds
from planner.result import TORCHREC_BASELINE, Candidate, PlanningResult

_WORTH: Final = 0.02
_SURE: Final = 0.9
_LIKELY: Final = 0.6
_REASON_SHARE: Final = 0.2


def advice(evidence: Evidence) -> str:
    """A sentence on what to do, which compares with the plan in use, TorchRec's, or a baseline."""
    result, rival = evidence.result, evidence.rival
    if not result.best.memory.fits:
        return "Do not run this plan: it does not fit in memory."
    if rival is None or evidence.confidence_ratio is None:
        return ""
    ours_s, theirs_s = (c.estimate.time.time_s for c in (result.best, rival))
    who, gain = _name(rival), theirs_s / ours_s - 1.0
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
    if gain < 0:
        return f"Recommended: {_instead(result, rival, -gain)}"
    sure = evidence.confidence_ratio
    word = (
        "Recommended: take this plan."
        if sure >= _SURE
        else "This plan is probably better."
        if sure >= _LIKELY
        else "This plan may be better; measure both."
    )
    faster = f"It is {format_factor(1.0 + gain)} as fast as {who}"
    return " ".join(
        text
        for text in (
            word,
            f"{faster}{_reason(result.best, rival)}, and it is the faster one with a probability "
            f"of {format_confidence(sure)} under the errors of the models and of their inputs.",
            _move(result),
        )
        if text
    )


def _instead(result: PlanningResult, rival: Candidate, gain: float) -> str:
    """What to do if the rival is faster."""
    if rival.name == IN_USE:
        return "keep the plan in use, which is faster."
    words = f"take {_name(rival)} instead, whose iteration is {format_share(gain)} shorter"
    rules = result.problem.has_rules or result.problem.constraints != NO_CONSTRAINTS
    return f"{words}, if it keeps your rules: it was not held to them." if rules else f"{words}."


def _name(rival: Candidate) -> str:
    if rival.name == TORCHREC_BASELINE:
        return "TorchRec's own plan"
    return IN_USE if rival.name == IN_USE else f"the plan of {rival.name}"


def _reason(best: Candidate, rival: Candidate) -> str:
    """Words on the family of stages that the plan shortens most on the critical path."""
    ours, theirs = (family_seconds(c.estimate) for c in (best, rival))
    saved = {name: s - ours.get(name, 0.0) for name, s in theirs.items()}
    name = max(saved, key=saved.__getitem__, default="")
    gained_s = rival.estimate.time.time_s - best.estimate.time.time_s
    if not name or saved[name] < _REASON_SHARE * gained_s:
        return ""
    words = f"its critical path has {units.format_time(saved[name])} less {FAMILIES[name]}"
    return f", mainly since {words}"


def _move(result: PlanningResult) -> str:
    move = result.reshard
    if move is None or move.payback_s is None:
        return ""
    paid = units.format_long_time(move.payback_s)
    return f"The move takes {units.format_time(move.time_s)} and is paid back after {paid}."
