"""The parts of the search that find plans, by name, so that they can be left out."""

from __future__ import annotations

from enum import StrEnum


class Part(StrEnum):
    """Parts of the search that find plans."""

    EXHAUSTIVE = "every plan of tiny spaces"
    GREEDY = "greedy plans"
    ROUNDING = "rounding of the bound"
    CYCLES = "ruin and recreate"
    DESCENT = "descent"
    KICKS = "kicks"
    RESTARTS = "restarts"
