"""Programs of an iteration: random ones for hypothesis, and one small enough to work by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from costmodels.datatypes import FloatArray
from costmodels.iteration.base import FamilyTimes, Program, StageTimes, Step, Stream


def per_rank(draw: DrawFn, num_ranks: int, *, top: float) -> FloatArray:
    """One value for all ranks, or one each."""
    values = st.one_of(st.just(0.0), st.floats(0, top))
    size = draw(st.sampled_from([1, num_ranks]))
    return np.array([draw(values) for _ in range(size)])


@st.composite
def steps(draw: DrawFn, index: int, num_ranks: int) -> Step:
    """Any step after ``index`` others."""
    collective = draw(st.booleans())
    after = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set()
    return Step(
        name=f"step {index}",
        stream=draw(st.sampled_from(list(Stream))),
        duration_s=per_rank(draw, num_ranks, top=10.0),
        after=tuple(sorted(after)),
        host_s=per_rank(draw, num_ranks, top=3.0),
        collective=collective,
        present=draw(st.sampled_from([None, np.array([True]), np.array([False])])),
        blocks_host=draw(st.integers(0, 4)) == 0,
    )


@st.composite
def programs(draw: DrawFn, *, overlap: bool = True) -> tuple[Program, int]:
    """(program, ranks): every combination of streams, dependencies, hosts and collectives."""
    num_ranks = draw(st.integers(1, 4))
    count = draw(st.integers(1, 10))
    return (
        Program(
            steps=tuple(draw(steps(i, num_ranks)) for i in range(count)),
            overlap_slowdown_ratio=draw(st.sampled_from([0.0, 0.2, 0.7])) if overlap else 0.0,
            floor_s=draw(st.sampled_from([0.0, 0.0, 0.0, 40.0])),
        ),
        num_ranks,
    )


def family(name: str = "table_wise", *, input_s: float = 2.0, **outputs_s: float) -> FamilyTimes:
    """Collectives of one sharding type; outputs by label, in forward order."""
    outputs = outputs_s or {"all-to-all": 3.0}
    return FamilyTimes(
        name=name,
        present=np.array([True]),
        input_s=np.array([input_s]),
        outputs_s=tuple((label, np.array([seconds])) for label, seconds in outputs.items()),
    )


def stage_times(**changes: Any) -> StageTimes:
    """Two ranks in whole seconds: rank 0 is slow in the forward lookup, rank 1 in the backward."""
    values: dict[str, Any] = {
        "bottom_forward_s": 1.0,
        "top_forward_s": 2.0,
        "top_backward_s": 4.0,
        "bottom_backward_s": 2.0,
        "optimizer_s": 1.0,
        "lookup_forward_s": [5.0, 3.0],
        "lookup_backward_s": [6.0, 8.0],
        "cache_fetch_s": 1.0,
        "input_splits_s": 0.5,
        "tail_bucket_s": 3.0,
        "bottom_host_s": 0.0,
        "top_host_s": 0.0,
        "lookup_host_s": 0.0,
        "collective_host_s": 0.0,
    }
    fixed: dict[str, Any] = {
        "families": (family(),),
        "bucket_s": (),
        "overlap_slowdown_ratio": 0.0,
        "floor_s": 0.0,
        "dense_names": ("bottom MLP", "interaction and top MLP"),
    }
    for name, value in changes.items():
        (fixed if name in fixed else values)[name] = value
    arrays = {name: np.atleast_1d(np.asarray(v, dtype=float)) for name, v in values.items()}
    return StageTimes(**arrays, **fixed)
