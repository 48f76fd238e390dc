"""BagPipe's pipeline: caches are filled from the next batches, some of them ahead (SOSP 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from costmodels.iteration._prefetching import AbstractPrefetching


@final
@dataclass(frozen=True, slots=True)
class Lookahead(AbstractPrefetching):
    """As prefetch_sparse_dist, with caches that keep what the next batches need.

    What a cache holds is counted with the lookups (``Laws.lookahead_draws``); the rows of a coming
    batch travel beside the work of this one.
    """
