"""Seconds of FBGEMM's table-batched lookups: what its kernels do for each index, bag and row."""

import math
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from costmodels.lookup.base import AbstractLookupModel, CallFloor, LookupShards, LookupWork
from costmodels.measured.fbgemm_constants import FbgemmConstants
from costmodels.sharding import ComputeKernel
from costmodels.topology import Topology
from costmodels.workload import HostProfile, Pipeline, Workload

DEFAULTS: Final = FbgemmConstants()
"""The constants of systems that name none."""
_CHUNK: Final = 128.0
"""Elements that a warp holds: four in each of 32 threads."""
_NARROWEST: Final = 32.0
"""Columns up to which the threads of a row are no fewer than a quarter of a warp."""
_LINE_BYTES: Final = 128
"""A line of the second-level cache, in which forward lookups read rows."""
_SECTOR_BYTES: Final = 64
"""What device memory delivers at once, in which updates read and write rows."""
_INDEX_BYTES, _WEIGHT_BYTES = 8.0, 4.0
"""Bytes of the indices that were measured, and of the fp32 weight of an index."""
_LONG_SEGMENT: Final = 32.0
"""Indices of one row up to which a warp adds up their gradients; more of them get a block."""
_CACHE_SHARE: Final = 0.7
"""Share of the second-level cache that the rows of one table have, or the gradients of its bags.
FBGEMM runs the tables of a call one after the other; indices and outputs pass through the cache
too. Of 0.2 to 1.0 in steps of 0.2, the errors of all are within 0.6 percentage points."""
_LINK_CACHE_BYTES: Final = 4 * 1024.0
"""Bytes of rows of host memory that the chip still holds when they are read again. Fitted."""
_POOLED_SIGMA, _UNPOOLED_SIGMA = 0.098, 0.127
"""Root mean square of ln(predicted / measured) of pooled and unpooled calls in device memory, both
passes, ten groups of points left out in turn (``shardplan validate published --what lookups``)."""
_KERNEL_SIGMA: Final = {ComputeKernel.FUSED_UVM: 0.097, ComputeKernel.FUSED_UVM_CACHING: 0.16}
"""The same of calls on rows in host memory."""
_MEASURED, _ALIKE = ("H200",), ("H100", "GH200", "H20")
"""How the names of the measured card, and of those with the same multiprocessors, begin."""
_ALIKE_SIGMA: Final = 0.1
"""Added for the latter. NVIDIA's rows of an H100, to which nothing is fitted, are missed by 0.17
where calls like them on the H200 are missed by 0.13."""
_OTHER_SIGMA: Final = 0.3
"""Added for all other cards. No card of another generation was measured, so that this is a guess:
clocks, caches and latencies differ by up to such a factor where rates do not tell them."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fbgemm(AbstractLookupModel):
    """The kernels of FBGEMM 1.x, each priced by what it does; all times are linear in the work.

    A call has N indices, B bags, U expected distinct rows, M expected misses of the second-level
    cache (Che's approximation; a table has 0.7 of the cache), rows of D columns and R bytes, and
    outputs of G bytes. ``lines(x, s)`` are the bytes of lines of s bytes that x bytes touch at an
    offset that is a multiple of what divides both. Constants are those of
    :class:`~costmodels.measured.fbgemm_constants.FbgemmConstants`; seconds marked * grow as the
    bandwidth of the second-level cache falls. Then ``fused`` takes

    - forward: floor + chain + index* N + bag* B + chunk* N D / 128 + (row passes M lines(R, 128) +
      output passes B G) / b_dram. Unpooled rows of more than 32 columns have no bags;
    - backward: floor + sorted index* N + segment chunk* N w + updated row* U + rounded chunk* U D /
      128 (16-bit weights) + long segment* U' + long segment chunk* U' D / 128 + (2 update passes U
      (lines(R, 64) + lines(state, 64)) + gradient passes G' ) / b_dram. w is the part of a warp
      that a row takes: a quarter up to 32 columns, a half up to 64, one up to 128, then the next
      whole number. U' are rows with more than 32 indices. G' are bytes of gradients that miss the
      cache: each once, and again with the probability 1 - 0.7 cache / gradients of a table.

    ``chain`` is the time of the last bags of a call, which read their rows one after the other: L
    (hit + miss M / N) (1 + D / 128) for bags of L indices. It is taken as the mean over all tables
    of a workload (:meth:`for_calls`), the same for every call, so that it is part of the floor.

    ``fused_uvm`` reads M' rows (misses of 4 KiB) over the host link, link passes M' R / b_link +
    link row M', instead of M lines, and updates rows there. ``fused_uvm_caching`` first finds U
    indices in a cache on the device, inserts rows until no place is left that the batch does not
    use itself, and reads the rest over the link. ``dense`` adds six passes over the gradient of the
    whole table instead of updating rows.

    Valid for FBGEMM on NVIDIA GPUs. Fitted to 172 calls on an H200 with 11 thousand to 5.9 million
    indices; errors of left-out rows are printed by ``shardplan validate published --what lookups``.

    Attributes:
        other: prices other kernels than FBGEMM's: HugeCTR's, PyTorch's of 2021, and tables whose
            rows are not updated by FBGEMM's exact update; None prices them as FBGEMM's.
        chain_s: seconds of ``chain``.

    Sources:
        FBGEMM 1.6 split table-batched embeddings: warp per row, block per row beyond 32 indices
        One H200, FBGEMM 1.6 and TorchRec 1.6 (configs/published/gpu_h200.jsonl)
        Che, Tung, Wang 2002: characteristic time of an LRU cache
    """

    other: AbstractLookupModel | None = None
    chain_s: float = 0.0

    def for_calls(
        self, shards: LookupShards, topology: Topology, workload: Workload | None = None
    ) -> AbstractLookupModel:
        """The model of the kernels that the workload runs, with the chain of its tables."""
        if self.other is not None and not _is_fbgemm(shards, workload):
            return self.other.for_calls(shards, topology, workload)
        used = shards.chosen(shards.is_used)
        if not len(used):
            return self
        weight = used.num_bags / np.where(_is_pooled(used), 1.0, _bag_length(used))
        chain_s = float(np.average(_chain_s(used, topology), weights=weight))
        return replace(self, chain_s=chain_s)

    def call_floor(self, kernel: ComputeKernel, topology: Topology) -> CallFloor:
        """The floors of FBGEMM's kernels, and the chain of bags in the forward pass."""
        c = _constants(topology)
        cached = kernel is ComputeKernel.FUSED_UVM_CACHING
        return CallFloor(
            forward_s=c.forward_floor_s + self.chain_s,
            backward_s=c.backward_floor_s + (c.cache_backward_floor_s if cached else 0.0),
            fetch_s=c.cache_floor_s if cached else 0.0,
        )

    def shards_work(self, shards: LookupShards, topology: Topology) -> FloatArray:
        """The work of many shards, ``[n, NUM_LOOKUP_WORK]``."""
        work, c = np.zeros((len(shards), len(LookupWork))), _constants(topology)
        unique, output, row = shards.unique_rows(), _output_bytes(shards), shards.row_bytes
        on_host, cached = (
            shards.runs(k) for k in (ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING)
        )
        l2_bytes = topology.device.l2_capacity_bytes
        held = np.where(on_host, min(_LINK_CACHE_BYTES, l2_bytes), _CACHE_SHARE * l2_bytes)
        missed = shards.misses(unique, held)
        gradients = c.gradient_passes_ratio * _missed_gradients(shards, topology) * output
        state = _lines(shards.state_bytes_per_row, _SECTOR_BYTES)
        updates = c.update_passes_ratio * 2.0 * unique * (_lines(row, _SECTOR_BYTES) + state)
        replicated = shards.whole_gradient_bytes + updates / 2.0
        updates = np.where(shards.runs(ComputeKernel.DENSE), replicated, updates)
        read = c.forward_row_passes_ratio * missed * _lines(row, _LINE_BYTES)
        reading, updating = _link_bytes(shards, topology)
        work[:, LookupWork.INDICES] = shards.num_indices
        work[:, LookupWork.STREAM_DRAM] = c.output_passes_ratio * shards.num_bags * output
        work[:, LookupWork.FORWARD_ROWS_DRAM] = np.where(on_host, 0.0, read)
        work[:, LookupWork.FORWARD_ROWS_L2] = _forward_s(shards, c) * c.l2_bandwidth_bytes_per_s
        work[:, LookupWork.FORWARD_HOST_LINK] = np.where(on_host, missed * reading, 0.0)
        backward_s = _backward_s(shards, c, unique)
        work[:, LookupWork.BACKWARD_GRADIENTS_L2] = backward_s * c.l2_bandwidth_bytes_per_s
        work[:, LookupWork.BACKWARD_ROWS_DRAM] = gradients + np.where(on_host, 0.0, updates)
        work[:, LookupWork.BACKWARD_HOST_LINK] = np.where(on_host, unique * updating, 0.0)
        if cached.any():
            forward, backward = _cache_links(shards.chosen(cached), topology, unique[cached])
            work[cached, LookupWork.CACHE_INDICES] = unique[cached]
            work[cached, LookupWork.FORWARD_HOST_LINK] = forward
            work[cached, LookupWork.BACKWARD_HOST_LINK] = backward
        return work

    def forward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Device memory, multiprocessors, host link and cache search, one after the other."""
        device, c = topology.device, _constants(topology)
        dram = work[..., LookupWork.STREAM_DRAM] + work[..., LookupWork.FORWARD_ROWS_DRAM]
        found = work[..., LookupWork.CACHE_INDICES] * c.l2_bandwidth_bytes_per_s
        return np.asarray(
            dram / device.hbm_bandwidth_bytes_per_s
            + (work[..., LookupWork.FORWARD_ROWS_L2] + found * c.cache_index_s)
            / device.l2_bandwidth_bytes_per_s
            + work[..., LookupWork.FORWARD_HOST_LINK]
            / topology.host.device_link_bandwidth_bytes_per_s
        )

    def backward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Sort, segments, device memory and host link, one after the other."""
        device, c = topology.device, _constants(topology)
        sorted_ = work[..., LookupWork.INDICES] * c.sorted_index_s * c.l2_bandwidth_bytes_per_s
        return np.asarray(
            (sorted_ + work[..., LookupWork.BACKWARD_GRADIENTS_L2])
            / device.l2_bandwidth_bytes_per_s
            + work[..., LookupWork.BACKWARD_ROWS_DRAM] / device.hbm_bandwidth_bytes_per_s
            + work[..., LookupWork.BACKWARD_HOST_LINK]
            / topology.host.device_link_bandwidth_bytes_per_s
        )

    def sigma_ratio(self, topology: Topology) -> float:
        """What the law misses of pooled calls in device memory, on the card of the system."""
        return call_sigma(topology, ComputeKernel.FUSED, is_pooled=True)

    def prefers_device(self, topology: Topology) -> bool:
        """Whether a row costs more over the host link than in device memory, in both passes.

        Then no lookup gets faster by a move to host memory, because its other costs are the same
        there. Forward, every miss of the second-level cache is one of the smaller cache of the
        link, and a row of R bytes at least 1 touches lines of at most R + 127. Backward, R bytes
        touch the same lines, and a state of s bytes at most s + 63, where the link moves s.
        """
        c, device = _constants(topology), topology.device
        link = topology.host.device_link_bandwidth_bytes_per_s
        hbm = device.hbm_bandwidth_bytes_per_s
        read = c.forward_row_passes_ratio / hbm
        updated = 2.0 * c.update_passes_ratio / hbm
        return (
            read <= c.link_passes_ratio / link
            and read * (_LINE_BYTES - 1) <= c.link_row_s
            and updated <= c.link_update_passes_ratio / link
            and updated * 2 * (_SECTOR_BYTES - 1) <= c.link_update_row_s
        )


def call_sigma(topology: Topology, kernel: ComputeKernel, *, is_pooled: bool) -> float:
    """Log-standard deviation of a call's time, by where its rows are and on which card.

    Args:
        topology: the system; with constants of its own its card counts as measured.
        kernel: of the call.
        is_pooled: whether it sums rows.
    """
    known = _KERNEL_SIGMA.get(kernel, _POOLED_SIGMA if is_pooled else _UNPOOLED_SIGMA)
    if not is_measured(topology):
        return math.hypot(known, _OTHER_SIGMA)
    alike = topology.lookup_constants is None and not _is_of(topology, _MEASURED)
    return math.hypot(known, _ALIKE_SIGMA if alike else 0.0)


def is_measured(topology: Topology) -> bool:
    """Whether the constants are those of the system's card, or of one with the same chip."""
    return topology.lookup_constants is not None or _is_of(topology, (*_MEASURED, *_ALIKE))


def _is_of(topology: Topology, names: tuple[str, ...]) -> bool:
    """Whether the card of a system is one of these."""
    return topology.device.name.upper().startswith(names)


def _constants(topology: Topology) -> FbgemmConstants:
    return topology.lookup_constants or DEFAULTS


def _is_fbgemm(shards: LookupShards, workload: Workload | None) -> bool:
    """Whether FBGEMM's kernels run the lookups."""
    if workload is not None and workload.pipeline is Pipeline.HUGECTR:
        return False
    if workload is not None and workload.issued_by is HostProfile.EAGER_2021:
        return False
    return bool(shards.tables.sorts.all())


def _is_pooled(shards: LookupShards) -> BoolArray:
    return np.asarray(shards.tables.is_pooled[shards.table])


def _bag_length(shards: LookupShards) -> FloatArray:
    """Indices ``[n]`` of a bag that fall on each shard, at least 1; also of unpooled tables."""
    share = shards.num_indices / np.maximum(shards.num_table_indices, 1e-9)
    lengths = shards.tables.pooling_factor[shards.table] / shards.tables.num_features[shards.table]
    return np.maximum(lengths * share, 1.0)


def _chain_s(shards: LookupShards, topology: Topology) -> FloatArray:
    """Seconds ``[n]`` in which a bag of each shard reads its rows one after the other."""
    c = _constants(topology)
    held = _CACHE_SHARE * topology.device.l2_capacity_bytes
    missed = shards.misses(shards.unique_rows(), held) / shards.num_indices
    each_s = c.chain_hit_s + c.chain_miss_s * missed
    return np.asarray(_bag_length(shards) * (1.0 + shards.num_cols / _CHUNK) * each_s)


def _lines(num_bytes: FloatArray, line_bytes: int) -> FloatArray:
    """Bytes ``[n]`` of the lines that rows touch which follow each other without gaps."""
    whole = np.maximum(np.round(num_bytes), 1.0).astype(np.int64)
    touched = num_bytes + line_bytes - np.gcd(whole, line_bytes)
    return np.where(num_bytes > 0, touched, 0.0)


def _output_bytes(shards: LookupShards) -> FloatArray:
    """Bytes ``[n]`` of an output vector, and of its gradient."""
    return np.asarray(shards.num_cols * float(shards.output_element_bytes))


def _forward_s(shards: LookupShards, c: FbgemmConstants) -> FloatArray:
    """Seconds ``[n]`` of the multiprocessors in a forward pass."""
    weight = np.where(shards.tables.is_weighted[shards.table], _WEIGHT_BYTES, 0.0)
    index_s = c.forward_index_s * (shards.index_bytes + weight) / _INDEX_BYTES
    has_bags = _is_pooled(shards) | (shards.num_cols <= _NARROWEST)
    bags = np.where(has_bags, shards.num_bags, 0.0)
    chunk_s = c.forward_chunk_s * shards.num_cols / _CHUNK
    return np.asarray(shards.num_indices * (index_s + chunk_s) + bags * c.forward_bag_s)


def _backward_s(shards: LookupShards, c: FbgemmConstants, unique: FloatArray) -> FloatArray:
    """Seconds ``[n]`` of the multiprocessors in a backward pass, without the sort."""
    wide = shards.num_cols / _CHUNK
    halved = 2.0 ** np.ceil(np.log2(np.maximum(shards.num_cols, _NARROWEST) / _CHUNK))
    warps = np.where(wide > 1.0, np.ceil(wide), halved)
    long = shards.tables.laws.busy_rows_in_range(
        shards.law, shards.num_table_indices, shards.row_offset, shards.num_rows, _LONG_SEGMENT
    )
    rounded = shards.tables.element_bytes[shards.table] < 4.0
    row_s = c.updated_row_s + np.where(rounded, c.rounded_chunk_s * wide, 0.0)
    long_s = c.long_segment_s + c.long_segment_chunk_s * wide
    return np.asarray(
        shards.num_indices * c.segment_chunk_s * warps + unique * row_s + long * long_s
    )


def _missed_gradients(shards: LookupShards, topology: Topology) -> FloatArray:
    """Reads ``[n]`` of a bag's gradient that miss the second-level cache; the first always does."""
    held = _CACHE_SHARE * topology.device.l2_capacity_bytes
    all_bytes = np.maximum(shards.num_bags * _output_bytes(shards), 1.0)
    again = np.maximum(shards.num_indices - shards.num_bags, 0.0)
    first = np.minimum(shards.num_bags, shards.num_indices)
    return np.asarray(first + again * np.maximum(0.0, 1.0 - held / all_bytes))


def _link_bytes(shards: LookupShards, topology: Topology) -> tuple[FloatArray, FloatArray]:
    """Bytes ``[n]`` of the link that take as long as to read, and to update, a row on the host."""
    c, link = _constants(topology), topology.host.device_link_bandwidth_bytes_per_s
    whole = _lines(shards.row_bytes, _SECTOR_BYTES) + shards.state_bytes_per_row
    read = c.link_passes_ratio * shards.row_bytes + c.link_row_s * link
    return read, c.link_update_passes_ratio * whole + c.link_update_row_s * link


def _cache_links(
    shards: LookupShards, topology: Topology, unique: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Bytes of the link, forward and backward, of a cache in front of host memory.

    Of the missing rows, as many are inserted as there are places that hold no row of the batch. The
    others are read over the link by every index, and updated there. The states of all rows are in
    host memory.

    Where the rows of the next batch are prefetched, the cache has to hold two batches. A share f of
    the rows of a batch beyond that is evicted before its update. These rows are read and updated
    over the link, and the rows that take their places wait for the update, so that f of the
    prefetch is not hidden either (TorchRec commit 6a2d4be3 measures it and says why). All of that
    is time of the compute stream, and counts as the backward pass.
    """
    c, link = _constants(topology), topology.host.device_link_bandwidth_bytes_per_s
    (reading, updating), share = _link_bytes(shards, topology), shards.rows_ratio
    held = shards.cache_load_factor_ratio * shards.tables.num_embeddings[shards.table]
    missing = np.minimum(shards.missing_rows(), unique)
    inserted = np.minimum(missing, np.maximum(share * held - (unique - missing), 0.0))
    direct = missing - inserted
    seen = np.maximum(unique, 1e-9)
    reads = shards.num_indices / seen
    moved = inserted * (c.link_passes_ratio * shards.row_bytes + c.cache_insert_s * link)
    fetched = moved + direct * reads * reading
    evicted = np.zeros(len(shards))
    if shards.prefetches:
        evicted = np.clip(2.0 - share * held / seen, 0.0, 1.0)
    again = evicted * np.minimum(inserted, unique - direct)
    states = c.link_update_passes_ratio * (unique - direct) * shards.state_bytes_per_row
    updated = (direct + again) * updating + states + again * reads * reading
    return (1.0 - evicted) * fetched, updated + evicted * fetched
