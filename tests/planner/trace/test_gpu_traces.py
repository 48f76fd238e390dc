"""Traces of TorchRec on a GPU: stages and kernels against sums made here, and damaged files."""

from __future__ import annotations

import gzip
import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.errors import InvalidInputError
from planner.trace.reading import (
    COPIES,
    OTHER,
    Event,
    TraceTimes,
    load_trace,
    read_trace,
    times_of,
)
from tests.planner.trace.h200_runs import NAMES, row_of, trace_of

Raw = dict[str, Any]

ONLY_IN_ONE_STAGE = (
    # stage, group and a pattern of kernels that are the whole group there
    ("lookup forward", "bounds check", "^void bounds_check_indices"),
    ("lookup forward", "embedding kernels", "split_embedding_codegen_forward"),
    ("lookup backward", "embedding kernels", "split_embedding_backward_codegen_rowwise"),
    ("dense optimizer", "multi-tensor", "multi_tensor_apply"),
    ("copies", "copies", "^Memcpy"),
)


class Steps:
    """The kernels of each step of a file, by the time at which the host launched them."""

    def __init__(self, name: str) -> None:
        document = json.loads(gzip.decompress(trace_of(name).read_bytes()))
        self.events = [e for e in document["traceEvents"] if e["ph"] == "X"]
        launched = {
            e["args"]["correlation"]: e["ts"]
            for e in self.events
            if e["cat"] in ("cuda_runtime", "cuda_driver")
        }
        self.marks = sorted(
            (e["ts"], e["ts"] + e["dur"])
            for e in self.events
            if e["name"].startswith("ProfilerStep#")
            if e["cat"] == "user_annotation"
        )
        on_gpu = [e for e in self.events if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
        self.kernels = [
            sorted(
                (e for e in on_gpu if begin <= launched[e["args"]["correlation"]] < end),
                key=lambda e: float(e["ts"]),
            )
            for begin, end in self.marks
        ]
        assert sum(map(len, self.kernels)) == len(on_gpu)

    def median_s(self, *patterns: str) -> float:
        """Median over steps of the time of kernels whose names match one of the patterns."""
        found = re.compile("|".join(patterns))
        return 1e-6 * float(
            np.median([sum(e["dur"] for e in k if found.search(e["name"])) for k in self.kernels])
        )

    def between_s(self, first: str, last: str) -> float:
        """Median time of all kernels from the first of one name to the last of another."""
        sums = []
        for kernels in self.kernels:
            names = [e["name"] for e in kernels]
            begin = next(i for i, name in enumerate(names) if first in name)
            end = max(i for i, name in enumerate(names) if last in name)
            sums.append(sum(e["dur"] for e in kernels[begin : end + 1]))
        return 1e-6 * float(np.median(sums))


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def read(name: str) -> TraceTimes:
    return read_trace(trace_of(name))


def test_kernels_of_one_stage_are_those_of_their_names(name: str, read: TraceTimes) -> None:
    steps = Steps(name)
    found = {(g.stage, g.group): g for g in read.groups}
    for stage, group, pattern in ONLY_IN_ONE_STAGE:
        assert found[stage, group].time_s == pytest.approx(steps.median_s(pattern)), group
    assert ("dense backward", "index backward") in found or name == "dlrm07"
    if name == "dlrm11":
        indexed = found["dense backward", "index backward"]
        assert indexed.time_s == pytest.approx(steps.median_s("indexing_backward"))
        assert indexed.num_calls == 1


def test_a_stage_is_all_that_runs_between_its_first_and_last_kernel(
    name: str, read: TraceTimes
) -> None:
    """One stream runs the stages in turn, so that their order tells the same as the launches."""
    steps, kinds = Steps(name), read.kinds_s
    backward_s = steps.between_s(
        "linearize_index_kernel",
        "cta_per_row",
    )
    backward_s = max(backward_s, steps.between_s("linearize_index_kernel", "warp_per_row"))
    assert kinds["lookup backward"] == pytest.approx(backward_s, rel=1e-6)
    sort = {g.stage for g in read.groups if g.group == "sort and encode"}
    # The backward pass of the pairs' index sorts too, and is no lookup.
    assert ("dense backward" in sort) == (name == "dlrm11")
    assert OTHER not in kinds
    assert not any("all" in stage for stage in kinds)


def test_totals_are_those_that_were_measured_beside_the_trace(name: str, read: TraceTimes) -> None:
    """The rows were summed by another program, over all steps."""
    row = row_of(name)
    assert (read.device, read.iterations, read.rank) == ("NVIDIA H200", 3, 0)
    assert sum(g.num_calls for g in read.groups) == row["kernels_per_step"]
    assert read.compute_s == pytest.approx(1e-6 * row["kernel_us"], rel=0.02)
    assert read.kinds_s[COPIES] == pytest.approx(1e-6 * row["h2d_us"], rel=0.15)
    assert sum(read.kinds_s.values()) == pytest.approx(read.busy_s, rel=0.02)


def test_the_host_sets_the_pace(name: str, read: TraceTimes) -> None:
    """The GPU works for a part of the step; what the host does besides waiting fills it."""
    steps = Steps(name)
    waits = [e for e in steps.events if e["name"][-11:] == "Synchronize"]
    begins = [begin for begin, _ in steps.marks] + [steps.marks[-1][1]]
    lengths = np.diff(begins)
    waited = [sum(e["dur"] for e in waits if a <= e["ts"] < b) for a, b in steps.marks]
    assert read.iteration_s == pytest.approx(1e-6 * float(np.median(lengths)))
    host_s = 1e-6 * float(np.median(lengths - np.array(waited)))
    assert read.host_s == pytest.approx(host_s, rel=0.01)
    assert read.host_bound
    assert 0.5 < read.idle_ratio < 0.97
    assert read.idle_ratio == pytest.approx(1 - read.busy_s / read.iteration_s)


def _event(category: str, name: str, begin: float, length: float, **more: Any) -> Raw:
    args = {"correlation": more.pop("correlation")} if "correlation" in more else {}
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": length, "args": args,
            "pid": 0, "tid": 1, **more}  # fmt: skip


def _launched(spans: list[tuple[str, float, float]], kernel: str, wait: float = 0.0) -> Raw:
    """One step of 100 us: a kernel of 60 us that the host launches at 10 us, inside of spans."""
    events = [_event("cpu_op", *span) for span in spans]
    events += [
        _event("user_annotation", "ProfilerStep#1", 0.0, 100.0),
        _event("cuda_runtime", "cudaLaunchKernel", 10.0, 1.0, correlation=7),
        _event("kernel", kernel, 12.0, 60.0, correlation=7, tid=9),
        _event("cuda_runtime", "cudaDeviceSynchronize", 20.0, wait),
    ]
    return {"traceEvents": events}


@pytest.mark.parametrize(
    ("spans", "kernel", "stage"),
    [
        ([("aten::mm", 5.0, 10.0)], "sgemm", "dense forward"),
        ([("aten::mm", 11.0, 10.0)], "sgemm", OTHER),
        ([("autograd::engine::evaluate_function: MmBackward0", 5.0, 10.0), ("aten::mm", 6.0, 8.0)],
         "sgemm", "dense backward"),
        ([("autograd::engine::evaluate_function: IndexBackward0", 5.0, 10.0)],
         "DeviceRadixSortSingleTileKernel", "dense backward"),
        ([("torch::autograd::CppNode<SplitLookupFunction_sgd_Op>", 5.0, 10.0)],
         "vectorized_elementwise_kernel", "lookup backward"),
        ([("autograd::engine::evaluate_function: All2All_Pooled_ReqBackward", 5.0, 10.0)],
         "CatArrayBatchedCopy", OTHER),
        ([("[lookup]_[ebc]_[table_wise]", 5.0, 10.0), ("aten::add_", 9.0, 5.0)],
         "vectorized_elementwise_kernel", "lookup forward"),
        ([("Optimizer.step#SGD.step", 5.0, 10.0)], "Memset (Device)", "dense optimizer"),
        ([("## backward ##", 5.0, 10.0)], "ncclDevKernel_SendRecv", "all-to-all"),
        ([("## forward ##", 5.0, 10.0)], "Memcpy HtoD (Pinned -> Device)", "copies"),
        ([], "DeviceRadixSortSingleTileKernel", "lookup backward"),
    ],
)  # fmt: skip
def test_the_innermost_known_span_around_the_launch_tells_the_stage(
    spans: list[tuple[str, float, float]], kernel: str, stage: str
) -> None:
    found = times_of(_launched(spans, kernel), Path("rank.json"))
    assert found.kinds_s == {stage: pytest.approx(60e-6)}


def test_a_step_whose_host_waits_is_bound_by_the_gpu() -> None:
    spans = [("aten::mm", 5.0, 10.0)]
    found = times_of(_launched(spans, "sgemm", wait=50.0), Path("rank.json"))
    assert (found.host_s, found.host_bound) == (pytest.approx(50e-6), False)
    assert found.idle_ratio == pytest.approx(0.4)
    assert times_of(_launched(spans, "sgemm", wait=30.0), Path("rank.json")).host_bound
    without = times_of(_launched([], "sgemm", wait=50.0), Path("rank.json"))
    assert (without.host_s, without.host_bound) == (None, None)


def test_a_file_that_was_cut_off_or_changed_is_refused(tmp_path: Path) -> None:
    whole, path = trace_of(NAMES[0]).read_bytes(), tmp_path / "rank.json.gz"
    for damaged, words in (
        (whole[: len(whole) // 2], "ended before"),
        (whole[:5000] + bytes(50) + whole[5050:], "cannot be read: "),
        (gzip.decompress(whole)[:100_000], "damaged"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(InvalidInputError, match=words):
            read_trace(path)
    half = gzip.compress(gzip.decompress(whole)[:500_000])
    path.write_bytes(half + gzip.compress(gzip.decompress(whole)[500_000:]) + bytes(8))
    assert read_trace(path) == read_trace(trace_of(NAMES[0]))


@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_a_text_beyond_the_limit_is_refused_before_it_is_unpacked(
    tmp_path: Path, pack: Any
) -> None:
    path, limit = tmp_path / "rank.json.gz", 2**20
    path.write_bytes(pack(b" " * 32 * limit))
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match=r"more than 1 MiB of text.*profile fewer steps"):
        load_trace(path, max_bytes=limit)
    assert tracemalloc.get_traced_memory()[1] < 8 * limit
    tracemalloc.stop()


def test_only_what_is_read_is_kept() -> None:
    """Arguments such as stacks and shapes, and events of other kinds, are not."""
    events = load_trace(trace_of(NAMES[0]))["traceEvents"]
    kept = [e for e in events if e is not None]
    assert all(isinstance(e, Event) for e in kept)
    assert 0 < len(kept) < len(events)
