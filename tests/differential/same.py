"""Whether plans, prices and bounds stay the same when code is moved about.

::

    python -m tests.differential.same --write before.json      # before the change
    python -m tests.differential.same --against before.json    # after it; exit code 1 if any differ

Random problems of every kind are planned with a budget of work: answers depend on the code alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from tests.differential.asking import Run, ask
from tests.differential.drawing.problems import draw, draw_larger

SAME_RATIO: Final = 1e-12
"""Prices and bounds that differ by less are the same."""
EVALUATIONS: Final = 300
LARGER_EVERY: Final = 5
"""Every fifth problem is a larger one."""


def answer(seed: int) -> dict[str, Any]:
    """What the planner says of one problem."""
    case = draw_larger(seed) if seed % LARGER_EVERY == 0 else draw(seed)
    told = ask(case, Run.USERS, max_evaluations=EVALUATIONS)
    found = told.error is None
    plan = json.loads(told.text)["plan"] if found else told.text
    return {
        "seed": seed,
        "plan": plan,
        "value": told.value if found else None,
        "bound": told.bound,
    }


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What is not the same, in words."""
    found = [] if before["plan"] == after["plan"] else ["another plan"]
    for key in ("value", "bound"):
        a, b = before[key], after[key]
        equal = a == b or (None not in (a, b) and abs(a - b) <= SAME_RATIO * abs(a))
        found += [] if equal else [f"{key} {a!r} is now {b!r}"]
    return found


def main(arguments: list[str] | None = None) -> int:
    """Write the answers, or compare them with written ones."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--start", type=int, default=300_000, help="first seed")
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--write", type=Path, metavar="FILE")
    choice.add_argument("--against", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    if given.write:
        seeds = range(given.start, given.start + given.count)
        given.write.write_text(json.dumps([answer(s) for s in seeds], indent=1), encoding="utf-8")
        return 0
    stored = json.loads(given.against.read_text(encoding="utf-8"))
    out = Console(highlight=False, soft_wrap=True)
    differ = {old["seed"]: differences(old, answer(old["seed"])) for old in stored}
    for seed, found in differ.items():
        if found:
            out.print(f"seed {seed}: {'; '.join(found)}")
    count = sum(map(bool, differ.values()))
    out.print(
        f"{len(stored) - count} of {len(stored)} problems have the same plan, price and bound"
    )
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
