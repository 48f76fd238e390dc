"""Profiles of gloo ranks: spans of the thread that steps, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.errors import InvalidInputError
from planner.trace.reading import OTHER, times_of

STEPS = 2
STEP_US = 100.0
SPANS = (
    # name, begin and length within a step; all but two lie on the thread of the steps
    ("aten::linear", 0.0, 8.0),
    ("[splits_dist]_[ebc]_[row_wise]", 10.0, 15.0),
    ("## all2all_data:kjt splits ##", 12.0, 10.0),
    ("[lookup]_[ebc]_[row_wise]", 30.0, 20.0),
    ("fbgemm::split_embedding_codegen_forward_cpu", 32.0, 15.0),
    ("## EmbeddingBagCollectionAwaitable wait() ##", 50.0, 5.0),
    ("autograd::engine::evaluate_function: All2All_Pooled_ReqBackward", 60.0, 5.0),
    ("evaluate_function: torch::autograd::CppNode<SplitLookupFunction>", 65.0, 30.0),
    ("torch::autograd::CppNode<SplitLookupFunction>", 66.0, 28.0),
)  # fmt: skip


def profile(backend: str = "gloo", *, rank: int = 3, marked: bool = True) -> dict[str, Any]:
    """What the profiler writes of a rank: steps that are alike, and a network thread beside."""
    events: list[dict[str, Any]] = []

    def add(name: str, begin_us: float, length_us: float, thread: int = 1) -> None:
        events.append(
            {
                "ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": thread,
                "ts": begin_us, "dur": length_us,
            }
        )  # fmt: skip

    for step in range(STEPS):
        begin = 1000.0 + step * STEP_US
        if marked:
            add(f"ProfilerStep#{step}", begin, STEP_US)
        for name, after, length in SPANS:
            add(name, begin + after, length)
        add("gloo:all_to_all", begin, 90.0, thread=2)
    return {"traceEvents": events, "distributedInfo": {"backend": backend, "rank": rank}}


def test_spans_of_a_kind_count_once_and_whole() -> None:
    found = times_of(profile(), Path("rank-3.json"))
    assert (found.rank, found.iterations, found.on_cpu) == (3, STEPS, True)
    assert found.iteration_s == pytest.approx(STEP_US * 1e-6)
    expected = {"lookup forward": 20.0, "lookup backward": 30.0, "all-to-all": 25.0, OTHER: 25.0}
    assert found.kinds_s == pytest.approx({k: v * 1e-6 for k, v in expected.items()})
    assert found.compute_s == pytest.approx(75e-6)
    assert (found.communication_s, found.exposed_s) == pytest.approx((25e-6, 25e-6))


def test_profiles_of_gpu_jobs_without_kernels_are_still_refused() -> None:
    with pytest.raises(InvalidInputError, match="holds no GPU kernels"):
        times_of(profile("nccl"), Path("rank-3.json"))


def test_steps_have_to_be_marked() -> None:
    with pytest.raises(InvalidInputError, match="call step\\(\\) after every iteration"):
        times_of(profile(marked=False), Path("rank-3.json"))
