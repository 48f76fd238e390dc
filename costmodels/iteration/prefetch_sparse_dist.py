"""TorchRec's PrefetchTrainPipelineSparseDist: cache rows are fetched one batch early too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from costmodels.iteration._prefetching import AbstractPrefetching


@final
@dataclass(frozen=True, slots=True)
class PrefetchSparseDist(AbstractPrefetching):
    """As sparse_dist, with the cache fetch of the next batch on a stream of its own."""
