"""No pipelining: every batch exchanges its indices before its own forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from costmodels.iteration._builder import ProgramBuilder
from costmodels.iteration.base import AbstractPipeline, Program, StageTimes, Stream


@final
@dataclass(frozen=True, slots=True)
class Unpipelined(AbstractPipeline):
    """Copy of the batch, index exchange, cache fetch, forward, backward, one after the other."""

    @property
    def exposes_input_dist(self) -> bool:
        """True: the lookup waits for the exchange of its indices."""
        return True

    @property
    def exposes_fetch(self) -> bool:
        """True: rows are fetched on the compute stream before the forward pass."""
        return True

    @property
    def overlaps_bottom(self) -> bool:
        """False: bottom MLP, exchanges and update run one after the other."""
        return False

    def program(self, times: StageTimes) -> Program:
        """The steps, in issue order."""
        builder = ProgramBuilder(times)
        copied = builder.input_copy(Stream.COMPUTE)
        splits = builder.input_splits(copied)
        indices = builder.input_dist((splits,))
        fetch = builder.add("cache fetch", Stream.COMPUTE, times.cache_fetch_s, after=indices)
        top = builder.forward((fetch,))
        builder.backward((top,))
        return builder.build()
