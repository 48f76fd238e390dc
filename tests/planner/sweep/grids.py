"""Tasks of small sweeps."""

from __future__ import annotations

from planner import load_system, load_workload
from planner.problem import NO_CONSTRAINTS
from planner.sweep import Grid, Operation
from planner.sweep.runner import Task


def grid_tasks(
    name: str = "small_demo", gpus: tuple[int, int] = (2, 4), batch: int = 256, **changes: object
) -> list[Task]:
    """Two systems, each with two numbers of GPUs."""
    grid = Grid(systems=("h100_sxm", "a100_80gb_sxm"), gpus=gpus, batch_sizes=(batch,))
    workload = load_workload(name)
    return [
        Task(
            point=point,
            problem=point.problem(
                workload, NO_CONSTRAINTS, load_system(point.system, gpus=point.gpus)
            ),
            operation=Operation(),
            max_evaluations=10,
            **changes,  # type: ignore[arg-type]
        )
        for point in grid.points()
    ]
