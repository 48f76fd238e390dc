"""Groups of ranks for charts: single ranks or, if there are many, hosts or several hosts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from costmodels.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Some neighbouring ranks under one name."""

    name: str
    ranks: range

    @property
    def is_rank(self) -> bool:
        """Whether it is a single rank."""
        return len(self.ranks) == 1


def rank_groups(topology: Topology, *, most: int) -> tuple[Group, ...]:
    """Ranks if there are at most ``most``, else hosts, else groups of equally many hosts."""
    world, local = topology.world_size, topology.local_world_size
    if world <= most:
        return tuple(Group(name=f"rank {r}", ranks=range(r, r + 1)) for r in range(world))
    hosts = math.ceil(topology.num_hosts / most)
    size = hosts * local
    starts = range(0, world, size)
    if hosts == 1 and local > 1:
        return tuple(
            Group(name=f"host {i}", ranks=range(s, s + size)) for i, s in enumerate(starts)
        )
    return tuple(
        Group(name=f"ranks {s}-{min(s + size, world) - 1}", ranks=range(s, min(s + size, world)))
        for s in starts
    )
