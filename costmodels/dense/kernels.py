"""Seconds of the kernels that a GPU runs for the operators of a dense part.

**Constants.** They are fitted to the GPU times of whole training steps, of single products and of
their kernels on one H200 (configs/published/gpu_h200.jsonl;
:mod:`planner.validation.kernels`). On other GPUs the rates of their system files apply in
their place, and times that grow with the number of rows are multiplied by
``REFERENCE_MULTIPROCESSORS`` over the number of their multiprocessors. The least times of kernels
grow with the device's time from one kernel to the next, and those of a sort with the time in which
the device sorts an index (:meth:`KernelConstants.on`).

**Matrix products, and kernels that move bytes between them.** A product is computed in output
tiles. Each multiprocessor computes one tile at a time, so that the tiles run in whole waves over
the multiprocessors. A library has kernels for several sizes of tiles; the model takes the fastest
one of a menu (``_TILES``). The largest tile reaches the efficiency of the device. A tile with half
the height and half the width reaches 0.7 times that. A product with few tiles and a long inner
dimension k is also split along k, and the partial sums are added up.

The seconds of the matrix units and those of memory are joined as a 1.6-norm. To these come the
least time of a kernel, and a second kernel if k is split (:class:`KernelConstants`). The
factor 0.75 and the norm were chosen by the 76 products of one H200 in
configs/published/gpu_h200.jsonl, with a mean absolute logarithmic error of 0.11. The efficiency is
a number of each device.

**Fused attention**, with softmax or pointwise as in HSTU. A score is the product of one query and
one key. A kernel computes blocks of 128 queries of one head (256 where
:attr:`costmodels.sustained.ScoreWork.rows` says so), and each multiprocessor computes one block at
a time, so that the blocks run in whole waves over the multiprocessors. A block with fewer queries
takes as long as a full one. Under a causal mask a block skips the keys to the right of its
diagonal.

The time of a block has three parts (:class:`costmodels.sustained.ScoreWork`). The matrix products
and the activation of scores are joined as a 2-norm; to this are added some microseconds in which
the data of the block arrive and leave. The blocks and the traffic of device memory are then joined
as a 2-norm. Pointwise attention (Zhai et al. 2024, arXiv 2402.17152) applies an activation to each
score in the place of softmax.

**Kernels that bytes alone do not explain**: sums over rows, norms, casts and updates. Narrow rows
keep few threads busy, so that norms and the gradients of biases take a time for each row, however
few bytes it has.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Self

from costmodels import sustained
from costmodels.datatypes import DataType
from costmodels.layers.parts import CAST_BYTES
from costmodels.operators import Operator, OperatorKind, Product
from costmodels.sustained import BURSTS, Shares, Works
from costmodels.topology import Device
from costmodels.training.optimizers import DenseOptimizer

REFERENCE_MULTIPROCESSORS: Final = 132
"""Multiprocessors of the H200, to which the times per row, element and score belong."""
REFERENCE_LATENCY_S: Final = 1.88e-6
"""``kernel_latency`` of the H200: 50 queued additions of 8 elements take so long each."""
REFERENCE_SORT_RATE_PER_S: Final = 5e9
"""``sort_rate`` of the H200's system file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConstants:
    """What kernels take beside their FLOP and bytes.

    Attributes:
        kernel_s: the least time of a kernel that is no product, with the gap before it.
        product_s: the least time of a matrix product or a fused attention, with the gap before it.
        wave_s: seconds in which the tiles of a wave are filled and written.
        split_s: seconds of the kernel that adds up the parts of a split inner dimension.
        outer_s: seconds of each outer product of two vectors in a batched product.
        vector_s: seconds of each product of a matrix and a vector in a batched product.
        vector_ratio: share of the streaming bandwidth that a product with a vector reaches.
        half_even_ratio: rate of a product in a type of two bytes whose rows are no multiples of 16
            bytes, over that of an aligned one.
        half_odd_ratio: the same where rows are no multiples of 4 bytes either.
        tf32_ratio: the same for products in TF32 whose rows are no multiples of 16 bytes.
        sum_s: the least time of the gradient of a bias, which is a sum over rows.
        sum_row_s: further seconds for each of its rows.
        sum_element_s: further seconds for each of its elements.
        norm_row_s: seconds for each row of a norm in its forward pass.
        norm_gradient_row_s: the same in the kernel of the gradient of its input.
        norm_weight_row_s: the same in the kernel of the gradients of its weights.
        score_s: seconds for each score of fused attention in a type of four bytes, forward.
        score_element_s: further seconds for each element of a query or a value, on average.
        score_gradient_s: as ``score_s``, backward.
        score_gradient_element_s: as ``score_element_s``, backward.
        picked_s: seconds for each pair of a dot interaction whose gradient is added up by index.
        sorted_s: seconds for each pair whose index is sorted for that.
        sort_s: the least time of that sort.
        join_s: seconds for each tensor that a kernel joins to one. With ``join_ratio`` it gives the
            kernels of five traces of DLRMs with 16 to 51 tables within 13 %.
        join_ratio: share of the streaming bandwidth that such a kernel reaches.
        chunk_s: seconds of the last blocks of a fused optimizer, which each work on a chunk.
        pass_s: the same of each kernel of an optimizer that is not fused.
        chunk_parameters: parameters that one launch of a fused optimizer updates.
    """

    kernel_s: float = 2.36e-06
    product_s: float = 2.94e-06
    wave_s: float = 4.58e-07
    split_s: float = 3.54e-06
    outer_s: float = 1.67e-08
    vector_s: float = 2.56e-09
    vector_ratio: float = 0.734
    half_even_ratio: float = 0.429
    half_odd_ratio: float = 0.119
    tf32_ratio: float = 0.356
    sum_s: float = 4.81e-06
    sum_row_s: float = 3.98e-10
    sum_element_s: float = 7.46e-13
    norm_row_s: float = 1.8e-09
    norm_gradient_row_s: float = 8.66e-10
    norm_weight_row_s: float = 3.28e-09
    score_s: float = 4.09e-12
    score_element_s: float = 1.13e-13
    score_gradient_s: float = 1.29e-11
    score_gradient_element_s: float = 1.83e-13
    picked_s: float = 1.7e-10
    sorted_s: float = 5.27e-11
    sort_s: float = 3.02e-05
    join_s: float = 2.7e-07
    join_ratio: float = 0.71
    chunk_s: float = 1.61e-05
    pass_s: float = 6.97e-06
    chunk_parameters: int = 21_000_000

    def on(self, device: Device) -> Self:
        """The constants of a device with its own ``kernel_latency`` and ``sort_rate``."""
        later = device.kernel_latency_s / REFERENCE_LATENCY_S
        longer = REFERENCE_SORT_RATE_PER_S / device.sort_rate_per_s
        return replace(
            self,
            kernel_s=self.kernel_s * later,
            product_s=self.product_s * later,
            sorted_s=self.sorted_s * longer,
        )


KERNELS: Final = KernelConstants()
"""The constants that ship, as ``python -m benchmarks.fit_published dense`` prints them."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """What kernels run on.

    Attributes:
        device: of every rank.
        shares: the shares of its rates that kernels reach; None for those of each operator's type.
        constants: of the kernels.
        is_capped: whether shares above 1, which is that of a short burst, are cut to 1.
        slowest_ratio: how far the work of the slowest rank is above the mean, in standard
            deviations of the work.
    """

    device: Device
    shares: Shares | None = BURSTS
    constants: KernelConstants = KERNELS
    is_capped: bool = False
    slowest_ratio: float = 0.0

    @classmethod
    def plain(cls, device: Device, constants: KernelConstants = KERNELS) -> Self:
        """A device at its full rates, whose constants are scaled to it."""
        return cls(device, constants=constants.on(device))

    def shares_in(self, dtype: DataType) -> Shares:
        """The shares of the rates that operators in a type reach."""
        known = self.shares or sustained.shares_of(self.device, dtype)
        return known.capped() if self.is_capped else known

    def product_rate(self, dtype: DataType) -> float:
        """FLOP a second that large products in a type reach."""
        rate = self.device.matrix_rate(dtype) * self.device.flops_efficiency_ratio
        return rate * self.shares_in(dtype).product_ratio

    def longest(self, operator: Operator) -> float:
        """Repeats of an operator, times the work of the rank with most of it over the mean."""
        slowest = 1.0 + self.slowest_ratio * operator.deviation_ratio
        most = operator.most_ratio
        return operator.num_repeats * (min(slowest, most) if most else slowest)

    @property
    def multiprocessor_ratio(self) -> float:
        """Multiprocessors of the H200 over those of the device; 1 if they are not known."""
        count = self.device.num_multiprocessors
        return REFERENCE_MULTIPROCESSORS / count if count else 1.0


_TILES: Final = ((256, 128), (128, 128), (128, 64), (64, 64), (64, 32), (32, 32))
"""Height and width of the tiles of a library, in elements of the result, the largest first."""
_LOSS_RATIO: Final = 0.75
"""Efficiency of a tile over that of one of twice its height and twice its width; the largest tile
reaches the efficiency of the device."""
_TILES_WITH_EFFICIENCY: Final = tuple(
    (*tile, _LOSS_RATIO ** (0.5 * math.log2(math.prod(_TILES[0]) / (height * width))))
    for height, width in _TILES
    for tile in dict.fromkeys(((height, width), (width, height)))
)
"""(height, width, share of the device's efficiency) of every tile, upright and lying."""
_SPLITS: Final = (1, 2, 4, 8, 16)
"""Parts in which the inner dimension may be computed side by side."""
_SHORTEST_SPLIT: Final = 256
"""Inner elements for which a part takes time at least, however short it is. Split kernels work
through the inner dimension in blocks, so that very short parts would gain nothing."""
_JOINING_POWER: Final = 1.6
"""p of the p-norm that joins the seconds of the matrix units with those of memory."""
_VECTOR: Final = 8
"""Columns below which a library takes kernels for vectors, which no matrix units limit."""
_LOADS_TILES: Final = ("H100", "B200")
"""Generations of devices with a unit that loads tiles (the tensor memory accelerator)."""
_MEMORY_LATENCY_S: Final = 0.6e-6
"""Seconds from a load to the arrival of its data: 0.49 to 0.70 us on V100, A100, H100, H200, A40
and L40, computed from the rate of ``scale`` with 64 threads on each multiprocessor
(te42kyfo/gpu-benches, gpu-stream)."""
_THREADS: Final = 2048
"""Threads that a multiprocessor holds on V100, A100, H100 and B200 (A10G, A40 and L40: 1536)."""
_LOADS_PER_THREAD: Final = 2.0
"""Elements of two bytes that a thread of a PyTorch kernel loads before it waits for all of them, on
average. A thread loads 4 where the kernel loads vectors, and 1 where it does not, because a tensor
is broadcast, axes are exchanged, or types are mixed as under autocast. 2 was chosen by the error of
training steps of transformers when they are predicted from steps of other model families."""
_LOADS_PER_THREAD_VECTORIZED: Final = 4.0
"""The same number of elements where all kernels load vectors: those of a compiler, and those of
PyTorch in fp32, which adds at 4.2 of 4.15 TB/s on an H200 (configs/published/gpu_h200.jsonl)."""
_WAITING_POWER: Final = 1.5
"""p of the p-norm that joins the seconds of the bandwidth with those of waiting. With 1.5 and 8
bytes a thread the model lets H200 reach 3.3 of 4.15 TB/s; 3.2 TB/s were measured (gpu-benches, as
above)."""


@lru_cache(maxsize=2**16)
def product_time(product: Product, dtype: DataType, gpu: Gpu) -> float:
    """Seconds of one matrix product, by the fastest combination of a tile and a split.

    Args:
        product: the sizes of the product.
        dtype: type of the operands and of the result.
        gpu: what computes it. If its number of multiprocessors is not known (0), the product is
            computed at the full rate, without tiles.
    """
    device, constants = gpu.device, gpu.constants
    if min(product.m, product.k, product.n) < _VECTOR:
        return _vector_s(product, dtype, gpu)
    rate = gpu.product_rate(dtype) * _aligned_ratio(product, dtype, gpu)
    if device.num_multiprocessors == 0:
        return _joined(product.flops / rate, _memory_s(product, 1, dtype, device), constants)
    per_multiprocessor = rate / device.num_multiprocessors
    memory_s = {split: _memory_s(product, split, dtype, device) for split in _SPLITS}
    return min(
        _joined(wave_s, memory_s[split], constants) + (constants.split_s if split > 1 else 0.0)
        for height, width, efficiency in _TILES_WITH_EFFICIENCY
        for split, wave_s in _tiled(product, (height, width), per_multiprocessor * efficiency, gpu)
    )


def _joined(compute_s: float, memory_s: float, constants: KernelConstants) -> float:
    """Seconds of a kernel from those of the matrix units and of memory."""
    power = _JOINING_POWER
    return float((compute_s**power + memory_s**power) ** (1.0 / power)) + constants.product_s


def _vector_s(product: Product, dtype: DataType, gpu: Gpu) -> float:
    """Seconds of a product with a few columns, by its bytes and the number of such products."""
    constants = gpu.constants
    moved_s = _memory_s(product, 1, dtype, gpu.device) / constants.vector_ratio
    each_s = constants.outer_s if product.k == 1 else constants.vector_s
    batch_s = each_s * (product.count - 1) * gpu.multiprocessor_ratio
    return math.hypot(moved_s, batch_s) + constants.product_s


def _aligned_ratio(product: Product, dtype: DataType, gpu: Gpu) -> float:
    """Rate of a product over that of one whose rows are multiples of 16 bytes.

    From H100 on, fast kernels load tiles by a unit that needs such rows, and a library takes the
    kernels of older devices for all others. On those devices rows matter little: a step of
    GPT-2 on an A100 took 96 ms with a vocabulary of 50,257, and 93 ms with one of 50,304
    (karpathy/build-nanogpt; configs/published/transformers.csv).
    """
    constants = gpu.constants
    if sustained.generation_of(gpu.device) not in _LOADS_TILES:
        return 1.0
    if dtype is DataType.TF32 and product.aligned < 4:
        return constants.tf32_ratio
    if dtype.num_bytes == DataType.FP16.num_bytes and product.aligned < 8:
        return constants.half_odd_ratio if product.aligned == 1 else constants.half_even_ratio
    return 1.0


def streaming_time(num_bytes: float, tensor_bytes: float, device: Device) -> float:
    """Seconds to read and write the tensors of a kernel at the streaming bandwidth.

    Half of the bytes are taken to be reads of what the kernel before has written. The second-level
    cache still has all of them if it is twice as large as a tensor, and none of them if it is no
    larger than a tensor; in between, the share grows linearly.

    Args:
        num_bytes: bytes that the kernel reads and writes.
        tensor_bytes: bytes of its largest tensor.
        device: has the bandwidth and the size of the cache.
    """
    room = device.l2_capacity_bytes / tensor_bytes - 1.0 if tensor_bytes > 0 else 1.0
    found = 0.5 * min(1.0, max(0.0, room))
    return num_bytes * (1.0 - found) / device.hbm_bandwidth_bytes_per_s


def moved_time(num_bytes: float, operator: Operator, gpu: Gpu) -> float:
    """Seconds in which the kernels of an operator that is no product move their bytes.

    Two things limit such kernels. One is the bandwidth, of which they reach a share. The other is
    the latency of memory: each thread loads a few elements and then waits for them, so that small
    elements do not use up the bandwidth of fast memory. The two times are joined as a 1.5-norm. A
    kernel that joins tensors reaches a smaller share and takes a time for each of them.

    Args:
        num_bytes: bytes that the kernels read and write.
        operator: gives the size and type of the tensors, and whether all kernels load vectors.
        gpu: what runs the kernels. If its number of multiprocessors is not known (0), only the
            bandwidth counts.
    """
    device, ratio = gpu.device, gpu.shares_in(operator.dtype).memory_ratio
    ratio *= gpu.constants.join_ratio if operator.num_joined else 1.0
    join_s = gpu.constants.join_s * operator.num_joined
    streamed_s = streaming_time(num_bytes, operator.tensor_bytes, device) / ratio
    if not device.num_multiprocessors or not num_bytes:
        return streamed_s + join_s
    element = max(operator.dtype.num_bytes, DataType.FP16.num_bytes)
    is_wide = element == DataType.FP32.num_bytes
    is_vectorized = is_wide or operator.is_vectorized
    loads = _LOADS_PER_THREAD_VECTORIZED if is_vectorized else _LOADS_PER_THREAD
    # Half of the bytes are written, and nothing waits for those. So twice the bytes that all
    # threads load at a time are moved in each latency of memory.
    moved_at_once = 2.0 * device.num_multiprocessors * _THREADS * loads * element
    waited_s = num_bytes * _MEMORY_LATENCY_S / moved_at_once
    power = _WAITING_POWER
    return float((streamed_s**power + waited_s**power) ** (1.0 / power)) + join_s


def _tiled(
    product: Product, tile: tuple[int, int], rate: float, gpu: Gpu
) -> Iterator[tuple[int, float]]:
    """Each number of parts of the inner dimension, with the seconds of the waves of its tiles.

    Args:
        product: the sizes of the product.
        tile: height and width of a tile.
        rate: FLOP a second of one multiprocessor with this tile.
        gpu: its multiprocessors compute a tile each at a time.
    """
    area = tile[0] * tile[1]
    tiles = product.count * math.ceil(product.m / tile[0]) * math.ceil(product.n / tile[1])
    for split in _SPLITS:
        waves = math.ceil(tiles * split / gpu.device.num_multiprocessors)
        inner = product.k if split == 1 else max(product.k / split, _SHORTEST_SPLIT)
        yield split, waves * (2.0 * area * inner / rate + gpu.constants.wave_s)


def _memory_s(product: Product, split: int, dtype: DataType, device: Device) -> float:
    """Seconds to move both operands, the result, and the partial sums if k is split in parts."""
    partial_sums = 2.0 * (split - 1) * product.count * product.m * product.n
    largest_bytes = product.largest_elements * dtype.num_bytes
    moved_bytes = (product.num_elements + partial_sums) * dtype.num_bytes
    return streaming_time(moved_bytes, largest_bytes, device)


_ROWS: Final = 128
"""Queries to which :attr:`costmodels.sustained.ScoreWork.block_s` belongs."""
_HEAD_TILES: Final = ((64, 2.0 / 3.0), (128, 1.0), (math.inf, 4.0 / 3.0))
"""Data that the products of a backward pass on an H100 read on the chip, over those with heads of
128 elements, by the most elements of a head. A product of a tile of m queries and n keys reads
1 / m + 1 / n for each score and element. Tiles are 128 x 128, 64 x 128, and for wider heads
64 x 64, which gives 4 / 3."""
_WIDE_ROWS: Final = 64
"""Queries and keys of a block of the kernel for types of four bytes."""
_BACKWARD_MOVED: Final = 17.0 / 4.0
"""Bytes that a backward pass moves, over those of the forward pass, which reads queries, keys and
values and writes the result: 4 tensors. Counted in such tensors, the backward pass of
FlashAttention-2, and of kernels that were made from its code, reads queries, keys and values (3),
the result (1) and twice its gradient (2), and writes three gradients (3). It adds up the gradient
of the queries in fp32, which counts double: zeroed (2), read and written (4), converted (2)."""


def attention_time(operator: Operator, gpu: Gpu, *, is_backward: bool) -> float:
    """Seconds of the forward or the backward pass of one fused attention.

    Args:
        operator: sizes, type and generation of the kernel.
        gpu: what runs it.
        is_backward: whether the backward pass is asked for.
    """
    if operator.dtype.num_bytes == DataType.FP32.num_bytes and not operator.is_pointwise:
        return _wide_time(operator, gpu, is_backward=is_backward)
    if operator.is_pointwise:
        works = sustained.pointwise_works(operator.flash_version, gpu.device)
    else:
        works = sustained.softmax_works(
            operator.flash_version, gpu.device, gpu.shares_in(operator.dtype)
        )
    return kernel_time(operator, gpu, works, is_backward=is_backward)


def kernel_time(operator: Operator, gpu: Gpu, works: Works, *, is_backward: bool) -> float:
    """:func:`attention_time` by a kernel with the given work per score, ``works``."""
    heads, queries, keys, *widths = operator.shape
    work, count = works[is_backward], gpu.device.num_multiprocessors
    flop = operator.gradient_flop if is_backward else operator.forward_flop
    scores = float(heads) * queries * keys
    if work.is_tiled:
        flop *= next(ratio for most, ratio in _HEAD_TILES if max(widths) <= most)
    done = math.hypot(flop / work.product_ratio, work.score_flops * scores)
    done *= _computed_ratio(operator, work.rows)
    compute_s = done / gpu.product_rate(operator.dtype)
    blocks = heads * math.ceil(queries / work.rows)
    if count:
        compute_s += work.block_s * blocks * work.rows / _ROWS / count
    # Blocks run in whole waves over the multiprocessors.
    compute_s *= math.ceil(blocks / count) * count / blocks if count and blocks else 1.0
    memory_s = _attention_memory_s(operator, gpu, is_backward=is_backward)
    return math.hypot(compute_s, memory_s) + gpu.constants.product_s + work.start_s


def _wide_time(operator: Operator, gpu: Gpu, *, is_backward: bool) -> float:
    """Seconds of PyTorch's memory-efficient attention, which computes in types of four bytes.

    It works on blocks of 64 queries and 64 keys. Its time is a number of seconds for each score,
    and more for each element of a query and a value, so that the rates of matrix units do not
    matter.
    """
    heads, queries, keys, width, value_width = operator.shape
    constants = gpu.constants
    rows, columns = (_WIDE_ROWS * math.ceil(size / _WIDE_ROWS) for size in (queries, keys))
    seen = min(1.0, 0.5 + 0.5 * _WIDE_ROWS / max(keys, 1)) if operator.is_causal else 1.0
    each_s = constants.score_gradient_s if is_backward else constants.score_s
    element_s = constants.score_gradient_element_s if is_backward else constants.score_element_s
    score_s = each_s + element_s * 0.5 * (width + value_width)
    compute_s = score_s * heads * rows * columns * seen * gpu.multiprocessor_ratio
    memory_s = _attention_memory_s(operator, gpu, is_backward=is_backward)
    return math.hypot(compute_s, memory_s) + constants.product_s


def _attention_memory_s(operator: Operator, gpu: Gpu, *, is_backward: bool) -> float:
    """Seconds in which a fused attention moves its tensors."""
    moved = operator.moved_bytes * (_BACKWARD_MOVED if is_backward else 1.0)
    return moved / gpu.device.hbm_bandwidth_bytes_per_s


def _computed_ratio(operator: Operator, block: int) -> float:
    """Scores that blocks of ``block`` queries compute, over the scores of the attention.

    It is above 1 where the last block of a head holds fewer queries than the others. A causal mask
    leaves half of the scores, and half a block of keys more for each query, because the blocks on
    the diagonal are computed whole.
    """
    heads, queries, keys, _, _ = operator.shape
    rows = max(heads * queries, 1)
    seen = min(1.0, 0.5 + 0.5 * block / max(keys, 1)) if operator.is_causal else 1.0
    return seen * block * heads * math.ceil(queries / block) / rows


_SPLIT_ROWS: Final = 64 * 1024
"""Rows from which PyTorch's gradient of the weights of a norm also divides the rows among blocks,
if its columns alone keep less than half of the multiprocessors busy."""
_WARP: Final = 32
"""Columns that one block of that kernel works on."""

TINY_S: Final = 1.1e-6
"""Seconds of a kernel over a few numbers: those of losses and of small gradients in five traces of
an H200, and of additions in a graph. Constants that are fitted to whole steps are longer, because
they stand for small kernels that are not counted, too."""
_BUCKET_BYTES: Final = 8.0
"""Bytes per trained element to read its gradient in fp32 and write it to a bucket."""

_PASSES: Final = {
    DenseOptimizer.SGD: 1,
    DenseOptimizer.ADAGRAD: 5,
    DenseOptimizer.ADAM_FOREACH: 11,
    DenseOptimizer.LAMB: 11,
}
"""Kernels over all tensors of optimizers that are not fused."""


def rows_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a tensor whose last axis is the columns."""
    return math.prod(shape[:-1]), shape[-1]


def bias_gradient_time(rows: int, columns: int, dtype: DataType, gpu: Gpu) -> float:
    """Seconds of the gradient of a bias, which is the sum of ``rows`` rows of ``columns``."""
    constants, num_bytes = gpu.constants, float(rows) * columns * dtype.num_bytes
    if columns == 1:
        return constants.sum_s
    work_s = constants.sum_row_s * rows + constants.sum_element_s * rows * columns
    work_s *= gpu.multiprocessor_ratio
    return constants.sum_s + math.hypot(work_s, num_bytes / gpu.device.hbm_bandwidth_bytes_per_s)


def norm_time(operator: Operator, gpu: Gpu, *, is_backward: bool) -> float:
    """Seconds of a norm: in the backward pass two kernels, for its input and for its weights."""
    rows, columns = rows_of(operator.shape)
    constants, scaled = gpu.constants, rows * gpu.multiprocessor_ratio
    moved = operator.backward_moved_bytes if is_backward else operator.moved_bytes
    moved_s = moved_time(moved, operator, gpu)
    if not is_backward:
        return constants.kernel_s + math.hypot(moved_s, constants.norm_row_s * scaled)
    input_s = math.hypot(0.6 * moved_s, constants.norm_gradient_row_s * scaled)
    is_split = rows > _SPLIT_ROWS and columns / _WARP < gpu.device.num_multiprocessors / 2
    weight_s = 0.0 if is_split else constants.norm_weight_row_s * rows
    return 2.0 * constants.kernel_s + input_s + math.hypot(0.4 * moved_s, weight_s)


def input_cast_time(operator: Operator, before: Operator | None, gpu: Gpu) -> float:
    """Seconds in which autocast casts the input of a product, unless that has its type already.

    Results of layers have it; looked-up vectors, dense features and what joins them have not.

    Args:
        operator: the product.
        before: the operator before it; None if it is the first one.
        gpu: what runs the kernel.
    """
    count, m, k, _ = operator.shape
    size = count * m * k
    is_result = before is not None and before.name != "concat" and before.num_elements == size
    if is_result:
        return 0.0
    return gpu.constants.kernel_s + CAST_BYTES * size / gpu.device.hbm_bandwidth_bytes_per_s


def bucket_time(operator: Operator, device: Device) -> float:
    """Seconds in which the gradients of an operator are copied to the buckets of an all-reduce."""
    tensors = 2 if operator.has_bias or operator.kind is OperatorKind.NORM else 1
    moved_s = _BUCKET_BYTES * operator.num_parameters / device.hbm_bandwidth_bytes_per_s
    return tensors * TINY_S + moved_s


def update_floor_s(optimizer: DenseOptimizer, parameters: float, gpu: Gpu) -> float:
    """Seconds of an optimizer's kernels beside their bytes.

    Each block works on a chunk of 65,536 elements, so that a kernel waits for its last blocks; and
    a launch holds a limited number of chunks. Nothing runs where nothing is trained.
    """
    if not parameters:
        return 0.0
    launches = max(1.0, parameters / gpu.constants.chunk_parameters)
    if optimizer is DenseOptimizer.ADAM:
        return gpu.constants.chunk_s * launches
    return gpu.constants.pass_s * _PASSES[optimizer] * launches


def picked_time(operator: Operator, gpu: Gpu) -> float:
    """Seconds in which the gradients of picked elements are added up in the order of their indices.

    For each element the kernel reads an index and a position of 8 bytes, and reads and writes the
    gradient; the constant is that of gradients in fp32.
    """
    bytes_ratio = (16.0 + 2.0 * operator.dtype.num_bytes) / 24.0
    each_s = gpu.constants.picked_s * bytes_ratio * gpu.multiprocessor_ratio
    return each_s * operator.num_sorted


def cast_time(operator: Operator, gpu: Gpu) -> float:
    """Seconds in which autocast casts what a product trains; its gradients take as long."""
    kernels = 2 if operator.has_bias else 1
    moved = CAST_BYTES * operator.num_parameters
    return kernels * gpu.constants.kernel_s + moved / gpu.device.hbm_bandwidth_bytes_per_s
