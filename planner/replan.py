"""What it takes to move from a plan in use to another plan, and when that pays back."""

import math

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.sharding import Plan, ShardingType, TablePlacement
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.result import Reshard
from planner.rules.placement_rules import cell_bytes, overlaps, rectangles


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

    Every rank receives the cells (weights with optimizer state) that it needs and does not hold,
    from the ranks that hold them. How long that takes is said by :func:`transfer_s`. It leaves out
    the start-up of transfers, and copies to and from host memory.

    Args:
        before: the plan in use.
        after: the new plan.
        workload: the tables.
        topology: ranks and links.
        before_s: iteration time of the plan in use, in seconds.
        after_s: iteration time of the new plan, in seconds.
    """
    flows, moved = _flows(before, after, workload, topology.world_size)
    changed = {p.table for p in after.placements if _differs(before.placement(p.table), p)}
    received = flows.sum(axis=0)
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
    """Whether shards or kernels of a table differ; the name of the sharding type does not count."""

    def told(placement: TablePlacement) -> tuple[object, ...]:
        return set(placement.shards), placement.kernel, placement.cache_load_factor_ratio

    return told(one) != told(other)


def _flows(
    before: Plan, after: Plan, workload: Workload, world_size: int
) -> tuple[FloatArray, set[str]]:
    """Who has to send what.

    Returns:
        Bytes from each rank to each rank, ``[W, W]``, and the names of the tables of which some
        rank receives a part.
    """
    flows, moved = np.zeros((world_size, world_size)), set[str]()
    for table in workload.tables:
        old, new = before.placement(table.name), after.placement(table.name)
        sources, targets = old.cells.rank, new.cells.rank
        areas = rectangles(new.cells)
        cells = overlaps(rectangles(old.cells), areas)
        is_own = sources[:, None] == targets[None]
        missing = overlaps(areas, areas).diagonal() - np.where(is_own, cells, 0.0).sum(axis=0)
        cells = np.where(is_own, 0.0, cells)
        if old.sharding_type is ShardingType.DATA_PARALLEL:
            # Every source holds the whole table: the receivers share their demand over all of them,
            # and a rank that is itself a source needs nothing.
            cells = np.where(is_own.any(axis=0), 0.0, cells) / max(len(sources), 1)
        if missing.any():
            moved.add(table.name)
            sent = cells * cell_bytes(table, workload)
            np.add.at(flows, (sources[:, None], targets[None]), sent)
    return flows, moved


def transfer_s(flows: FloatArray, topology: Topology) -> float:
    """Seconds until all bytes ``[W, W]`` from each rank to each rank have arrived.

    All ranks send and receive at the same time. Each of them sends its bytes one after the other,
    each at the bandwidth of its level of links, and receives likewise; the time is that of the
    busiest sender or receiver.
    """
    ranks, network = np.arange(topology.world_size), topology.network_link
    per_byte = np.full(flows.shape, 1.0 / network.bandwidth_bytes_per_s)
    for size, link in (
        (topology.domain_size, topology.domain_link),
        (topology.local_world_size, topology.host_link),
    ):
        group = ranks // size
        per_byte[group[:, None] == group[None]] = 1.0 / link.bandwidth_bytes_per_s
    seconds = flows * per_byte
    return float(max(seconds.sum(axis=0).max(), seconds.sum(axis=1).max()))
