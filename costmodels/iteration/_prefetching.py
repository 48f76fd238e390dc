"""What pipelines with a cache fetch on a stream of its own have in common."""

from __future__ import annotations

from costmodels.iteration._builder import ProgramBuilder
from costmodels.iteration.base import AbstractPipeline, Program, StageTimes, Stream


class AbstractPrefetching(AbstractPipeline):
    """As sparse_dist, with the rows of a coming batch fetched beside the work of this one."""

    __slots__ = ()

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
