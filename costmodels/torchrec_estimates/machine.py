"""A system as TorchRec's planner knows it: two levels of links, and the memory of each rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from costmodels.dense.base import dense_parameters
from costmodels.errors import require
from costmodels.topology import Topology
from costmodels.torchrec_estimates import constants
from costmodels.training.communication import Codecs
from costmodels.workload import Optimizer, Pipeline, Pooling, Table, Workload

# ------------------ machine
#
# A system as TorchRec's planner knows it: two levels of links, and the memory of each rank.

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
        batch = workload.batch_size_per_rank
        ids = sum(f.pooling_factor * batch for t in workload.tables for f in t.features)
        inputs = math.ceil(ids * constants.INDEX_BYTES) * constants.INPUT_COPIES
        kept = 1 - constants.RESERVED_RATIO
        return tuple(float(int(kept * c) - dense - inputs) for c in self.hbm_capacity_by_rank_bytes)


# ------------------ table
#
# A table and its inputs as TorchRec's estimators see them.


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrecTable:
    """A table and its inputs on one rank.

    Attributes:
        num_embeddings: rows of the table.
        embedding_dim: columns of the table.
        element_bytes: bytes of an element of the table.
        num_ids: indices that a rank looks up per batch.
        num_outputs: vectors that a rank gets per batch.
        is_pooled: whether vectors are pooled.
        is_weighted: whether indices have weights.
        all_to_all_bytes: bytes of an element in the all-to-all of outputs, and in that of
            gradients.
        row_sum_bytes: the same in the collectives that add up the outputs of row blocks.
        output_bytes: bytes of an element of the output in memory.
        optimizer_ratio: bytes of the optimizer's state per byte of weights.
        prefetches: whether caches are filled ahead by a prefetching pipeline.
    """

    num_embeddings: float
    embedding_dim: float
    element_bytes: float
    num_ids: float
    num_outputs: float
    is_pooled: bool = True
    is_weighted: bool = False
    all_to_all_bytes: tuple[float, float] = (4.0, 4.0)
    row_sum_bytes: tuple[float, float] = (4.0, 4.0)
    output_bytes: float = 4.0
    optimizer_ratio: float = 0.0
    prefetches: bool = False

    @staticmethod
    def of(table: Table, workload: Workload) -> TorchrecTable:
        """A table of a workload as its user would describe it to TorchRec.

        Elements travel in the types that ``communication`` of the table names. They are counted as
        TorchRec does (``extract_comm_data_type_size``), without the scales of rows. If it names no
        types, vectors and their gradients travel in the type of the table, or in that of the
        outputs if this is narrower.
        """
        batch, element = workload.batch_size_per_rank, table.dtype.num_bytes
        lengths = [f.pooling_factor for f in table.features]
        pooled = table.pooling is not Pooling.NONE
        plain = (float(element), float(element))
        narrow = (float(min(element, workload.output_dtype.num_bytes)),) * 2
        exchanged, summed = narrow, narrow if pooled else plain
        codecs = table.communication
        if codecs is not None:
            exchanged = _sizes(codecs.all_to_all if pooled else codecs.sequence, plain)
            summed = _sizes(codecs.reduce_scatter if pooled else None, plain)
        return TorchrecTable(
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            element_bytes=element,
            num_ids=sum(x * batch for x in lengths),
            num_outputs=sum((min(1.0, x) if pooled else x) * batch for x in lengths),
            is_pooled=pooled,
            is_weighted=table.is_weighted,
            all_to_all_bytes=exchanged,
            row_sum_bytes=summed,
            output_bytes=float(element),
            optimizer_ratio=_optimizer_ratio(workload.optimizer_of(table), table.embedding_dim),
            prefetches=workload.pipeline is Pipeline.PREFETCH_SPARSE_DIST,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrecInputs:
    """The inputs of a table on one rank, if its user tells TorchRec others than the model has.

    For example, the user may give one pooling factor for a table with two features; to TorchRec's
    planner the table then has one feature. Its planner also counts the state of an optimizer that
    it finds on the parameter, by its class, and outputs in the type that the constraint names. The
    fields are those of :class:`TorchrecTable`.
    """

    num_ids: float
    num_outputs: float
    is_weighted: bool
    prefetches: bool
    optimizer_ratio: float
    output_bytes: float

    def read(self, table: TorchrecTable) -> TorchrecTable:
        """The table with these inputs."""
        return replace(table, **{f.name: getattr(self, f.name) for f in fields(self)})


def _sizes(codecs: Codecs | None, plain: tuple[float, float]) -> tuple[float, float]:
    """Bytes per element forward and backward; ``plain`` without a codec."""
    if codecs is None:
        return plain
    return codecs.forward.torchrec_bytes, codecs.backward.torchrec_bytes


def _optimizer_ratio(optimizer: Optimizer, embedding_dim: int) -> float:
    """Bytes of state per byte of weights (``_get_optimizer_multipler``).

    An optimizer that TorchRec does not know by name has as many bytes of state as of weights.
    """
    return {
        Optimizer.NONE: 0.0,
        Optimizer.SGD: 0.0,
        Optimizer.ROWWISE_ADAGRAD: 1.0 / embedding_dim,
        Optimizer.ADAM: 2.0,
    }.get(optimizer, 1.0)
