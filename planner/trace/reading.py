"""Reads measured traces: the time of each kind of work on a rank's GPU per iteration."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodels.datatypes import FloatArray
from planner.errors import InvalidInputError
from planner.trace import cpu_ranks

KINDS: Final = (
    ("all-to-all", re.compile(r"nccl.*(sendrecv|alltoall|all_to_all)", re.IGNORECASE)),
    ("reduce-scatter", re.compile(r"nccl.*reduce_?scatter", re.IGNORECASE)),
    ("all-gather", re.compile(r"nccl.*all_?gather", re.IGNORECASE)),
    ("all-reduce", re.compile(r"nccl.*all_?reduce", re.IGNORECASE)),
    ("other collectives", re.compile(r"^(nccl|rccl)", re.IGNORECASE)),
    (
        "lookup backward",
        re.compile(
            r"embedding.*(backward|grad)|linearize_index|transpose_embedding|radixsort|"
            r"split_embedding.*optimizer",
            re.IGNORECASE,
        ),
    ),
    ("lookup forward", re.compile(r"(split|dense|batched)_embedding|bounds_check", re.IGNORECASE)),
    ("copies", re.compile(r"^mem(cpy|set)", re.IGNORECASE)),
)
"""Kinds of kernels by name; the first match wins, and everything else is other compute."""

OTHER: Final = "other compute"
COLLECTIVES: Final = (
    "all-to-all",
    "reduce-scatter",
    "all-gather",
    "all-reduce",
    "other collectives",
)

WAITED: Final = "waited for late ranks (us)"
"""The argument of a predicted collective that says how long the rank waits in it."""

_ON_GPU: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_STEP: Final = re.compile(r"^ProfilerStep#\d+$")
_MAX_BYTES: Final = 4 * 2**30
_LONGEST_US: Final = 1e18
"""Times beyond this, some 30,000 years, are no times of a trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTimes:
    """One rank's seconds per iteration.

    Attributes:
        rank: the rank that the file names.
        iterations: number of iterations in the file.
        iteration_s: seconds from the start of one iteration to the next.
        kinds_s: GPU time of each kind of kernel.
        compute_s, communication_s: time in which a kernel runs that is not a collective, and time
            in which a collective runs.
        exposed_s: time in which a collective runs, but no other kernel.
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
    told_waits_s: float = 0.0
    on_cpu: bool = False


def read_trace(path: Path) -> TraceTimes:
    """Read the times of one file, plain or gzipped.

    Raises:
        InvalidInputError: the file cannot be read, is not a profiler's trace, or has no GPU
            kernels.
    """
    return times_of(_document(path), path)


def times_of(document: Any, path: Path) -> TraceTimes:
    """The times of one file, from its parsed JSON; see :func:`read_trace`."""
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        message = f"{path}: is no trace of the PyTorch profiler: it has no list 'traceEvents'"
        raise InvalidInputError(message)
    complete = [e for e in events if isinstance(e, dict) and e.get("ph") == "X" and _timed(e)]
    kernels = [e for e in complete if str(e.get("cat", "")).lower() in _ON_GPU]
    steps = _steps(complete)
    on_cpu = not kernels and cpu_ranks.is_of_gloo(document)
    if on_cpu:
        if not steps:
            message = (
                f"{path}: marks no ProfilerStep; profile with schedule= and call step() after "
                "every iteration"
            )
            raise InvalidInputError(message)
        kernels = cpu_ranks.spans(complete, _step_threads(complete), OTHER)
    if not kernels:
        message = (
            f"{path}: holds no GPU kernels; profile with ProfilerActivity.CUDA and export with "
            "export_chrome_trace"
        )
        raise InvalidInputError(message)
    kernels, window_us, count = _inside(kernels, steps)
    if not kernels:
        message = f"{path}: no GPU kernel lies inside its ProfilerStep marks"
        raise InvalidInputError(message)
    rank = _rank(document.get("distributedInfo"), path)
    return _times(kernels, rank=rank, count=count, window_us=window_us, on_cpu=on_cpu)


def _rank(info: Any, path: Path) -> int:
    """The rank that a trace names; 0 if it names none."""
    rank = info.get("rank", 0) if isinstance(info, dict) else 0
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
        message = f"{path}: distributedInfo.rank must be a whole number from 0, got {rank!r}"
        raise InvalidInputError(message)
    return rank


def _document(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES)
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return json.loads(data)
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror or error}"
        raise InvalidInputError(message) from error
    except (ValueError, EOFError, RecursionError, zlib.error) as error:
        message = f"{path}: is neither JSON nor gzipped JSON"
        raise InvalidInputError(message) from error


def _timed(event: dict[str, Any]) -> bool:
    """Whether an event has a finite start, and a finite duration that is not negative."""
    return _is_time(event.get("ts"), least=-_LONGEST_US) and _is_time(event.get("dur"))


def _is_time(value: object, *, least: float = 0.0) -> bool:
    return isinstance(value, int | float) and least <= value <= _LONGEST_US


def _steps(events: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """(begin, end) in microseconds of the host's mark of each iteration, in order."""
    marks = [
        (float(e["ts"]), float(e["ts"]) + float(e["dur"]))
        for e in events
        if _STEP.match(str(e.get("name", "")))
        and str(e.get("cat", "")).lower() in ("user_annotation", "cpu_op")
    ]
    return sorted(marks)


def _step_threads(events: Sequence[dict[str, Any]]) -> frozenset[Any]:
    """The threads that have the host's marks of iterations."""
    return frozenset(e.get("tid") for e in events if _STEP.match(str(e.get("name", ""))))


def _inside(
    kernels: list[dict[str, Any]], steps: list[tuple[float, float]]
) -> tuple[list[dict[str, Any]], float, int]:
    """Kernels of whole iterations, the microseconds of these iterations, and their number.

    Kernels run later than the host launches them, but by the same time in every iteration.
    Therefore the host's marks still cover a whole number of iterations.
    """
    if not steps:
        begin = min(float(e["ts"]) for e in kernels)
        end = max(float(e["ts"]) + float(e["dur"]) for e in kernels)
        return kernels, end - begin, 1
    begin, end = steps[0][0], steps[-1][1]
    kept = [e for e in kernels if begin <= float(e["ts"]) < end]
    return kept, end - begin, len(steps)


def _times(
    kernels: list[dict[str, Any]], *, rank: int, count: int, window_us: float, on_cpu: bool
) -> TraceTimes:
    kinds = [kind_of(str(e.get("name", ""))) for e in kernels]
    start = np.array([float(e["ts"]) for e in kernels]) * 1e-6
    spans = np.array([float(e["dur"]) for e in kernels]) * 1e-6
    moving = np.array([k in COLLECTIVES for k in kinds])
    computing = ~moving & np.array([k != "copies" for k in kinds])
    communication_s = _covered(start[moving], spans[moving])
    compute_s = _covered(start[computing], spans[computing])
    both_s = _covered(start[moving | computing], spans[moving | computing])
    return TraceTimes(
        rank=rank,
        iterations=count,
        iteration_s=window_us * 1e-6 / count,
        kinds_s={
            kind: float(spans[[k == kind for k in kinds]].sum()) / count
            for kind in dict.fromkeys(kinds)
        },
        compute_s=compute_s / count,
        communication_s=communication_s / count,
        exposed_s=(both_s - compute_s) / count,
        told_waits_s=sum(told_wait_s(e) for e in kernels) / count,
        on_cpu=on_cpu,
    )


def told_wait_s(event: Any) -> float:
    """Seconds that a rank waits for later ones, if the event has them; otherwise 0."""
    args = event.get("args")
    told = args.get(WAITED, 0.0) if isinstance(args, dict) else 0.0
    return float(told) * 1e-6 if _is_time(told) else 0.0


def kind_of(name: str) -> str:
    """The kind of a kernel by its name; spans of CPU ranks already have the names of kinds."""
    if name in cpu_ranks.SPAN_KINDS:
        return name
    return next((kind for kind, pattern in KINDS if pattern.search(name)), OTHER)


def _covered(start: FloatArray, spans: FloatArray) -> float:
    """Seconds covered by intervals that may overlap."""
    if not len(start):
        return 0.0
    order = np.argsort(start, kind="stable")
    begin, end = start[order], np.maximum.accumulate((start + spans)[order])
    before = np.concatenate([[-np.inf], end[:-1]])
    return float(np.maximum(end - np.maximum(begin, before), 0.0).sum())
