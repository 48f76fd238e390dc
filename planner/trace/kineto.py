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
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import costmodels
from costmodels.datatypes import FloatArray, IntArray
from costmodels.iteration.base import INPUT_COPY, Program, Simulation, Step, Stream
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from costmodels.topology import Topology
from planner.trace.reading import WAITED

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
    local = pipeline.topology.local_world_size
    for rank in range(pipeline.topology.world_size) if ranks is None else sorted(ranks):
        lane = _Lane(rank=rank, device=rank % local)
        events = list(_events(program, simulation, lane, iterations))
        yield TraceFile(rank=rank, data=_packed(_document(events, lane, pipeline.topology)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    """One rank: the process id of its GPU is its device number; its host has another id."""

    rank: int
    device: int

    @property
    def host(self) -> int:
        return 10_000 + self.rank


def _packed(document: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=0) as file:
        file.write(json.dumps(document, separators=(",", ": ")).encode())
    return buffer.getvalue()


def _document(events: list[Event], lane: _Lane, topology: Topology) -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "deviceProperties": [
            {
                "id": lane.device,
                "name": topology.device.name,
                "totalGlobalMem": int(topology.hbm_capacities()[lane.rank]),
                "numSms": topology.device.num_multiprocessors,
            }
        ],
        "distributedInfo": {
            "backend": "nccl",
            "rank": lane.rank,
            "world_size": topology.world_size,
            "pg_count": 1,
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl"}],
        },
        "traceName": f"shardplan {costmodels.__version__}: predicted, rank {lane.rank}",
        "displayTimeUnit": "ms",
        "traceEvents": [*_names(lane), *events],
    }


def _names(lane: _Lane) -> list[Event]:
    """Labels of processes and threads."""
    processes = ((lane.host, f"rank {lane.rank} host"), (lane.device, f"rank {lane.rank} GPU"))
    return [
        *(_meta("process_name", pid, 0, {"name": name}) for pid, name in processes),
        _meta("thread_name", lane.host, _HOST_THREAD, {"name": "main thread"}),
        *(
            _meta("thread_name", lane.device, tid, {"name": f"stream {tid} {stream.value}"})
            for stream, tid in STREAM_IDS.items()
        ),
    ]


def _meta(name: str, pid: int, tid: int, args: dict[str, str]) -> Event:
    return {"name": name, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": args}


def _events(program: Program, simulation: Simulation, lane: _Lane, count: int) -> Iterator[Event]:
    period_s = simulation.iteration_time_s
    for iteration in range(count):
        begin_s = iteration * period_s
        yield {
            "name": f"ProfilerStep#{iteration}",
            "ph": "X",
            "cat": "user_annotation",
            "pid": lane.host,
            "tid": _HOST_THREAD,
            "ts": _us(begin_s),
            "dur": _us(period_s),
            "args": {"External id": _first_id(program, iteration)},
        }
        yield from _iteration(program, simulation, lane, iteration, begin_s)


def _first_id(program: Program, iteration: int) -> int:
    return iteration * (len(program.steps) + 1) + 1


def _iteration(
    program: Program, simulation: Simulation, lane: _Lane, iteration: int, begin_s: float
) -> Iterator[Event]:
    """The host's launch and the kernel of every step that takes time on this rank."""
    rank, host_s = lane.rank, 0.0
    for index, step in enumerate(program.steps):
        host_cost_s = _on_rank(step.host_s, rank)
        issued_s, host_s = host_s, host_s + host_cost_s
        start_s = float(simulation.start_s[index, rank])
        finish_s = float(simulation.finish_s[index, rank])
        if step.blocks_host:
            host_s = max(host_s, finish_s)
        if finish_s - start_s < _NANOSECOND:
            continue
        number = _first_id(program, iteration) + 1 + index
        shared = {"correlation": number, "External id": number}
        yield {
            "name": "cudaLaunchKernel",
            "ph": "X",
            "cat": "cuda_runtime",
            "pid": lane.host,
            "tid": _HOST_THREAD,
            "ts": _us(begin_s + issued_s),
            "dur": _us(host_cost_s),
            "args": shared,
        }
        waited_s = start_s - float(simulation.arrival_s[index, rank])
        yield {
            "name": kernel_name(step),
            "ph": "X",
            "cat": "gpu_memcpy" if _copies(step) else "kernel",
            "pid": lane.device,
            "tid": STREAM_IDS[step.stream],
            "ts": _us(begin_s + start_s),
            "dur": _us(finish_s - start_s),
            "args": {
                **shared,
                "device": lane.device,
                "stream": STREAM_IDS[step.stream],
                "step": step.name,
                **_collective_args(step, waited_s),
            },
        }


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
