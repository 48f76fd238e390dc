"""TorchRec's TrainPipelineSparseDist: the next batch's indices travel beside this one's compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from costmodels.iteration._builder import ProgramBuilder
from costmodels.iteration.base import AbstractPipeline, Program, StageTimes, Stream


@final
@dataclass(frozen=True, slots=True)
class SparseDist(AbstractPipeline):
    """Split sizes of the next batch before the forward pass, its indices after issuing it."""

    @property
    def exposes_input_dist(self) -> bool:
        """Hidden behind forward and backward unless longer than they are."""
        return False

    @property
    def exposes_fetch(self) -> bool:
        """It precedes the forward pass on the compute stream."""
        return True

    @property
    def overlaps_bottom(self) -> bool:
        """They follow one another."""
        return False

    def program(self, times: StageTimes) -> Program:
        """Steps in issue order."""
        builder = ProgramBuilder(times)
        splits = builder.input_splits()
        fetch = builder.add("cache fetch", Stream.COMPUTE, times.cache_fetch_s)
        top = builder.forward((fetch,))
        builder.input_dist((splits,))
        builder.input_copy(Stream.COPY)
        builder.backward((top,))
        return builder.build()
