"""Which sharding plan makes a training iteration fastest?

The public names are those of ``__all__``. Each is loaded from its module when it is first used, so
that importing the package costs nothing.

Example:
    >>> from planner import load_system, load_workload, plan
    >>> workload, system = load_workload("small_demo"), load_system("h100_sxm", gpus=8)
    >>> result = plan(workload, system, max_evaluations=50)
    >>> result.bound <= result.estimate.time.time_s
    True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from costmodels.distribution.uniform import Uniform
    from costmodels.distribution.zipf import Zipf
    from costmodels.workload import Feature, Table, Workload
    from planner.api import compare, estimate, plan, solve
    from planner.errors import (
        InfeasibleError,
        InvalidInputError,
        NoPlanFoundError,
        PlannerError,
        StoppedError,
    )
    from planner.io import (
        load_constraints,
        load_plan,
        load_problem,
        load_system,
        load_workload,
        load_workload_file,
        save_plan,
        workload_from_dataframe,
    )
    from planner.problem import (
        Constraints,
        CountLimit,
        MemoryLimit,
        MoveLimit,
        PlanningProblem,
        TableConstraint,
        TableGroup,
    )
    from planner.result import PlanningResult
    from planner.settings import SearchSettings

__all__ = [
    "Constraints",
    "CountLimit",
    "Feature",
    "InfeasibleError",
    "InvalidInputError",
    "MemoryLimit",
    "MoveLimit",
    "NoPlanFoundError",
    "PlannerError",
    "PlanningProblem",
    "PlanningResult",
    "SearchSettings",
    "StoppedError",
    "Table",
    "TableConstraint",
    "TableGroup",
    "Uniform",
    "Workload",
    "Zipf",
    "compare",
    "estimate",
    "load_constraints",
    "load_plan",
    "load_problem",
    "load_system",
    "load_workload",
    "load_workload_file",
    "plan",
    "save_plan",
    "solve",
    "workload_from_dataframe",
]

_NAMES = {
    "costmodels.distribution.uniform": "Uniform",
    "costmodels.distribution.zipf": "Zipf",
    "costmodels.workload": "Feature Table Workload",
    "planner.api": "compare estimate plan solve",
    "planner.errors": (
        "InfeasibleError InvalidInputError NoPlanFoundError PlannerError StoppedError"
    ),
    "planner.io": (
        "load_constraints load_plan load_problem load_system load_workload load_workload_file "
        "save_plan workload_from_dataframe"
    ),
    "planner.problem": (
        "Constraints CountLimit MemoryLimit MoveLimit PlanningProblem TableConstraint TableGroup"
    ),
    "planner.result": "PlanningResult",
    "planner.settings": "SearchSettings",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Load a public name from its module."""
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, for completion."""
    return list(__all__)
