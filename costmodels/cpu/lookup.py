"""What a lookup on a CPU core does, as counts in which its time is linear.

In the forward lookup, each index costs some instructions, and its row is fetched from the cache or
the memory in which it is. In the backward lookup, indices are sorted byte by byte, the gradients of
bags are gathered for each index, and each distinct row is read, updated and written.

The time of lookups on a CPU core, from measurements on the same machine.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final, final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from costmodels.distribution.laws import bins_of
from costmodels.errors import require
from costmodels.lookup.base import NUM_LOOKUP_WORK, AbstractLookupModel, LookupShards, LookupWork
from costmodels.measured import cpu_constants as cpu
from costmodels.sharding import ComputeKernel
from costmodels.topology import Topology
from costmodels.training.optimizers import RowUpdate

LINE_BYTES: Final = 64.0
"""Bytes of a cache line."""
_ELEMENT_BYTES: Final = 4.0
"""Bytes of an element of a row (fp32)."""
_STEPS: Final = 200
"""At most so many Newton steps to a root; ten are usual."""
_SETTLED: Final = 1e-15
"""Newton's method ends when a step changes the root by at most this share: about the precision of
float64."""


_HELD_BYTES: Final = 400.0
"""Bytes that FBGEMM's backward pass of unpooled tables holds for each distinct row, beside its
gradient: the entries of hash maps (``split_embedding_nobag_backward_exact_cpu_kernel``). The cost
of a row's entries grows with the square root of all bytes that are held. This was measured from 2
thousand to 120 thousand rows, and there is no step where a cache ends."""


class Accesses:
    """How shards are accessed in an iteration.

    ``rows`` and ``probability`` are ``[all bins]``, with the bins of one shard after those of
    another: the rows of the shard in each frequency bin of its table's distribution, and the
    probability that a draw is one given row of the bin. All other arrays are ``[n]``, one number
    for each shard: draws from the whole table; the shard's indices, bags, columns and rows; bytes
    of a row and its cache lines, those of one cache line at least.
    """

    def __init__(self, shards: LookupShards) -> None:
        """Read how each shard is accessed."""
        laws, law = shards.tables.laws, shards.law
        each = zip(law.tolist(), shards.row_offset.tolist(), shards.num_rows.tolist(), strict=True)
        rows = [laws.laws[i].range_rows(offset, size) for i, offset, size in each]
        sizes: IntArray = np.array([len(bins) for bins in rows], dtype=np.int64)
        self.rows = np.concatenate(rows)
        self.probability = np.concatenate([bins_of(laws.laws[i])[1] for i in law.tolist()])
        self.draws = laws.effective_draws(law, shards.num_table_indices)
        self.num_indices, self.num_bags = shards.num_indices, shards.num_bags
        self.num_cols, self.num_rows = shards.num_cols.astype(float), shards.num_rows.astype(float)
        row_bytes = self.num_cols * _ELEMENT_BYTES
        self.row_bytes = np.maximum(LINE_BYTES, row_bytes)
        self.lines = np.maximum(1.0, row_bytes / LINE_BYTES)
        self._begins: IntArray = np.cumsum(sizes) - sizes
        self._of: IntArray = np.repeat(np.arange(len(sizes)), sizes)

    @cached_property
    def distinct(self) -> FloatArray:
        """``[n]`` expected numbers of distinct rows that are looked up."""
        missed = np.log1p(-np.minimum(self.probability, 1.0 - 1e-12))
        touched = -np.expm1(self.draws[self._of] * missed)
        return np.asarray(np.minimum(self._sums(self.rows * touched), self.num_indices))

    @cached_property
    def repeats(self) -> FloatArray:
        """``[n]`` probabilities that two indices are the same row."""
        twice = self._sums(self.rows * np.square(self.probability))
        return np.asarray(twice / np.maximum(self._share * self._share, 1e-300))

    def misses(self, cache_bytes: float) -> FloatArray:
        """``[n]`` misses of an LRU cache that has no row of the shard at first (Che et al. 2002).

        Each shard has the whole cache. Until the cache is full, each distinct row misses once. It
        is full after T draws, the root of sum_k (1 - exp(-p_k T)) = capacity in rows, where p_k is
        the probability of row k. From then on, a draw of row k hits with 1 - exp(-p_k T).

        Args:
            cache_bytes: bytes of the cache.
        """
        capacity, share = cache_bytes / self.row_bytes, np.maximum(self._share, 1e-300)
        mass = self.rows * self.probability
        draws = np.minimum(capacity / share, self.draws)
        # The sum over rows is concave in T, so that Newton's steps from the left approach the root
        # without passing it.
        for _ in range(_STEPS):
            seen = -np.expm1(-self.probability * draws[self._of])
            held, hits = self._sums(self.rows * seen), self._sums(mass * seen)
            slope = np.maximum(share - hits, 1e-300)
            later = np.clip(draws + (capacity - held) / slope, draws, self.draws)
            if bool((later - draws <= _SETTLED * later).all()):
                break
            draws = later
        missed = capacity + (self.draws - draws) * (share - hits)
        filled = np.minimum(np.maximum(missed, self.distinct), self.num_indices)
        return np.where(self.distinct > capacity, filled, self.distinct)

    @cached_property
    def _share(self) -> FloatArray:
        """``[n]`` shares (0..1) of the accesses of a table that fall on the shard."""
        return self._sums(self.rows * self.probability)

    def _sums(self, values: FloatArray) -> FloatArray:
        """``[n]`` sums of ``[all bins]`` over the bins of each shard."""
        return np.asarray(np.add.reduceat(values, self._begins))


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The counts of many shards, ``[n, counts]``.

    Attributes:
        forward: counts in the order of :class:`costmodels.measured.cpu_constants.LookupConstants`.
        backward: counts of the backward lookup of the kernel.
        shape: logarithms of the numbers of the shape.
    """

    forward: FloatArray
    backward: FloatArray
    shape: FloatArray


def features(seen: Accesses, kernel: cpu.CpuKernel, caches: cpu.Caches) -> Features:
    """The counts of many shards, all looked up by one kernel.

    Args:
        seen: how the shards are accessed.
        kernel: the kernel.
        caches: those of a core.
    """
    l2_bytes, l3_bytes = caches.l2_bytes, caches.l3_bytes
    indices, bags, cols, distinct = seen.num_indices, seen.num_bags, seen.num_cols, seen.distinct
    in_l2, in_l3, lines = seen.misses(l2_bytes), seen.misses(l3_bytes), seen.lines
    table_bytes = seen.num_rows * seen.row_bytes
    cold = np.maximum(0.0, 1.0 - l3_bytes / np.maximum(table_bytes, 1.0))
    from_memory = cold * in_l3
    call = np.ones(len(indices))
    forward = [call, bags, bags * cols, indices, indices * cols]
    forward += [in_l2, in_l2 * lines, from_memory, from_memory * lines]
    if kernel is cpu.CpuKernel.SEQUENCE:
        held_bytes = distinct * (_HELD_BYTES + cols * _ELEMENT_BYTES)
        far = distinct * np.sqrt(held_bytes / l2_bytes)
        backward = [call, indices, indices * cols, distinct, distinct * cols, far]
    else:
        passes = np.maximum(1.0, np.ceil(np.log2(np.maximum(seen.num_rows, 2)) / 8.0))
        gathered = np.maximum(bags * cols * _ELEMENT_BYTES, 1.0)
        beyond = np.maximum(0.0, 1.0 - l2_bytes / gathered)
        backward = [call, bags, indices, indices * passes, indices * cols, indices * lines * beyond]
        backward += [distinct, distinct * cols, in_l2, in_l2 * lines]
        backward += [from_memory, from_memory * lines]
    if kernel is cpu.CpuKernel.DENSE:
        cells = seen.num_rows * cols
        backward += [cells, np.maximum(0.0, cells - l3_bytes / _ELEMENT_BYTES)]
    shape = [indices, distinct, cols, seen.num_rows, bags, indices / np.maximum(distinct, 1e-9)]
    shape += [seen.repeats, in_l2 / np.maximum(indices, 1e-9)]
    return Features(
        forward=np.stack(forward, axis=-1),
        backward=np.stack(backward, axis=-1),
        shape=np.log(np.maximum(np.stack(shape, axis=-1), 1e-9)),
    )


_AT_ONCE: Final = 64
"""Shards that are priced in one call. Each has some hundred frequency bins, so that the arrays of
so many shards stay in the caches."""
TOGETHER: Final = ("table", "bags", "elements", "indices")
"""The counts by which a table in a step takes longer than alone (:class:`GroupConstants`)."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLookup(AbstractLookupModel):
    """Seconds of a shard: counts times calibrated seconds per count, times a learned factor.

    A core looks up the tables of a call one after the other, so that their times add up. The counts
    (:func:`features`) are those of FBGEMM's CPU kernels. Those of the forward lookup are mostly
    cache misses (Che's approximation for each level of caches); those of the backward lookup are
    mostly distinct rows and passes of the index sort. The factor is a kernel regression on the
    shape of the shard (:class:`costmodels.measured.cpu_constants.LookupConstants`). It is limited
    to a range, so that it can correct the counts but not replace them.

    The interface wants bytes, so that the work columns hold these seconds times the bandwidth of
    device memory. The cost of a call itself is the device's ``kernel_latency_s``.

    Args:
        constants: the constants of the machine.

    Sources:
        FBGEMM CPU lookups, measured on this machine
        Che, Tung, Wang 2002: characteristic time of an LRU cache
    """

    constants: cpu.CpuConstants

    def shards_work(self, shards: LookupShards, topology: Topology) -> FloatArray:
        """``[n, NUM_LOOKUP_WORK]`` seconds of shards as bytes, forward and backward.

        Raises:
            InvalidValueError: tables use an update or a deduplication that CPU kernels lack.
        """
        require(
            all(t.row_update is RowUpdate.DEDUPLICATED for t in shards.tables.tables),
            "row_update is not deduplicated: on CPU cores FBGEMM always sorts the indices and "
            "updates each row once; remove row_update from the workload",
        )
        require(
            not shards.tables.deduplicates_indices.any(),
            "deduplicate_indices needs GPUs: FBGEMM has no kernel on CPU cores that finds distinct "
            "indices, so that TorchRec stops there; remove deduplicate_indices from the workload",
        )
        work = np.zeros((len(shards), NUM_LOOKUP_WORK))
        dense = shards.runs(ComputeKernel.DENSE)
        pooled = dense | shards.tables.is_pooled[shards.table]
        bandwidth = topology.device.hbm_bandwidth_bytes_per_s
        chosen = {
            cpu.CpuKernel.FUSED: ~dense & pooled,
            cpu.CpuKernel.DENSE: dense,
            cpu.CpuKernel.SEQUENCE: ~pooled,
        }
        for kernel, of_kernel in chosen.items():
            used = np.flatnonzero(of_kernel)
            for part in np.array_split(used, -(-len(used) // _AT_ONCE) or 1):
                if not len(part):
                    continue
                seen = Accesses(shards.chosen(part))
                forward_s, backward_s = self.seconds(seen, kernel)
                work[part, LookupWork.INDICES] = seen.num_indices
                work[part, LookupWork.FORWARD_ROWS_DRAM] = forward_s * bandwidth
                work[part, LookupWork.BACKWARD_ROWS_DRAM] = backward_s * bandwidth
        return work

    def seconds(self, seen: Accesses, kernel: cpu.CpuKernel) -> tuple[FloatArray, FloatArray]:
        """Forward and backward seconds, ``[n]`` each, of shards of one kernel; without calls."""
        machine = self.constants
        constants, others = machine.lookups(kernel), together(seen)
        alone = alone_s(seen, kernel, constants, machine)
        group = machine.replicated_group if kernel is cpu.CpuKernel.DENSE else machine.group
        forward, backward = (
            np.asarray(seconds * costs[0] + (others * np.array(costs[1:])).sum(axis=-1))
            for seconds, costs in zip(alone, (group.forward_s, group.backward_s), strict=True)
        )
        return forward, backward

    def forward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """``[...]`` seconds of forward lookups from work ``[..., NUM_LOOKUP_WORK]``."""
        bandwidth = topology.device.hbm_bandwidth_bytes_per_s
        return np.asarray(work[..., LookupWork.FORWARD_ROWS_DRAM] / bandwidth)

    def backward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """``[...]`` seconds of backward lookups from work ``[..., NUM_LOOKUP_WORK]``."""
        bandwidth = topology.device.hbm_bandwidth_bytes_per_s
        return np.asarray(work[..., LookupWork.BACKWARD_ROWS_DRAM] / bandwidth)

    def prefers_device(self, topology: Topology) -> bool:
        """Always: a CPU has one kind of memory, so that device memory is never slower."""
        del topology
        return True


def alone_s(
    seen: Accesses, kernel: cpu.CpuKernel, constants: cpu.LookupConstants, caches: cpu.Caches
) -> tuple[FloatArray, FloatArray]:
    """Forward and backward seconds ``[n]`` of shards that are looked up alone, without the call.

    Args:
        seen: how the shards are accessed.
        kernel: what looks them up.
        constants: those of this kernel.
        caches: those of a core.
    """
    counts = features(seen, kernel, caches)
    forward = (counts.forward[:, 1:] * np.array(constants.forward_s[1:])).sum(axis=-1)
    backward = (counts.backward[:, 1:] * np.array(constants.backward_s[1:])).sum(axis=-1)
    forward *= factor(constants.forward_residual, counts.shape)
    backward *= factor(constants.backward_residual, counts.shape)
    return forward, backward


def together(seen: Accesses) -> FloatArray:
    """``[n, 4]`` counts of shards in the order of :data:`TOGETHER`."""
    bags = seen.num_bags
    return np.stack([np.ones(len(bags)), bags, bags * seen.num_cols, seen.num_indices], axis=-1)


def factor(residual: cpu.Residual, shape: FloatArray) -> FloatArray:
    """Learned factors ``[...]`` for shapes ``[..., NUM_SHAPE]``; 1 far from measured points."""
    if not residual.points_ratio:
        return np.ones(shape.shape[:-1])
    points = np.array(residual.points_ratio)
    away = (points - shape[..., None, :]) / np.array(residual.lengths_ratio)
    closeness = np.exp(-0.5 * (away * away).sum(axis=-1))
    value = (closeness * np.array(residual.weights_ratio)).sum(axis=-1)
    return np.asarray(np.exp(np.clip(value, -residual.limit_ratio, residual.limit_ratio)))
