"""Writes the predicted iteration as one JSON file for each rank, in the form of Kineto.

This is the form that the PyTorch profiler writes: kernels as complete events (``ph`` ``X``) with
times in microseconds, streams as thread ids, a host event that launches each kernel and has the
same ``correlation``, and one ``ProfilerStep`` mark for each iteration. Perfetto draws such files,
and HolisticTraceAnalysis reads them. The all-to-all matrix is for ``alltoallv_perf`` of nccl-tests.
"""

import gzip
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

import costmodels
from costmodels.datatypes import FloatArray
from costmodels.iteration.base import INPUT_COPY, Program, Step, Stream
from costmodels.iteration.timing import Simulation
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from costmodels.topology import Topology
from planner.io.documents import read_words
from planner.trace.reading import (
    DENSE_STAGES,
    OTHER,
    STAGES,
    WAITED,
    TraceTimes,
    check_ranks,
    times_of,
)

Event = dict[str, Any]

STREAM_IDS: Final = dict(zip(Stream, (7, 20, 24, 28, 32), strict=True))
"""Thread ids of the streams: CUDA's default stream is 7 in the profiler's files."""

_HOST_THREAD: Final = 1
_COLLECTIVE_KERNELS: Final[dict[str, tuple[str, str]]] = read_words("kineto")["written"]


def traces(
    pipeline: CostPipeline, plan: Plan, *, iterations: int = 1, ranks: Collection[int] | None = None
) -> Iterator[tuple[str, bytes]]:
    """The name and content of a gzipped file for each rank; the same plan gives the same bytes.

    Args:
        pipeline: prices the plan.
        plan: the plan.
        iterations: how many times the steady-state iteration is repeated.
        ranks: the ranks to write; None for all.
    """
    program, simulation = pipeline.simulate(plan)
    topology = pipeline.topology
    for rank in range(topology.world_size) if ranks is None else sorted(ranks):
        document = _document(program, simulation, rank, iterations, topology)
        text = json.dumps(document, separators=(",", ": ")).encode()
        yield f"rank-{rank}.json.gz", gzip.compress(text, mtime=0)


def _document(
    program: Program, simulation: Simulation, rank: int, count: int, topology: Topology
) -> dict[str, Any]:
    """The content of the trace of a rank, of ``count`` iterations."""
    device = rank % topology.local_world_size
    properties = {
        "id": device,
        "name": topology.device.name,
        "totalGlobalMem": int(topology.hbm_capacities()[rank]),
        "numSms": topology.device.num_multiprocessors,
    }
    distributed = {
        "backend": "nccl",
        "rank": rank,
        "world_size": topology.world_size,
        "pg_count": 1,
        "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl"}],
    }
    events = [
        _label("process_name", _host(rank), 0, f"rank {rank} host"),
        _label("process_name", device, 0, f"rank {rank} GPU"),
        _label("thread_name", _host(rank), _HOST_THREAD, "main thread"),
    ]
    for stream, tid in STREAM_IDS.items():
        events.append(_label("thread_name", device, tid, f"stream {tid} {stream.value}"))
    for iteration in range(count):
        events += _iteration(program, simulation, rank, device, iteration)
    return {
        "schemaVersion": 1,
        "deviceProperties": [properties],
        "distributedInfo": distributed,
        "traceName": f"shardplan {costmodels.__version__}: predicted, rank {rank}",
        "displayTimeUnit": "ms",
        "traceEvents": events,
    }


def _label(kind: str, pid: int, tid: int, text: str) -> Event:
    return {"name": kind, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": {"name": text}}


def _host(rank: int) -> int:
    """The process id of the host of a rank; that of its GPU is the number of the device."""
    return 10_000 + rank


def _span(
    name: str, category: str, place: tuple[int, int], begin_s: float, time_s: float, args: Event
) -> Event:
    """A complete event in a process and a thread."""
    pid, tid = place
    times = {"ts": _us(begin_s), "dur": _us(time_s)}
    return {"name": name, "ph": "X", "cat": category, "pid": pid, "tid": tid, **times, "args": args}


def _iteration(
    program: Program, simulation: Simulation, rank: int, device: int, iteration: int
) -> Iterator[Event]:
    """The mark, and the host's launch and the kernel of every step that takes time on this rank."""
    host, host_s, period_s = (_host(rank), _HOST_THREAD), 0.0, simulation.iteration_time_s
    begin_s, first = iteration * period_s, iteration * (len(program.steps) + 1) + 1
    mark = f"ProfilerStep#{iteration}"
    yield _span(mark, "user_annotation", host, begin_s, period_s, {"External id": first})
    for index, step in enumerate(program.steps):
        host_cost_s = float(np.broadcast_to(step.host_s, simulation.start_s[index].shape)[rank])
        launched_s, host_s = begin_s + host_s, host_s + host_cost_s
        start_s = float(simulation.start_s[index, rank])
        finish_s = float(simulation.finish_s[index, rank])
        if step.blocks_host:
            host_s = max(host_s, finish_s)
        if finish_s - start_s < 1e-9:
            continue
        number, stream = first + 1 + index, STREAM_IDS[step.stream]
        args: Event = {"correlation": number, "External id": number}
        yield _span("cudaLaunchKernel", "cuda_runtime", host, launched_s, host_cost_s, args)
        args = {**args, "device": device, "stream": stream, "step": step.name}
        if step.collective:
            args["Collective name"] = _collective(step)[1]
            args["Process Group Name"] = "0"
            args["Process Group Description"] = "default_pg"
            args[WAITED] = _us(max(0.0, start_s - float(simulation.arrival_s[index, rank])))
        category, place = "gpu_memcpy" if _copies(step) else "kernel", (device, stream)
        name = kernel_name(step)
        yield _span(name, category, place, begin_s + start_s, finish_s - start_s, args)


def _us(seconds: float) -> float:
    """Microseconds, rounded to a nanosecond."""
    return round(seconds * 1e6, 3)


def _copies(step: Step) -> bool:
    return step.name in ("cache fetch", INPUT_COPY)


def kernel_name(step: Step) -> str:
    """A name that analysers put into the right class, with the name of the step in brackets."""
    if step.collective:
        return f"{_collective(step)[0]} [{step.name}]"
    if _copies(step):
        return f"Memcpy HtoD [{step.name}]"
    if step.name.startswith("lookup"):
        direction = "backward" if "backward" in step.name else "forward"
        return f"split_embedding_codegen_{direction} [{step.name}]"
    return step.name


def _collective(step: Step) -> tuple[str, str]:
    label = next((label for label in _COLLECTIVE_KERNELS if label in step.name), "all-to-all")
    return _COLLECTIVE_KERNELS[label]


_ALIGNMENT_BYTES = 16


def matrix_text(traffic_bytes: FloatArray) -> tuple[str, int]:
    """The matrix as text, and the bytes of the buffer to replay it.

    Row i of the text has the bytes that rank i sends to each rank, rounded up to 16, the alignment
    of NCCL's messages. ``alltoallv_perf`` reads the file that ``NCCL_TESTS_ALLTOALLV_MATRIX_FILE``
    names. Its flags ``-b`` and ``-e`` have to be equal, and at least the buffer's bytes: the
    largest sum of a row or column.
    """
    units = np.ceil(traffic_bytes / _ALIGNMENT_BYTES - 1e-9)
    whole = np.asarray(units * _ALIGNMENT_BYTES, dtype=np.int64)
    text = "".join(" ".join(map(str, row)) + "\n" for row in whole.tolist())
    return text, int(max(whole.sum(axis=0).max(), whole.sum(axis=1).max()))


# ------------------------------------------------------------------ beside measured traces


HOST: Final = "host"
"""What the host does for an iteration; other rows are times of the GPU or of the whole step."""
TOTALS = ("iteration", "compute", "communication", "exposed communication")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One stage, or a total, on one rank, in seconds per iteration.

    ``wait_s`` is how long this rank waits for later ranks in such a collective, as predicted; a
    measured kernel runs during this time. If the measured file has the waits itself, as traces of
    this project do, they are in ``measured_wait_s``.
    """

    rank: int
    kind: str
    measured_s: float
    predicted_s: float
    wait_s: float = 0.0
    measured_wait_s: float = 0.0

    @property
    def error_ratio(self) -> float | None:
        """(predicted - measured) / measured; None if nothing was measured."""
        measured_s = self.measured_s + self.measured_wait_s
        return (self.predicted_s + self.wait_s) / measured_s - 1.0 if self.measured_s > 0 else None


def compare_traces(
    pipeline: CostPipeline, plan: Plan, measured: Sequence[TraceTimes]
) -> tuple[TraceRow, ...]:
    """Rows for every rank that has a trace: totals first, and then stages.

    Raises:
        InvalidInputError: two traces are of one rank, or one of a rank that the plan does not have.
    """
    world = pipeline.topology.world_size
    check_ranks(measured, world)
    program, simulation = pipeline.simulate(plan)
    host_s = np.zeros(world) + sum(np.asarray(step.host_s) for step in program.steps)
    rows: list[TraceRow] = []
    for times in sorted(measured, key=lambda t: t.rank):
        document = _document(program, simulation, times.rank, 1, pipeline.topology)
        predicted = times_of(document, Path(f"rank {times.rank}"))
        rows += _rows(times, predicted, float(host_s[times.rank]))
    return tuple(rows)


def _rows(measured: TraceTimes, predicted: TraceTimes, host_s: float) -> list[TraceRow]:
    """The rows of one rank, whose host is predicted to take ``host_s``."""
    fields = ("iteration_s", "compute_s", "communication_s", "exposed_s")
    found = [
        (kind, getattr(measured, field), getattr(predicted, field))
        for kind, field in zip(TOTALS, fields, strict=True)
    ]
    expected = dict(predicted.kinds_s)
    if not any(stage in measured.kinds_s for stage in DENSE_STAGES):
        dense_s = sum(expected.pop(stage, 0.0) for stage in DENSE_STAGES)
        expected[OTHER] = expected.get(OTHER, 0.0) + dense_s
    stages = [(k, measured.kinds_s.get(k, 0.0), expected.get(k, 0.0)) for k in STAGES]
    found += [stage for stage in stages if any(stage[1:])]
    if measured.host_s is not None:
        found.append((HOST, measured.host_s, host_s))
    rows = [TraceRow(rank=measured.rank, kind=k, measured_s=m, predicted_s=p) for k, m, p in found]
    told_s, expected_s = measured.told_waits_s, predicted.told_waits_s
    return [
        replace(row, measured_wait_s=told_s, wait_s=expected_s) if row.kind in TOTALS[2:] else row
        for row in rows
    ]
