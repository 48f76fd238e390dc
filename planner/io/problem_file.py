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
    """Read a workload with its constraints, and the system to plan it for.

    ``planner.solve`` plans the problem.

    Args:
        workload: path of a ``.yaml`` or ``.csv`` file, or the name of a shipped workload.
        system: path of a ``.yaml`` file, or the name of a shipped system.
        gpus: number of ranks; None for one host.
        gpus_per_host: ranks per host; None for those of the system.

    Raises:
        InvalidInputError: lists every broken rule with file, line, key and value.

    Example:
        >>> problem = load_problem("small_demo", "h100_sxm", gpus=16)
        >>> problem.topology.num_hosts
        2
    """
    file = load_workload_file(workload)
    return PlanningProblem(
        workload=file.workload,
        topology=load_system(system, gpus=gpus, gpus_per_host=gpus_per_host),
        constraints=file.constraints,
    )
