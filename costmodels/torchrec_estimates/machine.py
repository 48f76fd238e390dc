"""A system as TorchRec's planner knows it: two levels of links, and the memory of each rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from costmodels.dense.base import dense_parameters
from costmodels.errors import require
from costmodels.topology import Topology
from costmodels.torchrec_estimates import constants
from costmodels.workload import Workload

_FP32_BYTES = 4
"""Bytes of a parameter of the dense part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrecMachine:
    """TorchRec's ``Topology``.

    Attributes:
        world_size: number of ranks.
        local_world_size: ranks per host.
        group_size: ranks that share the row blocks of a table that is ``table_row_wise`` or
            ``grid_shard``: those of a host, or of ``pod_size`` hosts.
        hbm_bandwidth_bytes_per_s: bandwidth of device memory.
        device_link_bandwidth_bytes_per_s: bandwidth between a device and host memory.
        intra_host_bandwidth_bytes_per_s: bandwidth between ranks of a host.
        inter_host_bandwidth_bytes_per_s: bandwidth between hosts.
        backward_ratio: time of backward over forward compute.
        weighted_ratio: further factor on the backward compute of lookups with weights.
        hbm_capacity_by_rank_bytes: device memory of each rank.
        ddr_capacity_by_rank_bytes: host memory of each rank; empty for TorchRec's default.
    """

    world_size: int
    local_world_size: int
    group_size: int
    hbm_bandwidth_bytes_per_s: float = constants.HBM_BANDWIDTH_BYTES_PER_S
    device_link_bandwidth_bytes_per_s: float = constants.DEVICE_LINK_BANDWIDTH_BYTES_PER_S
    intra_host_bandwidth_bytes_per_s: float = constants.INTRA_HOST_BANDWIDTH_BYTES_PER_S
    inter_host_bandwidth_bytes_per_s: float = constants.INTER_HOST_BANDWIDTH_BYTES_PER_S
    backward_ratio: float = constants.BACKWARD_MULTIPLIER
    weighted_ratio: float = 1.0
    hbm_capacity_by_rank_bytes: tuple[float, ...] = ()
    ddr_capacity_by_rank_bytes: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Check that the ranks divide into groups."""
        require(self.world_size % self.group_size == 0, "groups of ranks must tile the world")

    @staticmethod
    def of(topology: Topology, *, torchrec_figures: bool = False) -> TorchrecMachine:
        """A system as its user would describe it to TorchRec.

        Args:
            topology: the system. Scale-up domains of several hosts are left out, because TorchRec
                has no level between host and network.
            torchrec_figures: whether only the ranks are those of the system, and all else is
                TorchRec's default.
        """
        ranks = topology.world_size
        if torchrec_figures:
            return TorchrecMachine(
                world_size=ranks,
                local_world_size=topology.local_world_size,
                group_size=topology.local_world_size,
                hbm_capacity_by_rank_bytes=(constants.HBM_CAPACITY_BYTES,) * ranks,
            )
        host = topology.host
        return TorchrecMachine(
            world_size=ranks,
            local_world_size=topology.local_world_size,
            group_size=topology.local_world_size,
            hbm_bandwidth_bytes_per_s=topology.device.hbm_bandwidth_bytes_per_s,
            device_link_bandwidth_bytes_per_s=host.device_link_bandwidth_bytes_per_s,
            intra_host_bandwidth_bytes_per_s=topology.host_link.bandwidth_bytes_per_s,
            inter_host_bandwidth_bytes_per_s=topology.network_link.bandwidth_bytes_per_s,
            hbm_capacity_by_rank_bytes=tuple(float(int(c)) for c in topology.hbm_capacities()),
            ddr_capacity_by_rank_bytes=tuple(
                float(int(c / topology.local_world_size))
                for c in topology.ddr_capacities()
                for _ in range(topology.local_world_size)
            ),
        )

    def moved_to(self, machine: TorchrecMachine) -> TorchrecMachine:
        """Another system, but with the memory of each rank of this one."""
        return replace(
            machine,
            hbm_capacity_by_rank_bytes=self.hbm_capacity_by_rank_bytes,
            ddr_capacity_by_rank_bytes=self.ddr_capacity_by_rank_bytes,
        )

    @property
    def ddr_limits_bytes(self) -> tuple[float, ...]:
        """Bytes of host memory that each rank may fill with tables."""
        default = (constants.DDR_CAPACITY_BYTES,) * self.world_size
        return self.ddr_capacity_by_rank_bytes or default

    @property
    def num_groups(self) -> int:
        """Number of groups of ranks; see ``group_size``."""
        return max(1, self.world_size // self.group_size)

    def bandwidth(self, world_size: int, local_world_size: int) -> float:
        """Bytes per second of any collective except an all-reduce.

        Source: ``BasicCommsBandwidths.get_bw``.

        Args:
            world_size: ranks that take part.
            local_world_size: how many of them are on one host.
        """
        inside = world_size <= local_world_size
        return (
            self.intra_host_bandwidth_bytes_per_s
            if inside
            else self.inter_host_bandwidth_bytes_per_s
        )

    @property
    def all_reduce_bandwidth_bytes_per_s(self) -> float:
        """Bytes per second of all network links of a host, also if there is only one host."""
        return self.inter_host_bandwidth_bytes_per_s * self.local_world_size

    def device_limits_bytes(self, workload: Workload) -> tuple[float, ...]:
        """Bytes of device memory that TorchRec leaves for tables on each rank; may be negative.

        ``HeuristicalStorageReservation`` keeps 15 % of the memory, six times the parameters of the
        dense part, and twenty times the indices of a batch.
        """
        dense = round(constants.DENSE_COPIES * _FP32_BYTES * dense_parameters(workload))
        batch = workload.local_batch_size
        ids = sum(f.pooling_factor * batch for t in workload.tables for f in t.features)
        inputs = math.ceil(ids * constants.INDEX_BYTES) * constants.INPUT_COPIES
        kept = 1 - constants.RESERVED_RATIO
        return tuple(float(int(kept * c) - dense - inputs) for c in self.hbm_capacity_by_rank_bytes)
