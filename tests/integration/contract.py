"""The contract with users of TorchRec, as the table on the page of the site says it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference" / "torchrec_contract.md"

ARGUMENT: Final = "Arguments of the planner"
TOPOLOGY: Final = "Fields of `Topology`"
CONSTRAINT: Final = "Fields of `ParameterConstraints`"
CACHE: Final = "Fields of `CacheParams`"
SHARDER: Final = "Sharders"
MODULE: Final = "Modules"
REQUEST: Final = "Fields of a dry run's request (torchrec 1.9, `ShardplanProvider`)"
CONFIG: Final = "Fields of `PlannerConfig` (torchrec 1.9, `ShardplanProvider`)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One setting below the heading ``place``. ``test`` is ``file.py::function``."""

    place: str
    name: str
    verdict: str
    what: str
    test: str


def rows() -> tuple[Row, ...]:
    """Every row of the page."""
    found, place = [], ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            place = line.removeprefix("## ")
        row = re.fullmatch(r"\| `(.+?)` \| (\w*) \| (.*?) \| `(.*?)` \|", line)
        if row is not None:
            name, verdict, what, test = row.groups()
            found.append(Row(place=place, name=name, verdict=verdict, what=what, test=test))
        else:
            assert not line.startswith("| `"), line
    return tuple(found)


def names(place: str) -> set[str]:
    """The settings below a heading."""
    return {row.name for row in rows() if row.place == place}
