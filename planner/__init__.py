"""Which sharding plan makes a training iteration fastest?

The public names are loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.api import compare, estimate, plan, solve
    from planner.errors import (
        InfeasibleError,
        InvalidInputError,
        NoPlanFoundError,
        PlannerError,
    )
    from planner.io import load_system, load_workload
    from planner.problem import Constraints, PlanningProblem, TableConstraint
    from planner.result import PlanningResult
    from planner.settings import SearchSettings

__all__ = [
    "Constraints",
    "InfeasibleError",
    "InvalidInputError",
    "NoPlanFoundError",
    "PlannerError",
    "PlanningProblem",
    "PlanningResult",
    "SearchSettings",
    "TableConstraint",
    "compare",
    "estimate",
    "load_system",
    "load_workload",
    "plan",
    "solve",
]

_HOMES = {
    "Constraints": "planner.problem",
    "InfeasibleError": "planner.errors",
    "InvalidInputError": "planner.errors",
    "NoPlanFoundError": "planner.errors",
    "PlannerError": "planner.errors",
    "PlanningProblem": "planner.problem",
    "PlanningResult": "planner.result",
    "SearchSettings": "planner.settings",
    "TableConstraint": "planner.problem",
    "compare": "planner.api",
    "estimate": "planner.api",
    "load_system": "planner.io",
    "load_workload": "planner.io",
    "plan": "planner.api",
    "solve": "planner.api",
}


def __getattr__(name: str) -> object:
    """A public name, loaded from its module."""
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return list(__all__)
