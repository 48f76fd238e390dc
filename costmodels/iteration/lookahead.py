"""BagPipe's pipeline: caches hold what the next batches need (SOSP 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from costmodels.iteration._prefetching import AbstractPrefetching


@final
@dataclass(frozen=True, slots=True)
class Lookahead(AbstractPrefetching):
    """Like prefetch_sparse_dist, with caches that keep rows that the next batches need.

    How many rows still have to be fetched is counted with the lookups (``Laws.lookahead_draws``).
    The rows of a coming batch travel beside the work of this one.
    """
