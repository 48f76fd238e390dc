"""The contract: what ``ShardPlanner`` does with every setting of TorchRec; and its page.

No setting is ignored silently: each one is honoured, refused by an error that names it, or named in
a warning in the log. The rows are in :mod:`planner.integrations.drop_in.contract_rows`. Nothing
here needs torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Verdict(StrEnum):
    """What happens with a setting."""

    HONOURED = "honoured"
    REFUSED = "refused"
    WARNED = "warned"


class Place(StrEnum):
    """The place where a setting is made; the values are the headings of the page."""

    ARGUMENT = "Arguments of the planner"
    TOPOLOGY = "Fields of `Topology`"
    CONSTRAINT = "Fields of `ParameterConstraints`"
    CACHE = "Fields of `CacheParams`"
    SHARDER = "Sharders"
    MODULE = "Modules"
    REQUEST = "Fields of a dry run's request (torchrec 1.9, `ShardplanProvider`)"
    CONFIG = "Fields of `PlannerConfig` (torchrec 1.9, `ShardplanProvider`)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One setting. ``test`` is ``file.py::function`` below ``tests/integration``."""

    place: Place
    name: str
    verdict: Verdict
    what: str
    test: str


_TESTS: Final = {
    "codecs": "test_torchrec_codecs.py",
    "kv": "test_torchrec_key_value.py",
    "sound": "test_sound_plans.py",
    "modules": "test_torchrec_modules.py",
    "outcome": "test_torchrec_outcome.py",
    "planner": "test_torchrec_planner.py",
    "provider": "test_torchrec_provider.py",
    "quantized": "test_quantized_modules.py",
    "rules": "test_torchrec_contract.py",
    "settings": "test_torchrec_settings.py",
    "system": "test_torchrec_topology.py",
    "workload": "test_torchrec_workload.py",
}


def rows_of(place: Place, *entries: tuple[str, Verdict, str, str, str]) -> tuple[Row, ...]:
    """Rows from (name, verdict, what happens, key of the test's file, name of the test)."""
    return tuple(
        Row(place=place, name=name, verdict=verdict, what=what, test=f"{_TESTS[file]}::test_{test}")
        for name, verdict, what, file, test in entries
    )


INTRODUCTION: Final = """\
# What becomes of TorchRec's settings

Written by `docs/reference.py` from `planner/integrations/drop_in/contract_rows.py`. Every setting
is honoured, refused by an error that names it, or accepted with a warning in the log that names it.
The last column is the test that fails if that stops being so, below `tests/integration`.
"""


def contract_page(rows: Iterable[Row]) -> str:
    """The page of the site, one table for each place."""
    listed = list(rows)
    parts = [INTRODUCTION]
    for place in Place:
        lines = [
            f"## {place.value}\n",
            "| setting | | what happens | test |",
            "|---|---|---|---|",
            *(
                f"| `{r.name}` | {r.verdict} | {r.what} | `{r.test}` |"
                for r in listed
                if r.place is place
            ),
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)
