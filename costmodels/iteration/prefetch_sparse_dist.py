"""TorchRec's PrefetchTrainPipelineSparseDist: rows are fetched into caches one batch ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from costmodels.iteration._prefetching import AbstractPrefetching


@final
@dataclass(frozen=True, slots=True)
class PrefetchSparseDist(AbstractPrefetching):
    """Like sparse_dist, with the cache fetch of the next batch on a stream of its own."""
