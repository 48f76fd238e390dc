"""Which rank sends how many bytes to which in the forward exchange of looked-up vectors."""

from __future__ import annotations

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.shard_work.wire import EXCHANGING_TYPES, FORWARD
from costmodels.shard_work.work import sent_bytes
from costmodels.sharding import BY_HOSTS
from costmodels.topology import Topology


def output_traffic_bytes(work: FloatArray, topology: Topology) -> FloatArray:
    """Bytes from rank i to rank j, ``[W, W]``, from work ``[W, columns]``; the diagonal is 0.

    Table- and column-wise shards send every rank its part of the batch. Row-wise shards send
    partial sums to the rank that adds them up. Types that cut rows inside a host add up inside the
    host first, and then send the sums to the ranks of the same local index (TorchRec
    ``dist_data.py``).
    """
    world, local = topology.world_size, topology.local_world_size
    rank = np.arange(world)
    inside = rank[:, None] // local == rank[None, :] // local
    lane = rank[:, None] % local == rank[None, :] % local
    traffic = np.zeros((world, world))
    for index, family in enumerate(EXCHANGING_TYPES):
        sent, again = (part[:, None] for part in sent_bytes(work, index, FORWARD))
        if not sent.any():
            continue
        if family in BY_HOSTS:
            traffic += sent * topology.num_hosts * inside + again * (lane & ~inside)
        else:
            traffic += np.broadcast_to(sent, traffic.shape)
    np.fill_diagonal(traffic, 0.0)
    return traffic
