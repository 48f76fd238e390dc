"""Reads measured traces: the time of each kind of work on a rank's GPU per iteration.

A kernel's name alone often does not tell its stage: the lookup's backward pass and the backward
pass of an index both sort, and each stage fills and copies. Therefore a kernel belongs to the stage
of the innermost span of the host around the call that launched it. Both have the same
``correlation``. Where a trace has no spans of the host, only the name is left, and the stages of
the dense part count together. Of ranks that are CPU cores, the spans of one thread have all times.
"""

import json
import math
import re
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeGuard, TypeVar

import numpy as np

from costmodels import units
from costmodels.datatypes import BoolArray, FloatArray
from costmodels.iteration.timing import covered
from planner.errors import reading, refuse
from planner.io.documents import read_words
from planner.support.files import read_unpacked

Other = TypeVar("Other", str, None)
Patterns = tuple[tuple[str, re.Pattern[str]], ...]
"""Names, each with the pattern of what it stands for; the first match wins."""


_WORDS: Final = read_words("kineto")


def _patterns(*lists: str) -> Patterns:
    found = (pair for name in lists for pair in _WORDS[name].items())
    return tuple((name, re.compile(pattern)) for name, pattern in found)


_KINDS: Final = _patterns("cpu_spans")
"""Kinds of spans by name, from TorchRec's marks and the nodes of autograd."""
WAITED: Final = "waited for late ranks (us)"
"""The argument of a predicted collective that says how long the rank waits in it."""
_LONGEST_US: Final = 1e18
"""Times beyond this, some 30,000 years, are no times of a trace."""


ON_GPU: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHING: Final = ("cuda_runtime", "cuda_driver", "hip_runtime")
_MARKED: Final = ("cpu_op", "user_annotation")
"""Categories of events that are read."""


class Event(NamedTuple):
    """A complete event of a trace; ``number`` is that of a kernel and of the call that launched it.

    ``waited_s`` is how long a rank waits for later ones in it, where the file tells.
    """

    category: str
    name: str
    begin_us: float
    time_us: float
    thread: str = ""
    number: int | None = None
    waited_s: float = 0.0

    @property
    def end_us(self) -> float:
        """When it ends."""
        return self.begin_us + self.time_us

    @property
    def is_marked(self) -> bool:
        """Whether it is a span of the host's program."""
        return self.category in _MARKED


def event_of(raw: Any) -> Event | None:
    """The event of a file; None for kinds that are not read, and for times that are no times."""
    if not isinstance(raw, dict) or raw.get("ph") != "X":
        return None
    category, args = str(raw.get("cat", "")).lower(), raw.get("args")
    begin, length = raw.get("ts"), raw.get("dur")
    if not (_is_time(begin, least=-_LONGEST_US) and _is_time(length)):
        return None
    if category not in (*ON_GPU, *_LAUNCHING, *_MARKED):
        return None
    args = args if isinstance(args, dict) else {}
    number, waited = args.get("correlation"), args.get(WAITED)
    return Event(
        category=category,
        name=sys.intern(str(raw.get("name", ""))),
        begin_us=float(begin),
        time_us=float(length),
        thread=str(raw.get("tid")),
        number=number if isinstance(number, int) and not isinstance(number, bool) else None,
        waited_s=float(waited) * 1e-6 if _is_time(waited) else 0.0,
    )


def _is_time(value: object, *, least: float = 0.0) -> TypeGuard[float]:
    return isinstance(value, int | float) and least <= value <= _LONGEST_US


def cpu_spans(events: Sequence[Event], step_threads: Collection[str]) -> list[Event]:
    """Spans without gaps on the thread of the steps, named by the kind of their time.

    The outermost span of a kind counts as a whole, including the Python code around its kernels.
    Exchanges include waits for other ranks. The time between two spans is other compute: the dense
    part and the optimizer.
    """
    own = [e for e in events if e.thread in step_threads and e.is_marked]
    own.sort(key=lambda e: (e.begin_us, -e.time_us))
    found, end = list[Event](), own[0].begin_us
    for event in own:
        kind = _first(_KINDS, None, event.name)
        if kind is None or event.begin_us < end:
            continue
        if event.begin_us > end:
            found.append(Event("", OTHER, end, event.begin_us - end))
        found.append(event._replace(name=kind, number=None))
        end = event.end_us
    last = max(e.end_us for e in own)
    if last > end:
        found.append(Event("", OTHER, end, last - end))
    return found


COPIES: Final = "copies"
DENSE_FORWARD: Final = "dense forward"
DENSE_STAGES: Final = (DENSE_FORWARD, "dense backward", "dense optimizer")
OTHER: Final = "other compute"
COLLECTIVES: Final = tuple(_WORDS["collectives"])
STAGES: Final = tuple(_WORDS["stages"])
"""In the order in which they are shown."""
_NAMES: Final = _patterns("collectives", "kernels")
"""Stages by the name of a kernel, or of a span of a CPU rank, which is a stage."""
_SPANS: Final = _patterns("spans")
"""Stages by the name of a span of the host; one without a match has the stage of the span around
it."""
_MOVES: Final = re.compile(r"^Memcpy (HtoD|DtoH)", re.IGNORECASE)
"""Copies over the host's link: the batch and, in TorchRec, sizes of exchanges."""

_GROUPS: Final = _patterns("groups")


def _first(patterns: Patterns, other: Other, name: str) -> str | Other:
    """What stands beside the first pattern that is in a name; ``other`` without any."""
    return next((what for what, pattern in patterns if pattern.search(name)), other)


_cached: Final = lru_cache(maxsize=4096)
stage_of_name: Final = _cached(partial(_first, _NAMES, OTHER))
_group_of: Final = _cached(partial(_first, _GROUPS, "other kernels"))
_stage_of_span: Final = _cached(partial(_first, _SPANS, None))


def launches_of(complete: Sequence[Event]) -> dict[int | None, tuple[float, str | None]]:
    """When the host launched the kernel of each number, and the stage of the span around it."""
    calls, spans = defaultdict(list), defaultdict(list)
    for event in complete:
        if event.category in _LAUNCHING and event.number is not None:
            calls[event.thread].append((event.begin_us, event.number))
        elif event.is_marked:
            spans[event.thread].append((event.begin_us, -event.time_us, event.name))
    found: dict[int | None, tuple[float, str | None]] = {}
    for thread, own in calls.items():
        found.update(_launches(sorted(own), sorted(spans[thread])))
    return found


def stage_of(name: str, launched_in: str | None) -> str:
    """The stage of a kernel: that of the span that launched it, unless its name tells more."""
    named = stage_of_name(name)
    return named if named in COLLECTIVES or _MOVES.search(name) else launched_in or named


def _launches(
    calls: Sequence[tuple[float, int]], spans: Sequence[tuple[float, float, str]]
) -> Iterator[tuple[int, tuple[float, str | None]]]:
    """The number, the begin and the stage of each call of a thread; None outside of spans.

    Args:
        calls: begin and number, in order.
        spans: begin, negative length and name, in order; those of one thread nest.
    """
    around: list[tuple[float, str | None]] = [(math.inf, None)]  # end and stage of the open spans
    at = 0
    for begin, number in calls:
        while at < len(spans) and spans[at][0] <= begin:
            opened, shorter, name = spans[at]
            at += 1
            while around[-1][0] <= opened:
                around.pop()
            own = _stage_of_span(name) or around[-1][1]
            if own is None and not name.startswith("ProfilerStep#"):
                own = DENSE_FORWARD
            around.append((opened - shorter, own))
        while around[-1][0] <= begin:
            around.pop()
        yield number, (begin, around[-1][1])


# ------------------------------------------------------------------ files


MAX_BYTES: Final = 128 * 2**20
"""Longest text of a trace. A step of a large model has some 10,000 events of 300 bytes."""
MAX_VALUES: Final = 8_000_000
"""Most values in that text, which take some 64 bytes each; an event of 300 bytes has about 13. Text
and values then take less than 1 GB."""


def load_trace(path: Path, *, max_bytes: int = MAX_BYTES) -> Any:
    """The parsed JSON of a file, plain or gzipped, with its events as :class:`Event`.

    Args:
        path: the file.
        max_bytes: longest text that is read.

    Raises:
        InvalidInputError: the file cannot be read, is damaged, is not JSON, or is too long or has
            more values than any profiler writes.
    """
    text = read_unpacked(path, max_bytes + 1)
    if len(text) > max_bytes or sum(map(text.count, (b"[", b"{", b","))) > MAX_VALUES:
        most = f"{units.format_bytes(max_bytes)} of text or {MAX_VALUES:,} values"
        refuse(
            f"{path}: holds more than {most}, which are the most that are read: profile fewer "
            "steps, such as schedule(wait=1, warmup=1, active=3), without with_stack, "
            "record_shapes and profile_memory"
        )
    with reading(f"{path}: is neither JSON nor gzipped JSON, or is damaged"):
        return json.loads(text, object_hook=lambda x: event_of(x) if "ph" in x else x)


_STEP: Final = re.compile(r"^ProfilerStep#\d+$")
_WAITS: Final = re.compile(r"^(cuda|hip)(Stream|Device|Event)Synchronize$")
"""Calls in which the host waits for the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTime:
    """Kernels of one kind in one stage, per iteration.

    Attributes:
        stage: of :data:`STAGES`.
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
    spans = (np.array(waits.get(step, np.zeros((0, 2)))) * 1e-6 for step in range(len(marks)))
    return np.array([covered((found[:, 0], found.sum(axis=1))) for found in spans])


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
    groups = np.array([_group_of(kernel.name) for *_, kernel in placed])
    start, spans = (
        np.array([getattr(kernel, key) for *_, kernel in placed]) * 1e-6
        for key in ("begin_us", "time_us")
    )
    moving = np.isin(stages, COLLECTIVES)
    computing = ~moving & (stages != COPIES)

    def median(kept: BoolArray, values: FloatArray) -> float:
        return float(np.median(np.bincount(step[kept], values[kept], minlength=count)))

    def covered_s(kept: BoolArray) -> FloatArray:
        each = (kept & (step == i) for i in range(count))
        return np.array([covered((start[at], (start + spans)[at])) for at in each])

    compute_s, both_s, busy_s = map(covered_s, (computing, moving | computing, step >= 0))
    return TraceTimes(
        iterations=count,
        iteration_s=max(float(np.median(lengths_s)), float(np.median(busy_s))),
        kinds_s={stage: median(stages == stage, spans) for stage in STAGES if stage in stages},
        compute_s=float(np.median(compute_s)),
        communication_s=float(np.median(covered_s(moving))),
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
