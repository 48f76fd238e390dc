"""Why a search ended."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Why the search ended.

    ``optimal``: the gap to the proven bound is below 0.01 %. ``optimal_for_widths``: the same,
    where FBGEMM's rule on widths lets some tables only be copied, so that wider ones may be faster
    (:mod:`planner.options.torchrec_rules`). ``gap``: the strategy's own work was
    done and a gap remains. ``work_limit``: the budget of work was spent. ``time_limit`` and
    ``interrupted``: stopped, the incumbent is reported. ``heuristic``: the strategy proves nothing.
    ``no_proof``: a plan was priced below the bound, so the bound is wrong and was withdrawn.
    """

    OPTIMAL = "optimal"
    OPTIMAL_FOR_WIDTHS = "optimal_for_widths"
    GAP = "gap"
    WORK_LIMIT = "work_limit"
    TIME_LIMIT = "time_limit"
    INTERRUPTED = "interrupted"
    HEURISTIC = "heuristic"
    NO_PROOF = "no_proof"


STATUS_WORDS = {
    Status.OPTIMAL: "proven optimal",
    Status.OPTIMAL_FOR_WIDTHS: "best for these table widths",
    Status.GAP: "search complete",
    Status.WORK_LIMIT: "budget of work spent",
    Status.TIME_LIMIT: "cut by the time limit",
    Status.INTERRUPTED: "interrupted",
    Status.HEURISTIC: "search complete",
    Status.NO_PROOF: "proof withdrawn",
}
"""How the search ended, in words that stand before "after 5 s"."""
