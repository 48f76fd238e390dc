"""Which kind of file a document is by its keys, so that one in the place of another is named."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from planner.errors import InvalidInputError

PLAN: Final = "a plan"
WORKLOAD: Final = "a workload"
SYSTEM: Final = "a system"
CONSTRAINTS: Final = "a file of constraints"
STATISTICS: Final = "statistics of 'shardplan profile'"


def kind_of(value: object) -> str | None:
    """The kind of a document; None where its keys are those of none, or of several."""
    if not isinstance(value, dict):
        return None
    keys = set(value)
    if value.get("kind") == "shardplan_stats":
        return STATISTICS
    if "plan" in keys:
        return PLAN
    if {"device", "links"} <= keys or "base" in keys:
        return SYSTEM
    if "training" in keys:
        return WORKLOAD
    return CONSTRAINTS if keys == {"constraints"} else None


def refuse_other_kind(path: Path, value: object, wanted: str) -> None:
    """Refuse a document that is of another known kind, in one line.

    Raises:
        InvalidInputError: says what the file is.
    """
    kind = kind_of(value)
    if kind not in (None, wanted):
        message = f"{path}: is {kind}, and {wanted} is expected here; name another file"
        raise InvalidInputError(message)
