"""TorchRec's PrefetchTrainPipelineSparseDist: cache rows are fetched one batch early too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from costmodels.iteration._builder import ProgramBuilder
from costmodels.iteration.base import AbstractPipeline, Program, StageTimes, Stream


@final
@dataclass(frozen=True, slots=True)
class PrefetchSparseDist(AbstractPipeline):
    """As sparse_dist, with the cache fetch of the next batch on a stream of its own."""

    @property
    def exposes_input_dist(self) -> bool:
        """Hidden behind forward and backward unless longer than they are."""
        return False

    @property
    def exposes_fetch(self) -> bool:
        """Hidden behind the previous iteration unless longer than it."""
        return False

    @property
    def overlaps_bottom(self) -> bool:
        """They follow one another."""
        return False

    def program(self, times: StageTimes) -> Program:
        """Steps in issue order."""
        builder = ProgramBuilder(times)
        splits = builder.input_splits()
        builder.add("cache prefetch", Stream.PREFETCH, times.cache_fetch_s)
        top = builder.forward(())
        builder.input_dist((splits,))
        builder.input_copy(Stream.COPY)
        builder.backward((top,))
        return builder.build()
