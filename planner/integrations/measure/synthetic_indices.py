"""Draws batches of indices from a frequency law, for microbenchmarks and training runs."""

from __future__ import annotations

import numpy as np

from costmodels.datatypes import IntArray
from costmodels.distribution.base import AbstractIndexDistribution


class IndexSampler:
    """Draws row ids from a law, which says whether hot rows are scattered or come first."""

    def __init__(self, law: AbstractIndexDistribution, rng: np.random.Generator) -> None:
        """Prepare the inverse distribution function over bins."""
        rows, probability = law.frequency_bins()
        mass = np.cumsum(rows * probability)
        self._mass = mass / mass[-1]
        self._starts = np.concatenate([[0.0], np.cumsum(rows)])
        self._ids = rng.permutation(law.num_embeddings) if law.scattered else None
        self._last = law.num_embeddings - 1

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        """``count`` independent ids."""
        bins = np.searchsorted(self._mass, rng.random(count), side="right")
        bins = np.minimum(bins, len(self._mass) - 1)
        start, end = self._starts[bins], self._starts[bins + 1]
        ranks = (start + rng.random(count) * (end - start)).astype(np.int64)
        ranks = np.minimum(ranks, self._last)
        return ranks if self._ids is None else np.asarray(self._ids[ranks], dtype=np.int64)


def bag_lengths(pooling_factor: float, num_bags: int, rng: np.random.Generator) -> IntArray:
    """Indices per bag: constant if the mean is a whole number below 2, otherwise Poisson."""
    if pooling_factor == 1.0:
        return np.ones(num_bags, dtype=np.int64)
    return rng.poisson(pooling_factor, num_bags).astype(np.int64)
