"""Seconds of one matrix product, and of the kernels that move bytes between products.

A product is computed in output tiles. Each multiprocessor computes one tile at a time, so that the
tiles run in whole waves over the multiprocessors. A library has kernels for several sizes of tiles;
the model takes the fastest one of a menu (``_TILES``). The largest tile reaches the efficiency of
the device. A tile with half the height and half the width reaches 0.7 times that. A product with
few tiles and a long inner dimension k is also split along k, and the partial sums are added up.

The seconds of the matrix units and those of memory are joined as a 1.6-norm. To these come the
least time of a kernel, and a second kernel if k is split (:mod:`costmodels.dense._constants`). The
factor 0.75 and the norm were chosen by the 76 products of one H200 in
configs/published/gpu_h200.jsonl, with a mean absolute logarithmic error of 0.11. The efficiency is
a number of each device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from costmodels.datatypes import DataType
from costmodels.dense._constants import KERNELS, REFERENCE_MULTIPROCESSORS, KernelConstants
from costmodels.operators import Operator, Product
from costmodels.sustained import BURSTS, Shares, generation_of
from costmodels.topology import Device

_TILES: Final = ((256, 128), (128, 128), (128, 64), (64, 64), (64, 32), (32, 32))
"""Height and width of the tiles of a library, in elements of the result, the largest first."""
_LOSS_RATIO: Final = 0.75
"""Efficiency of a tile over that of a tile of ``2 ** _HALVINGS_PER_LOSS`` times its area."""
_LARGEST: Final = 256 * 128
"""Elements of the largest tile, which reaches the efficiency of the device."""
_HALVINGS_PER_LOSS: Final = 2.0
"""How often the area of a tile is halved for each loss. Two: height and width once each."""
_TILES_WITH_EFFICIENCY: Final = tuple(
    (*tile, _LOSS_RATIO ** (math.log2(_LARGEST / (height * width)) / _HALVINGS_PER_LOSS))
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
def product_time(
    product: Product,
    dtype: DataType,
    device: Device,
    shares: Shares = BURSTS,
    constants: KernelConstants = KERNELS,
) -> float:
    """Seconds of one matrix product, by the fastest combination of a tile and a split.

    Args:
        product: the sizes of the product.
        dtype: type of the operands and of the result.
        device: what computes it. If its number of multiprocessors is not known (0), the product is
            computed at the full rate, without tiles.
        shares: the shares of the device's rates that the product reaches.
        constants: of the kernels.
    """
    if min(product.m, product.k, product.n) < _VECTOR:
        return _vector_s(product, dtype, device, constants)
    rate = device.matrix_rate(dtype) * device.flops_efficiency_ratio * shares.product_ratio
    rate *= _aligned_ratio(product, dtype, device, constants)
    if device.num_multiprocessors == 0:
        return _joined(product.flops / rate, _memory_s(product, 1, dtype, device), constants)
    per_multiprocessor = rate / device.num_multiprocessors
    memory_s = {split: _memory_s(product, split, dtype, device) for split in _SPLITS}
    return min(
        _joined(wave_s, memory_s[split], constants) + (constants.split_s if split > 1 else 0.0)
        for height, width, efficiency in _TILES_WITH_EFFICIENCY
        for split, wave_s in _tiled(
            product, (height, width), per_multiprocessor * efficiency, device, constants
        )
    )


def _joined(compute_s: float, memory_s: float, constants: KernelConstants) -> float:
    """Seconds of a kernel from those of the matrix units and of memory."""
    power = _JOINING_POWER
    return float((compute_s**power + memory_s**power) ** (1.0 / power)) + constants.product_s


def _vector_s(
    product: Product, dtype: DataType, device: Device, constants: KernelConstants
) -> float:
    """Seconds of a product with a few columns, by its bytes and the number of such products."""
    moved_s = _memory_s(product, 1, dtype, device) / constants.vector_ratio
    each_s = constants.outer_s if product.k == 1 else constants.vector_s
    batch_s = each_s * (product.count - 1) * multiprocessor_ratio(device)
    return math.hypot(moved_s, batch_s) + constants.product_s


def _aligned_ratio(
    product: Product, dtype: DataType, device: Device, constants: KernelConstants
) -> float:
    """Rate of a product over that of one whose rows are multiples of 16 bytes.

    From H100 on, fast kernels load tiles by a unit that needs such rows, and a library takes the
    kernels of older devices for all others. On those devices rows matter little: a step of
    GPT-2 on an A100 took 96 ms with a vocabulary of 50,257, and 93 ms with one of 50,304
    (karpathy/build-nanogpt; configs/published/transformers.csv).
    """
    if generation_of(device) not in _LOADS_TILES:
        return 1.0
    if dtype is DataType.TF32 and product.aligned < 4:
        return constants.tf32_ratio
    if dtype.num_bytes == DataType.FP16.num_bytes and product.aligned < 8:
        return constants.half_odd_ratio if product.aligned == 1 else constants.half_even_ratio
    return 1.0


def multiprocessor_ratio(device: Device) -> float:
    """Multiprocessors of the H200 over those of the device; 1 if they are not known."""
    count = device.num_multiprocessors
    return REFERENCE_MULTIPROCESSORS / count if count else 1.0


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


def kernel_streaming_time(
    num_bytes: float, operator: Operator, device: Device, memory_ratio: float
) -> float:
    """Seconds in which the kernels of an operator that is no product move their bytes.

    Two things limit such kernels. One is the bandwidth, of which they reach a share. The other is
    the latency of memory: each thread loads a few elements and then waits for them, so that small
    elements do not use up the bandwidth of fast memory. The two times are joined as a 1.5-norm.

    Args:
        num_bytes: bytes that the kernels read and write.
        operator: gives the size and type of the tensors, and whether all kernels load vectors.
        device: what runs the kernels. If its number of multiprocessors is not known (0), only the
            bandwidth counts.
        memory_ratio: share (0..1) of the streaming bandwidth that the kernels reach.
    """
    streamed_s = streaming_time(num_bytes, operator.tensor_bytes, device) / memory_ratio
    if not device.num_multiprocessors or not num_bytes:
        return streamed_s
    element = max(operator.dtype.num_bytes, DataType.FP16.num_bytes)
    is_wide = element == DataType.FP32.num_bytes
    is_vectorized = is_wide or operator.is_vectorized
    loads = _LOADS_PER_THREAD_VECTORIZED if is_vectorized else _LOADS_PER_THREAD
    # Half of the bytes are written, and nothing waits for those. So twice the bytes that all
    # threads load at a time are moved in each latency of memory.
    moved_at_once = 2.0 * device.num_multiprocessors * _THREADS * loads * element
    waited_s = num_bytes * _MEMORY_LATENCY_S / moved_at_once
    power = _WAITING_POWER
    return float((streamed_s**power + waited_s**power) ** (1.0 / power))


def _tiled(
    product: Product,
    tile: tuple[int, int],
    rate: float,
    device: Device,
    constants: KernelConstants,
) -> Iterator[tuple[int, float]]:
    """Each number of parts of the inner dimension, with the seconds of the waves of its tiles.

    Args:
        product: the sizes of the product.
        tile: height and width of a tile.
        rate: FLOP a second of one multiprocessor with this tile.
        device: its multiprocessors compute a tile each at a time.
        constants: of the kernels.
    """
    area = tile[0] * tile[1]
    tiles = product.count * math.ceil(product.m / tile[0]) * math.ceil(product.n / tile[1])
    for split in _SPLITS:
        waves = math.ceil(tiles * split / device.num_multiprocessors)
        inner = product.k if split == 1 else max(product.k / split, _SHORTEST_SPLIT)
        yield split, waves * (2.0 * area * inner / rate + constants.wave_s)


def _memory_s(product: Product, split: int, dtype: DataType, device: Device) -> float:
    """Seconds to move both operands, the result, and the partial sums if k is split in parts."""
    partial_sums = 2.0 * (split - 1) * product.count * product.m * product.n
    largest_bytes = product.largest_elements * dtype.num_bytes
    moved_bytes = (product.num_elements + partial_sums) * dtype.num_bytes
    return streaming_time(moved_bytes, largest_bytes, device)
