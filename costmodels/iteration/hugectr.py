"""HugeCTR's training pipeline with both overlaps on, as its MLPerf runs use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from costmodels.iteration._builder import ProgramBuilder
from costmodels.iteration.base import (
    AbstractPipeline,
    Program,
    StageTimes,
    Stream,
)


@final
@dataclass(frozen=True, slots=True)
class HugeCtr(AbstractPipeline):
    """Exchanges run beside the bottom MLP, the dense all-reduce beside the table update.

    The order is that of HugeCTR's ``model_pipeline.cpp`` with both overlaps on:

    1. the lookup;
    2. the exchange of its vectors, beside the forward pass of the bottom MLP;
    3. forward and backward pass of the top;
    4. the exchange of gradients, beside the backward pass of the bottom MLP;
    5. the table update, beside the all-reduce of dense gradients.

    The indices of the next batch travel on a stream of their own.
    """

    @property
    def exposes_input_dist(self) -> bool:
        """False: the next batch's indices travel on a stream of their own."""
        return False

    @property
    def exposes_fetch(self) -> bool:
        """True: rows are fetched on the compute stream before the lookup."""
        return True

    @property
    def overlaps_bottom(self) -> bool:
        """True: exchanges run beside the bottom MLP, the dense all-reduce beside updates."""
        return True

    def program(self, times: StageTimes) -> Program:
        """The steps, in issue order."""
        t, builder = times, ProgramBuilder(times)
        fetch = builder.add("cache fetch", Stream.COMPUTE, t.cache_fetch_s)
        lookup = builder.lookup_forward((fetch,))
        arrived = builder.output_dist(lookup)
        builder.input_dist(())
        builder.input_copy(Stream.COPY)
        builder.bottom_forward()
        builder.add(
            f"{t.dense_names[1]} forward",
            Stream.COMPUTE,
            t.top_forward_s,
            after=builder.dequantized(arrived),
            host_s=t.top_host_s,
        )
        top = builder.add(
            f"{t.dense_names[1]} backward",
            Stream.COMPUTE,
            t.top_backward_s,
            host_s=t.top_backward_host_s,
        )
        gradients = builder.gradient_dist(top)
        bottom = builder.bottom_backward()
        seconds = sum(t.bucket_s, start=t.tail_bucket_s)
        reduced = builder.collective(
            "gradient all-reduce", Stream.COMMUNICATION, seconds, after=(bottom,)
        )
        builder.lookup_backward(gradients)
        builder.optimizer((reduced,))
        return builder.build()
