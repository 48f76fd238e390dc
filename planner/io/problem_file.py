"""A planning problem from a workload file and a system file."""

from __future__ import annotations

from pathlib import Path

from planner.io.system.system_file import load_system
from planner.io.workload.workload_file import load_workload_file
from planner.problem import PlanningProblem


def load_problem(
    workload: str | Path,
    system: str | Path,
    *,
    gpus: int | None = None,
    gpus_per_host: int | None = None,
) -> PlanningProblem:
    """A workload with the constraints of its file, on a system; ``planner.solve`` plans it.

    Args:
        workload: path of a ``.yaml`` or ``.csv`` file, or a shipped name.
        system: path of a ``.yaml`` file, or a shipped name.
        gpus: ranks in all; one host unless given.
        gpus_per_host: ranks per host; the system's unless given.

    Raises:
        InvalidInputError: lists every broken rule with file, line, key and value.
    """
    file = load_workload_file(workload)
    return PlanningProblem(
        workload=file.workload,
        topology=load_system(system, gpus=gpus, gpus_per_host=gpus_per_host),
        constraints=file.constraints,
    )
