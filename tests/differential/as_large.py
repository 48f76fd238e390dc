"""Small problems planned in the ways of large ones: limits of size lowered for a while.

From certain numbers of tables or options on, a search leaves options unlisted, takes sets of
sharding types together, proves its bounds by other programs, or has a second process search for
plans as well. No problem that is small enough to price all of its plans would ever come there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Final

import numpy as np

LOWERED: Final[tuple[tuple[str, str, float], ...]] = (
    ("planner.options.enumeration", "_EVERY", 0),
    ("planner.options.enumeration", "_SMALL_RATIO", 0.3),
    ("planner.options.work", "_AT_ONCE", 3),
    ("planner.search.auto", "_WHOLE_TABLES", 0),
    ("planner.search.bounds.bound", "_EXACT_TABLES", 0),
    ("planner.search.bounds.bound", "_SOLVED_TABLES", 0),
    ("planner.search.bounds.makespan", "_FEW_TABLES", 0),
    ("planner.search.bounds.makespan", "_MOST_SIZES", 2),
    ("planner.search.bounds.makespan", "_WHOLE_TABLES", 0),
    ("planner.search.bounds.move_bound", "_MOST_ENTRIES", 20),
    ("planner.search.bounds.move_bound", "_WHOLE_TABLES", 0),
    ("planner.search.bounds.relaxation", "_EXACT_TABLES", 0),
    ("planner.search.bounds.relaxation", "_FEW_OPTIONS", 0),
    ("planner.search.bounds.relaxation", "_MOST_SETS", 2),
    ("planner.search.construct.packing_exact", "_MOST_VARIABLES", 20),
    ("planner.search.improve.second_search", "_FEWEST", 0),
    ("planner.search.improve.second_search", "_LEAST_WORK_S", 0.0),
    ("planner.space.evaluation", "_MOST_ENTRIES", 50),
)
"""Modules, their limits, and what each is lowered to (a share of memory is raised)."""

_SHARE: Final = 0.5
"""Of the limits that are lowered for one problem, so that ways of both kinds meet."""


@contextmanager
def as_large(seed: int) -> Iterator[None]:
    """Lower about half of the limits, drawn by the seed, and put them back."""
    chosen = np.random.default_rng([seed, len(LOWERED)]).random(len(LOWERED)) < _SHARE
    lowered = [limit for limit, is_lowered in zip(LOWERED, chosen, strict=True) if is_lowered]
    before = [getattr(import_module(module), name) for module, name, _ in lowered]
    try:
        for module, name, value in lowered:
            setattr(import_module(module), name, value)
        yield
    finally:
        for (module, name, _), value in zip(lowered, before, strict=True):
            setattr(import_module(module), name, value)
