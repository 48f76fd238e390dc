"""The parts of the search by name, so that they can be left out."""

from __future__ import annotations

from enum import StrEnum


class SearchPart(StrEnum):
    """Parts of the search: those that find plans, and all that only proves."""

    EXHAUSTIVE = "every plan of tiny spaces"
    GREEDY = "greedy plans"
    ROUNDING = "rounding of the bound"
    CYCLES = "ruin and recreate"
    DESCENT = "descent"
    KICKS = "kicks"
    PRICES = "sampled prices"
    RESTARTS = "restarts"
    SECOND = "the second search"
    PROOFS = "proofs"
