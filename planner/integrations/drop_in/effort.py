"""How long the adapter searches, when it is not told: by work done, so that plans are the same.

Small models get little, because TorchRec's planner, which needs a time that grows with the square
of the tables and with the ranks, is done with them at once, and nobody should wait for a plan.
"""

from __future__ import annotations

from typing import Final

from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.models import default_models
from planner.space.budget import default_work_s, priced_plans
from planner.space.objective import MakePipeline

_LEAST_WORK_S: Final = 0.55
"""Nominal seconds of the shortest search, some second by the clock with the proof beside it."""
_SMALL_S: Final = 7.0
"""Seconds of TorchRec's planner, as counted below, up to which a plan shall not take longer."""
_SMALL_SHARE, _SHARE = 0.2, 0.6
"""Share of TorchRec's time for our search, up to there and beyond. The rest is for TorchRec's plan
beside it, and for what a search takes by the clock beyond its nominal seconds."""
_TORCHREC_S: Final = 3e-4
"""Seconds of TorchRec's planner per table, table and rank (1.8, every kernel of cuda, 5 x 2 to
64 x 8 and 16 x 32, one core of a machine of 2023)."""


def planning_work_s(num_tables: int, world_size: int) -> float:
    """Nominal seconds of a search: shares of what TorchRec's planner takes, between two limits.

    Args:
        num_tables: of the workload.
        world_size: ranks.
    """
    theirs_s = _TORCHREC_S * num_tables * num_tables * world_size
    work_s = _SMALL_SHARE * min(theirs_s, _SMALL_S) + _SHARE * max(theirs_s - _SMALL_S, 0.0)
    return min(max(work_s, _LEAST_WORK_S), default_work_s(num_tables, world_size, None))


def planning_evaluations(
    workload: Workload, topology: Topology, make_pipeline: MakePipeline
) -> int:
    """The same in priced plans, which is how a search counts its work.

    Args:
        workload: what is planned.
        topology: on what.
        make_pipeline: prices the plans.
    """
    pipeline = make_pipeline(workload, topology, default_models(topology))
    return priced_plans(planning_work_s(len(workload.tables), topology.world_size), pipeline)
