"""The share of accesses that the hottest of equal parts of a hashed table gets.

One row lives in one part. If a hash decides where, the part with the hottest row gets more than the
even share, however many rows the table has.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from costmodels.datatypes import FloatArray

ComplexArray = npt.NDArray[np.complex128]

_HEAD_ROWS: Final = 64
"""Hottest rows whose places are random one by one. The others are so many that the share of a part
on them is a normal variable."""
_POINTS: Final = 512
"""Shares at which the distribution function of a part is computed."""
_DEVIATIONS: Final = 14.0
"""Standard deviations of the head that the shares reach beyond the hottest row."""
_TAIL_DEVIATIONS: Final = 6.0
_MARGIN: Final = 1.3
"""Span of the shares over what they can be, since a discrete Fourier transform is periodic."""
_FINE: Final = 32
"""Powers of a row's turn that are computed one by one; the others are products with these."""
_SMOOTHING: Final = 0.7
"""Least standard deviation of the tail, in steps between points: jumps of the distribution function
would ring."""


def hottest_share(rows: FloatArray, probability: FloatArray, num_parts: int) -> float:
    """Expected largest share (0..1) of accesses among ``num_parts`` equal parts of a hashed table.

    A part holds each row with probability 1/k. Only what a row has above the mean of all rows makes
    parts differ, since parts have equally many rows. Let Y be the sum of these excesses in a part,
    and F its distribution function, from the product of the characteristic functions of the 64
    hottest rows and a normal one for the others. The hottest row is in exactly one part, whose
    distribution function is F shifted by its excess w_1. With the parts taken as independent
    otherwise, the maximum has the distribution function F(x - w_1) F(x)^(k-1). Within 3 % of the
    mean of simulated placements (``tests/costmodels/distribution/test_hottest.py``).

    Args:
        rows: ``[bins]`` rows of each bin, hottest first.
        probability: ``[bins]`` of one row of each bin.
        num_parts: k, at least 1.
    """
    if num_parts == 1:
        return 1.0
    even = 1.0 / num_parts
    excess = probability - 1.0 / rows.sum()
    before = np.cumsum(rows) - rows
    alone = np.clip(np.floor(_HEAD_ROWS - before), 0, np.floor(rows)).astype(np.int64)
    head = np.maximum(np.repeat(excess, alone), 0.0)
    spread = even * (1.0 - even)
    tail = float(np.sqrt(((rows - alone) @ excess**2) * spread))
    first, others = (head[0], head[1:]) if len(head) else (0.0, head)
    deviation = float(np.sqrt(others @ others * spread + tail**2))
    if first + deviation <= 0.0:
        return even
    high = first + min(float(others.sum()), _DEVIATIONS * deviation) + _TAIL_DEVIATIONS * tail
    low = -min(float(head.sum()) * even, _DEVIATIONS * deviation + first * even)
    low -= _TAIL_DEVIATIONS * tail
    step = (high - low) * _MARGIN / _POINTS
    low -= 0.1 * (high - low)
    angle = 2.0 * np.pi / (_POINTS * step)
    t = angle * np.arange(_POINTS // 2 + 1)
    wave = np.exp(-0.5 * (t * max(tail, _SMOOTHING * step)) ** 2 - 1j * t * head.sum() * even)
    wave = wave * _product(others * angle, even, len(t))

    def distribution(shift: float) -> FloatArray:
        """F(x - shift) at the points."""
        density = np.fft.irfft(np.conj(wave * np.exp(1j * t * (shift - low))), _POINTS)
        return np.asarray(np.clip(np.cumsum(density), 0.0, 1.0))

    below = distribution(first) * distribution(0.0) ** (num_parts - 1)
    share = even + low + float((1.0 - below).sum()) * step
    return float(min(max(share, even + first * (1.0 - even)), 1.0))


def _product(angles: FloatArray, even: float, count: int) -> ComplexArray:
    """``[count]`` product over rows of 1 - even + even exp(i n angle), for n from 0 to count - 1.

    The powers of exp(i angle) are products of two of them, so that few exponentials are computed:
    listing the options of 10,000 tables took minutes with one for each row and point.

    Args:
        angles: ``[rows]`` radians.
        even: probability of each row to be in a part.
        count: of points.
    """
    fine = np.exp(1j * np.arange(_FINE) * angles[:, None])
    coarse = even * np.exp(1j * _FINE * np.arange(-(-count // _FINE)) * angles[:, None])
    product = np.ones((coarse.shape[1], _FINE), dtype=complex)
    for turned, own in zip(coarse, fine, strict=True):
        factor = np.multiply.outer(turned, own)
        factor += 1.0 - even
        product *= factor
    return np.asarray(product.ravel()[:count])
