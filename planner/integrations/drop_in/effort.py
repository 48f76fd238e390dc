"""The budget of ``ShardPlanner`` if the user gives none, in work, so that plans are repeatable.

Small models get a small budget: TorchRec's planner, whose time grows with the square of the tables
and with the ranks, is done with them at once, and users should not wait longer here.
"""

from __future__ import annotations

from typing import Final

from costmodels.system_models import default_models
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.space.budget import default_work_s, priced_plans
from planner.space.objective import MakePipeline

_LEAST_WORK_S: Final = 0.55
"""Nominal seconds of the shortest search; with its proof it takes about a second by the clock."""
_SMALL_S: Final = 7.0
"""Our planning shall not take longer than TorchRec's planner if that takes at most this long."""
_SMALL_SHARE, _SHARE = 0.2, 0.6
"""Share of TorchRec's time that our search gets, up to ``_SMALL_S`` and beyond. The rest is for
TorchRec's plan, and for what a search takes by the clock beyond its nominal seconds."""
_TORCHREC_S: Final = 3e-4
"""Seconds of TorchRec's planner, divided by tables squared and by ranks (1.8, every kernel of cuda,
5 x 2 to 64 x 8 and 16 x 32 tables x ranks, one core of a machine of 2023)."""


def planning_work_s(num_tables: int, world_size: int) -> float:
    """Nominal seconds of a search: a share of the time of TorchRec's planner, between two limits.

    Args:
        num_tables: number of tables.
        world_size: number of ranks.
    """
    theirs_s = _TORCHREC_S * num_tables * num_tables * world_size
    work_s = _SMALL_SHARE * min(theirs_s, _SMALL_S) + _SHARE * max(theirs_s - _SMALL_S, 0.0)
    return min(max(work_s, _LEAST_WORK_S), default_work_s(num_tables, world_size, None))


def planning_evaluations(
    workload: Workload, topology: Topology, make_pipeline: MakePipeline
) -> int:
    """The budget of a search in priced plans, which is how a search counts its work.

    Args:
        workload: the workload.
        topology: the system.
        make_pipeline: makes what prices the plans.
    """
    pipeline = make_pipeline(workload, topology, default_models(topology))
    return priced_plans(planning_work_s(len(workload.tables), topology.world_size), pipeline)


def evaluations_within(
    limit_s: float, workload: Workload, topology: Topology, make_pipeline: MakePipeline
) -> int:
    """A time limit as a budget in priced plans, which does not depend on how busy a machine is.

    Args:
        limit_s: seconds, which are nominal ones: about those of one core of a machine of 2023.
        workload: the workload.
        topology: the system.
        make_pipeline: makes what prices the plans.
    """
    pipeline = make_pipeline(workload, topology, default_models(topology))
    size = len(workload.tables), topology.world_size
    return priced_plans(default_work_s(*size, limit_s), pipeline)
