"""Small problems planned in the ways of large ones: limits of size lowered for a while.

From certain numbers of tables or options on, a search leaves options unlisted, takes sets of
sharding types together, proves its bounds by other programs, or has a second process search for
plans as well. No problem that is small enough to price all of its plans would ever come there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Final

import numpy as np

from planner.search.common.schedule import USUAL, Schedule

_SCHEDULE: Final = "planner.search.common.schedule"
"""The module of the usual schedule, whose fields are limits too."""

LOWERED: Final[tuple[tuple[str, str, float], ...]] = (
    ("planner.options.enumeration", "_EVERY", 0),
    ("planner.options.enumeration", "_SMALL_RATIO", 0.3),
    ("planner.options.enumeration", "_AT_ONCE", 3),
    (_SCHEDULE, "few_tables", 0),
    (_SCHEDULE, "program_entries", 20),
    (_SCHEDULE, "type_sets", 2),
    ("planner.search.construct.packing", "_MOST_VARIABLES", 20),
    (_SCHEDULE, "second_size", 0),
    (_SCHEDULE, "further_s", 0.0),
    ("planner.space.evaluation", "_MOST_ENTRIES", 50),
)
"""Modules, their limits, and what each is lowered to (a share of memory is raised).

The limits of the module of the schedule are fields of its usual schedule."""

_SHARE: Final = 0.5
"""Of the limits that are lowered for one problem, so that ways of both kinds meet."""


@contextmanager
def as_large(seed: int) -> Iterator[None]:
    """Lower about half of the limits, drawn by the seed, and put them back."""
    chosen = np.random.default_rng([seed, len(LOWERED)]).random(len(LOWERED)) < _SHARE
    lowered = [limit for limit, is_lowered in zip(LOWERED, chosen, strict=True) if is_lowered]
    before = [getattr(owner_of(module), name) for module, name, _ in lowered]
    try:
        for module, name, value in lowered:
            _set(owner_of(module), name, value)
        yield
    finally:
        for (module, name, _), value in zip(lowered, before, strict=True):
            _set(owner_of(module), name, value)


def owner_of(module: str) -> ModuleType | Schedule:
    """What has the limits of a module: the module itself, or the usual schedule."""
    return USUAL if module == _SCHEDULE else import_module(module)


def _set(owner: ModuleType | Schedule, name: str, value: float) -> None:
    """Set a limit. The usual schedule is frozen, and default arguments everywhere hold it."""
    if isinstance(owner, Schedule):
        object.__setattr__(owner, name, value)
    else:
        setattr(owner, name, value)
