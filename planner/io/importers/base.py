"""What every importer returns: a workload, perhaps a plan, and what had to be assumed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from costmodels.sharding import Plan
from costmodels.workload import Workload
from planner.errors import InvalidInputError
from planner.io.documents import Document, Keys
from planner.io.plan.plan_file import plan_to_json
from planner.io.schemas import collect, show
from planner.io.workload.workload_writer import workload_text
from planner.problem import NO_CONSTRAINTS, Constraints

MAX_ROWS: Final = 2**48
MAX_COLUMNS: Final = 16_384
MAX_IMPORTED_TABLES: Final = 100_000
DEFAULT_BATCH: Final = 4096
"""Samples per rank if a file names none; the same as for a CSV list of tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A file of another tool, as a workload and perhaps a plan.

    Attributes:
        workload: tables, dense part and training.
        source: what was read; it becomes the first line of the workload file.
        constraints: limits that the file has.
        assumed: for keys of the workload file, what was assumed for them and why.
        unsaid: what the file says, but a workload cannot express.
        law_is_known: whether the index laws come from the file.
        plan: the placement of the tables, if the file has one.
        world_size: number of ranks of the plan.
        local_world_size: ranks per host of the plan.
    """

    workload: Workload
    source: str
    constraints: Constraints = NO_CONSTRAINTS
    assumed: dict[str, str] = field(default_factory=dict)
    unsaid: tuple[str, ...] = ()
    law_is_known: bool = True
    plan: Plan | None = None
    world_size: int | None = None
    local_world_size: int | None = None


def assume(assumed: dict[str, str], key: str, text: str) -> None:
    """Add an assumption about a key; several about one key are joined."""
    known = assumed.get(key)
    assumed[key] = text if known in (None, text) else f"{known}; {text}"


def make_workload(where: str, **values: Any) -> Workload:
    """Make a workload; errors begin with the place in the file.

    Raises:
        InvalidInputError: the values are not those of a workload.
    """
    problems: list[str] = []
    workload = collect(problems, where, partial(Workload, **values))
    if workload is None:
        raise InvalidInputError(problems)
    return workload


def imported_text(imported: Imported) -> str:
    """The text of the workload file, with comments for all assumptions at the top and at the keys.

    Raises:
        InvalidInputError: a file cannot hold some name.
    """
    header = [f"From {imported.source}."]
    header += [f"Assumed: {key}: {text}" for key, text in imported.assumed.items()]
    header += [f"Not in this file: {text}" for text in imported.unsaid]
    notes = {key: f"assumed: {text}" for key, text in imported.assumed.items()}
    return workload_text(
        imported.workload,
        imported.constraints,
        header=header,
        notes=notes,
        law_is_known=imported.law_is_known,
    )


def imported_plan_text(imported: Imported) -> str:
    """The plan as the text of ``plan.json``, for ``shardplan estimate``.

    Raises:
        InvalidInputError: the imported file has no plan.
    """
    if imported.plan is None:
        message = f"{imported.source} says nothing of where tables are; leave --plan out"
        raise InvalidInputError(message)
    local = imported.local_world_size or imported.world_size or 1
    values: dict[str, Any] = {
        "plan": plan_to_json(imported.plan, imported.workload, local),
        "workload": imported.workload.name,
        "world_size": imported.world_size,
        "local_world_size": local,
        "batch_size_per_rank": imported.workload.batch_size_per_rank,
    }
    return json.dumps(values, indent=1) + "\n"


class Reader:
    """Reads plain values strictly; every error names the file and the key path."""

    def __init__(self, document: Document) -> None:
        """Keep the document that is read."""
        self.document = document

    def fail(self, keys: Keys, value: object, rule: str) -> InvalidInputError:
        """The error for a value that breaks a rule."""
        return InvalidInputError(f"{self.document.where(keys)}: value {show(value)}: {rule}")

    def mapping(self, value: object, keys: Keys) -> dict[str, Any]:
        """The value as an object (mapping).

        Raises:
            InvalidInputError: it is not an object.
        """
        if not isinstance(value, dict):
            raise self.fail(keys, value, "must hold keys and values")
        return value

    def sequence(self, value: object, keys: Keys, *, length: int | None = None) -> list[Any]:
        """The value as a list, of a given length if there is one.

        Raises:
            InvalidInputError: it is not a list, or has another length.
        """
        if not isinstance(value, list):
            raise self.fail(keys, value, "must be a list")
        if length is not None and len(value) != length:
            raise self.fail(keys, value, f"must have {length} entries, got {len(value)}")
        return value

    def whole(self, value: object, keys: Keys, low: int = 1, high: int = MAX_ROWS) -> int:
        """The value as a whole number within limits.

        Raises:
            InvalidInputError: it is not a whole number, or outside the limits.
        """
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(keys, value, "must be a whole number")
        if not low <= value <= high:
            raise self.fail(keys, value, f"must be {low} to {high}")
        return value

    def number(self, value: object, keys: Keys, low: float = 0.0, high: float = 1e6) -> float:
        """The value as a number within limits.

        Raises:
            InvalidInputError: it is not a number, or outside the limits.
        """
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(keys, value, "must be a number")
        if not low <= value <= high:
            raise self.fail(keys, value, f"must be {low:g} to {high:g}")
        return float(value)

    def flag(self, value: object, keys: Keys) -> bool:
        """The value as true or false.

        Raises:
            InvalidInputError: it is neither.
        """
        if not isinstance(value, bool):
            raise self.fail(keys, value, "must be true or false")
        return value

    def text(self, value: object, keys: Keys) -> str:
        """The value as text.

        Raises:
            InvalidInputError: it is not text.
        """
        if not isinstance(value, str):
            raise self.fail(keys, value, "must be text")
        return value

    def required(self, values: dict[str, Any], key: str, keys: Keys) -> Any:
        """The value of a key that has to be there.

        Raises:
            InvalidInputError: it is missing.
        """
        if key not in values:
            msg = f"{self.document.where(keys)}: key {key!r} is missing; add it"
            raise InvalidInputError(msg)
        return values[key]
