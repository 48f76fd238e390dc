"""Tells the kind of a file by its keys, so that errors can name a file of the wrong kind."""

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
    """The kind of a document; None if its keys are those of no kind, or of several kinds."""
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
    """Refuse a document of another known kind, in one line.

    Raises:
        InvalidInputError: the document is of another kind; the message says which.
    """
    kind = kind_of(value)
    if kind not in (None, wanted):
        message = f"{path}: is {kind}, and {wanted} is expected here; name another file"
        raise InvalidInputError(message)
