"""How long a fused attention takes: with softmax, or pointwise as in HSTU.

Kernels of both kinds run blocks of 128 queries of one head in whole waves over the multiprocessors,
and a causal mask leaves the blocks on and below the diagonal.

With softmax (FlashAttention) the products reach a share of the rate of large products
(:func:`costmodels.sustained.attention_shares`). Pointwise attention (Zhai et al. 2024, arXiv
2402.17152) applies an activation to each score in the place of softmax. Measured times of its
kernels say more: the products and the activation of a score join as a 2-norm, and each block takes
a while to begin and end (:class:`costmodels.sustained.ScoreWork`).
"""

from __future__ import annotations

import math
from typing import Final

from costmodels.operators import Operator
from costmodels.sustained import BURSTS, ScoreWork, Shares, attention_shares, score_works
from costmodels.topology import Device

_ROWS: Final = 128
"""Queries of a block, and keys."""
_FLOOR_S: Final = 4e-6
_BACKWARD_MOVED: Final = 17.0 / 4.0
"""What a backward pass moves over what the forward pass moves, which is 4 tensors. FlashAttention-2
and what came from its code read queries, keys and values (3), the result (1) and its gradient (2),
write three gradients (3), and add up that of the queries in fp32: zeroed (2), read and written (4),
converted (2)."""
_TRITON_RATIO: Final = 0.46
"""Rate of Triton's kernels over CUTLASS's. With them a layer of HSTU with 4 heads of 256 elements
takes so much longer on an H100 that its attention must take 2.13 to 2.24 times as long, at 1024 to
8192 positions (NVIDIA/recsys-examples, hstu_layer_perf.png beside the kernels' times)."""


def attention_time(
    operator: Operator, device: Device, shares: Shares = BURSTS, *, is_backward: bool
) -> float:
    """Seconds of one fused attention, forward or backward."""
    if operator.is_pointwise:
        works = score_works(device)
        return pointwise_time(operator, device, shares, works, is_backward=is_backward)
    forward, backward = attention_shares(operator.flash_version, device, shares)
    rate = _product_rate(operator, device, shares) * (backward if is_backward else forward)
    flop = operator.gradient_flop if is_backward else operator.forward_flop
    flop *= _seen_ratio(operator) * _waves_ratio(operator, device)
    moved = operator.moved_bytes * (_BACKWARD_MOVED if is_backward else 1.0)
    memory_s = moved / device.hbm_bandwidth_bytes_per_s
    return math.hypot(flop / rate, memory_s) + _FLOOR_S


def pointwise_time(
    operator: Operator,
    device: Device,
    shares: Shares,
    works: tuple[ScoreWork, ScoreWork],
    *,
    is_backward: bool,
) -> float:
    """Seconds of one pointwise attention by a kernel that does ``works``, forward and backward."""
    heads, queries, keys, _, _ = operator.shape
    work = works[is_backward]
    flop = operator.gradient_flop if is_backward else operator.forward_flop
    scores = float(heads) * queries * keys
    done = math.hypot(flop / work.product_ratio, work.score_flops * scores) * _seen_ratio(operator)
    compute_s = done / _product_rate(operator, device, shares)
    if device.num_multiprocessors:
        compute_s += work.block_s * _blocks(operator) / device.num_multiprocessors
    compute_s *= _waves_ratio(operator, device)
    compute_s /= _TRITON_RATIO if operator.flash_version == 1 else 1.0
    moved = operator.moved_bytes * (_BACKWARD_MOVED if is_backward else 1.0)
    return math.hypot(compute_s, moved / device.hbm_bandwidth_bytes_per_s) + _FLOOR_S


def _product_rate(operator: Operator, device: Device, shares: Shares) -> float:
    """FLOP a second of large products."""
    rate = device.matrix_rate(operator.dtype) * device.flops_efficiency_ratio
    return rate * shares.product_ratio


def _seen_ratio(operator: Operator) -> float:
    """Share of the scores that a causal mask leaves, in whole blocks."""
    keys = operator.shape[2]
    return min(1.0, 0.5 + 0.5 * _ROWS / max(keys, 1)) if operator.is_causal else 1.0


def _blocks(operator: Operator) -> int:
    heads, queries = operator.shape[:2]
    return heads * math.ceil(queries / _ROWS)


def _waves_ratio(operator: Operator, device: Device) -> float:
    """Whole waves of blocks over the multiprocessors, over the blocks there are."""
    blocks, count = _blocks(operator), device.num_multiprocessors
    if not count or not blocks:
        return 1.0
    return math.ceil(blocks / count) * count / blocks
