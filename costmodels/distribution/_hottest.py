"""The share of accesses that the hottest of equal parts of a hashed table gets.

One row lives in one part. If a hash decides where, the part with the hottest row gets more than the
even share, however many rows the table has.
"""

from __future__ import annotations

from collections.abc import Sequence
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
_AT_ONCE: Final = 16
"""Tables computed together: enough that numpy's calls take little, and few enough for caches."""
_FINE: Final = 32
"""Powers of a row's turn that are computed one by one; the others are products with these."""
_SMOOTHING: Final = 0.7
"""Least standard deviation of the tail, in steps between points: jumps of the distribution function
would ring."""


def hottest_shares(bins: Sequence[tuple[FloatArray, FloatArray]], num_parts: int) -> FloatArray:
    """Expected largest share (0..1) of accesses among ``num_parts`` equal parts of hashed tables.

    A part holds each row with probability 1/k. Only what a row has above the mean of all rows makes
    parts differ, since parts have equally many rows. Let Y be the sum of these excesses in a part,
    and F its distribution function, from the product of the characteristic functions of the 64
    hottest rows and a normal one for the others. The hottest row is in exactly one part, whose
    distribution function is F shifted by its excess w_1. With the parts taken as independent
    otherwise, the maximum has the distribution function F(x - w_1) F(x)^(k-1). Within 3 % of the
    mean of simulated placements (``tests/costmodels/distribution/test_hottest.py``).

    Args:
        bins: for each of L tables the rows of each bin, hottest first, and the probability of one
            row of each bin.
        num_parts: k, at least 1.

    Returns:
        ``[L]`` shares.
    """
    if num_parts == 1:
        return np.ones(len(bins))
    at_once = [bins[i : i + _AT_ONCE] for i in range(0, len(bins), _AT_ONCE)]
    return np.concatenate([_shares(some, 1.0 / num_parts, num_parts) for some in at_once])


def _shares(
    bins: Sequence[tuple[FloatArray, FloatArray]], even: float, num_parts: int
) -> FloatArray:
    head, tail = np.zeros((len(bins), _HEAD_ROWS)), np.zeros(len(bins))
    spread = even * (1.0 - even)
    for i, (rows, probability) in enumerate(bins):
        excess = probability - 1.0 / rows.sum()
        before = np.cumsum(rows) - rows
        alone = np.clip(np.floor(_HEAD_ROWS - before), 0, np.floor(rows)).astype(np.int64)
        hottest = np.maximum(np.repeat(excess, alone), 0.0)
        head[i, : len(hottest)] = hottest
        tail[i] = np.sqrt(((rows - alone) @ excess**2) * spread)
    first, others = head[:, 0], head[:, 1:]
    deviation = np.sqrt((others**2).sum(axis=1) * spread + tail**2)
    differs = first + deviation > 0.0
    shares = np.full(len(bins), even)
    if not differs.any():
        return shares
    first, others, tail, deviation = (a[differs] for a in (first, others, tail, deviation))
    total = others.sum(axis=1)
    high = first + np.minimum(total, _DEVIATIONS * deviation) + _TAIL_DEVIATIONS * tail
    low = -np.minimum((first + total) * even, _DEVIATIONS * deviation + first * even)
    low -= _TAIL_DEVIATIONS * tail
    step = (high - low) * _MARGIN / _POINTS
    low -= 0.1 * (high - low)
    angle = 2.0 * np.pi / (_POINTS * step)
    t = angle[:, None] * np.arange(_POINTS // 2 + 1)
    smooth = np.maximum(tail, _SMOOTHING * step)
    wave = np.exp(-0.5 * (t * smooth[:, None]) ** 2 - 1j * t * ((first + total) * even)[:, None])
    wave *= _product(others * angle[:, None], even, t.shape[1])

    def distribution(shift: FloatArray) -> FloatArray:
        """F(x - shift) at the points."""
        density = np.fft.irfft(np.conj(wave * np.exp(1j * t * (shift - low)[:, None])), _POINTS)
        return np.asarray(np.clip(np.cumsum(density, axis=-1), 0.0, 1.0))

    below = distribution(first) * distribution(np.zeros_like(first)) ** (num_parts - 1)
    found = even + low + (1.0 - below).sum(axis=-1) * step
    shares[differs] = np.minimum(np.maximum(found, even + first * (1.0 - even)), 1.0)
    return shares


def _product(angles: FloatArray, even: float, count: int) -> ComplexArray:
    """``[L, count]`` product over rows of 1 - even + even exp(i n angle), for n from 0 on.

    The powers of exp(i angle) are products of two of them, so that few exponentials are computed:
    listing the options of 10,000 tables took minutes with one for each row and point.

    Args:
        angles: ``[L, rows]`` radians.
        even: probability of each row to be in a part.
        count: of points.
    """
    turns = 1j * angles[:, :, None]
    fine = np.exp(np.arange(_FINE) * turns)
    coarse = even * np.exp(_FINE * np.arange(-(-count // _FINE)) * turns)
    product = np.ones((len(angles), coarse.shape[2], _FINE), dtype=complex)
    factor = np.empty_like(product)
    for row in range(angles.shape[1]):
        np.multiply(coarse[:, row, :, None], fine[:, row, None, :], out=factor)
        factor += 1.0 - even
        product *= factor
    return np.asarray(product.reshape(len(angles), -1)[:, :count])
