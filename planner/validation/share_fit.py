"""Fits the shares of a device's rates (:mod:`costmodels.sustained`) to measured training steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.sustained import PRIOR, PRIOR_SIGMA, Shares

TRIED: Final = np.geomspace(0.4, 1.25, 7)
"""Shares of the rates at which operators are priced; :func:`_between` reads between them."""
_WEIGHT: Final = 0.05
"""Standard error of ln(time) that each row is taken to have. The larger it is, the more the prior
counts."""
_FEWEST: Final = 3
"""A group with fewer rows has no shares of its own: it gets those of a device that was not
measured."""
_PRIOR_SIGMA: Final = (0.12, 0.2)
"""Log-standard deviations of the memory share and of the rate of FlashAttention 1 around the prior.
The smaller they are, the closer fits stay to the prior."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondsByShare:
    """The seconds of a case's micro-batch, by the share that they depend on.

    Attributes:
        group: the group of the case.
        family: the family of its model.
        product_s: ``[len(TRIED)]`` seconds at each share of the product rate, if memory were
            infinitely fast.
        memory_s: ``[len(TRIED)]`` further seconds at each share of the memory bandwidth.
        flash_s: further seconds of FlashAttention 1, at the rates of FlashAttention 2 and of large
            products.
        rest_s: further seconds, which depend on no share.
        measured_s: measured seconds.
    """

    group: str
    family: str
    product_s: FloatArray
    memory_s: FloatArray
    flash_s: float
    rest_s: float
    measured_s: float

    def time_s(self, shares: Shares) -> float:
        """Seconds of the micro-batch with these shares."""
        flash_s = self.flash_s / (shares.product_ratio * shares.flash_1_ratio)
        product_s = _between(self.product_s, shares.product_ratio)
        return product_s + _between(self.memory_s, shares.memory_ratio) + flash_s + self.rest_s


def fit(parts: Sequence[SecondsByShare]) -> dict[str, Shares]:
    """The shares of one generation with the least errors of ln(time), pulled to the prior.

    Each precision has its own share of the product rate. The share of the memory bandwidth and the
    rate of FlashAttention 1 are common to all precisions. Precisions with fewer than three rows are
    left out.

    One share is changed at a time, by smaller and smaller factors. Errors above two standard errors
    count by their size instead of their square, so that a single row cannot decide. Rows of one
    family have similar errors, so that n of them together count as much as root(n) rows.

    Args:
        parts: the seconds of the cases of one generation.

    Returns:
        The shares of each group.
    """
    counts = Counter(p.group for p in parts)
    groups = sorted(g for g, count in counts.items() if count >= _FEWEST)
    chosen = [p for p in parts if p.group in groups]
    rows = Counter((p.group, p.family) for p in chosen)
    weights = np.array([rows[p.group, p.family] ** -0.5 for p in chosen])
    prior = [PRIOR.memory_ratio, PRIOR.flash_1_ratio, *[PRIOR.product_ratio] * len(groups)]
    sigmas = [*_PRIOR_SIGMA, *[PRIOR_SIGMA] * len(groups)]
    values, width = list(prior), 0.4

    def shares(tried: list[float]) -> dict[str, Shares]:
        memory, flash, *products = tried
        return {
            group: Shares(product_ratio=product, memory_ratio=memory, flash_1_ratio=flash)
            for group, product in zip(groups, products, strict=True)
        }

    def loss(tried: list[float]) -> float:
        by_group = shares(tried)
        errors = [math.log(p.time_s(by_group[p.group]) / p.measured_s) / _WEIGHT for p in chosen]
        size = np.abs(np.array(errors))
        huber = np.where(size < 2.0, 0.5 * size**2, 2.0 * (size - 1.0))
        pulls = zip(tried, prior, sigmas, strict=True)
        pulled = sum(0.5 * (math.log(v / p) / s) ** 2 for v, p, s in pulls)
        return float((weights * huber).sum()) + pulled

    while groups and width > 1e-3:
        before = list(values)
        for i in range(len(values)):
            steps = (-width, 0.0, width)
            tries = [[*values[:i], values[i] * math.exp(s), *values[i + 1 :]] for s in steps]
            values = min(tries, key=loss)
        if values == before:
            width *= 0.5
    return shares(values)


def unmeasured(found: Mapping[str, Shares], precision: str = "half") -> Shares:
    """The shares of a device of a generation that was not measured.

    They are geometric means over the measured generations, or the prior if there are none. Products
    of each precision have a mean of their own, because products in fp32 do not use the matrix
    units; this mean is at most 1.

    Args:
        found: shares of the measured groups.
        precision: ``half`` or ``fp32``.
    """
    known = {group.split()[0]: shares for group, shares in found.items()}
    products = [s.product_ratio for group, s in found.items() if group.split()[1] == precision]
    shares = PRIOR
    if known:
        memory = _mean([s.memory_ratio for s in known.values()])
        shares = replace(shares, memory_ratio=memory)
    if products:
        shares = replace(shares, product_ratio=min(1.0, _mean(products)))
    return shares


def _mean(ratios: list[float]) -> float:
    """The geometric mean."""
    return float(np.exp(np.mean(np.log(ratios))))


def _between(seconds: FloatArray, ratio: float) -> float:
    """Seconds at any share, interpolated in the logarithms of share and seconds.

    Args:
        seconds: ``[len(TRIED)]`` seconds at the shares in :data:`TRIED`.
        ratio: the share.
    """
    return math.exp(np.interp(math.log(ratio), np.log(TRIED), np.log(seconds)))
