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
    held: Plan | None = None,
) -> Reshard:
    """Price the move from ``before`` to ``after``.

    Every rank receives the cells that it does not hold, weights with optimizer state, from the
    ranks that do, and from a checkpoint where none does. All ranks send and receive at once, each
    direction and link level at its bandwidth; the slowest rank sets the time. Reading a checkpoint,
    start-up of the transfers and copies to and from host memory are left out of that time.

    Args:
        before: the plan in use.
        after: the new plan.
        workload: tables.
        topology: ranks and links.
        before_s: iteration time of the plan in use.
        after_s: iteration time of the new one.
        held: the shards of ``before`` that ranks still have; None for all of them.
    """
    flows, restored, moved = _flows(held or before, after, workload, topology.world_size)
    changed = {p.table for p in after.placements if _differs(before.placement(p.table), p)}
    received = flows.sum(axis=0) + restored
    time_s = transfer_s(flows, topology)
    saved_s = before_s - after_s
    return Reshard(
        moved_tables=len(moved),
        recut_tables=len(changed - moved),
        moved_bytes=float(received.sum()),
        most_received_bytes=float(received.max()),
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
    held: Plan, after: Plan, workload: Workload, world_size: int
) -> tuple[FloatArray, FloatArray, set[str]]:
    """Bytes from each rank to each other, ``[W, W]``, to each from a checkpoint, ``[W]``.

    Beside them the tables of which some rank receives any.
    """
    flows, restored = np.zeros((world_size, world_size)), np.zeros(world_size)
    moved: set[str] = set()
    for table in workload.tables:
        old, new = held.placement(table.name), after.placement(table.name)
        sources = np.array([s.rank for s in old.shards], dtype=np.int64)
        targets = np.array([s.rank for s in new.shards], dtype=np.int64)
        areas = rectangles(new.shards)
        cells = overlaps(rectangles(old.shards), areas)
        is_own = sources[:, None] == targets[None]
        missing = overlaps(areas, areas).diagonal() - np.where(is_own, cells, 0.0).sum(axis=0)
        cells = np.where(is_own, 0.0, cells)
        if old.sharding_type is ShardingType.DATA_PARALLEL:  # each source has all of the table
            cells = np.where(is_own.any(axis=0), 0.0, cells) / max(len(sources), 1)
        if missing.any():
            moved.add(table.name)
            size = cell_bytes(table, workload)
            np.add.at(flows, (sources[:, None], targets[None]), cells * size)
            np.add.at(restored, targets, np.maximum(missing - cells.sum(axis=0), 0.0) * size)
    return flows, restored, moved


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
