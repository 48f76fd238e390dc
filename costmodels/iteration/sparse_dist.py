"""TorchRec's TrainPipelineSparseDist: the next batch's indices travel beside this one's compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from costmodels.iteration._builder import ProgramBuilder
from costmodels.iteration.base import AbstractPipeline, Program, StageTimes, Stream


@final
@dataclass(frozen=True, slots=True)
class SparseDist(AbstractPipeline):
    """Exchanges the next batch's split sizes before the forward pass, and its indices beside it."""

    @property
    def exposes_input_dist(self) -> bool:
        """False: the next batch's indices travel beside forward and backward pass."""
        return False

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
        splits = builder.input_splits()
        fetch = builder.add("cache fetch", Stream.COMPUTE, times.cache_fetch_s)
        top = builder.forward((fetch,))
        builder.input_dist((splits,))
        builder.input_copy(Stream.COPY)
        builder.backward((top,))
        return builder.build()
