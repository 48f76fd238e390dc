"""What the tests of collectives say of networks: whole byte matrices, and links that are shared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.topology import Links, Topology


def share_network(topology: Topology, groups_per_nic: float) -> Topology:
    """The system as one group sees it while others use the same network links.

    Args:
        topology: the system with its links idle.
        groups_per_nic: groups that cross each network link at the same time, this one included.
    """
    link = topology.network_link
    slower = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / groups_per_nic)
    return replace(topology, network_link=slower)


def with_links(topology: Topology, links: Links) -> Topology:
    """The same ranks on other links."""
    return replace(
        topology, host_link=links.host, domain_link=links.domain, network_link=links.network
    )


def matrix_by_level(matrix: FloatArray, topology: Topology) -> tuple[FloatArray, FloatArray]:
    """Bytes by level of any all-to-all.

    Args:
        matrix: ``[R, R]`` bytes from row rank to column rank; the diagonal is ignored.
        topology: gives hosts and domains.

    Returns:
        ``(send, receive)``, each ``[R, NUM_LEVELS]``.
    """
    ranks = np.arange(topology.world_size)
    host = ranks // topology.local_world_size
    domain = ranks // topology.domain_size
    same_host = host[:, None] == host[None, :]
    same_domain = domain[:, None] == domain[None, :]
    masks = (same_host, same_domain & ~same_host, ~same_domain)
    moved = matrix * (ranks[:, None] != ranks[None, :])
    send = np.stack([(moved * m).sum(axis=1) for m in masks], axis=-1)
    receive = np.stack([(moved * m).sum(axis=0) for m in masks], axis=-1)
    return send, receive
