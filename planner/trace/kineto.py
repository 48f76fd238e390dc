"""Writes the predicted iteration as one JSON file for each rank, in the form of Kineto.

This is the form that the PyTorch profiler writes: kernels as complete events (``ph`` ``X``) with
times in microseconds, streams as thread ids, a host event that launches each kernel and has the
same ``correlation``, and one ``ProfilerStep`` mark for each iteration. Perfetto draws such files,
and HolisticTraceAnalysis reads them. The all-to-all matrix is for ``alltoallv_perf`` of nccl-tests.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import costmodels
from costmodels.datatypes import FloatArray, IntArray
from costmodels.iteration.base import INPUT_COPY, Program, Simulation, Step, Stream
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from costmodels.topology import Topology
from planner.trace.reading import WAITED, TraceTimes, check_ranks, times_of, told_wait_s
from planner.trace.stages import DENSE_STAGES, OTHER, STAGES

Event = dict[str, Any]

STREAM_IDS: Final = {
    Stream.COMPUTE: 7,
    Stream.COMMUNICATION: 20,
    Stream.DATA_DIST: 24,
    Stream.PREFETCH: 28,
    Stream.COPY: 32,
}
"""Thread ids of the streams: CUDA's default stream is 7 in the profiler's files."""

_HOST_THREAD: Final = 1
_MICROSECONDS: Final = 1e6
_NANOSECOND: Final = 1e-9
_COLLECTIVE_KERNELS: Final = {
    "reduce-scatter": ("ncclDevKernel_ReduceScatter_Sum", "reduce_scatter"),
    "all-reduce": ("ncclDevKernel_AllReduce_Sum", "allreduce"),
    "all-gather": ("ncclDevKernel_AllGather", "allgather"),
    "all-to-all": ("ncclDevKernel_SendRecv", "all_to_allv"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """One rank's trace."""

    rank: int
    data: bytes

    @property
    def name(self) -> str:
        """The name of the file, such as ``rank-3.json.gz``."""
        return f"rank-{self.rank}.json.gz"


def traces(
    pipeline: CostPipeline,
    plan: Plan,
    *,
    iterations: int = 1,
    ranks: Collection[int] | None = None,
) -> Iterator[TraceFile]:
    """The gzipped trace of each rank; the same plan gives the same bytes.

    Args:
        pipeline: prices the plan.
        plan: the plan.
        iterations: how many times the steady-state iteration is repeated.
        ranks: the ranks to write; None for all.
    """
    program, simulation = pipeline.simulate(plan)
    topology = pipeline.topology
    for rank in range(topology.world_size) if ranks is None else sorted(ranks):
        device = rank % topology.local_world_size
        events = list(_events(program, simulation, rank, device, iterations))
        yield TraceFile(rank=rank, data=_packed(_document(events, rank, device, topology)))


def _packed(document: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=0) as file:
        file.write(json.dumps(document, separators=(",", ": ")).encode())
    return buffer.getvalue()


def _host(rank: int) -> int:
    """The process id of the host of a rank; that of its GPU is the number of the device."""
    return 10_000 + rank


def _document(events: list[Event], rank: int, device: int, topology: Topology) -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "deviceProperties": [
            {
                "id": device,
                "name": topology.device.name,
                "totalGlobalMem": int(topology.hbm_capacities()[rank]),
                "numSms": topology.device.num_multiprocessors,
            }
        ],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": topology.world_size,
            "pg_count": 1,
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl"}],
        },
        "traceName": f"shardplan {costmodels.__version__}: predicted, rank {rank}",
        "displayTimeUnit": "ms",
        "traceEvents": [*_names(rank, device), *events],
    }


def _names(rank: int, device: int) -> list[Event]:
    """Labels of processes and threads."""
    host = _host(rank)
    return [
        _meta("process_name", host, 0, {"name": f"rank {rank} host"}),
        _meta("process_name", device, 0, {"name": f"rank {rank} GPU"}),
        _meta("thread_name", host, _HOST_THREAD, {"name": "main thread"}),
        *(
            _meta("thread_name", device, tid, {"name": f"stream {tid} {stream.value}"})
            for stream, tid in STREAM_IDS.items()
        ),
    ]


def _meta(name: str, pid: int, tid: int, args: dict[str, str]) -> Event:
    return {"name": name, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": args}


def _span(
    name: str, category: str, place: tuple[int, int], begin_s: float, time_s: float, args: Event
) -> Event:
    """A complete event in a process and a thread."""
    pid, tid = place
    times = {"ts": _us(begin_s), "dur": _us(time_s)}
    return {"name": name, "ph": "X", "cat": category, "pid": pid, "tid": tid, **times, "args": args}


def _events(
    program: Program, simulation: Simulation, rank: int, device: int, count: int
) -> Iterator[Event]:
    period_s, host = simulation.iteration_time_s, (_host(rank), _HOST_THREAD)
    for iteration in range(count):
        begin_s, first = iteration * period_s, iteration * (len(program.steps) + 1) + 1
        mark = f"ProfilerStep#{iteration}"
        yield _span(mark, "user_annotation", host, begin_s, period_s, {"External id": first})
        yield from _iteration(program, simulation, rank, device, first + 1, begin_s)


def _iteration(
    program: Program, simulation: Simulation, rank: int, device: int, first: int, begin_s: float
) -> Iterator[Event]:
    """The host's launch and the kernel of every step that takes time on this rank."""
    host_s = 0.0
    for index, step in enumerate(program.steps):
        host_cost_s = _on_rank(step.host_s, rank)
        issued_s, host_s = host_s, host_s + host_cost_s
        start_s = float(simulation.start_s[index, rank])
        finish_s = float(simulation.finish_s[index, rank])
        if step.blocks_host:
            host_s = max(host_s, finish_s)
        if finish_s - start_s < _NANOSECOND:
            continue
        shared = {"correlation": first + index, "External id": first + index}
        host = (_host(rank), _HOST_THREAD)
        launched_s = begin_s + issued_s
        yield _span("cudaLaunchKernel", "cuda_runtime", host, launched_s, host_cost_s, shared)
        stream = STREAM_IDS[step.stream]
        where = {"device": device, "stream": stream, "step": step.name}
        waited_s = start_s - float(simulation.arrival_s[index, rank])
        yield _span(
            kernel_name(step),
            "gpu_memcpy" if _copies(step) else "kernel",
            (device, stream),
            begin_s + start_s,
            finish_s - start_s,
            {**shared, **where, **_collective_args(step, waited_s)},
        )


def _on_rank(values: np.ndarray[Any, np.dtype[np.float64]], rank: int) -> float:
    flat = np.ravel(values)
    return float(flat[rank if flat.size > 1 else 0])


def _us(seconds: float) -> float:
    """Microseconds, rounded to a nanosecond."""
    return round(seconds * _MICROSECONDS, 3)


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
    for label, names in _COLLECTIVE_KERNELS.items():
        if label in step.name:
            return names
    return _COLLECTIVE_KERNELS["all-to-all"]


def _collective_args(step: Step, waited_s: float) -> Event:
    if not step.collective:
        return {}
    return {
        "Collective name": _collective(step)[1],
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        WAITED: _us(max(0.0, waited_s)),
    }


_ALIGNMENT_BYTES = 16


def matrix_text(traffic_bytes: FloatArray) -> str:
    """The matrix as text: row i has the bytes that rank i sends to each rank.

    Numbers are rounded up to 16 bytes, the alignment of NCCL's messages. ``alltoallv_perf`` reads
    the file that ``NCCL_TESTS_ALLTOALLV_MATRIX_FILE`` names. Its flags ``-b`` and ``-e`` have to be
    equal, and at least the largest sum of a row or column (:func:`buffer_bytes`).
    """
    return "".join(" ".join(map(str, row)) + "\n" for row in whole_bytes(traffic_bytes).tolist())


def whole_bytes(traffic_bytes: FloatArray) -> IntArray:
    """Bytes rounded up to the alignment."""
    units = np.ceil(traffic_bytes / _ALIGNMENT_BYTES - 1e-9)
    return np.asarray(units * _ALIGNMENT_BYTES, dtype=np.int64)


def buffer_bytes(traffic_bytes: FloatArray) -> int:
    """Bytes of the buffer to replay the matrix: the largest sum of a row or column."""
    whole = whole_bytes(traffic_bytes)
    return int(max(whole.sum(axis=0).max(), whole.sum(axis=1).max()))


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
    world, by_rank = pipeline.topology.world_size, {t.rank: t for t in measured}
    check_ranks(measured, world)
    program, _ = pipeline.simulate(plan)
    host_s = sum(np.broadcast_to(step.host_s, (world,)) for step in program.steps)
    rows: list[TraceRow] = []
    for file in traces(pipeline, plan, ranks=by_rank):
        times, document = by_rank[file.rank], json.loads(gzip.decompress(file.data))
        rows += _rows(times, times_of(document, Path(file.name)), _waits_s(document))
        if times.host_s is not None:
            told_s = float(np.asarray(host_s)[file.rank])
            host = TraceRow(rank=file.rank, kind=HOST, measured_s=times.host_s, predicted_s=told_s)
            rows.append(host)
    return tuple(rows)


def _rows(measured: TraceTimes, predicted: TraceTimes, waits_s: float) -> list[TraceRow]:
    rank, told_s = measured.rank, measured.told_waits_s
    fields = ("iteration_s", "compute_s", "communication_s", "exposed_s")
    rows = [
        TraceRow(
            rank=rank,
            kind=kind,
            measured_s=getattr(measured, field),
            predicted_s=getattr(predicted, field),
            wait_s=waits_s if waits else 0.0,
            measured_wait_s=told_s if waits else 0.0,
        )
        for kind, field, waits in zip(TOTALS, fields, (False, False, True, True), strict=True)
    ]
    expected = dict(predicted.kinds_s)
    if not measured.tells_stages:
        dense_s = sum(expected.pop(stage, 0.0) for stage in DENSE_STAGES)
        expected[OTHER] = expected.get(OTHER, 0.0) + dense_s
    for kind in STAGES:
        m, p = measured.kinds_s.get(kind, 0.0), expected.get(kind, 0.0)
        if m or p:
            rows.append(TraceRow(rank=rank, kind=kind, measured_s=m, predicted_s=p))
    return rows


def _waits_s(document: dict[str, list[dict[str, object]]]) -> float:
    """Seconds that the predicted rank waits for later ones in collectives."""
    return sum(told_wait_s(event) for event in document["traceEvents"])
