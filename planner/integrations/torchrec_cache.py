"""Computes TorchRec's cache statistics from index distributions, without traces.

TorchRec's prefetch estimates and its search for load factors need a ``CacheStatistics`` for each
table, which users would have to measure. It follows from the distribution of indices.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import CacheAlgorithm, CacheParams, CacheStatistics

from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.workload import Workload
from planner.io.plan.plan_file import parameter_name

_STEPS = 32


class DistributionStatistics(CacheStatistics):
    """Statistics of one table: distinct rows of a global batch, and misses of an LRU cache.

    Args:
        distribution: the law of the table's indices.
        indices_per_step: indices of the table in a global batch.
    """

    def __init__(self, distribution: AbstractIndexDistribution, indices_per_step: float) -> None:
        self._distribution = distribution
        self._indices = indices_per_step
        self._lookups = distribution.expected_unique_rows(indices_per_step)

    @property
    def expected_lookups(self) -> float:
        """Distinct rows of a global batch."""
        return self._lookups

    def expected_miss_rate(self, clf: float) -> float:
        """Share of distinct rows outside of a cache with the share ``clf`` of a table's rows."""
        if clf <= 0:
            return 1.0
        if clf >= 1 or self._lookups <= 0:
            return 0.0
        rows = clf * self._distribution.num_embeddings
        missed = self._distribution.expected_unique_misses(self._indices, rows)
        return min(1.0, max(0.0, missed / self._lookups))

    @property
    def cacheability(self) -> float:
        """Area under the miss rate over the cache size: 0 if caching works well, 1 if it fails."""
        points = [self.expected_miss_rate(i / _STEPS) for i in range(_STEPS + 1)]
        return sum((a + b) / 2 for a, b in pairwise(points)) / _STEPS

    def stable_fingerprint(self) -> tuple[object, ...]:
        """The miss curve, which TorchRec 1.9 hashes; it is the same in every process."""
        curve = tuple(round(self.expected_miss_rate(i / _STEPS), 9) for i in range(_STEPS + 1))
        return ("shardplan_distribution_statistics", 1, round(self._lookups, 6), curve)


def with_cache_statistics(
    constraints: Mapping[str, ParameterConstraints] | None, workload: Workload, world_size: int
) -> dict[str, ParameterConstraints]:
    """Constraints with the statistics of every table, for TorchRec's own planner.

    Args:
        constraints: TorchRec's constraints by table name; everything in them is kept.
        workload: tables with their distributions, from :func:`describe_model`.
        world_size: number of ranks that share the table.
    """
    given = dict(constraints or {})
    for table in workload.tables:
        name = parameter_name(table)
        limit = given.get(name) or ParameterConstraints()
        per_sample = sum(f.pooling_factor for f in table.features)
        indices = per_sample * workload.batch_size_per_rank * world_size
        own = limit.cache_params or CacheParams(algorithm=CacheAlgorithm.LRU)
        statistics = DistributionStatistics(table.distribution, indices)
        given[name] = replace(limit, cache_params=replace(own, stats=statistics))
    return given
