"""What it takes to go from a plan in use to another one, and when that pays back."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from costmodels.sharding import Plan, ShardingType, TablePlacement
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.result import Reshard
from planner.rules.moved_bytes import cell_bytes, overlaps, rectangles

FloatArray = NDArray[np.float64]


def reshard(
    before: Plan,
    after: Plan,
    workload: Workload,
    topology: Topology,
    *,
    before_s: float,
    after_s: float,
) -> Reshard:
    """Price the move from ``before`` to ``after``.

    Every rank receives the cells that it did not hold, weights with optimizer state, from the rank
    that did. All ranks send and receive at once, each direction and link level at its bandwidth;
    the slowest rank sets the time. Start-up of the transfers and copies to and from host memory are
    left out.

    Args:
        before: the plan in use.
        after: the new plan.
        workload: tables.
        topology: ranks and links.
        before_s: iteration time of the plan in use.
        after_s: iteration time of the new one.
    """
    flows, moved = _flows(before, after, workload, topology.world_size)
    changed = {p.table for p in after.placements if _differs(before.placement(p.table), p)}
    time_s = transfer_s(flows, topology)
    saved_s = before_s - after_s
    return Reshard(
        moved_tables=len(moved),
        recut_tables=len(changed - moved),
        moved_bytes=float(flows.sum()),
        most_received_bytes=float(flows.sum(axis=0).max()),
        time_s=time_s,
        before_s=before_s,
        saved_s=saved_s,
        payback_iterations=math.ceil(time_s / saved_s) if saved_s > 0 else None,
    )


def _differs(one: TablePlacement, other: TablePlacement) -> bool:
    """Whether shards or kernels of a table differ, whatever its sharding type is called."""
    return (set(one.shards), one.kernel, one.cache_load_factor_ratio) != (
        set(other.shards),
        other.kernel,
        other.cache_load_factor_ratio,
    )


def _flows(
    before: Plan, after: Plan, workload: Workload, world_size: int
) -> tuple[FloatArray, set[str]]:
    """Bytes from each rank to each other, ``[W, W]``, and the tables that move."""
    flows = np.zeros((world_size, world_size))
    moved: set[str] = set()
    for table in workload.tables:
        old, new = before.placement(table.name), after.placement(table.name)
        if old.sharding_type is ShardingType.DATA_PARALLEL:
            continue  # every rank holds every cell
        sources = np.array([s.rank for s in old.shards], dtype=np.int64)
        targets = np.array([s.rank for s in new.shards], dtype=np.int64)
        cells = overlaps(rectangles(old.shards), rectangles(new.shards))
        cells[sources[:, None] == targets[None]] = 0.0
        if cells.any():
            moved.add(table.name)
            where = (sources[:, None], targets[None])
            np.add.at(flows, where, cells * cell_bytes(table, workload))
    return flows, moved


def transfer_s(flows: FloatArray, topology: Topology) -> float:
    """Seconds until bytes ``[W, W]`` from each rank to each other are there, all at once."""
    ranks = np.arange(topology.world_size)
    host = ranks // topology.local_world_size
    domain = ranks // topology.domain_size
    same_host = host[:, None] == host[None]
    same_domain = domain[:, None] == domain[None]
    per_byte = np.where(
        same_host,
        1.0 / topology.host_link.bandwidth_bytes_per_s,
        np.where(
            same_domain,
            1.0 / topology.domain_link.bandwidth_bytes_per_s,
            1.0 / topology.network_link.bandwidth_bytes_per_s,
        ),
    )
    seconds = flows * per_byte
    return float(max(seconds.sum(axis=0).max(), seconds.sum(axis=1).max()))
