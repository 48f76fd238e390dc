"""A host that issues calls faster can make a step longer, by the slow-down of overlap alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodels.iteration.base import PIPELINES, StageTimes
from tests.costmodels.iteration.events import simulate
from tests.costmodels.iteration.programs import stage_times

HOST = (
    "bottom_host_s", "top_host_s", "lookup_host_s", "collective_host_s", "top_backward_host_s",
    "bottom_backward_host_s", "lookup_backward_host_s", "optimizer_host_s", "copy_host_s",
)  # fmt: skip
DEVICE = (
    "bottom_forward_s", "top_forward_s", "top_backward_s", "bottom_backward_s", "optimizer_s",
    "tail_bucket_s", "lookup_forward_s", "lookup_backward_s",
)  # fmt: skip


def halved(times: StageTimes) -> StageTimes:
    """The same stages, issued in half the time."""
    return replace(times, **{name: 0.5 * getattr(times, name) for name in HOST})


def test_indices_that_leave_sooner_travel_beside_the_lookup() -> None:
    """Seconds by hand: the next batch's indices meet the lookup, which loses a tenth of that.

    A call takes 2 s, so that the second collective, the exchange of indices, leaves after 4 s, when
    the lookup is over. With calls of 1 s it leaves after 2 s, runs for 2 s beside the lookup of
    4 s, and the lookup takes 4.2 s. All that follows waits for the lookup: 2 % longer in all.
    """
    idle = dict.fromkeys((*HOST, *DEVICE, "cache_fetch_s", "input_splits_s"), 0.0)
    busy = {"collective_host_s": 2.0, "lookup_forward_s": [4.0, 4.0]}
    times = stage_times(**{**idle, **busy}, overlap_slowdown_ratio=0.1)
    steps = [simulate(PIPELINES["hugectr"].program(t), 2) for t in (times, halved(times))]
    assert [s.iteration_time_s for s in steps] == pytest.approx([10.0, 10.2])
    assert [s.finish_s[1, 0] for s in steps] == pytest.approx([4.0, 4.2])
    alone = replace(times, overlap_slowdown_ratio=0.0)
    steps = [simulate(PIPELINES["hugectr"].program(t), 2) for t in (alone, halved(alone))]
    assert [s.iteration_time_s for s in steps] == pytest.approx([10.0, 10.0])


@pytest.mark.parametrize("seed", range(60))
def test_a_step_is_never_longer_by_more_than_overlap_costs(seed: int) -> None:
    """Without a slow-down nothing is longer; with one, by no more than compute loses to it."""
    rng = np.random.default_rng(seed)
    drawn = {name: rng.choice([0.0, 1.0, 2.0, 4.0, 6.0], size=1) for name in HOST}
    drawn |= {name: rng.choice([0.0, 1.0, 2.0, 4.0, 8.0], size=2) for name in DEVICE}
    alone = stage_times(**drawn)
    whole = simulate(PIPELINES["hugectr"].program(alone), 2).iteration_time_s
    faster = simulate(PIPELINES["hugectr"].program(halved(alone)), 2).iteration_time_s
    assert faster <= whole + 1e-9
    slowed = replace(alone, overlap_slowdown_ratio=0.1)
    before = simulate(PIPELINES["hugectr"].program(slowed), 2).iteration_time_s
    program = PIPELINES["hugectr"].program(halved(slowed))
    moved_s = sum(float(np.max(step.duration_s)) for step in program.steps if step.collective)
    after = simulate(program, 2).iteration_time_s
    assert after <= before + 0.1 * 2 * moved_s + 1e-9  # on each of the two ranks
