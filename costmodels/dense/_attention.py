"""How long a fused attention takes: with softmax, or pointwise as in HSTU.

Kernels run blocks of 128 queries of one head in whole waves over the multiprocessors. A block that
holds fewer queries takes as long as a full one, and a causal mask leaves the blocks on and below
the diagonal. The products of a score and its activation join as a 2-norm, each block takes a while
to begin and end (:class:`costmodels.sustained.ScoreWork`), and that joins with memory as a 2-norm.
Pointwise attention (Zhai et al. 2024, arXiv 2402.17152) applies
an activation to each score in the place of softmax.
"""

from __future__ import annotations

import math
from typing import Final

from costmodels.dense._tiles import FLOOR_S
from costmodels.operators import Operator
from costmodels.sustained import BURSTS, Shares, Works, pointwise_works, softmax_works
from costmodels.topology import Device

_ROWS: Final = 128
"""Queries of a block, and keys."""
_BACKWARD_MOVED: Final = 17.0 / 4.0
"""What a backward pass moves over what the forward pass moves, which is 4 tensors. FlashAttention-2
and what came from its code read queries, keys and values (3), the result (1) and its gradient (2),
write three gradients (3), and add up that of the queries in fp32: zeroed (2), read and written (4),
converted (2)."""


def attention_time(
    operator: Operator, device: Device, shares: Shares = BURSTS, *, is_backward: bool
) -> float:
    """Seconds of one fused attention, forward or backward."""
    if operator.is_pointwise:
        works = pointwise_works(operator.flash_version, device)
    else:
        works = softmax_works(operator.flash_version, device, shares)
    return kernel_time(operator, device, shares, works, is_backward=is_backward)


def kernel_time(
    operator: Operator, device: Device, shares: Shares, works: Works, *, is_backward: bool
) -> float:
    """Seconds of one fused attention by a kernel that takes ``works``."""
    heads, queries, keys, _, _ = operator.shape
    work = works[is_backward]
    flop = operator.gradient_flop if is_backward else operator.forward_flop
    scores = float(heads) * queries * keys
    done = math.hypot(flop / work.product_ratio, work.score_flops * scores)
    done *= _computed_ratio(operator)
    compute_s = done / _product_rate(operator, device, shares)
    if device.num_multiprocessors:
        compute_s += work.block_s * _blocks(operator) / device.num_multiprocessors
    compute_s *= _waves_ratio(operator, device)
    moved = operator.moved_bytes * (_BACKWARD_MOVED if is_backward else 1.0)
    return math.hypot(compute_s, moved / device.hbm_bandwidth_bytes_per_s) + FLOOR_S


def _product_rate(operator: Operator, device: Device, shares: Shares) -> float:
    """FLOP a second of large products."""
    rate = device.matrix_rate(operator.dtype) * device.flops_efficiency_ratio
    return rate * shares.product_ratio


def _computed_ratio(operator: Operator) -> float:
    """Scores of whole blocks of queries that a causal mask leaves, over all scores there are."""
    heads, queries, keys, _, _ = operator.shape
    rows = max(heads * queries, 1)
    seen = min(1.0, 0.5 + 0.5 * _ROWS / max(keys, 1)) if operator.is_causal else 1.0
    return seen * _ROWS * _blocks(operator) / rows


def _blocks(operator: Operator) -> int:
    heads, queries = operator.shape[:2]
    return heads * math.ceil(queries / _ROWS)


def _waves_ratio(operator: Operator, device: Device) -> float:
    """Whole waves of blocks over the multiprocessors, over the blocks there are."""
    blocks, count = _blocks(operator), device.num_multiprocessors
    if not count or not blocks:
        return 1.0
    return math.ceil(blocks / count) * count / blocks
