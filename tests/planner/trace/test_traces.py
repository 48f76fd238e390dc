"""Traces: what other tools read in them is what the estimate says."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodels.pipeline import CostPipeline
from costmodels.shard_work.work import output_traffic_bytes
from costmodels.sharding import Plan
from planner import load_system, load_workload, plan
from planner.errors import InvalidInputError
from planner.trace.kineto import compare_traces, matrix_text, traces
from planner.trace.reading import WAITED, event_of, read_trace, stage_of_name


@pytest.fixture(scope="module")
def planned() -> tuple[CostPipeline, Plan]:
    """DCNv2 on two hosts, cut in several ways so that ranks differ."""
    workload, topology = load_workload("dlrm_dcnv2_mlperf"), load_system("h100_sxm", gpus=16)
    found = plan(workload, topology, strategy="size_greedy", time_limit_s=5)
    return CostPipeline(workload, topology), found.plan


@pytest.fixture(scope="module")
def folder(planned: tuple[CostPipeline, Plan], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three iterations of every rank."""
    where = tmp_path_factory.mktemp("trace")
    for name, data in traces(*planned, iterations=3):
        (where / name).write_bytes(data)
    return where


def test_our_reader_finds_what_was_predicted(
    planned: tuple[CostPipeline, Plan], folder: Path
) -> None:
    """Compute, communication and what is exposed, on every rank, to the microsecond."""
    pipeline, found = planned
    estimate = pipeline.estimate(found)
    for rank in estimate.ranks:
        read = read_trace(folder / f"rank-{rank.rank}.json.gz")
        assert read.iterations == 3
        assert read.iteration_s == pytest.approx(estimate.time.time_s, abs=1e-8)
        assert read.compute_s == pytest.approx(rank.compute_s, rel=1e-4)
        assert read.communication_s == pytest.approx(rank.communication_s, rel=1e-4)
        assert read.exposed_s == pytest.approx(rank.exposed_s, rel=1e-3, abs=1e-7)


@pytest.mark.filterwarnings("ignore")  # its own use of pandas
def test_holistic_trace_analysis_agrees_to_a_percent(
    planned: tuple[CostPipeline, Plan], folder: Path
) -> None:
    """Its breakdown of compute, communication and their overlap is ours."""
    hta = pytest.importorskip("hta.trace_analysis")
    pipeline, found = planned
    estimate = pipeline.estimate(found)
    analysis = hta.TraceAnalysis(trace_dir=str(folder), include_last_profiler_step=True)
    breakdown = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
    assert len(breakdown) == pipeline.topology.world_size
    for rank in estimate.ranks:
        row = breakdown.loc[rank.rank]
        assert row["compute_time(us)"] / 3e6 == pytest.approx(rank.compute_s, rel=0.01)
        assert row["non_compute_time(us)"] / 3e6 == pytest.approx(rank.exposed_s, rel=0.01)
        hidden = 1 - rank.exposed_s / rank.communication_s
        told = overlap.loc[rank.rank]["comp_comm_overlap_pctg"] / 100
        assert told == pytest.approx(hidden, abs=0.01)


def test_events_of_a_stream_do_not_overlap_and_each_has_its_launch(folder: Path) -> None:
    """Perfetto draws slices of one track only if they nest."""
    for path in folder.iterdir():
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        complete = [e for e in events if e["ph"] == "X"]
        launches = {e["args"]["correlation"] for e in complete if e["cat"] == "cuda_runtime"}
        on_gpu = [e for e in complete if e["cat"] in ("kernel", "gpu_memcpy")]
        assert {e["args"]["correlation"] for e in on_gpu} == launches
        for stream in {e["tid"] for e in on_gpu}:
            spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in on_gpu if e["tid"] == stream)
            pairs = itertools.pairwise(spans)
            assert all(end <= begin + 0.01 for (_, end), (begin, _) in pairs)


def test_the_same_plan_gives_the_same_bytes(planned: tuple[CostPipeline, Plan]) -> None:
    """No time of day and no hash order in the files."""
    first, second = (dict(traces(*planned)) for _ in range(2))
    assert first == second


def test_a_prediction_compared_with_itself_has_no_error(
    planned: tuple[CostPipeline, Plan], folder: Path
) -> None:
    """Totals and kinds of every rank that was given."""
    measured = [read_trace(folder / f"rank-{rank}.json.gz") for rank in (3, 0)]
    rows = compare_traces(*planned, measured)
    assert {r.rank for r in rows} == {0, 3}
    assert all(r.predicted_s == pytest.approx(r.measured_s, rel=1e-3, abs=1e-8) for r in rows)
    assert any(r.wait_s > 0.01 * r.measured_s for r in rows)
    errors = [r.error_ratio for r in rows if r.error_ratio is not None and r.measured_s > 1e-6]
    assert errors == pytest.approx([0.0] * len(errors), abs=1e-3)


def _measured(names: list[tuple[str, float, float]], **more: Any) -> dict[str, Any]:
    events = [
        {"ph": "X", "cat": "kernel", "name": n, "ts": ts, "dur": dur, "pid": 0, "tid": 7}
        for n, ts, dur in names
    ]
    return {"traceEvents": events, "distributedInfo": {"rank": 1}, **more}


def test_kernels_of_real_names_are_told_apart(tmp_path: Path) -> None:
    """Times are added per kind; overlapping compute counts once."""
    path = tmp_path / "rank.json"
    names = [
        ("split_embedding_codegen_forward_unweighted_kernel", 0.0, 10.0),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 5.0, 20.0),
        ("ampere_sgemm_128x64_tn", 30.0, 10.0),
        ("ampere_sgemm_128x64_tn", 35.0, 10.0),
        ("split_embedding_backward_codegen_rowwise_adagrad_kernel", 50.0, 10.0),
        ("void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel", 60.0, 10.0),
        ("Memcpy HtoD (Pinned -> Device)", 70.0, 30.0),
    ]
    path.write_text(json.dumps(_measured(names)))
    read = read_trace(path)
    assert read.rank == 1
    assert read.kinds_s == pytest.approx(
        {
            "lookup forward": 10e-6,
            "all-to-all": 20e-6,
            "other compute": 20e-6,
            "lookup backward": 20e-6,
            "copies": 30e-6,
        }
    )
    assert read.compute_s == pytest.approx(45e-6)
    assert read.exposed_s == pytest.approx(15e-6)
    assert read.iteration_s == pytest.approx(100e-6)
    assert stage_of_name("ncclKernel_AllReduce_RING_LL_Sum_float") == "all-reduce"
    for waited, seconds in ((3.0, 3e-6), (math.nan, 0.0), (10**400, 0.0)):
        event = event_of({"ph": "X", "cat": "kernel", "ts": 1, "dur": 2, "args": {WAITED: waited}})
        assert event is not None
        assert event.waited_s == pytest.approx(seconds)


@pytest.mark.parametrize("rank", [None, [1], "one", "1", 1.5, float("nan"), True, -1])
def test_a_rank_that_is_no_whole_number_is_refused(tmp_path: Path, rank: object) -> None:
    path = tmp_path / "rank.json"
    path.write_text(json.dumps(_measured([("a", 0.0, 1.0)], distributedInfo={"rank": rank})))
    with pytest.raises(InvalidInputError, match=r"distributedInfo\.rank must be a whole number"):
        read_trace(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "neither JSON"),
        (b"\x1f\x8bbroken", "cannot be read: "),
        (b"[" * 200_000, "neither JSON"),
        (b"[]", "no list 'traceEvents'"),
        (b'{"traceEvents": []}', "no GPU kernels"),
        (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "ts": 1, "dur": 2}]}', "no GPU kernels"),
        (b'{"traceEvents": [1, null, {"ph": "X", "cat": "kernel", "ts": "a"}]}', "no GPU kernels"),
        *(
            (json.dumps(_measured([("nccl", ts, dur)])).encode(), "no GPU kernels")
            for ts, dur in ((math.nan, 1.0), (0.0, math.inf), (10**400, 1.0), (0.0, -1.0))
        ),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    """CPU-only, list-shaped and broken files: one clear error each."""
    path = tmp_path / "rank.json"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=said):
        read_trace(path)


def test_traffic_is_what_shards_send(planned: tuple[CostPipeline, Plan]) -> None:
    """A table on one rank sends every other rank its part of the batch, and nobody else sends."""
    pipeline, _ = planned
    workload, topology = pipeline.workload, pipeline.topology
    from costmodels.shard_work.work import EXCHANGING_TYPES, NUM_COLUMNS, OUTPUT

    work = np.zeros((16, NUM_COLUMNS))
    work[5, OUTPUT + [f.value for f in EXCHANGING_TYPES].index("table_wise")] = 100.0
    traffic = output_traffic_bytes(work, topology)
    assert traffic[5].tolist() == [100.0] * 5 + [0.0] + [100.0] * 10
    assert traffic.sum() == 1500.0
    work[:] = 0.0
    work[5, OUTPUT + [f.value for f in EXCHANGING_TYPES].index("table_row_wise")] = 100.0
    traffic = output_traffic_bytes(work, topology)
    assert traffic[5, :8].tolist() == [200.0] * 5 + [0.0] + [200.0] * 2
    assert traffic[5, 8:].tolist() == [0.0] * 5 + [100.0] + [0.0] * 2
    assert workload.tables


def test_the_matrix_is_square_whole_and_large_enough() -> None:
    """nccl-tests wants bytes; its buffer has to hold the largest row or column."""
    assert matrix_text(np.array([[0.0, 100.0], [33.0, 0.0]])) == ("0 112\n48 0\n", 112)
