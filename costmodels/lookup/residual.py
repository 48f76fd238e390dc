"""A learned factor on the work that another lookup model counts, for each shard and pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final, final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.lookup.base import (
    NUM_LOOKUP_WORK,
    AbstractLookupModel,
    CallFloor,
    LookupShard,
    LookupShards,
    LookupWork,
)
from costmodels.measured.lookup_residual import (
    REUSE_BINS,
    LookupResidual,
)
from costmodels.sharding import ComputeKernel
from costmodels.topology import Topology
from costmodels.workload import Workload

_SMALLEST: Final = 1e-3
"""Smallest size of which a logarithm is taken, so that a size of 0 gives a finite feature."""
_FORWARD: Final = [int(w) for w in LookupWork if w.name.startswith(("STREAM", "FORWARD"))]
_BACKWARD: Final = [int(w) for w in LookupWork if w.name.startswith(("INDICES", "BACKWARD"))]
"""Columns of the work that the forward and the backward factor multiply."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected(AbstractLookupModel):
    """The lookup model ``inner``, with the work of each shard multiplied by learned factors.

    One factor multiplies the columns of the forward pass, another one those of the backward pass.
    Factors lie between 1/2 and 2, so that shards unlike those of the fit are never far from
    ``inner``. They act on the work of a shard and not on the seconds of a call. Work therefore
    still adds up over shards, and seconds stay convex in the work.

    Args:
        inner: the model that is corrected.
        residual: the factors.
    """

    inner: AbstractLookupModel
    residual: LookupResidual

    sources: ClassVar[tuple[str, ...]] = (
        "Lin et al. 2024 (arXiv 2404.12674): batch, rows, pooling, columns, reuse histogram",
    )

    def shard_work(self, shard: LookupShard, topology: Topology) -> FloatArray:
        """Work of one shard by ``inner``, times the factors."""
        work = self.inner.shard_work(shard, topology)
        return np.asarray(self._corrected(LookupShards.of(shard), work)[0])

    def shards_work(self, shards: LookupShards, topology: Topology) -> FloatArray:
        """Work of many shards by ``inner``, times the factors."""
        return self._corrected(shards, self.inner.shards_work(shards, topology))

    def _corrected(self, shards: LookupShards, work: FloatArray) -> FloatArray:
        """The work ``[n, NUM_LOOKUP_WORK]`` times the factors; shards without indices have none."""
        work, used = work.reshape(len(shards), NUM_LOOKUP_WORK).copy(), shards.is_used
        factors = (self.residual.forward, self.residual.backward)
        if not used.any() or factors == (None, None):
            return work
        seen = shards_features(shards.chosen(used))
        for columns, factor in zip((_FORWARD, _BACKWARD), factors, strict=True):
            if factor is not None:
                work[np.ix_(np.flatnonzero(used), np.array(columns))] *= factor.at(seen)[:, None]
        return work

    def forward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Seconds of the forward pass by ``inner``, on the work that is already corrected."""
        return self.inner.forward_time(work, topology)

    def backward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Seconds of the backward pass by ``inner``, on the work that is already corrected."""
        return self.inner.backward_time(work, topology)

    def call_floor(self, kernel: ComputeKernel, topology: Topology) -> CallFloor:
        """The floors of ``inner``."""
        return self.inner.call_floor(kernel, topology)

    def for_calls(
        self, shards: LookupShards, topology: Topology, workload: Workload | None = None
    ) -> AbstractLookupModel:
        """That of ``inner``, with the same factors."""
        return replace(self, inner=self.inner.for_calls(shards, topology, workload))

    def prefers_device(self, topology: Topology) -> bool:
        """The answer of ``inner``, because a factor does not depend on where the rows are."""
        return self.inner.prefers_device(topology)


def shards_features(shards: LookupShards) -> FloatArray:
    """The numbers ``[n, NUM_FEATURES]`` that a learned factor sees of shards.

    First the logarithms of six sizes: bags, rows, mean indices of a bag, columns (these four as in
    Lin et al. 2024), expected distinct rows in a batch, and indices for each distinct row. Then the
    reuse histogram of the table: entry 0 is the share of the distinct rows of a batch that are
    accessed once, entry k the share of those accessed more than 2^(k-1) and up to 2^k times, and
    the last entry the share of all others.
    """
    law, indices, bags = shards.law, shards.num_indices, shards.num_bags
    unique = np.maximum(shards.unique_rows(), _SMALLEST)
    mean_bag, reuse = indices / np.maximum(bags, 1.0), indices / unique
    sizes = (bags, shards.num_rows, mean_bag, shards.num_cols, unique, reuse)
    logs = np.log(np.maximum(np.stack(sizes, axis=-1), _SMALLEST))
    draws = shards.laws.effective_draws(law, shards.num_table_indices)
    kinds, index = np.unique(np.stack([law, draws]), axis=1, return_inverse=True)
    shares = [
        _reuse_shares(*shards.laws.laws[int(at)].frequency_bins(), count)
        for at, count in kinds.T.tolist()
    ]
    return np.concatenate([logs, np.array(shares)[index.ravel()]], axis=-1)


def _reuse_shares(rows: FloatArray, probability: FloatArray, draws: float) -> FloatArray:
    """The reuse histogram ``[REUSE_BINS]`` that is expected in a batch of a law.

    How often a row is drawn is taken to follow a Poisson law with the mean p N.

    Args:
        rows: rows of each bin of the law.
        probability: probability of one row of each bin.
        draws: independent draws N of the batch.
    """
    from scipy.special import pdtr

    mean = probability * draws
    edges = 2.0 ** np.arange(REUSE_BINS - 1)
    below = pdtr(edges[:, None], mean[None, :])
    none = np.exp(-mean)
    at_most = ((below - none) * rows).sum(axis=1)
    total = float(((1.0 - none) * rows).sum())
    counts = np.diff(np.concatenate([[0.0], at_most, [total]]))
    return np.maximum(counts, 0.0) / max(total, _SMALLEST)
