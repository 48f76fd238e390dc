"""Why a search ended."""

from enum import StrEnum
from typing import Self


class Status(StrEnum):
    """Why the search ended.

    ``optimal``: the gap to the proven bound is below 0.01 %. ``optimal_for_widths``: the same,
    where FBGEMM's rule on widths lets some tables only be copied, so that wider ones may be faster
    (:mod:`planner.options.torchrec_rules`). ``gap``: the strategy's own work was
    done and a gap remains. ``work_limit``: the budget of work was spent. ``time_limit`` and
    ``interrupted``: stopped, the incumbent is reported. ``heuristic``: the strategy proves nothing.
    ``no_proof``: a plan was priced below the bound, so the bound is wrong and was withdrawn.

    Attributes:
        words: the same in words that stand before "after 5 s".
    """

    words: str

    def __new__(cls, value: str, words: str) -> Self:
        """A member of this value."""
        member = str.__new__(cls, value)
        member._value_, member.words = value, words
        return member

    OPTIMAL = "optimal", "proven optimal"
    OPTIMAL_FOR_WIDTHS = "optimal_for_widths", "best for these table widths"
    GAP = "gap", "search complete"
    WORK_LIMIT = "work_limit", "budget of work spent"
    TIME_LIMIT = "time_limit", "cut by the time limit"
    INTERRUPTED = "interrupted", "interrupted"
    HEURISTIC = "heuristic", "search complete"
    NO_PROOF = "no_proof", "proof withdrawn"
