"""How long one matrix product takes: the best of a menu of tiles, as a library would choose.

And how long kernels between products take: what moves their bytes, or waits for them.

A product runs as output tiles in whole waves over the multiprocessors. Large tiles reach the
device's efficiency; each halving of the tile costs a factor 0.7. Products with few tiles and a long
inner dimension are split along it. Matrix and memory time join as a 2-norm, and each kernel takes
4 us at least. The factor, the norm and the floor were fitted on the 39 matrix products of
Lin et al.'s V100 traces (mean absolute log error 0.19); the device's efficiency is its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from costmodels.datatypes import DataType
from costmodels.operators import Operator, Product
from costmodels.sustained import BURSTS, Shares
from costmodels.topology import Device

_TILES: Final = ((256, 128), (128, 128), (128, 64), (64, 64), (64, 32), (32, 32))
_HALVING: Final = 0.7
_LARGEST: Final = 256 * 128
_HALVINGS_PER_LOSS: Final = 2.0
_TILES_WITH_EFFICIENCY: Final = tuple(
    (*tile, _HALVING ** (math.log2(_LARGEST / (height * width)) / _HALVINGS_PER_LOSS))
    for height, width in _TILES
    for tile in dict.fromkeys(((height, width), (width, height)))
)
_SPLITS: Final = (1, 2, 4, 8, 16)
_SHORTEST_SPLIT: Final = 256
FLOOR_S: Final = 4e-6
"""Least seconds of a kernel."""
_MEMORY_LATENCY_S: Final = 0.6e-6
"""From a load to its data: 0.49 to 0.70 us on V100, A100, H100, H200, A40 and L40, from the rate of
``scale`` with 64 threads on each multiprocessor (te42kyfo/gpu-benches, gpu-stream)."""
_THREADS: Final = 2048
"""Threads that a multiprocessor holds."""
_WAITING: Final = 2.0
"""Elements that a thread waits for at a time in PyTorch's kernels, on average: 4 where it loads
vectors, 1 where it does not, as where a tensor is broadcast or its axes are exchanged. With 2,
steps of transformers are predicted best from those of other families, by 6.4 % on average over
families and devices; by 9.3 % with 1, 7.1 % with 4, and 7.5 % without waiting (the rows of
``shardplan validate published --what transformers``, with all shares fitted anew)."""
_WAITING_VECTORIZED: Final = 4.0
"""The same where all kernels load vectors, as a compiler's do."""
_WAITING_POWER: Final = 1.5
"""How bandwidth and waiting join: with it H200 reaches 3.3 of 4.15 TB/s with 8 bytes a thread, and
3.2 were measured (as above)."""


@lru_cache(maxsize=2**16)
def product_time(
    product: Product, dtype: DataType, device: Device, shares: Shares = BURSTS
) -> float:
    """Seconds of one kernel for ``product`` in ``dtype``."""
    rate = device.matrix_rate(dtype) * device.flops_efficiency_ratio * shares.product_ratio
    if device.num_multiprocessors == 0:
        return math.hypot(product.flops / rate, _memory_s(product, 1, dtype, device)) + FLOOR_S
    per_multiprocessor = rate / device.num_multiprocessors
    memory_s = {split: _memory_s(product, split, dtype, device) for split in _SPLITS}
    return min(
        math.hypot(compute_s, memory_s[split]) + FLOOR_S
        for height, width, efficiency in _TILES_WITH_EFFICIENCY
        for split, compute_s in _tiled(
            product, (height, width), per_multiprocessor * efficiency, device.num_multiprocessors
        )
    )


def streaming_time(num_bytes: float, tensor_bytes: float, device: Device) -> float:
    """Seconds to move ``num_bytes`` of tensors of ``tensor_bytes`` each between kernels.

    Half of the traffic re-reads what the kernel before wrote. The second-level cache keeps a tensor
    beside the stream that passes it when it is twice as large, and none of it when it is smaller.
    """
    room = device.l2_capacity_bytes / tensor_bytes - 1.0 if tensor_bytes > 0 else 1.0
    found = 0.5 * min(1.0, max(0.0, room))
    return num_bytes * (1.0 - found) / device.hbm_bandwidth_bytes_per_s


def kernel_streaming_time(
    num_bytes: float, operator: Operator, device: Device, memory_ratio: float
) -> float:
    """Seconds in which kernels between products move ``num_bytes`` for an operator.

    They reach ``memory_ratio`` of the bandwidth. A multiprocessor waits for a few elements of each
    of its threads at a time, so that fast memory with small elements is not used up. That time
    joins the one of the bandwidth as a 1.5-norm.
    """
    streamed_s = streaming_time(num_bytes, operator.tensor_bytes, device) / memory_ratio
    if not device.num_multiprocessors or not num_bytes:
        return streamed_s
    waiting = _WAITING_VECTORIZED if operator.is_vectorized else _WAITING
    element = max(operator.dtype.num_bytes, DataType.FP16.num_bytes)
    # of the bytes, half are read: what is written is not waited for
    in_flight = 2.0 * device.num_multiprocessors * _THREADS * waiting * element
    waited_s = num_bytes * _MEMORY_LATENCY_S / in_flight
    power = _WAITING_POWER
    return float((streamed_s**power + waited_s**power) ** (1.0 / power))


def _tiled(
    product: Product, tile: tuple[int, int], rate: float, num_multiprocessors: int
) -> Iterator[tuple[int, float]]:
    """Ways to split the inner dimension of tiles of this size, and the seconds of their waves."""
    area = tile[0] * tile[1]
    tiles = product.count * math.ceil(product.m / tile[0]) * math.ceil(product.n / tile[1])
    for split in _SPLITS:
        waves = math.ceil(tiles * split / num_multiprocessors)
        inner = product.k if split == 1 else max(product.k / split, _SHORTEST_SPLIT)
        yield split, waves * 2.0 * area * inner / rate


def _memory_s(product: Product, split: int, dtype: DataType, device: Device) -> float:
    """Seconds to move the operands, the result, and the partial sums of a split."""
    partial_sums = 2.0 * (split - 1) * product.count * product.m * product.n
    largest_bytes = product.largest_elements * dtype.num_bytes
    moved_bytes = (product.num_elements + partial_sums) * dtype.num_bytes
    return streaming_time(moved_bytes, largest_bytes, device)
