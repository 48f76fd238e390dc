"""The iteration: closed form against event simulation, and every pipeline worked by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.iteration.base import PIPELINES, Program, Step, Stream
from costmodels.iteration.timing import schedule
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from costmodels.topology import Topology
from costmodels.workload import Workload
from tests.costmodels.iteration.events import simulate
from tests.costmodels.iteration.programs import family, programs, stage_times
from tests.strategies import make_topology, make_workload, planned_workloads, plans


def time_of(program: Program, num_ranks: int = 2) -> float:
    """Iteration time, the same by both methods."""
    closed = float(schedule(program, (num_ranks,)).iteration_time_s)
    assert simulate(program, num_ranks).iteration_time_s == pytest.approx(closed, rel=1e-12)
    return closed


# ------------------------------------------------------------------ two ways, one answer


@given(programs())
def test_closed_form_equals_event_simulation(case: tuple[Program, int]) -> None:
    program, num_ranks = case
    closed = schedule(program, (num_ranks,))
    events = simulate(program, num_ranks)
    tolerance = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(np.stack(closed.start_s), events.start_s, **tolerance)
    np.testing.assert_allclose(np.stack(closed.finish_s), events.finish_s, **tolerance)
    time = float(closed.iteration_time_s)
    assert abs(events.iteration_time_s - time) <= 1e-12 * max(1.0, time)


@given(planned_workloads())
def test_closed_form_equals_event_simulation_for_plans(
    case: tuple[Workload, Topology, Plan],
) -> None:
    workload, topology, plan = case
    pipeline = CostPipeline(workload, topology)
    closed = float(pipeline.iteration_times(pipeline.plan_work(plan)))
    program, found = pipeline.simulate(plan)
    simulation = simulate(program, topology.world_size)
    assert simulation.iteration_time_s == pytest.approx(closed, rel=1e-12)
    assert found.iteration_time_s == pytest.approx(closed, rel=1e-12)
    assert found.start_s.shape == (len(program.steps), topology.world_size)


@settings(max_examples=25)
@given(planned_workloads(), st.data())
def test_many_plans_at_once_equal_each_alone(
    case: tuple[Workload, Topology, Plan], data: st.DataObject
) -> None:
    """Also where plans use different sharding types, so that some skip a collective."""
    workload, topology, plan = case
    pipeline = CostPipeline(workload, topology)
    works = np.stack(
        [pipeline.plan_work(p) for p in (plan, *(data.draw(plans(workload, topology)),) * 2)]
    )
    together = pipeline.iteration_times(works[None])
    assert together.shape == (1, 3)
    alone = [float(pipeline.iteration_times(w)) for w in works]
    np.testing.assert_allclose(together[0], alone, rtol=1e-12)


@pytest.mark.parametrize("name", tuple(PIPELINES))
@pytest.mark.parametrize("is_sharded", [False, True])
def test_plans_without_an_exchange_do_not_wait_where_it_would_be(
    name: str, *, is_sharded: bool
) -> None:
    """Of two plans one exchanges; the other replicates all tables, and is priced beside it.

    Gradients of the top take long, and a dense part that is sharded is gathered in two pieces:
    where the exchange would be, other communication is under way or next.
    """
    times = stage_times(bucket_s=(np.array([20.0]),))
    if is_sharded:
        times = dataclasses.replace(times, gather_s=(np.array([4.0]),) * 2)
    has = np.array([[True], [False]])
    beside = dataclasses.replace(
        family(),
        present=has,
        input_s=2.0 * has,
        outputs_s=(("all-to-all", 3.0 * has),),
    )
    pipeline = PIPELINES[name]
    both = pipeline.program(dataclasses.replace(times, families=(beside,)))
    alone = [
        time_of(pipeline.program(dataclasses.replace(times, families=families)))
        for families in ((family(),), ())
    ]
    assert schedule(both, (2, 2)).iteration_time_s.tolist() == alone


# ------------------------------------------------------------------ laws of any program


@given(programs())
def test_no_stream_and_no_step_is_longer_than_the_iteration(case: tuple[Program, int]) -> None:
    program, num_ranks = case
    simulation = simulate(program, num_ranks)
    spans = simulation.finish_s - simulation.start_s
    total = simulation.iteration_time_s * (1 + 1e-12)
    assert np.all(simulation.start_s >= simulation.arrival_s)
    assert spans.max() <= total
    for stream in Stream:
        on_stream = [i for i, s in enumerate(program.steps) if s.stream is stream and s.is_present]
        assert np.all(spans[on_stream].sum(axis=0) <= total)
    hosts = sum(np.broadcast_to(s.host_s, num_ranks) for s in program.steps)
    assert np.all(hosts <= total)
    for i, step in enumerate(program.steps):
        for j in step.after:
            assert np.all(simulation.start_s[i] >= simulation.finish_s[j])
        if step.collective and step.is_present:
            assert np.ptp(simulation.start_s[i]) == 0


@given(programs(overlap=False), st.data())
def test_a_dependency_never_shortens(case: tuple[Program, int], data: st.DataObject) -> None:
    program, num_ranks = case
    i = data.draw(st.integers(0, len(program.steps) - 1))
    j = data.draw(st.integers(0, max(0, i - 1)))
    if j >= i:
        return
    changed = list(program.steps)
    changed[i] = dataclasses.replace(changed[i], after=(*changed[i].after, j))
    longer = dataclasses.replace(program, steps=tuple(changed))
    assert time_of(longer, num_ranks) >= time_of(program, num_ranks) * (1 - 1e-12)


@given(programs(), st.data())
def test_renaming_ranks_changes_nothing(case: tuple[Program, int], data: st.DataObject) -> None:
    program, num_ranks = case
    order = data.draw(st.permutations(range(num_ranks)))

    def renamed(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return values[..., order] if values.shape[-1] == num_ranks else values

    changed = dataclasses.replace(
        program,
        steps=tuple(
            dataclasses.replace(s, duration_s=renamed(s.duration_s), host_s=renamed(s.host_s))
            for s in program.steps
        ),
    )
    before, after = simulate(program, num_ranks), simulate(changed, num_ranks)
    assert after.iteration_time_s == before.iteration_time_s
    np.testing.assert_array_equal(after.start_s, before.start_s[:, order])


def test_an_empty_program_takes_no_time() -> None:
    empty = Program(steps=(), overlap_slowdown_ratio=0.0)
    assert float(schedule(empty, (2,)).iteration_time_s) == 0


# ------------------------------------------------------------------ pipelines by hand


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        # splits 0.5 (the host waits), fetch 1.5, bottom 2.5, lookup 7.5 | 5.5, exchange 10.5,
        # top 12.5, its backward 16.5, gradients 19.5, update 25.5 | 27.5, bottom backward
        # 27.5 | 29.5, all-reduce 32.5, optimizer 33.5
        ("sparse_dist", 33.5),
        # the same after an index exchange of 2
        ("none", 35.5),
        # the same without the fetch of 1
        ("prefetch_sparse_dist", 32.5),
        # fetch 1, lookup 6 | 4, exchange 9 beside the bottom, top 11, its backward 15,
        # gradients 18 beside the bottom backward, all-reduce 21 beside the update 24 | 26,
        # optimizer 27
        ("hugectr", 27.0),
    ],
)
def test_pipelines_by_hand(name: str, seconds: float) -> None:
    assert time_of(PIPELINES[name].program(stage_times())) == seconds


@pytest.mark.parametrize("name", tuple(PIPELINES))
def test_times_that_are_not_given_are_none_on_however_many_ranks(name: str) -> None:
    """A third rank that is never late, and a piece that is gathered and scattered in no time."""
    pipeline = PIPELINES[name]
    three = stage_times(lookup_forward_s=[5.0, 3.0, 4.0], lookup_backward_s=[6.0, 8.0, 7.0])
    gathered = dataclasses.replace(three, gather_s=(np.zeros(1),))
    usual = time_of(pipeline.program(stage_times()))
    assert [time_of(pipeline.program(times), 3) for times in (three, gathered)] == [usual, usual]


AHEAD = ("prefetch_sparse_dist", "lookahead")


EXPOSED = {
    "none": (True, True, False),
    "sparse_dist": (False, True, False),
    "prefetch_sparse_dist": (False, False, False),
    "lookahead": (False, False, False),
    "hugectr": (False, True, True),
    "prioritized": (False, True, False),
}
"""Whether the index exchange and the cache fetch delay the step, and what the bottom MLP hides."""


@pytest.mark.parametrize("name", EXPOSED)
def test_what_bounds_count_is_what_delays_the_step(name: str) -> None:
    """The table says what the docstrings of the pipelines say; the phases of bounds rest on it."""
    pipeline = PIPELINES[name]
    exposed = pipeline.exposes_input_dist, pipeline.exposes_fetch
    assert (*exposed, pipeline.overlaps_bottom) == EXPOSED[name]


def test_every_pipeline_is_worked_by_hand() -> None:
    worked = {"sparse_dist", "none", "prefetch_sparse_dist", "hugectr"}
    assert set(PIPELINES) == worked | {"lookahead", "prioritized"}
    programs = [PIPELINES[n].program(stage_times()) for n in AHEAD]
    steps = [[(s.name, s.stream, s.after) for s in p.steps] for p in programs]
    assert steps[0] == steps[1]


@pytest.mark.parametrize(
    ("kind", "ratio", "seconds"),
    [
        # as sparse_dist: nothing travels early
        ("row_wise", 1.0, 33.5),
        ("table_wise", 0.25, 33.5),
        # fetch 1.5, bottom 2.5, lookup 7.5 | 5.5, a quarter of the exchange 8.25, top 10.25, its
        # backward 14.25, a quarter of the gradients 15, update 21 | 23, bottom backward 25,
        # all-reduce 28, optimizer 29; three quarters travel from 8.25 to 12.75 beside that
        ("row_wise", 0.25, 29.0),
        # the same without any exchange that others wait for: 3 + 3 less than at first
        ("row_wise", 0.0, 27.5),
    ],
)
def test_vectors_that_the_batch_before_lacks_travel_beside_compute(
    kind: str, ratio: float, seconds: float
) -> None:
    times = dataclasses.replace(stage_times(families=(family(kind),)), next_batch_ratio=ratio)
    assert time_of(PIPELINES["prioritized"].program(times)) == seconds


@pytest.mark.parametrize("name", tuple(PIPELINES))
def test_an_index_exchange_longer_than_all_else_sets_the_pace(name: str) -> None:
    """After the splits of 0.5; exposed in full where nothing is pipelined (35.5 - 2 + 100)."""
    program = PIPELINES[name].program(stage_times(families=(family(input_s=100.0),)))
    expected = {"none": 133.5, "hugectr": 100.0}.get(name, 100.5)
    assert time_of(program) == expected


@pytest.mark.parametrize("name", tuple(PIPELINES))
def test_a_cache_fetch_longer_than_all_else_sets_the_pace(name: str) -> None:
    """Beside the rest of the iteration only with prefetch, where it follows the splits."""
    program = PIPELINES[name].program(stage_times(cache_fetch_s=100.0))
    usual = time_of(PIPELINES[name].program(stage_times()))
    expected = 100.5 if name in AHEAD else usual + 99.0
    assert time_of(program) == expected
    assert PIPELINES[name].exposes_fetch == (name not in AHEAD)


def test_a_bucket_delays_the_gradient_exchange_on_their_common_stream() -> None:
    """Half of the top backward ends at 14.5; a bucket of 5 from there ends 3 late, at 19.5."""
    times = stage_times(bucket_s=(np.array([5.0]),))
    program = PIPELINES["sparse_dist"].program(times)
    names = [s.name for s in program.steps]
    assert "interaction and top MLP backward 2/2" in names
    assert time_of(program) == 36.5


def test_hugectr_reduces_all_gradients_in_one_go() -> None:
    """All-reduce of 3 + 10 after the gradient exchange: 18 to 31, then the optimizer."""
    times = stage_times(bucket_s=(np.array([10.0]),))
    assert time_of(PIPELINES["hugectr"].program(times)) == 32.0


def test_exchanges_of_two_steps_run_backward_in_reverse() -> None:
    two_steps = family("table_row_wise", **{"reduce-scatter": 1.0, "all-to-all": 2.0})
    program = PIPELINES["sparse_dist"].program(stage_times(families=(two_steps,)))
    names = [s.name for s in program.steps if "table_row_wise" in s.name]
    assert names == [
        "output reduce-scatter table_row_wise",
        "output all-to-all table_row_wise",
        "input dist table_row_wise",
        "gradient all-to-all table_row_wise",
        "gradient all-gather table_row_wise",
    ]
    assert time_of(program) == 33.5


def test_gradients_take_times_of_their_own_where_they_have_them() -> None:
    """Listed in forward order, and run in reverse: 7 across hosts, then 5 inside them."""
    two_steps = family("table_row_wise", **{"reduce-scatter": 1.0, "all-to-all": 2.0})
    for own, expected in ((None, [2.0, 1.0]), ((np.array([5.0]), np.array([7.0])), [7.0, 5.0])):
        given = dataclasses.replace(two_steps, gradients_s=own)
        program = PIPELINES["sparse_dist"].program(stage_times(families=(given,)))
        names = ("gradient all-to-all table_row_wise", "gradient all-gather table_row_wise")
        seconds = {s.name: float(s.duration_s[0]) for s in program.steps}
        assert [seconds[name] for name in names] == expected
        assert time_of(program) == 33.5 - 3.0 + sum(expected)


def test_sharding_types_exchange_one_after_the_other() -> None:
    """A second type adds its 3 seconds to output and gradient exchange."""
    times = stage_times(families=(family(), family("row_wise")))
    assert time_of(PIPELINES["sparse_dist"].program(times)) == 33.5 + 6.0


def test_a_type_that_is_absent_holds_nobody_up() -> None:
    """Without the exchange, rank 1 does not wait for rank 0 in forward or backward.

    Rank 0: 0.5 + 1 + 1 + 5 + 2 + 4 + 6 + 2 = 21.5; rank 1: 0.5 + 1 + 1 + 3 + 2 + 4 + 8 + 2 = 21.5.
    """
    absent = dataclasses.replace(
        family(input_s=0.0, **{"all-to-all": 0.0}), present=np.array([False])
    )
    program = PIPELINES["sparse_dist"].program(stage_times(families=(absent,)))
    assert time_of(program) == 21.5 + 3.0 + 1.0


def test_the_host_sets_the_pace_when_launches_are_slow() -> None:
    """sparse_dist issues: splits 1, bottom 10, lookup 30, output 1, top 20, input 1, top backward
    40, gradients 1, lookup backward 30, bottom backward 20; reading the splits costs it 0.5 more.
    The bottom backward is done when it is issued; one more issues the all-reduce, which takes 3,
    and the optimizer 1.
    """
    times = stage_times(
        bottom_host_s=10.0,
        lookup_host_s=30.0,
        top_host_s=20.0,
        collective_host_s=1.0,
        top_backward_host_s=40.0,
        lookup_backward_host_s=30.0,
        bottom_backward_host_s=20.0,
        optimizer_host_s=0.0,
    )
    host = 1 + 0.5 + 10 + 30 + 1 + 20 + 1 + 40 + 1 + 30 + 20
    assert time_of(PIPELINES["sparse_dist"].program(times)) == host + 1 + 3 + 1


def test_overlap_slows_compute_by_the_time_beside_it() -> None:
    """4 s of compute beside 2 s of communication at 0.5 take 5 s; communication keeps its time."""
    compute = Step(name="compute", stream=Stream.COMPUTE, duration_s=np.array([4.0]))
    moved = Step(
        name="moved", stream=Stream.COMMUNICATION, duration_s=np.array([2.0]), collective=True
    )
    program = Program(steps=(compute, moved), overlap_slowdown_ratio=0.5)
    assert time_of(program) == 5.0
    assert time_of(dataclasses.replace(program, steps=(compute,))) == 4.0


def test_the_input_rate_is_a_floor() -> None:
    program = PIPELINES["sparse_dist"].program(stage_times(floor_s=50.0))
    assert time_of(program) == 50.0
    assert time_of(PIPELINES["sparse_dist"].program(stage_times(floor_s=10.0))) == 33.5


def test_slower_ranks_never_speed_up_an_iteration() -> None:
    workload = make_workload(batch_size_per_rank=8192)
    topology = make_topology(2, 2)
    usual = CostPipeline(workload, topology)
    slow = dataclasses.replace(topology, speed_by_rank_ratio=(1.0, 1.0, 0.5, 1.0))
    work = np.full((4, usual.num_features), 1e7)
    times = [float(CostPipeline(workload, t).iteration_times(work)) for t in (topology, slow)]
    assert times[0] < times[1]
