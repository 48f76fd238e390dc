"""The training pipelines: the order of the steps of one iteration in the steady state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from costmodels.iteration.base import LOOKUP_FORWARD, Program, StageTimes, Stream
from costmodels.iteration.builder import ProgramBuilder
from costmodels.workload import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPipeline:
    """One training pipeline.

    Attributes:
        order: adds all steps to a builder, in issue order.
        exposes_input_dist: whether an iteration exchanges the indices of its own batch before the
            lookup. Otherwise those of the next batch travel beside this one's compute.
        exposes_fetch: whether rows are fetched into caches on the compute stream, before the
            lookup. Otherwise they are fetched beside the iteration of the batch before.
        overlaps_bottom: whether the bottom MLP runs beside exchanges, and dense all-reduces beside
            updates. Otherwise bottom MLP, exchanges and update run one after the other.
    """

    order: Callable[[ProgramBuilder], None]
    exposes_input_dist: bool = False
    exposes_fetch: bool = True
    overlaps_bottom: bool = False

    def program(self, times: StageTimes) -> Program:
        """The steps, in issue order."""
        builder = ProgramBuilder(times)
        self.order(builder)
        return builder.build()


def _unpipelined(builder: ProgramBuilder) -> None:
    """Copy of the batch, index exchange, cache fetch, forward, backward, one after the other."""
    splits = builder.input_splits(builder.input_copy(Stream.COMPUTE))
    indices = builder.input_dist((splits,))
    fetch = builder.compute("cache fetch", builder.times.cache_fetch_s, after=indices)
    builder.backward((builder.forward((fetch,)),))


def _sparse_dist(builder: ProgramBuilder) -> None:
    """Exchanges the next batch's split sizes before the forward pass, and its indices beside it."""
    splits = builder.input_splits()
    fetch = builder.compute("cache fetch", builder.times.cache_fetch_s)
    _next_batch_beside(builder, splits, (fetch,))


def _prefetching(builder: ProgramBuilder) -> None:
    """As sparse_dist, with the cache fetch of a coming batch on a stream of its own."""
    splits = builder.input_splits()
    builder.add("cache prefetch", Stream.PREFETCH, builder.times.cache_fetch_s)
    _next_batch_beside(builder, splits, ())


def _next_batch_beside(builder: ProgramBuilder, splits: int, fetched: tuple[int, ...]) -> None:
    """Forward and backward pass, and beside them exchange and copy of the next batch."""
    top = builder.forward(fetched)
    builder.input_dist((splits,))
    builder.input_copy(Stream.COPY)
    builder.backward((top,))


def _hugectr(builder: ProgramBuilder) -> None:
    """The order of HugeCTR's ``model_pipeline.cpp`` with both overlaps on.

    1. the lookup;
    2. the exchange of its vectors, beside the forward pass of the bottom MLP;
    3. forward and backward pass of the top;
    4. the exchange of gradients, beside the backward pass of the bottom MLP;
    5. the table update, beside the all-reduce of dense gradients.

    The indices of the next batch travel on a stream of their own.
    """
    t, top = builder.times, builder.times.dense_names[1]
    fetch = builder.compute("cache fetch", t.cache_fetch_s)
    lookup = builder.compute(LOOKUP_FORWARD, t.lookup_forward_s, t.lookup_host_s, (fetch,))
    arrived = builder.output_dist(lookup)
    builder.input_dist(())
    builder.input_copy(Stream.COPY)
    builder.bottom_forward()
    decoded = builder.coded("output dequantize", arrived)
    builder.compute(f"{top} forward", t.top_forward_s, t.top_host_s, decoded)
    last = builder.compute(f"{top} backward", t.top_backward_s, t.top_backward_host_s)
    gradients = builder.gradient_dist(last)
    bottom = builder.bottom_backward()
    seconds = sum(t.bucket_s, start=t.tail_bucket_s)
    reduced = builder.communication("gradient all-reduce", seconds, (bottom,))
    builder.lookup_backward(gradients)
    builder.optimizer((reduced,))


PIPELINES: Final = {
    Pipeline.NONE: TrainingPipeline(order=_unpipelined, exposes_input_dist=True),
    Pipeline.SPARSE_DIST: TrainingPipeline(order=_sparse_dist),
    Pipeline.PREFETCH_SPARSE_DIST: TrainingPipeline(order=_prefetching, exposes_fetch=False),
    Pipeline.HUGECTR: TrainingPipeline(order=_hugectr, overlaps_bottom=True),
    Pipeline.LOOKAHEAD: TrainingPipeline(order=_prefetching, exposes_fetch=False),
}
"""All pipelines. ``none``, ``sparse_dist`` (TrainPipelineSparseDist) and ``prefetch_sparse_dist``
(PrefetchTrainPipelineSparseDist) are TorchRec's, ``hugectr`` is HugeCTR's with both overlaps on, as
its MLPerf runs use it. ``lookahead`` is BagPipe's (SOSP 2023), whose caches hold what the next
batches need: the steps are those of ``prefetch_sparse_dist``, and that fewer rows are fetched
follows from the work of lookups (``Laws.lookahead_draws``)."""
