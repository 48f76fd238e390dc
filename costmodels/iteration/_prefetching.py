"""What the pipelines have in common that fill caches on a stream of its own."""

from __future__ import annotations

from costmodels.iteration._builder import ProgramBuilder
from costmodels.iteration.base import AbstractPipeline, Program, StageTimes, Stream


class AbstractPrefetching(AbstractPipeline):
    """Like sparse_dist, but rows for a coming batch are fetched beside the work of this one."""

    __slots__ = ()

    @property
    def exposes_input_dist(self) -> bool:
        """False: the next batch's indices travel beside forward and backward pass."""
        return False

    @property
    def exposes_fetch(self) -> bool:
        """False: rows are fetched beside the iteration of the batch before."""
        return False

    @property
    def overlaps_bottom(self) -> bool:
        """False: bottom MLP, exchanges and update run one after the other."""
        return False

    def program(self, times: StageTimes) -> Program:
        """The steps, in issue order."""
        builder = ProgramBuilder(times)
        splits = builder.input_splits()
        builder.add("cache prefetch", Stream.PREFETCH, times.cache_fetch_s)
        top = builder.forward(())
        builder.input_dist((splits,))
        builder.input_copy(Stream.COPY)
        builder.backward((top,))
        return builder.build()
