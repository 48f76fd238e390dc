"""Seconds of a fused attention, with softmax or pointwise as in HSTU.

A score is the product of one query and one key. A kernel computes blocks of 128 queries of one
head (256 where :attr:`costmodels.sustained.ScoreWork.rows` says so), and each multiprocessor
computes one block at a time, so that the blocks run in whole waves over the multiprocessors. A
block with fewer queries takes as long as a full one. Under a causal mask a block skips the keys to
the right of its diagonal.

The time of a block has three parts (:class:`costmodels.sustained.ScoreWork`). The matrix products
and the activation of scores are joined as a 2-norm; to this are added some microseconds in which
the data of the block arrive and leave. The blocks and the traffic of device memory are then joined
as a 2-norm. Pointwise attention (Zhai et al. 2024, arXiv 2402.17152) applies an activation to each
score in the place of softmax.
"""

from __future__ import annotations

import math
from typing import Final

from costmodels.datatypes import DataType
from costmodels.dense._constants import KERNELS, KernelConstants
from costmodels.dense._tiles import multiprocessor_ratio
from costmodels.operators import Operator
from costmodels.sustained import BURSTS, Shares, Works, pointwise_works, softmax_works
from costmodels.topology import Device

_ROWS: Final = 128
"""Queries to which :attr:`costmodels.sustained.ScoreWork.block_s` belongs."""
_TILES: Final = ((64, 2.0 / 3.0), (128, 1.0))
"""Data that the products of a backward pass on an H100 read on the chip, over those with heads of
128 elements, by the most elements of a head. A product of a tile of m queries and n keys reads
1 / m + 1 / n for each score and element. Tiles are 128 x 128, 64 x 128, and for wider heads
64 x 64, which gives 4 / 3."""
_WIDEST_TILE: Final = 4.0 / 3.0
_WIDE_ROWS: Final = 64
"""Queries and keys of a block of the kernel for types of four bytes."""
_BACKWARD_MOVED: Final = 17.0 / 4.0
"""Bytes that a backward pass moves, over those of the forward pass, which reads queries, keys and
values and writes the result: 4 tensors. Counted in such tensors, the backward pass of
FlashAttention-2, and of kernels that were made from its code, reads queries, keys and values (3),
the result (1) and twice its gradient (2), and writes three gradients (3). It adds up the gradient
of the queries in fp32, which counts double: zeroed (2), read and written (4), converted (2)."""


def attention_time(
    operator: Operator,
    device: Device,
    shares: Shares = BURSTS,
    constants: KernelConstants = KERNELS,
    *,
    is_backward: bool,
) -> float:
    """Seconds of the forward or the backward pass of one fused attention.

    Args:
        operator: sizes, type and generation of the kernel.
        device: what runs it.
        shares: the shares of the device's rates that the kernel reaches.
        constants: of the kernels.
        is_backward: whether the backward pass is asked for.
    """
    if operator.dtype.num_bytes == DataType.FP32.num_bytes and not operator.is_pointwise:
        return _wide_time(operator, device, constants, is_backward=is_backward)
    if operator.is_pointwise:
        works = pointwise_works(operator.flash_version, device)
    else:
        works = softmax_works(operator.flash_version, device, shares)
    return kernel_time(operator, device, shares, works, constants, is_backward=is_backward)


def kernel_time(
    operator: Operator,
    device: Device,
    shares: Shares,
    works: Works,
    constants: KernelConstants,
    *,
    is_backward: bool,
) -> float:
    """:func:`attention_time` by a kernel with the given work per score, ``works``."""
    heads, queries, keys, *widths = operator.shape
    work = works[is_backward]
    flop = operator.gradient_flop if is_backward else operator.forward_flop
    scores = float(heads) * queries * keys
    if work.is_tiled:
        flop *= next((r for most, r in _TILES if max(widths) <= most), _WIDEST_TILE)
    done = math.hypot(flop / work.product_ratio, work.score_flops * scores)
    done *= _computed_ratio(operator, work.rows)
    compute_s = done / _product_rate(operator, device, shares)
    blocks = heads * math.ceil(queries / work.rows)
    if device.num_multiprocessors:
        compute_s += work.block_s * blocks * work.rows / _ROWS / device.num_multiprocessors
    compute_s *= _waves_ratio(blocks, device)
    moved = operator.moved_bytes * (_BACKWARD_MOVED if is_backward else 1.0)
    memory_s = moved / device.hbm_bandwidth_bytes_per_s
    return math.hypot(compute_s, memory_s) + constants.product_s + work.start_s


def _wide_time(
    operator: Operator, device: Device, constants: KernelConstants, *, is_backward: bool
) -> float:
    """Seconds of PyTorch's memory-efficient attention, which computes in types of four bytes.

    It works on blocks of 64 queries and 64 keys. Its time is a number of seconds for each score,
    and more for each element of a query and a value, so that the rates of matrix units do not
    matter.
    """
    heads, queries, keys, width, value_width = operator.shape
    rows, columns = (_WIDE_ROWS * math.ceil(size / _WIDE_ROWS) for size in (queries, keys))
    seen = min(1.0, 0.5 + 0.5 * _WIDE_ROWS / max(keys, 1)) if operator.is_causal else 1.0
    each_s = constants.score_gradient_s if is_backward else constants.score_s
    element_s = constants.score_gradient_element_s if is_backward else constants.score_element_s
    score_s = each_s + element_s * 0.5 * (width + value_width)
    compute_s = score_s * heads * rows * columns * seen * multiprocessor_ratio(device)
    moved = operator.moved_bytes * (_BACKWARD_MOVED if is_backward else 1.0)
    return math.hypot(compute_s, moved / device.hbm_bandwidth_bytes_per_s) + constants.product_s


def _product_rate(operator: Operator, device: Device, shares: Shares) -> float:
    """FLOP a second that large products of this type reach on the device."""
    rate = device.matrix_rate(operator.dtype) * device.flops_efficiency_ratio
    return rate * shares.product_ratio


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


def _waves_ratio(blocks: int, device: Device) -> float:
    """Time of the blocks in whole waves over that if all multiprocessors were always busy."""
    count = device.num_multiprocessors
    if not count or not blocks:
        return 1.0
    return math.ceil(blocks / count) * count / blocks
