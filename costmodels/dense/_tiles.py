"""How long one matrix product takes: the best of a menu of tiles, as a library would choose.

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
from costmodels.operators import Product
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
