"""Reads measured traces: the time of each kind of work on a rank's GPU per iteration."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from costmodels import units
from costmodels.datatypes import BoolArray, FloatArray
from planner.errors import InvalidInputError, refuse
from planner.trace.stages import (
    COLLECTIVES,
    COPIES,
    DENSE_STAGES,
    ON_GPU,
    STAGES,
    Event,
    cpu_spans,
    event_of,
    group_of,
    launches_of,
    stage_of,
)

MAX_BYTES: Final = 128 * 2**20
"""Longest text of a trace. A step of a large model has some 10,000 events of 300 bytes."""
MAX_VALUES: Final = 8_000_000
"""Most values in that text, which take some 64 bytes each; an event of 300 bytes has about 13. Text
and values then take less than 1 GB."""
_GZIP: Final = b"\x1f\x8b"


def load_trace(path: Path, *, max_bytes: int = MAX_BYTES) -> Any:
    """The parsed JSON of a file, plain or gzipped, with its events as :class:`Event`.

    Args:
        path: the file.
        max_bytes: longest text that is read.

    Raises:
        InvalidInputError: the file cannot be read, is damaged, is not JSON, or is too long.
    """
    try:
        with path.open("rb") as file, _unpacked(file) as unpacked:
            text = unpacked.read(max_bytes + 1)
        _check_size(text, path, max_bytes)
        return json.loads(text, object_hook=_slim)
    except InvalidInputError:
        raise
    except EOFError:
        refuse(f"{path}: is a gzip file that ends too early; copy or export the trace again")
    except (ValueError, RecursionError, zlib.error, gzip.BadGzipFile):
        refuse(f"{path}: is neither JSON nor gzipped JSON, or is damaged")
    except OSError as error:
        refuse(f"{path}: cannot be read: {error.strerror or error}")


def _unpacked(file: BinaryIO) -> BinaryIO | gzip.GzipFile:
    """The file, decompressed as it is read if it is a gzip file."""
    is_packed = file.read(len(_GZIP)) == _GZIP
    file.seek(0)
    return gzip.GzipFile(fileobj=file) if is_packed else file


def _check_size(text: bytes, path: Path, max_bytes: int) -> None:
    """Refuse a text that is too long, or that has more values than any profiler writes in it.

    Raises:
        InvalidInputError: there are more than ``max_bytes``, or than :data:`MAX_VALUES`.
    """
    less = "without with_stack, record_shapes and profile_memory"
    if len(text) > max_bytes:
        refuse(
            f"{path}: holds more than {units.format_bytes(max_bytes)} of text, which is the "
            "most that is read: profile fewer steps, such as schedule(wait=1, warmup=1, "
            f"active=3), {less}"
        )
    count = sum(text.count(mark) for mark in (b"[", b"{", b","))
    if count > MAX_VALUES:
        refuse(
            f"{path}: holds some {count:,} values, more than the {MAX_VALUES:,} that are read: "
            f"profile fewer steps, {less}"
        )


def _slim(found: dict[str, Any]) -> Any:
    """What is read of an event, None for other events; other objects as they are."""
    return event_of(found) if "ph" in found else found


_STEP: Final = re.compile(r"^ProfilerStep#\d+$")
_WAITS: Final = re.compile(r"^(cuda|hip)(Stream|Device|Event)Synchronize$")
"""Calls in which the host waits for the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTime:
    """Kernels of one kind in one stage, per iteration.

    Attributes:
        stage: of :data:`planner.trace.stages.STAGES`.
        group: what kind of kernels they are.
        num_calls: median number of them.
        time_s: median GPU time.
    """

    stage: str
    group: str
    num_calls: float
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTimes:
    """One rank's seconds per iteration: medians over the iterations of the file.

    Attributes:
        rank: the rank that the file names.
        iterations: number of iterations in the file.
        iteration_s: seconds from the start of one iteration to the next; where the host runs ahead
            of the GPU, the time in which the GPU works.
        kinds_s: GPU time of each stage.
        compute_s, communication_s: time in which a kernel runs that is not a collective, and time
            in which a collective runs.
        exposed_s: time in which a collective runs, but no other kernel.
        busy_s: time in which the GPU computes, communicates or copies.
        host_s: time that the host spends on an iteration without waiting for the GPU, which
            includes the profiler's own work; None if the trace has no operators of the host.
        groups: GPU time of each kind of kernel in each stage.
        device: the name of the device; empty if the file does not tell.
        told_waits_s: waits for later ranks, if the file has them beside its collectives, as
            predicted traces do; in a profiler's trace they are part of the collectives.
        on_cpu: whether the rank is a CPU core, whose spans include the profiler's own work.
    """

    rank: int
    iterations: int
    iteration_s: float
    kinds_s: dict[str, float]
    compute_s: float
    communication_s: float
    exposed_s: float
    busy_s: float = 0.0
    host_s: float | None = None
    groups: tuple[GroupTime, ...] = ()
    device: str = ""
    told_waits_s: float = 0.0
    on_cpu: bool = False

    @property
    def idle_ratio(self) -> float:
        """Share of the iteration in which the GPU does nothing, 0..1."""
        return max(0.0, 1.0 - self.busy_s / self.iteration_s)

    @property
    def host_bound(self) -> bool | None:
        """Whether the host takes longer than the GPU; None if the trace does not tell."""
        return None if self.host_s is None else self.host_s > self.busy_s

    @property
    def tells_stages(self) -> bool:
        """Whether the file tells the stages of the dense part apart."""
        return any(stage in self.kinds_s for stage in DENSE_STAGES)


def check_ranks(traces: Sequence[TraceTimes], world_size: int, where: str = "") -> None:
    """Refuse traces of ranks that are not there, and two of one rank; ``where`` begins the message.

    Raises:
        InvalidInputError: there are such traces.
    """
    ranks = sorted(t.rank for t in traces)
    if len({*ranks}) < len(ranks) or any(rank >= world_size for rank in ranks):
        refuse(
            f"{where}the traces are of ranks {ranks}; give one trace per rank, of ranks "
            f"0..{world_size - 1}"
        )


def read_trace(path: Path) -> TraceTimes:
    """Read the times of one file, plain or gzipped.

    Raises:
        InvalidInputError: the file cannot be read, is too long, is not a profiler's trace, or has
            no GPU kernels.
    """
    return times_of(load_trace(path), path)


def times_of(document: Any, path: Path) -> TraceTimes:
    """The times of one file, from its parsed JSON; see :func:`read_trace`."""
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        refuse(f"{path}: is no trace of the PyTorch profiler: it has no list 'traceEvents'")
    info = document.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    read = (raw if isinstance(raw, Event) else event_of(raw) for raw in events)
    complete = [event for event in read if event is not None]
    kernels = [e for e in complete if e.category in ON_GPU]
    steps = [e for e in complete if e.is_marked and _STEP.match(e.name)]
    on_cpu = not kernels and info.get("backend") == "gloo"
    if on_cpu:
        if not steps:
            refuse(
                f"{path}: marks no ProfilerStep; profile with schedule= and call step() after "
                "every iteration"
            )
        kernels = cpu_spans(complete, {e.thread for e in steps})
    if not kernels:
        refuse(
            f"{path}: holds no GPU kernels; profile with ProfilerActivity.CUDA and export with "
            "export_chrome_trace"
        )
    marks = sorted((e.begin_us, e.end_us) for e in steps or kernels)
    if not steps:
        marks = [(marks[0][0], max(end for _, end in marks))]
    launches, placed = launches_of(complete), list[tuple[int, str, Event]]()
    for kernel in kernels:
        begin_us, stage = launches.get(kernel.number, (kernel.begin_us, None))
        step = _step_of(begin_us, marks)
        if step is not None:
            placed.append((step, stage_of(kernel.name, stage), kernel))
    if not placed:
        refuse(f"{path}: no GPU kernel lies inside its ProfilerStep marks")
    times = _times(
        placed,
        lengths_s=np.diff([*(begin for begin, _ in marks), marks[-1][1]]) * 1e-6,
        waits_s=_waits_s(complete, marks) if not on_cpu and steps else None,
        rank=_rank(info.get("rank", 0), path),
        device=_device(document.get("deviceProperties")),
        on_cpu=on_cpu,
    )
    if times.iteration_s <= 0:
        refuse(f"{path}: its ProfilerStep marks take no time; export the trace again")
    return times


def _rank(rank: Any, path: Path) -> int:
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
        refuse(f"{path}: distributedInfo.rank must be a whole number from 0, got {rank!r}")
    return rank


def _device(properties: Any) -> str:
    """The name of the first device that a trace lists; empty if it lists none."""
    first = properties[0] if isinstance(properties, list) and properties else None
    return str(first.get("name", "")) if isinstance(first, dict) else ""


def _step_of(begin_us: float, marks: Sequence[tuple[float, float]]) -> int | None:
    """The iteration in which the host was at a time; None before the first and after the last."""
    at = bisect_right(marks, (begin_us, float("inf"))) - 1
    return at if at >= 0 and begin_us <= marks[-1][1] else None


def _waits_s(complete: Sequence[Event], marks: Sequence[tuple[float, float]]) -> FloatArray | None:
    """Seconds of each iteration in which the host waits for the GPU.

    None if the trace has no operators of the host, and therefore not all of its time.
    """
    if not any(event.category == "cpu_op" for event in complete):
        return None
    waits = defaultdict(list)
    for event in complete:
        if _WAITS.match(event.name):
            waits[_step_of(event.begin_us, marks)].append((event.begin_us, event.time_us))
    spans = [np.array(waits.get(step, np.zeros((0, 2)))) * 1e-6 for step in range(len(marks))]
    return np.array([_covered(found[:, 0], found[:, 1]) for found in spans])


def _times(
    placed: Sequence[tuple[int, str, Event]],
    *,
    lengths_s: FloatArray,
    waits_s: FloatArray | None,
    **told: Any,
) -> TraceTimes:
    """The times of kernels, each with its iteration and its stage."""
    count = len(lengths_s)
    step, stages = np.array([p[0] for p in placed]), np.array([p[1] for p in placed])
    groups = np.array([group_of(kernel.name) for *_, kernel in placed])
    start, spans = (
        np.array([getattr(kernel, key) for *_, kernel in placed]) * 1e-6
        for key in ("begin_us", "time_us")
    )
    moving = np.isin(stages, COLLECTIVES)
    computing = ~moving & (stages != COPIES)

    def median(kept: BoolArray, values: FloatArray) -> float:
        return float(np.median(np.bincount(step[kept], values[kept], minlength=count)))

    def covered(kept: BoolArray) -> FloatArray:
        each = (kept & (step == i) for i in range(count))
        return np.array([_covered(start[at], spans[at]) for at in each])

    compute_s, both_s, busy_s = map(covered, (computing, moving | computing, step >= 0))
    return TraceTimes(
        iterations=count,
        iteration_s=max(float(np.median(lengths_s)), float(np.median(busy_s))),
        kinds_s={stage: median(stages == stage, spans) for stage in STAGES if stage in stages},
        compute_s=float(np.median(compute_s)),
        communication_s=float(np.median(covered(moving))),
        exposed_s=float(np.median(both_s - compute_s)),
        busy_s=float(np.median(busy_s)),
        host_s=None if waits_s is None else float(np.median(lengths_s - waits_s)),
        groups=tuple(
            GroupTime(
                stage=stage,
                group=str(group),
                num_calls=median(at, np.ones_like(spans)),
                time_s=median(at, spans),
            )
            for stage in STAGES
            for group in np.unique(groups[stages == stage])
            for at in ((stages == stage) & (groups == group),)
        ),
        told_waits_s=median(step >= 0, np.array([kernel.waited_s for *_, kernel in placed])),
        **told,
    )


def _covered(start: FloatArray, spans: FloatArray) -> float:
    """Seconds covered by intervals that may overlap."""
    if not len(start):
        return 0.0
    order = np.argsort(start, kind="stable")
    begin, end = start[order], np.maximum.accumulate((start + spans)[order])
    before = np.concatenate([[-np.inf], end[:-1]])
    return float(np.maximum(end - np.maximum(begin, before), 0.0).sum())
