"""``--require-gap``: whether a plan is proven to be good enough, and what would help if not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from planner.support.digits import format_gap
from planner.support.status import Status

if TYPE_CHECKING:
    from planner.result import SolverReport

_WORTH_TELLING: Final = 0.1
"""Share of the gap from which on its part that no search can close is worth a word."""


def unmet(solver: SolverReport, most_ratio: float) -> str | None:
    """Why the gap is not within ``most_ratio`` (0..1), in one line; None if it is.

    Args:
        solver: how the search went.
        most_ratio: the widest gap that is good enough.
    """
    more = _more(solver)
    gap, asked = solver.gap_ratio, f"--require-gap {100 * most_ratio:g}%"
    if gap is None:
        return f"the gap is unknown, so {asked} is not met: {_why_unknown(solver, more)}"
    if gap <= most_ratio:
        return None
    told = format_gap(gap)
    wider = "a little wider" if told == format_gap(most_ratio) else "wider"
    return f"the gap of {told} is {wider} than {asked}: {_what_helps(solver, gap, more)}"


def _why_unknown(solver: SolverReport, more: str) -> str:
    if solver.status is Status.NO_PROOF:
        return "a plan was priced below the bound, so the bound is wrong and was withdrawn"
    if solver.strategy != "auto":
        return f"strategy {solver.strategy!r} proved nothing; use --strategy auto"
    return f"the search proved no bound; {more}"


def _what_helps(solver: SolverReport, gap_ratio: float, more: str) -> str:
    unseen = solver.unseen_gap_ratio
    if unseen < _WORTH_TELLING * gap_ratio:
        return more
    return (
        f"{format_gap(unseen)} are launches and overlap, which no bound counts and "
        f"--objective phases leaves out; for the rest, {more}"
    )


def _more(solver: SolverReport) -> str:
    if solver.status is Status.TIME_LIMIT:
        return "give it a longer --time-limit, which cut the search, or more --evaluations"
    return f"give it more --evaluations than the {solver.work:,} it used"
