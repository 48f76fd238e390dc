"""Steps and programs, of which every training pipeline consists.

All ranks run the same program. A step runs on one stream. It starts after the steps before it on
that stream, after the steps that it names, and after the host thread has issued it. A collective
starts when the last rank has arrived at it, and takes the same time on all ranks.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from costmodels.dense.base import DenseTimes
from costmodels.errors import refuse
from costmodels.sharding import ShardingType
from costmodels.workload import Pipeline

LOOKUP_FORWARD: Final = "lookup forward"
LOOKUP_BACKWARD: Final = "lookup backward"
INPUT_COPY: Final = "input copy"
INPUT_DIST: Final = "input dist"
GRADIENT_ALL_REDUCE: Final = "gradient all-reduce"
"""Names of steps that other modules look for in a program; the last two begin the names of several.
"""
_Times = FloatArray | float
ISSUED: Final = ", issued"
"""Ends the name of the moment at which the host has issued the last operator of a stage."""
_ROUNDING_S: Final = 1e-12
"""Seconds below 0 that a difference of two equal times can have."""


def _none() -> FloatArray:
    """No time."""
    return np.zeros(1)


class Stream(StrEnum):
    """The queue of a rank that a step runs on; steps of one stream run one after the other."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    DATA_DIST = "data_dist"
    PREFETCH = "prefetch"
    COPY = "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the program.

    Attributes:
        name: shown to people.
        stream: the queue it runs on.
        duration_s: seconds, broadcastable to ``[..., R]`` (plans, R ranks).
        after: indices of earlier steps that must have finished on the same rank.
        host_s: seconds that the host needs to issue it, broadcastable to ``[..., R]``.
        collective: whether it starts only when all ranks have arrived at it.
        present: ``[..., 1]``, False for plans that do not have this step; None if all have it. A
            step that is not there holds up no other step of its stream, and takes no time.
        blocks_host: whether the host waits until it has finished.
    """

    name: str
    stream: Stream
    duration_s: FloatArray
    after: tuple[int, ...] = ()
    host_s: FloatArray = field(default_factory=_none)
    collective: bool = False
    present: BoolArray | None = None
    blocks_host: bool = False

    @property
    def is_present(self) -> bool:
        """For a program of a single plan: whether the plan has this step."""
        return self.present is None or bool(np.all(self.present))


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The steps of an iteration, in the order in which the host issues them.

    Attributes:
        steps: the same for all ranks.
        overlap_slowdown_ratio: seconds of compute lost per second of communication beside it.
        floor_s: the shortest possible iteration for other reasons, such as the rate of the input.
    """

    steps: tuple[Step, ...]
    overlap_slowdown_ratio: float
    floor_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTimes:
    """Durations ``[..., 1]`` of the collectives of one sharding type.

    Attributes:
        name: of the sharding type.
        present: ``[..., 1]`` which plans have the type; None if all have it.
        input_s: the exchange of indices.
        outputs_s: each collective of the output exchange, with its name, in forward order.
        gradients_s: the same collectives in the backward pass, which runs them in reverse order;
            listed in forward order. None if they take as long as forward.
    """

    name: str
    present: BoolArray | None = None
    input_s: FloatArray
    outputs_s: tuple[tuple[str, FloatArray], ...]
    gradients_s: tuple[FloatArray, ...] | None = None

    def collectives(self, *, is_backward: bool) -> tuple[tuple[str, FloatArray], ...]:
        """The collectives of the output exchange, or those of the gradients, in their order."""
        if not is_backward:
            return self.outputs_s
        labels, seconds = zip(*self.outputs_s, strict=True)
        names = (_REVERSED.get(label, label) for label in labels[::-1])
        return tuple(zip(names, (self.gradients_s or seconds)[::-1], strict=True))


CodecTimes = Mapping[str, FloatArray]
"""Seconds ``[..., R]`` of the kernels of quantized communication, by the name of their step.

- ``output quantize``: encoding of the vectors that a rank sends;
- ``output dequantize``: decoding of the vectors that arrive;
- ``gradient quantize``: encoding of the gradients that a rank sends;
- ``gradient dequantize``: decoding of the gradients that arrive;
- ``host``: what the host needs to issue each of these four steps.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes(DenseTimes):
    """Durations of all stages: ``[..., R]`` of compute, ``[..., 1]`` of collectives.

    ``*_host_s`` are the seconds that the host needs to issue a step of that kind. ``bottom`` is the
    dense part before the looked-up vectors arrive, ``top`` the rest of it.

    Attributes:
        cache_fetch_s: what caches in front of host memory do before the lookup.
        families: collectives of each sharding type.
        input_splits_s: exchange of the sizes of the index exchange.
        bucket_s: all-reduces of gradients beside the backward pass; with a sharded dense part, the
            reduce-scatters of all pieces but the last.
        tail_bucket_s: the last all-reduce.
        overlap_slowdown_ratio: see :class:`Program`.
        floor_s: see :class:`Program`.
        dense_names: names of bottom and top, for people.
        single_stream: whether everything runs one after the other, and inputs are not copied.
        has_tables: whether there is anything to look up.
        input_copy_s: the copy of a batch to the device, and what is done to indices there.
        copy_host_s: host seconds that issuing the copy takes, and those between two steps.
        copy_blocks_host: whether the host waits for that copy.
        codecs_s: kernels of compressed exchanges; None where none is.
        piece_ratio: a dense part that is sharded over the ranks runs in pieces; this is the share
            of each piece. Empty for other dense parts.
        gather_s: all-gather of the parameters of each piece, before its forward pass and again
            before its backward pass.
        last_scatter_s: reduce-scatter of the gradients of the last piece.
        earlier_s: all micro-batches of a step but the last one; None if there are none.
        next_batch_ratio: share of the vectors of row-wise tables that wait for the batch before; 1
            but for the pipeline ``prioritized``.
    """

    lookup_forward_s: FloatArray = field(default_factory=_none)
    lookup_backward_s: FloatArray = field(default_factory=_none)
    cache_fetch_s: FloatArray = field(default_factory=_none)
    families: tuple[FamilyTimes, ...] = ()
    input_splits_s: FloatArray
    bucket_s: tuple[FloatArray, ...]
    tail_bucket_s: FloatArray = field(default_factory=_none)
    bottom_host_s: FloatArray
    top_host_s: FloatArray
    lookup_host_s: FloatArray = field(default_factory=_none)
    collective_host_s: FloatArray
    floor_s: float
    dense_names: tuple[str, str]
    overlap_slowdown_ratio: float = 0.0
    single_stream: bool = False
    has_tables: bool = True
    top_backward_host_s: FloatArray = field(default_factory=_none)
    bottom_backward_host_s: FloatArray = field(default_factory=_none)
    lookup_backward_host_s: FloatArray = field(default_factory=_none)
    optimizer_host_s: FloatArray = field(default_factory=_none)
    input_copy_s: FloatArray = field(default_factory=_none)
    copy_host_s: FloatArray = field(default_factory=_none)
    copy_blocks_host: bool = False
    codecs_s: CodecTimes | None = None
    piece_ratio: tuple[float, ...] = ()
    gather_s: tuple[FloatArray, ...] = ()
    last_scatter_s: FloatArray = field(default_factory=_none)
    earlier_s: FloatArray | None = None
    next_batch_ratio: float = 1.0


def require_times(seconds: _Times, what: str) -> None:
    """Raise :class:`InvalidValueError` unless all times, in any shape, are finite and at least 0.

    Args:
        seconds: what a cost model has given.
        what: what takes so long, for the message.
    """
    values = np.asarray(seconds)
    least, most = (values.min(), values.max()) if values.size else (0.0, 0.0)
    if not (least >= -_ROUNDING_S and most < np.inf):
        wrong = most if least >= -_ROUNDING_S else least
        refuse(
            f"{what} takes {wrong:.4g} s by the cost models, but times must be finite and at least "
            "0; correct the model that gives it"
        )


# ------------------ pipelines
#
# The training pipelines: the order of the steps of one iteration in the steady state.
#
# :class:`ProgramBuilder` adds the steps that they share.

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
        self, name: str, duration_s: _Times, stream: Stream = Stream.COMPUTE, **fields: Any
    ) -> int:
        """Add a step; returns its index. On a single stream, everything runs on that of compute.

        ``fields`` are further fields of :class:`Step`.
        """
        stream = Stream.COMPUTE if self.times.single_stream else stream
        fields["host_s"] = _seconds(fields.get("host_s", 0.0))
        fields["duration_s"] = _seconds(duration_s)
        self.steps.append(Step(name=name, stream=stream, **fields))
        return len(self.steps) - 1

    def computed(
        self, name: str, duration_s: _Times, host_s: _Times, after: tuple[int, ...] = ()
    ) -> int:
        """Add a stage of many operators; returns the index of its last step.

        The device starts when the host has issued the first of them, and is done when it has
        computed them and the host has issued the last one. The latter is a step of no duration.
        """
        first_s = _FIRST_SHARE * _seconds(host_s)
        self.add(name, duration_s, host_s=first_s, after=after)
        return self.add(f"{name}{ISSUED}", 0.0, host_s=host_s - first_s)

    def collective(
        self, name: str, duration_s: _Times, stream: Stream = Stream.COMMUNICATION, **fields: Any
    ) -> int:
        """Add a collective; returns its index. Plans without it (``present``) do not wait."""
        host_s, present = self.times.collective_host_s, fields.get("present")
        fields["host_s"] = host_s if present is None else host_s * present
        return self.add(name, duration_s, stream, collective=True, **fields)

    def input_copy(self, stream: Stream) -> tuple[int, ...]:
        """Add the copy of a batch to the device; pipelines copy a later batch beside this one.

        There is no copy where ranks compute in the memory that holds their inputs.
        """
        t = self.times
        if t.single_stream:
            return ()
        blocks = t.copy_blocks_host and stream is Stream.COMPUTE
        seconds = t.input_copy_s, stream
        return (self.add(INPUT_COPY, *seconds, host_s=t.copy_host_s, blocks_host=blocks),)

    def input_splits(self, after: tuple[int, ...] = ()) -> int:
        """Add the exchange of split sizes, for which the host waits; nothing without tables."""
        name, t = "input splits", self.times
        if not t.has_tables:
            return self.add(name, 0.0, Stream.DATA_DIST, after=after)
        stream = Stream.DATA_DIST
        return self.collective(name, t.input_splits_s, stream, after=after, blocks_host=True)

    def input_dist(self, after: tuple[int, ...]) -> tuple[int, ...]:
        """Add the exchange of lengths and indices of each sharding type."""
        stream, name = Stream.DATA_DIST, INPUT_DIST
        return tuple(
            self.collective(f"{name} {f.name}", f.input_s, stream, after=after, present=f.present)
            for f in self.times.families
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
        arrived = self.coded("output dequantize", self.dist("output", lookup))
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

    def _share(self, seconds: _Times, index: int, count: int) -> _Times:
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
        self.lookup_backward(self.dist("gradient", step))
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
        return self.add(LOOKUP_BACKWARD, t.lookup_backward_s, host_s=host_s, after=after)

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
        """Add a step of the codecs (:data:`CodecTimes`); returns what others wait for."""
        codecs = self.times.codecs_s
        if codecs is None:
            return before
        return (self.add(name, codecs[name], host_s=codecs["host"], after=before),)

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
        kind = "gradient reduce-scatter" if t.gather_s else GRADIENT_ALL_REDUCE
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

    def dist(self, kind: str, produced: int) -> tuple[int, ...]:
        """Add the ``output`` or the ``gradient`` exchange of a batch, encoded where codecs are."""
        before = self.coded(f"{kind} quantize", (produced,))
        return self.exchanges(kind, self.times.families, before)

    def exchanges(
        self, kind: str, families: Iterable[FamilyTimes], before: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Add the exchange of some sharding types; returns the last step of each.

        Args:
            kind: begins the names of the steps, and with ``output`` or with ``gradient``.
            families: each has its collectives one after the other.
            before: what the first of each waits for.
        """
        arrived, is_backward = list[int](), kind.startswith("gradient")
        for f in families:
            after = before
            for name, seconds in f.collectives(is_backward=is_backward):
                called, present = f"{kind} {name} {f.name}", f.present
                after = (self.collective(called, seconds, after=after, present=present),)
            arrived += after
        return tuple(arrived)


def _seconds(value: _Times) -> FloatArray:
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
        return Program(
            steps=tuple(builder.steps),
            overlap_slowdown_ratio=times.overlap_slowdown_ratio,
            floor_s=times.floor_s,
        )


def _unpipelined(builder: ProgramBuilder) -> None:
    """Copy of the batch, index exchange, cache fetch, forward, backward, one after the other."""
    splits = builder.input_splits(builder.input_copy(Stream.COMPUTE))
    indices = builder.input_dist((splits,))
    fetch = builder.add("cache fetch", builder.times.cache_fetch_s, after=indices)
    builder.backward((builder.forward((fetch,)),))


def _sparse_dist(builder: ProgramBuilder, *, prefetches: bool = False) -> None:
    """Forward and backward pass, and beside them exchange and copy of the next batch.

    The next batch's split sizes are exchanged before the forward pass, and its indices beside it.
    With ``prefetches``, the cache fetch of a coming batch runs on a stream of its own.

    Where vectors of row-wise tables travel early, those wait whose rows the batch before has
    updated, and before the update only the gradients travel that the next batch needs. Beside the
    forward pass travel the other gradients of the batch before, beside the backward pass the other
    vectors of the next batch (TorchRec's TrainPipelinePEC, pull requests 4200 to 4579; arXiv
    2604.24073). All lookups and updates are on the compute stream in any case, so they are not
    divided; nor are the latencies of exchanges.
    """
    times, late, by_rows = builder.times, list[FamilyTimes](), ShardingType.ROW_WISE
    ratio = times.next_batch_ratio
    if ratio < 1.0:
        late = [_part(f, 1.0 - ratio) for f in times.families if f.name == by_rows]
        early = (_part(f, ratio) if f.name == by_rows else f for f in times.families)
        builder.times = replace(times, families=tuple(early))
    splits, stream = builder.input_splits(), Stream.PREFETCH if prefetches else Stream.COMPUTE
    name = "cache prefetch" if prefetches else "cache fetch"
    fetch = builder.add(name, times.cache_fetch_s, stream)
    top = builder.forward(() if prefetches else (fetch,))
    builder.exchanges("gradient of last batch,", late, (fetch,))
    builder.input_dist((splits,))
    builder.input_copy(Stream.COPY)
    builder.exchanges("output of next batch,", late, (top,))
    builder.backward((top,))


def _part(family: FamilyTimes, ratio: float) -> FamilyTimes:
    """A share of the exchanges of vectors of a sharding type."""
    outputs = tuple((name, seconds * ratio) for name, seconds in family.outputs_s)
    gradients = family.gradients_s and tuple(seconds * ratio for seconds in family.gradients_s)
    return replace(family, outputs_s=outputs, gradients_s=gradients)


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
    arrived = builder.dist("output", builder.lookup_forward((fetch,)))
    builder.input_dist(())
    builder.input_copy(Stream.COPY)
    builder.bottom_forward()
    decoded = builder.coded("output dequantize", arrived)
    builder.add(f"{top} forward", t.top_forward_s, host_s=t.top_host_s, after=decoded)
    last = builder.add(f"{top} backward", t.top_backward_s, host_s=t.top_backward_host_s)
    gradients = builder.dist("gradient", last)
    bottom = builder.bottom_backward()
    seconds = sum(t.bucket_s, start=t.tail_bucket_s)
    reduced = builder.collective("gradient all-reduce", seconds, after=(bottom,))
    builder.lookup_backward(gradients)
    builder.optimizer((reduced,))


_PREFETCHING: Final = TrainingPipeline(
    order=partial(_sparse_dist, prefetches=True), exposes_fetch=False
)
PIPELINES: Final = {
    Pipeline.NONE: TrainingPipeline(order=_unpipelined, exposes_input_dist=True),
    Pipeline.SPARSE_DIST: TrainingPipeline(order=_sparse_dist),
    Pipeline.PREFETCH_SPARSE_DIST: _PREFETCHING,
    Pipeline.HUGECTR: TrainingPipeline(order=_hugectr, overlaps_bottom=True),
    Pipeline.LOOKAHEAD: _PREFETCHING,
    Pipeline.PRIORITIZED: TrainingPipeline(order=_sparse_dist),
}
"""All pipelines. ``none``, ``sparse_dist`` (TrainPipelineSparseDist) and ``prefetch_sparse_dist``
(PrefetchTrainPipelineSparseDist) are TorchRec's, ``hugectr`` is HugeCTR's with both overlaps on, as
its MLPerf runs use it. ``lookahead`` is BagPipe's (SOSP 2023), whose caches hold what the next
batches need: the steps are those of ``prefetch_sparse_dist``, and that fewer rows are fetched
follows from the work of lookups (``Laws.lookahead_draws``)."""
