"""The parts of the search by name, so that a search can leave some out."""

from __future__ import annotations

from enum import StrEnum


class SearchPart(StrEnum):
    """Parts of the search: one for each method that finds plans, and one for all that only proves.

    Benchmarks leave out one part at a time, to see what it contributes.
    """

    EXHAUSTIVE = "every plan of tiny spaces"
    GREEDY = "greedy plans"
    ROUNDING = "rounding of the bound"
    CYCLES = "ruin and recreate"
    SHARING = "sharing out pieces"
    PRICES = "sampled prices"
    RESTARTS = "restarts"
    SECOND = "the second search"
    PROOFS = "proofs"
