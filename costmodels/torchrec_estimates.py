"""TorchRec 1.8's own estimates of the times and the memory of a shard, computed without torch.

By these figures TorchRec's planner chooses and rates plans; they are not predictions of this
project. Tests check that they equal those of ``EmbeddingPerfEstimator`` and
``EmbeddingStorageEstimator`` of torchrec 1.8.0 to 1e-6.

They are those of ``estimator/estimator.py`` and ``shard_estimators.py`` there. Times depend on the
columns of a shard, and not on its rows, except for the all-reduce of replicated tables. The
constants are those of ``distributed/planner/constants.py``, in bytes, seconds and bytes per second;
none was chosen here.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

from costmodels.dense.base import dense_parameters
from costmodels.sharding import BY_HOSTS, BY_ROWS, ComputeKernel, ShardingType
from costmodels.topology import Topology
from costmodels.training.communication import Codecs
from costmodels.units import GIB
from costmodels.workload import DataType, Optimizer, Pipeline, Pooling, Table, Workload

HBM_CAPACITY_BYTES: Final = 32.0 * GIB
"""Device memory of each rank, if the user gives none."""
DDR_CAPACITY_BYTES: Final = 128.0 * GIB
"""Host memory of each rank (not of a host), if the user gives none."""

INDEX_BYTES: Final = 8
"""Bytes of an index."""
CACHE_LOAD_FACTOR: Final = 0.2
"""Share of a table's rows that are cached on the device, if the user gives none."""
MIN_COLUMN_WIDTH: Final = 128
"""Tables are cut into pieces of at least this many columns, unless a constraint allows fewer."""

MIN_LOOKUP_COLUMNS: Final = 32
"""A lookup of a piece takes as long as one of at least this many columns (``max(emb_dim, 32)``)."""

BLOCK_PENALTIES: Final = {128: 1.0, 64: 1.15, 0: 1.75}
"""Factors on the forward time of pieces with at least so many columns: from 128 on a kernel keeps
all of its threads busy, from 64 on half of them (``compute_block_usage_penalty``)."""
WEIGHTED_KERNEL_MULTIPLIER: Final = 1.1
"""Further backward time of lookups with weights, over the forward time."""
BATCHED_COPY_FACTOR: Final = 2.455
"""How many times the bytes of gradients count that are copied to tables cut by rows."""
REPLICATED_UPDATE_FACTOR: Final = 9.22
"""How many times the bytes of a replicated table count for its update."""
DENSE_KERNEL_RATIO: Final = 0.5
"""Share of the bandwidth of device memory that the dense kernel reaches."""
HOST_KERNEL_RATIO: Final = 0.1
"""Share of its bandwidth that a kernel on host memory (UVM) reaches. This bandwidth is that of the
link, or with a cache a mix of link and device memory."""

RESERVED_RATIO: Final = 0.15
"""Share of device memory that tables may not fill (``HeuristicalStorageReservation``)."""
DENSE_COPIES: Final = 6
"""How many times the parameters of the dense part are kept (same class)."""
INPUT_COPIES: Final = 20
"""How many times the indices of a batch are kept (same class): ten copies of each of two batches in
flight."""

# ------------------ machine: two levels of links, and the memory of each rank


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrecMachine:
    """TorchRec's ``Topology``.

    Attributes:
        world_size: number of ranks.
        local_world_size: ranks per host.
        group_size: ranks that share the row blocks of a table that is ``table_row_wise`` or
            ``grid_shard``: those of a host, or of ``pod_size`` hosts.
        hbm_bandwidth_bytes_per_s: bandwidth of device memory; by default a V100's.
        device_link_bandwidth_bytes_per_s: bandwidth between a device and host memory.
        intra_host_bandwidth_bytes_per_s: bandwidth between ranks of a host.
        inter_host_bandwidth_bytes_per_s: bandwidth between hosts.
        backward_ratio: time of backward over forward compute.
        weighted_ratio: further factor on the backward compute of lookups with weights.
        hbm_capacity_by_rank_bytes: device memory of each rank.
        ddr_limits_bytes: bytes of host memory that each rank may fill with tables.
    """

    world_size: int
    local_world_size: int
    group_size: int
    hbm_bandwidth_bytes_per_s: float = 897.0 * GIB
    device_link_bandwidth_bytes_per_s: float = 32.0 * GIB
    intra_host_bandwidth_bytes_per_s: float = 600.0 * GIB
    inter_host_bandwidth_bytes_per_s: float = 12.5 * GIB
    backward_ratio: float = 2.0
    weighted_ratio: float = 1.0
    hbm_capacity_by_rank_bytes: tuple[float, ...] = ()
    ddr_limits_bytes: tuple[float, ...] = ()

    @classmethod
    def of(cls, topology: Topology, *, torchrec_figures: bool = False) -> Self:
        """A system as its user would describe it to TorchRec.

        Args:
            topology: the system. Scale-up domains of several hosts are left out, because TorchRec
                has no level between host and network.
            torchrec_figures: whether only the ranks are those of the system, and all else is
                TorchRec's default.
        """
        ranks, local, host = topology.world_size, topology.local_world_size, topology.host
        machine = cls(
            world_size=ranks,
            local_world_size=local,
            group_size=local,
            hbm_capacity_by_rank_bytes=(HBM_CAPACITY_BYTES,) * ranks,
            ddr_limits_bytes=(DDR_CAPACITY_BYTES,) * ranks,
        )
        if torchrec_figures:
            return machine
        return replace(
            machine,
            hbm_bandwidth_bytes_per_s=topology.device.hbm_bandwidth_bytes_per_s,
            device_link_bandwidth_bytes_per_s=host.device_link_bandwidth_bytes_per_s,
            intra_host_bandwidth_bytes_per_s=topology.host_link.bandwidth_bytes_per_s,
            inter_host_bandwidth_bytes_per_s=topology.network_link.bandwidth_bytes_per_s,
            hbm_capacity_by_rank_bytes=tuple(float(int(c)) for c in topology.hbm_capacities()),
            ddr_limits_bytes=tuple(
                float(int(c / local)) for c in topology.ddr_capacities() for _ in range(local)
            ),
        )

    def device_limits_bytes(self, workload: Workload) -> tuple[float, ...]:
        """Bytes of device memory that TorchRec leaves for tables on each rank; may be negative.

        ``HeuristicalStorageReservation`` keeps 15 % of the memory, six times the parameters of the
        dense part, and twenty times the indices of a batch.
        """
        dense = round(DENSE_COPIES * DataType.FP32.num_bytes * dense_parameters(workload))
        batch = workload.batch_size_per_rank
        ids = sum(f.pooling_factor * batch for t in workload.tables for f in t.features)
        inputs = math.ceil(ids * INDEX_BYTES) * INPUT_COPIES
        kept = 1 - RESERVED_RATIO
        return tuple(float(int(kept * c) - dense - inputs) for c in self.hbm_capacity_by_rank_bytes)


# ------------------ table
#
# A table and its inputs as TorchRec's estimators see them.


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrecInputs:
    """The inputs of a table on one rank.

    A user may tell TorchRec others than the model has. For example, the user may give one pooling
    factor for a table with two features; to TorchRec's planner the table then has one feature. Its
    planner also counts the state of an optimizer that it finds on the parameter, by its class, and
    outputs in the type that the constraint names.

    Attributes:
        num_ids: indices that a rank looks up per batch.
        num_outputs: vectors that a rank gets per batch.
        is_weighted: whether indices have weights.
        prefetches: whether caches are filled ahead by a prefetching pipeline.
        optimizer_ratio: bytes of the optimizer's state per byte of weights.
        output_bytes: bytes of an element of the output in memory.
    """

    num_ids: float
    num_outputs: float
    is_weighted: bool
    prefetches: bool
    optimizer_ratio: float
    output_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrecTable:
    """A table and its inputs on one rank.

    Attributes:
        num_embeddings: rows of the table.
        embedding_dim: columns of the table.
        element_bytes: bytes of an element of the table.
        is_pooled: whether vectors are pooled.
        all_to_all_bytes: bytes of an element in the all-to-all of outputs, and in that of
            gradients.
        row_sum_bytes: the same in the collectives that add up the outputs of row blocks.
        inputs: what is looked up.
    """

    num_embeddings: float
    embedding_dim: float
    element_bytes: float
    is_pooled: bool
    all_to_all_bytes: tuple[float, float]
    row_sum_bytes: tuple[float, float]
    inputs: TorchrecInputs

    @classmethod
    def of(cls, table: Table, workload: Workload) -> Self:
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
        return cls(
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            element_bytes=element,
            is_pooled=pooled,
            all_to_all_bytes=exchanged,
            row_sum_bytes=summed,
            inputs=TorchrecInputs(
                num_ids=sum(x * batch for x in lengths),
                num_outputs=sum((min(1.0, x) if pooled else x) * batch for x in lengths),
                is_weighted=table.is_weighted,
                prefetches=workload.pipeline is Pipeline.PREFETCH_SPARSE_DIST,
                optimizer_ratio=_optimizer_ratio(workload.optimizer_of(table), table.embedding_dim),
                output_bytes=float(element),
            ),
        )


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


# ------------------ shards

_MOST_NODES: Final = 2
"""The all-reduce of replicated tables is priced for at most this many hosts; with more hosts it is
taken to last twice as long."""
_TABLE_INDEX_BYTES = 4
"""Bytes for each row of a cached table: where in the cache it is."""
_SLOT_STATE_BYTES = 16
"""Bytes for each row that the cache has room for: its state."""


class ShardPerf(NamedTuple):
    """TorchRec's ``Perf``: seconds of a shard.

    Attributes:
        fwd_compute_s: forward lookup.
        fwd_comms_s: exchange of outputs.
        bwd_compute_s: backward lookup.
        bwd_comms_s: exchange of gradients.
    """

    fwd_compute_s: float
    fwd_comms_s: float
    bwd_compute_s: float
    bwd_comms_s: float

    @property
    def total_s(self) -> float:
        """The sum that TorchRec adds up for each rank.

        The exchange of indices is not in it, nor fetches into caches, which TorchRec counts where a
        constraint has cache statistics.
        """
        compute = self.fwd_compute_s + self.bwd_compute_s
        return compute + self.fwd_comms_s + self.bwd_comms_s


class TorchrecShard(NamedTuple):
    """A shard as TorchRec's estimators see it.

    Attributes:
        table: the table of the shard.
        machine: the system.
        sharding_type: how the table is cut. All row blocks take the same time, even empty ones.
        kernel: what looks the shard up, which says where the weights are.
        num_cols: columns of the shard.
        cache_load_factor_ratio: share of rows that the caching kernel keeps on the device; None for
            TorchRec's 0.2.
    """

    table: TorchrecTable
    machine: TorchrecMachine
    sharding_type: ShardingType
    kernel: ComputeKernel
    num_cols: float
    cache_load_factor_ratio: float | None = None

    def perf(self) -> ShardPerf:
        """The times of the shard."""
        table, machine, inputs = self.table, self.machine, self.table.inputs
        kind, num_cols, rate = self.sharding_type, self.num_cols, self._device_rate()
        ids, outputs = self._arriving()
        by_rows, is_copy = kind in BY_ROWS, kind is ShardingType.DATA_PARALLEL
        sums = kind in BY_HOSTS or (by_rows and table.is_pooled)
        element_bytes = table.row_sum_bytes if sums else table.all_to_all_bytes
        if is_copy:
            element_bytes = (table.element_bytes, table.element_bytes)
        moved = [outputs * num_cols * b for b in element_bytes]
        is_narrow = not (by_rows or is_copy)
        columns = max(num_cols, MIN_LOOKUP_COLUMNS) if is_narrow else num_cols
        read = math.ceil(ids * INDEX_BYTES) * (2.0 if inputs.is_weighted else 1.0)
        read += ids * columns * table.element_bytes
        penalty = next(x for least, x in BLOCK_PENALTIES.items() if num_cols >= least)
        compute = (read + moved[0]) * (penalty if is_narrow else 1.0) / rate
        backward = compute * machine.backward_ratio
        if inputs.is_weighted:
            backward = backward * machine.weighted_ratio + compute * WEIGHTED_KERNEL_MULTIPLIER
        size = table.num_embeddings * num_cols * table.element_bytes
        forth, back = self._exchanges(moved)
        if is_copy:
            forth, back = 0.0, _all_reduce(size, machine) + size * REPLICATED_UPDATE_FACTOR / rate
        elif by_rows:
            back += moved[1] * BATCHED_COPY_FACTOR / rate
        return ShardPerf(compute, forth, backward, back)

    def storage(self, num_rows: float) -> tuple[float, float]:
        """Bytes in device and host memory, with one batch of inputs and outputs (``Storage``).

        TorchRec's planner counts one (``PipelineType.NONE``) for every training loop, unless the
        user gives it a storage estimator with another type. A cache load factor of 0 stands for
        0.2, as in TorchRec.

        Args:
            num_rows: rows of the shard; 0 for a block that begins beyond the last row of the table.
        """
        table, factor = self.table, self.cache_load_factor_ratio or CACHE_LOAD_FACTOR
        cached = self.kernel is ComputeKernel.FUSED_UVM_CACHING
        in_host = cached or self.kernel is ComputeKernel.FUSED_UVM
        weights = table.num_embeddings * table.embedding_dim * table.element_bytes
        ddr = weights if in_host else 0
        hbm = round(weights * factor) if cached else weights - ddr
        share = num_rows * self.num_cols / (table.num_embeddings * table.embedding_dim)
        ids, vectors = self._arriving() if share > 0 else (0, 0)
        held = math.ceil(ids * INDEX_BYTES)
        held += math.ceil(vectors * self.num_cols * table.inputs.output_bytes)
        if cached:
            held += math.ceil(num_rows * (_TABLE_INDEX_BYTES + _SLOT_STATE_BYTES * factor))
        hbm, ddr = (math.ceil(size * share) for size in (hbm, ddr))
        hbm, ddr = (n + math.ceil(n * table.inputs.optimizer_ratio) for n in (hbm, ddr))
        return 1.0 * (hbm + held), 1.0 * ddr

    def _arriving(self) -> tuple[float, float]:
        """Indices that the shard looks up, and vectors that leave it, per batch.

        A shard of a sharded table gets the indices of all ranks, and a replica those of its rank
        alone.
        """
        kind, inputs, world = self.sharding_type, self.table.inputs, self.machine.world_size
        ids, outputs = inputs.num_ids, inputs.num_outputs
        if kind is ShardingType.DATA_PARALLEL:
            return ids, outputs
        if kind in BY_ROWS:
            parts = self.machine.group_size if kind in BY_HOSTS else world
            ids, outputs = ids / parts, outputs if self.table.is_pooled else outputs / parts
        return ids * world, outputs * world

    def _exchanges(self, moved: list[float]) -> list[float]:
        """Seconds of the exchanges of ``moved`` bytes of outputs and of their gradients."""
        machine, table = self.machine, self.table
        inter, group = machine.inter_host_bandwidth_bytes_per_s, machine.group_size
        by_hosts, groups = self.sharding_type in BY_HOSTS, machine.world_size // group
        # As ``BasicCommsBandwidths.get_bw``: the links between hosts if the ranks are on several.
        is_one_host = (group if by_hosts else machine.world_size) <= machine.local_world_size
        inside = machine.intra_host_bandwidth_bytes_per_s if is_one_host else inter
        comms = [size / inside for size in moved]
        if by_hosts and groups > 1:
            # Outputs are added up inside the group and then exchanged between groups. Gradients
            # take the way back.
            vectors = table.inputs.num_outputs * groups * self.num_cols
            pairs = zip(table.all_to_all_bytes, comms, strict=True)
            comms = [vectors * b / inter + s for b, s in pairs]
        return comms

    def _device_rate(self) -> float:
        """Bytes per second of the kernel (``kernel_bw_lookup``)."""
        machine, ratio = self.machine, self.cache_load_factor_ratio
        share = CACHE_LOAD_FACTOR if ratio is None else ratio
        memory, link = machine.hbm_bandwidth_bytes_per_s, machine.device_link_bandwidth_bytes_per_s
        mixed = HOST_KERNEL_RATIO * (share * memory + (1 - share) * link)
        rates = {
            ComputeKernel.DENSE: DENSE_KERNEL_RATIO * memory,
            ComputeKernel.FUSED_UVM: HOST_KERNEL_RATIO * link,
            ComputeKernel.FUSED_UVM_CACHING: memory if self.table.inputs.prefetches else mixed,
        }
        return rates.get(self.kernel, memory)


def _all_reduce(size: float, machine: TorchrecMachine) -> float:
    """Seconds of the all-reduce of a replicated table of this many bytes."""
    nodes = min(machine.world_size / machine.local_world_size, _MOST_NODES)
    # All network links of a host, also if there is only one host.
    links_bytes_per_s = machine.inter_host_bandwidth_bytes_per_s * machine.local_world_size
    reduce_s = size * (2 * nodes - 1) / nodes / links_bytes_per_s
    is_large = machine.world_size > _MOST_NODES * machine.local_world_size
    return reduce_s * 2 if is_large else reduce_s
