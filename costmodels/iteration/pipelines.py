"""The training pipelines: the order of the steps of one iteration in the steady state.

:class:`ProgramBuilder` adds the steps that they share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from costmodels.iteration import base
from costmodels.iteration.base import LOOKUP_FORWARD, FamilyTimes, Program, StageTimes, Step, Stream
from costmodels.workload import Pipeline

_FIRST_SHARE: Final = 0.1
"""Share of the host time of a stage after which its first kernels run: a stage of a DLRM has some
ten operators."""
_REVERSED: Final = {"reduce-scatter": "all-gather"}
"""What a collective of the output exchange becomes for gradients, if it is not the same."""


class ProgramBuilder:
    """Collects steps in issue order; methods return indices that later steps name in ``after``."""

    def __init__(self, times: StageTimes) -> None:
        """Start without steps."""
        self.times = times
        self.steps: list[Step] = []

    def add(
        self,
        name: str,
        duration_s: FloatArray | float,
        stream: Stream = Stream.COMPUTE,
        *,
        host_s: FloatArray | float = 0.0,
        **fields: Any,
    ) -> int:
        """Add a step; returns its index. On a single stream, everything runs on that of compute.

        ``fields`` are further fields of :class:`Step`.
        """
        stream = Stream.COMPUTE if self.times.single_stream else stream
        fields |= {"duration_s": _seconds(duration_s), "host_s": _seconds(host_s)}
        self.steps.append(Step(name=name, stream=stream, **fields))
        return len(self.steps) - 1

    def computed(
        self, name: str, duration_s: FloatArray, host_s: FloatArray, after: tuple[int, ...] = ()
    ) -> int:
        """Add a stage of many operators; returns the index of its last step.

        The device starts when the host has issued the first of them, and is done when it has
        computed them and the host has issued the last one. The latter is a step of no duration.
        """
        first_s = _FIRST_SHARE * _seconds(host_s)
        self.add(name, duration_s, host_s=first_s, after=after)
        return self.add(f"{name}{base.ISSUED}", 0.0, host_s=host_s - first_s)

    def collective(
        self,
        name: str,
        duration_s: FloatArray | float,
        stream: Stream = Stream.COMMUNICATION,
        *,
        present: BoolArray | None = None,
        **fields: Any,
    ) -> int:
        """Add a collective; returns its index. Plans without it (``present``) do not wait."""
        host_s = self.times.collective_host_s
        fields["host_s"] = host_s if present is None else host_s * present
        return self.add(name, duration_s, stream, collective=True, present=present, **fields)

    def input_copy(self, stream: Stream) -> tuple[int, ...]:
        """Add the copy of a batch to the device; pipelines copy a later batch beside this one.

        There is no copy where ranks compute in the memory that holds their inputs.
        """
        t = self.times
        if t.single_stream:
            return ()
        blocks = t.copy_blocks_host and stream is Stream.COMPUTE
        seconds = t.input_copy_s, stream
        return (self.add(base.INPUT_COPY, *seconds, host_s=t.copy_host_s, blocks_host=blocks),)

    def input_splits(self, after: tuple[int, ...] = ()) -> int:
        """Add the exchange of split sizes, for which the host waits; nothing without tables."""
        name, t = "input splits", self.times
        if not t.has_tables:
            return self.add(name, 0.0, Stream.DATA_DIST, after=after)
        stream = Stream.DATA_DIST
        return self.collective(name, t.input_splits_s, stream, after=after, blocks_host=True)

    def input_dist(self, after: tuple[int, ...]) -> tuple[int, ...]:
        """Add the exchange of lengths and indices of each sharding type."""
        each = ((f"{base.INPUT_DIST} {f.name}", f) for f in self.times.families)
        stream = Stream.DATA_DIST
        return tuple(
            self.collective(name, f.input_s, stream, after=after, present=f.present)
            for name, f in each
        )

    def forward(self, lookup_after: tuple[int, ...]) -> int:
        """Add bottom MLP, lookup, output exchange, and top; returns the last step.

        TorchRec's DLRM calls its dense arch first, so the bottom MLP comes before the lookup. A
        sharded dense part gathers the parameters of its first piece before that.
        """
        t = self.times
        if t.earlier_s is not None:
            self.add("earlier micro-batches", t.earlier_s)
        gathered = [self._gather("forward", i) for i in range(len(t.gather_s[:1]))]
        self.bottom_forward()
        lookup = self.lookup_forward(lookup_after)
        arrived = self.coded("output dequantize", self.output_dist(lookup))
        gathered += [self._gather("forward", i) for i in range(1, len(t.gather_s))]
        step, count = lookup, max(len(gathered), 1)
        for i in range(count):
            before = (lookup, *arrived) if i == 0 else ()
            step = self.computed(
                _numbered(f"{t.dense_names[1]} forward", i, count),
                self._share(t.top_forward_s, i, count),
                self._share(t.top_host_s, i, count),
                after=(*before, *gathered[i : i + 1]),
            )
        return step

    def _share(self, seconds: FloatArray, index: int, count: int) -> FloatArray:
        """The part of a stage that piece ``index`` of ``count`` takes.

        Pieces are equal unless the dense part is sharded over the ranks.
        """
        shares = self.times.piece_ratio
        return seconds * shares[index] if shares else seconds / count

    def _gather(self, when: str, index: int, after: tuple[int, ...] = ()) -> int:
        """Add the all-gather of the parameters of one piece of a sharded dense part."""
        name = f"parameter all-gather {when} {index + 1}"
        return self.collective(name, self.times.gather_s[index], after=after)

    def backward(self, after: tuple[int, ...]) -> None:
        """Add top, gradient exchange, table update, bottom, all-reduces and dense optimizer."""
        t = self.times
        step, buckets = self._top_backward(after)
        self.lookup_backward(self.gradient_dist(step))
        before = (self.bottom_backward(),)
        if t.gather_s:
            name = "last gradient reduce-scatter"
            buckets.append(self.collective(name, t.last_scatter_s, after=before))
        tail = self.collective("last gradient all-reduce", t.tail_bucket_s, after=before)
        self.optimizer((*buckets, tail))

    def bottom_forward(self) -> int:
        """Add the forward pass of the bottom."""
        t = self.times
        return self.computed(f"{t.dense_names[0]} forward", t.bottom_forward_s, t.bottom_host_s)

    def lookup_forward(self, after: tuple[int, ...]) -> int:
        """Add the lookup of rows."""
        t = self.times
        return self.add(LOOKUP_FORWARD, t.lookup_forward_s, host_s=t.lookup_host_s, after=after)

    def lookup_backward(self, arrived: tuple[int, ...]) -> int:
        """Add the update of rows by the gradients that have arrived; they are decoded first."""
        t, after = self.times, self.coded("gradient dequantize", arrived)
        host_s = t.lookup_backward_host_s
        return self.add(base.LOOKUP_BACKWARD, t.lookup_backward_s, host_s=host_s, after=after)

    def bottom_backward(self) -> int:
        """Add the backward pass of the bottom."""
        t = self.times
        name = f"{t.dense_names[0]} backward"
        return self.computed(name, t.bottom_backward_s, t.bottom_backward_host_s)

    def optimizer(self, after: tuple[int, ...]) -> int:
        """Add the update of the dense parameters."""
        t = self.times
        return self.add("dense optimizer", t.optimizer_s, host_s=t.optimizer_host_s, after=after)

    def coded(self, name: str, before: tuple[int, ...]) -> tuple[int, ...]:
        """Add a step of the codecs, a field of ``CodecTimes``; returns what others wait for."""
        codecs = self.times.codecs
        if codecs is None:
            return before
        seconds = getattr(codecs, f"{name.replace(' ', '_')}_s")
        return (self.add(name, seconds, host_s=codecs.host_s, after=before),)

    def _top_backward(self, after: tuple[int, ...]) -> tuple[int, list[int]]:
        """Add the backward pass of the top in pieces, with the collectives of their gradients.

        The gradients of a piece are reduced beside the pieces that follow. Pieces of a sharded
        dense part run in reverse order, and the parameters of the next piece are gathered while one
        computes.

        Returns:
            The last piece, and the collectives.
        """
        t, reduced, step = self.times, list[int](), -1
        count = len(t.bucket_s) + 1
        kind = "gradient reduce-scatter" if t.gather_s else base.GRADIENT_ALL_REDUCE
        arrived = [self._gather("backward", count - 1, after)] if t.gather_s else []
        for i in range(count):
            last = count - 1 - i
            before = (*(after if i == 0 else ()), *arrived[-1:])
            if t.gather_s and last:
                arrived.append(self._gather("backward", last - 1, (step,) if i else after))
            step = self.computed(
                _numbered(f"{t.dense_names[1]} backward", i, count),
                self._share(t.top_backward_s, last, count),
                self._share(t.top_backward_host_s, last, count),
                after=before,
            )
            if i < len(t.bucket_s):
                name, seconds = f"{kind} {i + 1}", t.bucket_s[i]
                reduced.append(self.collective(name, seconds, after=(step,)))
        return step, reduced

    def output_dist(self, produced: int) -> tuple[int, ...]:
        """Add the output exchange of each sharding type; returns the last step of each."""
        before = self.coded("output quantize", (produced,))
        families = self.times.families
        return tuple(i for f in families for i in self._exchanged(f, f.outputs_s, before, "output"))

    def gradient_dist(self, produced: int) -> tuple[int, ...]:
        """Add the gradient exchange of each sharding type; returns the last step of each."""
        before, arrived = self.coded("gradient quantize", (produced,)), list[int]()
        for f in self.times.families:
            labels, times = zip(*f.outputs_s, strict=True)
            names = [_REVERSED.get(label, label) for label in labels[::-1]]
            steps = zip(names, (f.gradients_s or times)[::-1], strict=True)
            arrived += self._exchanged(f, steps, before, "gradient")
        return tuple(arrived)

    def _exchanged(
        self,
        family: FamilyTimes,
        steps: Iterable[tuple[str, FloatArray]],
        before: tuple[int, ...],
        kind: str,
    ) -> tuple[int, ...]:
        """Add collectives of one sharding type, one after the other; returns the last step."""
        for name, seconds in steps:
            called, present = f"{kind} {name} {family.name}", family.present
            before = (self.collective(called, seconds, after=before, present=present),)
        return before

    def build(self) -> Program:
        """The finished program."""
        return Program(
            steps=tuple(self.steps),
            overlap_slowdown_ratio=self.times.overlap_slowdown_ratio,
            floor_s=self.times.floor_s,
        )


def _seconds(value: FloatArray | float) -> FloatArray:
    """The value as an array with at least one axis."""
    found = np.asarray(value, dtype=float)
    return found if found.ndim else found.reshape(1)


def _numbered(name: str, index: int, count: int) -> str:
    """The name of one of several pieces of a step; the name itself if there is one piece."""
    return f"{name} {index + 1}/{count}" if count > 1 else name


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
    fetch = builder.add("cache fetch", builder.times.cache_fetch_s, after=indices)
    builder.backward((builder.forward((fetch,)),))


def _sparse_dist(builder: ProgramBuilder) -> None:
    """Exchanges the next batch's split sizes before the forward pass, and its indices beside it."""
    splits = builder.input_splits()
    fetch = builder.add("cache fetch", builder.times.cache_fetch_s)
    _next_batch_beside(builder, splits, (fetch,))


def _prefetching(builder: ProgramBuilder) -> None:
    """As sparse_dist, with the cache fetch of a coming batch on a stream of its own."""
    splits = builder.input_splits()
    builder.add("cache prefetch", builder.times.cache_fetch_s, Stream.PREFETCH)
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
    fetch = builder.add("cache fetch", t.cache_fetch_s)
    arrived = builder.output_dist(builder.lookup_forward((fetch,)))
    builder.input_dist(())
    builder.input_copy(Stream.COPY)
    builder.bottom_forward()
    decoded = builder.coded("output dequantize", arrived)
    builder.add(f"{top} forward", t.top_forward_s, host_s=t.top_host_s, after=decoded)
    last = builder.add(f"{top} backward", t.top_backward_s, host_s=t.top_backward_host_s)
    gradients = builder.gradient_dist(last)
    bottom = builder.bottom_backward()
    seconds = sum(t.bucket_s, start=t.tail_bucket_s)
    reduced = builder.collective("gradient all-reduce", seconds, after=(bottom,))
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
