"""BagPipe's pipeline: caches are filled from the next batches, some of them ahead (SOSP 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from costmodels.iteration._builder import ProgramBuilder
from costmodels.iteration.base import AbstractPipeline, Program, StageTimes, Stream


@final
@dataclass(frozen=True, slots=True)
class Lookahead(AbstractPipeline):
    """As prefetch_sparse_dist, with caches that keep what the next batches need.

    What a cache holds is counted with the lookups (``Laws.lookahead_draws``); the rows of a coming
    batch travel beside the work of this one.
    """

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
