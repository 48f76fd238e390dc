"""Moves tables from host memory to device memory where that costs almost no time.

Predictions of lookups in host memory have an error of their own, so that a plan with tables there
may be predicted a little faster than one without. Where devices have room, such tables go there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.work import MEMORY, Memory
from costmodels.sharding import (
    ComputeKernel,
    Plan,
    ShardingOption,
    ShardingType,
    TablePlacement,
    place,
)
from planner.integrations.drop_in.headroom import is_allowed
from planner.options.table_limits import HOST_KERNELS
from planner.problem import Constraints
from planner.solving.runnable import runs

_MOST_TABLES: Final = 64
"""At most this many tables are moved, those with the most bytes; each needs several prices."""
_MOST_RANKS: Final = 16
"""Ranks on which a whole table is tried: those with the fewest bytes."""


def host_bytes(pipeline: CostPipeline, plan: Plan) -> float:
    """Bytes of tables in host memory, over all hosts."""
    return float(pipeline.plan_work(plan)[:, MEMORY + Memory.HOST].sum())


def in_nearer_memory(
    plan: Plan,
    pipeline: CostPipeline,
    constraints: Constraints,
    *,
    most_s: float,
    fixed: Mapping[str, object],
) -> Plan:
    """The plan with tables in device memory that it has in host memory, where they have room.

    Args:
        plan: a plan that fits.
        pipeline: prices plans.
        constraints: the constraints of the search; tables that have to share a place keep theirs.
        most_s: predicted iteration time that no plan may exceed, in seconds.
        fixed: names of further tables that are not moved.
    """
    far = [
        at
        for at, placed in enumerate(plan.placements)
        if placed.kernel in HOST_KERNELS and placed.table not in fixed
    ]
    far.sort(key=lambda at: -pipeline.workload.table(plan.placements[at].table).weight_bytes)
    total = pipeline.plan_work(plan) if far else np.zeros(0)
    for at in far[:_MOST_TABLES]:
        own = plan.placements[at]
        rest = total - pipeline.plan_work(Plan(placements=(own,)))
        tried = [
            Plan(placements=(*plan.placements[:at], placed, *plan.placements[at + 1 :]))
            for placed in _near(own, pipeline, constraints, rest)
        ]
        tried = [other for other in tried if runs(other, pipeline.workload)]
        if not tried:
            continue
        works = np.stack(
            [rest + pipeline.plan_work(Plan(placements=(p.placements[at],))) for p in tried]
        )
        times = np.array(pipeline.iteration_times(works))
        times[pipeline.overflow_bytes(works, 1.0) > 0] = np.inf
        best = int(times.argmin())
        if np.isfinite(times[best]) and times[best] <= most_s:
            plan, total = tried[best], works[best]
    return plan


def _near(
    own: TablePlacement, pipeline: CostPipeline, constraints: Constraints, rest: FloatArray
) -> Iterator[TablePlacement]:
    """Placements of a table in device memory: as it is, cut by rows, or whole on one rank."""
    table, topology = pipeline.workload.table(own.table), pipeline.topology
    kernel, shape = ComputeKernel.FUSED, (topology.world_size, topology.local_world_size)
    if is_allowed(constraints, own.table, own.sharding_type, kernel):
        yield TablePlacement(
            table=own.table, sharding_type=own.sharding_type, kernel=kernel, shards=own.shards
        )
    if any(group.matches(own.table) for group in constraints.together):
        return
    emptiest = np.argsort(pipeline.device_bytes(rest), kind="stable")[:_MOST_RANKS]
    places: dict[ShardingType, list[tuple[int, ...]]] = {
        ShardingType.ROW_WISE: [()],
        ShardingType.TABLE_WISE: [(int(rank),) for rank in emptiest],
    }
    for kind, where in places.items():
        if not is_allowed(constraints, own.table, kind, kernel):
            continue
        option = ShardingOption(
            table=own.table, sharding_type=kind, kernel=kernel, column_widths=(table.embedding_dim,)
        )
        for ranks in where:
            yield place(
                option,
                table.num_embeddings,
                ranks,
                world_size=shape[0],
                local_world_size=shape[1],
            )
