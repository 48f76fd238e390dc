"""What TorchRec's planner knows of a system: two link levels, three bandwidths, two memories."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from costmodels.dense.base import dense_parameters
from costmodels.errors import require
from costmodels.topology import Topology
from costmodels.torchrec_estimates import constants
from costmodels.workload import Workload

_FP32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrecMachine:
    """TorchRec's ``Topology``. ``group_size`` ranks share the blocks of a row-wise table.

    The group is a host, or ``pod_size`` hosts. Memories are of one rank. Backward compute takes
    ``backward_ratio`` times the forward compute, and ``weighted_ratio`` times that with weights.
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
    """Host memory of each rank; empty for TorchRec's default."""

    def __post_init__(self) -> None:
        """Check that groups tile the ranks."""
        require(self.world_size % self.group_size == 0, "groups of ranks must tile the world")

    @staticmethod
    def of(topology: Topology, *, torchrec_figures: bool = False) -> TorchrecMachine:
        """A system as its user would describe it to TorchRec.

        Args:
            topology: the system; TorchRec has no level between host and network.
            torchrec_figures: keep only its ranks, and take TorchRec's default for all else.
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
        """Another system with the memories of this one."""
        return replace(
            machine,
            hbm_capacity_by_rank_bytes=self.hbm_capacity_by_rank_bytes,
            ddr_capacity_by_rank_bytes=self.ddr_capacity_by_rank_bytes,
        )

    @property
    def ddr_limits_bytes(self) -> tuple[float, ...]:
        """Host bytes that each rank may fill with tables; TorchRec gives ranks equal parts."""
        default = (constants.DDR_CAPACITY_BYTES,) * self.world_size
        return self.ddr_capacity_by_rank_bytes or default

    @property
    def num_groups(self) -> int:
        """Groups of ranks that row-wise tables are placed on."""
        return max(1, self.world_size // self.group_size)

    def bandwidth(self, world_size: int, local_world_size: int) -> float:
        """Bytes/s of every collective but the all-reduce (``BasicCommsBandwidths.get_bw``)."""
        inside = world_size <= local_world_size
        return (
            self.intra_host_bandwidth_bytes_per_s
            if inside
            else self.inter_host_bandwidth_bytes_per_s
        )

    @property
    def all_reduce_bandwidth_bytes_per_s(self) -> float:
        """The network of a whole host, even where there is but one host."""
        return self.inter_host_bandwidth_bytes_per_s * self.local_world_size

    def device_limits_bytes(self, workload: Workload) -> tuple[float, ...]:
        """Device bytes of each rank that TorchRec leaves for tables; may be negative.

        ``HeuristicalStorageReservation`` with the planner's 15 %: a share of the memory, the dense
        part six times, and the indices of a batch twenty times.
        """
        dense = round(constants.DENSE_COPIES * _FP32_BYTES * dense_parameters(workload))
        batch = workload.local_batch_size
        ids = sum(f.pooling_factor * batch for t in workload.tables for f in t.features)
        inputs = math.ceil(ids * constants.INDEX_BYTES) * constants.INPUT_COPIES
        kept = 1 - constants.RESERVED_RATIO
        return tuple(float(int(kept * c) - dense - inputs) for c in self.hbm_capacity_by_rank_bytes)
