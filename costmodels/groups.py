"""2D parallelism: copies of all tables on groups of ranks, laid out as by ``DMPCollection``.

Every group holds one copy of the tables under one and the same plan. ``DMPCollection`` interleaves
groups by default: with c copies, group i has ranks i, i + c, i + 2 c and so on, so that the copies
of a shard lie side by side. With ``use_inter_host_allreduce`` a group is a block of consecutive
ranks instead. This module says what system one group sees, and what averaging the copies costs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from costmodels.estimates import MemoryLedger
from costmodels.stages.models import CostModels
from costmodels.system_models import default_models
from costmodels.topology import Topology


def members(topology: Topology, group_size: int, *, between_hosts: bool = False) -> IntArray:
    """``[copies, group_size]`` the ranks of each group; column r has the copies of one shard.

    Args:
        topology: all ranks of the job.
        group_size: ranks that share one copy of the tables; it divides the number of ranks.
        between_hosts: whether groups are blocks of consecutive ranks instead of interleaved ones.
    """
    copies = topology.world_size // group_size
    ranks = np.arange(topology.world_size)
    if between_hosts:
        return ranks.reshape(copies, group_size)
    return ranks.reshape(group_size, copies).T


def group_topology(
    topology: Topology, group_size: int, *, between_hosts: bool = False
) -> Topology | None:
    """The system as one group sees it; None if a group has unequal numbers of ranks on its hosts.

    Groups with ranks on one host share its memory in proportion to those ranks. One plan serves all
    groups, so if ranks or hosts differ, each place of a group counts as the weakest that any group
    has at this place. All ranks train the dense part, whose gradients are reduced over all of them.
    """
    if group_size == topology.world_size:
        return topology
    return _part(topology, members(topology, group_size, between_hosts=between_hosts))


def sync_time_s(
    topology: Topology,
    group_size: int,
    memory: MemoryLedger,
    *,
    between_hosts: bool = False,
    models: CostModels | None = None,
) -> float:
    """Seconds to average weights and optimizer state over the copies of every shard, once.

    Each rank takes part in one all-reduce over its copies; all of these run at the same time, and
    the rank with the most bytes decides how long they take. Tables in host memory are averaged too;
    their bytes also cross the link between device and host, once in each direction.

    Args:
        topology: all ranks of the job.
        group_size: ranks that share one copy of the tables.
        memory: the memory of the plan of one group.
        between_hosts: as in :func:`members`.
        models: price the all-reduce; None for the models that the system names.
    """
    held = np.array([r.weights_bytes + r.optimizer_bytes + r.host_bytes for r in memory.ranks])
    on_host = np.array([r.host_bytes for r in memory.ranks])
    peers = _peers(topology, group_size, between_hosts=between_hosts)
    return _slowest_s(topology, peers, held, on_host, models)


def least_sync_s(
    topology: Topology, group_size: int, weight_bytes: float, models: CostModels | None = None
) -> float:
    """Seconds that :func:`sync_time_s` is at least, under any plan.

    Under every plan some rank holds at least the mean of all weights. More bytes never take less
    time, so that the time of the mean is a bound.
    """
    peers = _peers(topology, group_size, between_hosts=False)
    return _slowest_s(topology, peers, np.array([weight_bytes / group_size]), np.zeros(1), models)


def _peers(topology: Topology, group_size: int, *, between_hosts: bool) -> Topology:
    """The system of the ranks that hold the copies of one shard."""
    peers = _part(topology, members(topology, group_size, between_hosts=between_hosts).T)
    alone = topology.resized(topology.world_size // group_size, 1)
    return peers or replace(alone, domain_size=1)


def _slowest_s(
    topology: Topology,
    peers: Topology,
    held: FloatArray,
    on_host: FloatArray,
    models: CostModels | None,
) -> float:
    """Seconds of the slowest rank, from the bytes that ranks hold, and those of them on hosts."""
    if peers.world_size == 1:
        return 0.0
    model = (models or default_models(peers)).collective
    seconds = model.all_reduce_s(held, peers, within_host=peers.num_hosts == 1) * (held > 0)
    copied = 2.0 * on_host / topology.host.device_link_bandwidth_bytes_per_s
    return float((seconds + copied).max())


def _part(topology: Topology, groups: IntArray) -> Topology | None:
    """The system of one group: hosts as in the first group, places as weak as in any group.

    None if a group has unequal numbers of ranks on its hosts.

    Args:
        topology: all ranks of the job.
        groups: ``[groups, ranks of each]`` in rising order within a group.
    """
    hosts = groups // topology.local_world_size
    size, local = groups.shape[1], ranks_on_first_host(groups, topology)
    if size % local:
        return None
    by_host = hosts.reshape(len(groups), -1, local)
    if (by_host != by_host[..., :1]).any():
        return None
    domains = groups[0] // topology.domain_size
    domain = int((domains == domains[0]).sum())
    share = local / topology.local_world_size
    sized = topology.resized(size // local, local)
    return replace(
        sized,
        whole=topology.trainers,
        domain_size=max(local, domain - domain % local),
        hbm_capacity_by_rank_bytes=_weakest(topology.hbm_capacities(), groups)
        if topology.hbm_capacity_by_rank_bytes
        else (),
        speed_by_rank_ratio=_weakest(topology.speeds(), groups)
        if topology.speed_by_rank_ratio
        else (),
        ddr_capacity_by_host_bytes=tuple(
            (topology.ddr_capacities()[by_host[..., 0]].min(axis=0) * share).tolist()
        ),
    )


def _weakest(values: FloatArray, places: IntArray) -> tuple[float, ...]:
    return tuple(values[places].min(axis=0).tolist())


def ranks_on_first_host(groups: IntArray, topology: Topology) -> int:
    """How many ranks of the first group are on its first host."""
    hosts = groups[0] // topology.local_world_size
    return int((hosts == hosts[0]).sum())
