"""Which rank sends how many bytes to which in the forward exchange of looked-up vectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodels.shard_work.work import FAMILIES, OUTPUT
from costmodels.sharding import ShardingType
from costmodels.topology import Topology

FloatArray = NDArray[np.float64]

HIERARCHICAL = frozenset({ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD})
"""Partial sums are added up inside the host first, then cross hosts between equal local ranks."""


def output_traffic_bytes(work: FloatArray, topology: Topology) -> FloatArray:
    """Bytes from rank i to rank j, ``[W, W]`` from work ``[W, columns]``; the diagonal is 0.

    Table- and column-wise shards send every rank its part of the batch; row-wise shards send
    partial sums to the rank that adds them up; types that split rows inside a host do so inside it
    and then send sums to the ranks of the same local index (TorchRec ``dist_data.py``).
    """
    world, local = topology.world_size, topology.local_world_size
    rank = np.arange(world)
    inside = rank[:, None] // local == rank[None, :] // local
    lane = rank[:, None] % local == rank[None, :] % local
    traffic = np.zeros((world, world))
    for index, family in enumerate(FAMILIES):
        sent = work[:, OUTPUT + index][:, None]
        if not sent.any():
            continue
        if family in HIERARCHICAL:
            traffic += sent * (topology.num_hosts * inside + (lane & ~inside))
        else:
            traffic += np.broadcast_to(sent, traffic.shape)
    np.fill_diagonal(traffic, 0.0)
    return traffic
