"""Makes rows of plain values from a planning result."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any, Final, Literal

from costmodels.estimates import IterationEstimate, MemoryLedger
from costmodels.sharding import Plan, Shard, TablePlacement
from costmodels.workload import Workload

Per = Literal["table", "shard", "rank"]
"""What each row describes."""


def _is_held(shard: Shard) -> bool:
    """Whether a shard has cells; it has none if its table has fewer rows than there are ranks."""
    return shard.num_rows > 0 and shard.num_cols > 0


def ranks_held(placement: TablePlacement) -> list[int]:
    """The rank of each shard that has cells of the table."""
    return [shard.rank for shard in placement.shards if _is_held(shard)]


_SHAPE: Final = ("num_embeddings", "embedding_dim", "pooling_factor", "weight_bytes")


def table_rows(plan: Plan, workload: Workload) -> list[dict[str, Any]]:
    """One row per table, in the workload's order."""
    return [
        {
            "table": table.name,
            **{key: getattr(table, key) for key in _SHAPE},
            "sharding_type": placement.sharding_type.value,
            "kernel": placement.kernel.value,
            "num_shards": len(ranks_held(placement)),
            "ranks": tuple(sorted(set(ranks_held(placement)))),
        }
        for table in workload.tables
        for placement in (plan.placement(table.name),)
    ]


def shard_rows(plan: Plan, workload: Workload) -> list[dict[str, Any]]:
    """One row for each shard that has cells; tables are in the workload's order."""
    return [
        {
            "table": table.name,
            "shard": number,
            "rank": shard.rank,
            "sharding_type": placement.sharding_type.value,
            "kernel": placement.kernel.value,
            **asdict(shard),
            "weight_bytes": shard.num_rows * shard.num_cols * table.dtype.num_bytes,
        }
        for table in workload.tables
        for placement in (plan.placement(table.name),)
        for number, shard in enumerate(placement.shards)
        if _is_held(shard)
    ]


_TIMES: Final = ("compute_s", "communication_s", "exposed_s", "idle_s")


def rank_rows(
    plan: Plan, estimate: IterationEstimate, memory: MemoryLedger
) -> list[dict[str, Any]]:
    """One row per rank: its times in seconds, its memory in bytes, and its shards."""
    shards = Counter(rank for placement in plan.placements for rank in ranks_held(placement))
    return [
        {
            "rank": time.rank,
            "num_shards": shards[time.rank],
            **{key: getattr(time, key) for key in _TIMES},
            "used_bytes": held.used_bytes,
            "headroom_bytes": held.headroom_bytes,
        }
        for time, held in zip(estimate.ranks, memory.ranks, strict=True)
    ]
