"""BagPipe's pipeline: caches hold what the next batches need (SOSP 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from costmodels.iteration._prefetching import AbstractPrefetching


@final
@dataclass(frozen=True, slots=True)
class Lookahead(AbstractPrefetching):
    """Like prefetch_sparse_dist, but caches keep rows that one of the next batches needs.

    The steps and their order are the same. That fewer rows are fetched follows from the work of
    lookups (``Laws.lookahead_draws``).
    """
