"""The critical path and the account of every rank."""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.errors import InvalidValueError
from costmodels.iteration.base import INPUT_COPY, PIPELINES, Program, Step, Stream
from costmodels.iteration.timing import (
    Simulation,
    critical_path,
    rank_estimates,
    stage_times,
    traced,
)
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from costmodels.topology import Topology
from costmodels.workload import Workload
from tests.costmodels.iteration import programs as by_hand
from tests.costmodels.iteration.events import simulate
from tests.costmodels.iteration.programs import programs
from tests.strategies import planned_workloads


def assert_path(program: Program, simulation: Simulation, num_ranks: int) -> None:
    """Contiguous from 0 to the end, and every link a real step."""
    path = critical_path(program, simulation)
    total = simulation.iteration_time_s
    slack = 1e-12 * max(1.0, total)
    assert sum(s.duration_s for s in path) == pytest.approx(total, rel=1e-12, abs=1e-12)
    if path:
        assert abs(path[0].start_s) <= slack
    for a, b in pairwise(path):
        assert abs(a.start_s + a.duration_s - b.start_s) <= slack
    names = {s.name for s in program.steps} | {"host", "input"}
    assert {s.stage for s in path} <= names
    assert all(0 <= s.rank < num_ranks and s.duration_s > 0 for s in path)


@given(programs())
def test_paths_of_random_programs(case: tuple[Program, int]) -> None:
    program, num_ranks = case
    assert_path(program, simulate(program, num_ranks), num_ranks)
    assert_path(program, traced(program, num_ranks), num_ranks)


@given(programs(), st.integers(0, 2**32))
def test_arrays_say_what_the_simulation_says(case: tuple[Program, int], seed: int) -> None:
    """Times always; what was waited for wherever no two things end at the same moment."""
    program, num_ranks = case
    events, arrays = simulate(program, num_ranks), traced(program, num_ranks)
    for name in ("arrival_s", "start_s", "finish_s", "iteration_time_s"):
        np.testing.assert_allclose(
            getattr(arrays, name), getattr(events, name), rtol=1e-12, atol=1e-12, err_msg=name
        )
    rng = np.random.default_rng(seed)
    uneven = replace(
        program,
        steps=tuple(
            replace(
                step,
                duration_s=step.duration_s + rng.uniform(0.01, 1.0, num_ranks),
                host_s=step.host_s + rng.uniform(0.01, 1.0, num_ranks),
            )
            for step in program.steps
        ),
    )
    events, arrays = simulate(uneven, num_ranks), traced(uneven, num_ranks)
    assert arrays.last == events.last
    for node in itertools.product(range(num_ranks), range(len(program.steps))):
        assert arrays.released_by(node) == events.released_by(node), node


@given(planned_workloads())
def test_paths_of_random_plans(case: tuple[Workload, Topology, Plan]) -> None:
    workload, topology, plan = case
    program, simulation = CostPipeline(workload, topology).simulate(plan)
    assert_path(program, simulation, topology.world_size)
    assert_path(program, simulate(program, topology.world_size), topology.world_size)


def test_the_path_by_hand() -> None:
    """See test_iteration: rank 0 is late in the forward, rank 1 in the backward."""
    program = PIPELINES["sparse_dist"].program(by_hand.stage_times())
    path = critical_path(program, simulate(program, 2))
    assert [(s.rank, s.stage, s.duration_s) for s in path[:5]] == [
        (0, "host", 0.5),
        (0, "cache fetch", 1.0),
        (0, "bottom MLP forward", 1.0),
        (0, "lookup forward", 5.0),
        (0, "output all-to-all table_wise", 3.0),
    ]
    late = {s.stage: s.rank for s in path}
    assert late["lookup backward"] == late["bottom MLP backward"] == 1
    assert path[-1].stage == "dense optimizer"
    assert "input dist table_wise" not in late


def test_an_input_bound_iteration_ends_with_the_wait_for_data() -> None:
    program = PIPELINES["sparse_dist"].program(by_hand.stage_times(floor_s=50.0))
    path = critical_path(program, simulate(program, 2))
    assert (path[-1].stage, path[-1].start_s, path[-1].duration_s) == ("input", 33.5, 16.5)
    assert path[-1].rank == path[-2].rank
    assert sum(s.duration_s for s in path) == 50.0


# ------------------------------------------------------------------ ranks


def test_rank_accounts_by_hand() -> None:
    """Communication 0.5 + 2 + 3 + 3 + 3, of which the index exchange lies beside compute.

    Rank 1 waits 2 s for rank 0's forward lookup, rank 0 waits 2 s for rank 1's update.
    """
    program = PIPELINES["sparse_dist"].program(by_hand.stage_times())
    first, second = rank_estimates(program, simulate(program, 2))
    assert (first.compute_s, second.compute_s) == (22.0, 22.0)
    assert (first.communication_s, first.exposed_s) == (11.5, 9.5)
    assert first.idle_s == 11.5
    assert (first.slack_s, second.slack_s) == (2.0, 2.0)


def accounts_by_hand(steps: tuple[Step, ...], found: Simulation, rank: int) -> dict[str, float]:
    """The account of a rank, looked at between any two moments at which something changes."""
    start, finish, arrival = (
        times[:, rank].tolist() for times in (found.start_s, found.finish_s, found.arrival_s)
    )
    computing = [i for i, s in enumerate(steps) if s.stream is Stream.COMPUTE and not s.collective]
    moving = [i for i, s in enumerate(steps) if s.collective]
    delaying = [i for i in moving if steps[i].stream in (Stream.COMMUNICATION, Stream.COMPUTE)]
    told = dict.fromkeys(("compute_s", "communication_s", "exposed_s", "idle_s", "slack_s"), 0.0)
    for begin, end in pairwise(sorted({0.0, found.iteration_time_s, *start, *finish, *arrival})):
        at, seconds = (begin + end) / 2, end - begin
        computes = any(start[i] < at < finish[i] for i in computing)
        moves = any(start[i] < at < finish[i] for i in moving)
        waits = any(arrival[i] < at < start[i] for i in delaying)
        told["compute_s"] += seconds * computes
        told["communication_s"] += seconds * moves
        told["exposed_s"] += seconds * (moves and not computes)
        told["idle_s"] += seconds * (not computes)
        told["slack_s"] += seconds * (waits and not computes)
    return told


@settings(max_examples=30)
@given(programs())
def test_rank_accounts_are_what_is_seen_from_moment_to_moment(case: tuple[Program, int]) -> None:
    """Two collectives at the same moment count once; those beside compute are not exposed.

    A rank has slack while it waits in an exchange or a reduction and computes nothing.
    """
    program, num_ranks = case
    steps = tuple(s if s.is_present else replace(s, duration_s=np.zeros(1)) for s in program.steps)
    program = replace(program, steps=steps)
    found = simulate(program, num_ranks)
    for told in rank_estimates(program, found):
        for name, seconds in accounts_by_hand(steps, found, told.rank).items():
            assert getattr(told, name) == pytest.approx(seconds, rel=1e-9, abs=1e-9), name


@given(planned_workloads())
def test_rank_accounts_of_random_plans(case: tuple[Workload, Topology, Plan]) -> None:
    workload, topology, plan = case
    program, simulation = CostPipeline(workload, topology).simulate(plan)
    total = simulation.iteration_time_s
    ranks = rank_estimates(program, simulation)
    assert [r.rank for r in ranks] == list(range(topology.world_size))
    spans = simulation.finish_s - simulation.start_s
    copied = [
        span
        for step, span in zip(program.steps, spans, strict=True)
        if step.name == INPUT_COPY and step.stream is Stream.COMPUTE
    ]
    for r in ranks:
        copy_s = sum(float(span[r.rank]) for span in copied)
        assert r.compute_s + copy_s + r.idle_s == pytest.approx(total, rel=1e-9)
        assert 0 <= r.exposed_s <= r.communication_s * (1 + 1e-12)
        assert 0 <= r.slack_s <= r.idle_s * (1 + 1e-9) + 1e-15
    if topology.world_size == 1:
        assert ranks[0].slack_s == 0
    # Someone is always the last to arrive.
    for i, step in enumerate(program.steps):
        if step.collective:
            assert simulation.arrival_s[i].max() == simulation.start_s[i].max()


def test_stage_times_list_what_takes_time() -> None:
    program = PIPELINES["sparse_dist"].program(by_hand.stage_times(cache_fetch_s=0.0))
    stages = stage_times(program, simulate(program, 2))
    assert "cache fetch" not in {s.name for s in stages}
    lookup = next(s for s in stages if s.name == "lookup forward")
    assert lookup.stream == Stream.COMPUTE.value
    assert lookup.duration_s == (5.0, 3.0)
    assert lookup.start_s == (1.5, 1.5)
    assert all(np.isfinite(s.start_s).all() for s in stages)


def test_steps_that_compute_alone_have_no_communication() -> None:
    """A program without a collective: nothing is exposed, and nobody waits."""
    program = PIPELINES["sparse_dist"].program(by_hand.stage_times())
    alone = replace(program, steps=tuple(replace(s, collective=False) for s in program.steps[:1]))
    (first, second) = rank_estimates(alone, simulate(alone, 2))
    assert (first.communication_s, first.exposed_s, first.slack_s) == (0.0, 0.0, 0.0)
    assert (second.communication_s, second.exposed_s, second.slack_s) == (0.0, 0.0, 0.0)


def test_a_host_that_outlasts_the_device_ends_the_path() -> None:
    """The last step is issued at 9 and takes no time; another rank's device is done at 5."""
    step = Step(
        name="work",
        stream=Stream.COMPUTE,
        duration_s=np.array([5.0, 0.0]),
        host_s=np.array([0.0, 9.0]),
    )
    program = Program(steps=(step,), overlap_slowdown_ratio=0.0)
    for simulation in (simulate(program, 2), traced(program, 2)):
        assert simulation.iteration_time_s == 9.0
        path = critical_path(program, simulation)
        assert [(s.rank, s.stage, s.duration_s) for s in path] == [(1, "host", 9.0)]


def test_a_collective_that_waits_for_a_slow_host_names_the_rank_of_that_host() -> None:
    """Both ranks end at 12: rank 1 issues the collective at 9, and it takes 3."""
    step = Step(
        name="moved",
        stream=Stream.COMMUNICATION,
        duration_s=np.array([3.0, 2.0]),
        host_s=np.array([0.0, 9.0]),
        collective=True,
    )
    program = Program(steps=(step,), overlap_slowdown_ratio=0.0)
    for simulation in (simulate(program, 2), traced(program, 2)):
        path = critical_path(program, simulation)
        assert [(s.rank, s.stage, s.duration_s) for s in path] == [
            (1, "host", 9.0),
            (0, "moved", 3.0),
        ]


@pytest.mark.parametrize("wrong", [-1e-3, np.nan, np.inf])
@pytest.mark.parametrize("field", ["duration_s", "host_s"])
def test_times_that_nothing_can_take_are_refused_by_the_name_of_their_step(
    field: str, wrong: float
) -> None:
    times = {"duration_s": np.ones(2), "host_s": np.ones(2)}
    times[field] = np.array([1.0, wrong])
    good = Step(name="first", stream=Stream.COMPUTE, duration_s=np.ones(2))
    odd = Step(name="odd", stream=Stream.COMPUTE, **times)  # type: ignore[arg-type]
    program = Program(steps=(good, odd), overlap_slowdown_ratio=0.0)
    with pytest.raises(InvalidValueError, match=r"step 'odd' takes .* at least 0"):
        traced(program, 2)
