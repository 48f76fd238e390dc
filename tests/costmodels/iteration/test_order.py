"""Order and dependencies of all steps where everything is there: codecs, shards, micro-batches."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from costmodels.iteration.base import ISSUED, PIPELINES, Program, StageTimes, Stream
from tests.costmodels.iteration.programs import stage_times

SECOND = np.array([1.0])
BACKWARD = """
top backward 1/3 <- top forward 3/3, parameter all-gather backward 3
gradient reduce-scatter 1 <- top backward 1/3
parameter all-gather backward 1 <- top backward 1/3
top backward 2/3 <- parameter all-gather backward 2
gradient reduce-scatter 2 <- top backward 2/3
top backward 3/3 <- parameter all-gather backward 1
gradient quantize <- top backward 3/3
gradient all-to-all table_wise <- gradient quantize
gradient dequantize <- gradient all-to-all table_wise
lookup backward <- gradient dequantize
bottom backward
last gradient reduce-scatter <- bottom backward
last gradient all-reduce <- bottom backward
dense optimizer <- gradient reduce-scatter 1, gradient reduce-scatter 2, \
last gradient reduce-scatter, last gradient all-reduce
"""
"""A piece waits for its parameters; they are gathered while the piece before it computes. The first
piece waits for the forward pass, and so do the gathers of the first two pieces."""

FORWARD = """
earlier micro-batches
parameter all-gather forward 1
bottom forward
lookup forward{after}
output quantize <- lookup forward
output all-to-all table_wise <- output quantize
output dequantize <- output all-to-all table_wise
parameter all-gather forward 2
parameter all-gather forward 3
top forward 1/3 <- lookup forward, output dequantize, parameter all-gather forward 1
top forward 2/3 <- parameter all-gather forward 2
top forward 3/3 <- parameter all-gather forward 3
"""
GATHERED = """
parameter all-gather backward 3 <- top forward 3/3
parameter all-gather backward 2 <- top forward 3/3
"""
AHEAD = """
input dist table_wise <- input splits
input copy
"""
ORDER = {
    "none": "input copy\ninput splits <- input copy\ninput dist table_wise <- input splits\n"
    "cache fetch <- input dist table_wise"
    + FORWARD.format(after=" <- cache fetch")
    + GATHERED
    + BACKWARD,
    "sparse_dist": "input splits\ncache fetch"
    + FORWARD.format(after=" <- cache fetch")
    + AHEAD
    + GATHERED
    + BACKWARD,
    "prefetch_sparse_dist": "input splits\ncache prefetch"
    + FORWARD.format(after="")
    + AHEAD
    + GATHERED
    + BACKWARD,
}


def everything() -> StageTimes:
    """A dense part in three pieces over the ranks, earlier micro-batches, codecs, and a copy."""
    codecs = {
        "output quantize": SECOND,
        "output dequantize": 2 * SECOND,
        "gradient quantize": 3 * SECOND,
        "gradient dequantize": 4 * SECOND,
        "host": 5 * SECOND,
    }
    return dataclasses.replace(
        stage_times(bucket_s=(20 * SECOND, 10 * SECOND)),
        gather_s=(4 * SECOND, 5 * SECOND, 6 * SECOND),
        piece_ratio=(0.5, 0.25, 0.25),
        last_scatter_s=7 * SECOND,
        earlier_s=8 * SECOND,
        codecs_s=codecs,
        input_copy_s=9 * SECOND,
        copy_host_s=2 * SECOND,
        copy_blocks_host=True,
        dense_names=("bottom", "top"),
    )


def described(program: Program) -> list[str]:
    """A line for each step but the ends of issuing a stage: its name, and what it waits for."""
    lines = []
    for step in program.steps:
        after = ", ".join(program.steps[i].name.removesuffix(ISSUED) for i in step.after)
        if not step.name.endswith(ISSUED):
            lines.append(f"{step.name} <- {after}" if after else step.name)
    return lines


@pytest.mark.parametrize("name", ORDER)
def test_every_step_waits_for_what_it_needs(name: str) -> None:
    program = PIPELINES[name].program(everything())
    assert described(program) == [line for line in ORDER[name].splitlines() if line]


@pytest.mark.parametrize("name", ORDER)
def test_pieces_take_their_shares_and_gradients_those_of_the_reverse_order(name: str) -> None:
    """The top takes 2 forward and 4 backward; its first piece has half of its layers."""
    steps = {s.name: s for s in PIPELINES[name].program(everything()).steps}
    found = [
        [float(steps[f"top {way} {i}/3"].duration_s[0]) for i in (1, 2, 3)]
        for way in ("forward", "backward")
    ]
    assert found == [[1.0, 0.5, 0.5], [1.0, 1.0, 2.0]]
    gathered = [
        [float(steps[f"parameter all-gather {way} {i}"].duration_s[0]) for i in (1, 2, 3)]
        for way in ("forward", "backward")
    ]
    assert gathered == [[4.0, 5.0, 6.0]] * 2
    kernels = ("output quantize", "output dequantize", "gradient quantize", "gradient dequantize")
    assert [float(steps[kernel].duration_s[0]) for kernel in kernels] == [1.0, 2.0, 3.0, 4.0]
    assert all(float(steps[kernel].host_s[0]) == 5.0 for kernel in kernels)
    assert float(steps["last gradient reduce-scatter"].duration_s[0]) == 7.0
    assert float(steps["earlier micro-batches"].duration_s[0]) == 8.0


@pytest.mark.parametrize("name", ORDER)
def test_the_host_waits_for_split_sizes_and_for_a_copy_of_its_own_batch(name: str) -> None:
    """Pipelines copy the next batch on a stream of its own, for which the host does not wait."""
    steps = {s.name: s for s in PIPELINES[name].program(everything()).steps}
    blocking = {"input splits", "input copy"} if name == "none" else {"input splits"}
    assert {s.name for s in steps.values() if s.blocks_host} == blocking
    copy = steps["input copy"]
    assert copy.stream is (Stream.COMPUTE if name == "none" else Stream.COPY)
    assert (float(copy.duration_s[0]), float(copy.host_s[0])) == (9.0, 2.0)
    assert steps["input splits"].collective
    free = dataclasses.replace(everything(), copy_blocks_host=False)
    program = PIPELINES[name].program(free)
    assert [s.name for s in program.steps if s.blocks_host] == ["input splits"]


@pytest.mark.parametrize("name", [*ORDER, "hugectr"])
def test_without_tables_the_host_waits_for_nothing(name: str) -> None:
    bare = dataclasses.replace(everything(), has_tables=False, families=())
    for step in PIPELINES[name].program(bare).steps:
        if step.name == "input splits":
            assert (step.collective, step.blocks_host) == (False, False)
            assert not step.duration_s.any()


@pytest.mark.parametrize("name", [*ORDER, "hugectr"])
def test_on_a_single_stream_everything_computes_and_nothing_is_copied(name: str) -> None:
    """Ranks that are cores: one queue, and inputs that are where they are needed."""
    program = PIPELINES[name].program(dataclasses.replace(everything(), single_stream=True))
    assert {s.stream for s in program.steps} == {Stream.COMPUTE}
    assert "input copy" not in {s.name for s in program.steps}
