"""Families of plans: legal, near the fastest, fewer bytes than plans made one by one."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from statistics import mean

import numpy as np
import pytest

from costmodels.sharding import Plan, Shard, check_plan
from costmodels.workload import DenseArch, OperatorList, Workload
from planner import api
from planner.errors import InfeasibleError, InvalidInputError
from planner.family.chain import _with_plan, with_family
from planner.family.losses import after_a_loss, host_losses
from planner.family.request import FamilyRequest, check, fewer_hosts
from planner.family.telling import notes
from planner.problem import Constraints, Level, MemoryLimit, PlanningProblem, TableConstraint
from planner.result import FamilyMember, PlanningResult, SolverReport
from planner.rules.moved_bytes import cell_bytes
from planner.search.random import random_assignment
from planner.settings import SearchSettings
from planner.support.status import Status
from tests.planner import cases

SEARCH = SearchSettings(max_evaluations=30, with_baselines=False)
SYSTEM = cases.topology(3, 2)
MODEL = cases.synthetic(3)
TRACED = replace(
    MODEL, dense=DenseArch(operators=OperatorList(local_batch_size=MODEL.local_batch_size))
)
TOLERANCE = 0.02


def solved(seed: int, count: int = 5) -> PlanningResult:
    model = cases.synthetic(count, seed=seed, batch=2048)
    problem = PlanningProblem(workload=model, topology=SYSTEM, constraints=cases.DEVICE_ONLY)
    return api.solve(problem, search=SEARCH)


def members_of(result: PlanningResult) -> tuple[FamilyMember, ...]:
    assert result.family is not None
    return result.family.members


@pytest.fixture(scope="module", params=cases.first((0, 1, 3, 2, 4, 5, 6, 7), 1))
def family(request: pytest.FixtureRequest) -> tuple[FamilyMember, ...]:
    asked = FamilyRequest(lost_hosts=2, tolerance_ratio=TOLERANCE)
    return members_of(with_family(solved(request.param), asked, search=SEARCH))


def common(one: Shard, other: Shard) -> int:
    """Cells that two shards share."""
    spans = [
        min(a + n, b + m) - max(a, b)
        for a, n, b, m in (
            (one.row_offset, one.num_rows, other.row_offset, other.num_rows),
            (one.col_offset, one.num_cols, other.col_offset, other.num_cols),
        )
    ]
    return max(spans[0], 0) * max(spans[1], 0)


def counted(
    before: Plan, after: Plan, workload: Workload, lost: int, seats: tuple[int, ...]
) -> tuple[float, float]:
    """Bytes restored and moved, shard by shard."""
    local, restored, moved = SYSTEM.local_world_size, 0.0, 0.0
    for table in workload.tables:
        size = cell_bytes(table, workload)
        old = before.placement(table.name)
        for shard in after.placement(table.name).shards:
            was = seats[shard.rank // local] * local + shard.rank % local
            if any(
                o.rank == was and common(o, shard) == shard.num_rows * shard.num_cols
                for o in old.shards
            ):
                continue
            for other in old.shards:
                if old.sharding_type == "data_parallel" or other.rank == was:
                    continue
                if other.rank // local == lost:
                    restored += common(shard, other) * size
                else:
                    moved += common(shard, other) * size
    return restored, moved


def test_members_are_legal_and_near_the_fastest(family: tuple[FamilyMember, ...]) -> None:
    assert [m.num_hosts for m in family] == [3, 2, 1]
    for member in family:
        problem = member.result.problem
        check_plan(member.result.plan, problem.workload, problem.topology.world_size)
        priced = api.estimate(problem.workload, problem.topology, member.result.plan)
        assert priced.memory.fits
        time_s = member.result.estimate.time.time_s
        assert time_s == pytest.approx(priced.estimate.time.time_s)
        assert member.fastest_s <= time_s <= member.fastest_s * (1 + TOLERANCE + 1e-9)
        bound = member.result.bound
        assert bound is None or bound <= member.fastest_s * (1 + 1e-9)


def test_a_family_moves_no_more_than_plans_made_one_by_one(
    family: tuple[FamilyMember, ...],
) -> None:
    together, alone = (
        sum(mean(loss.received_bytes for loss in losses) for losses in found)
        for found in ([m.losses for m in family[1:]], [m.alone for m in family[1:]])
    )
    if all(m.alone_s <= m.fastest_s * (1 + TOLERANCE) for m in family):
        assert together <= alone * (1 + 1e-9)
    else:  # a plan made alone may then be slower than a member has to be
        assert any(m.result.estimate.time.time_s < m.alone_s for m in family)


def test_bytes_equal_a_count_by_shards_and_seats_are_the_best(
    family: tuple[FamilyMember, ...],
) -> None:
    for larger, member in itertools.pairwise(family):
        workload = member.result.problem.workload
        plans = larger.result.plan, member.result.plan
        assert [loss.lost_host for loss in member.losses] == list(range(larger.num_hosts))
        for loss in member.losses:
            left = [h for h in range(larger.num_hosts) if h != loss.lost_host]
            assert sorted(loss.seats) == left
            found = counted(*plans, workload, loss.lost_host, loss.seats)
            assert (loss.restored_bytes, loss.moved_bytes) == pytest.approx(found, abs=1.0)
            others = [
                sum(counted(*plans, workload, loss.lost_host, seats))
                for seats in itertools.permutations(left)
            ]
            assert loss.received_bytes == pytest.approx(min(others), abs=1.0)
            assert (loss.time_s > 0) == (loss.received_bytes > 0)


@pytest.mark.parametrize("seed", range(6))
def test_after_a_loss_only_lost_shards_and_cuts_over_all_ranks_move(seed: int) -> None:
    """The start is legal, what is left stays, and its bytes are those of the count."""
    model = cases.synthetic(6, seed=seed)
    space = cases.space(model, SYSTEM)
    plan = space.plan(random_assignment(space, np.random.default_rng(seed)))
    smaller = SYSTEM.resized(2, 2)
    limit = after_a_loss(plan, model, smaller)
    assert limit is not None
    assert limit.held is not None
    check_plan(limit.start, model, smaller.world_size)
    for table in model.tables:
        before, then = plan.placement(table.name), limit.start.placement(table.name)
        assert then.sharding_type is before.sharding_type
        assert then.kernel is before.kernel
        if before.sharding_type not in ("row_wise", "data_parallel"):
            held = set(limit.held.placement(table.name).shards)
            assert held <= set(then.shards)
    losses = host_losses(plan, limit.start, model, smaller, 1e9)
    least = min(loss.received_bytes for loss in losses)
    assert limit.max_bytes is not None
    assert least <= limit.max_bytes * (1 + 1e-9)
    sizes = np.zeros(3)
    for table in model.tables:
        before = plan.placement(table.name)
        if before.sharding_type != "data_parallel":
            for shard in before.shards:
                cells = shard.num_rows * shard.num_cols
                sizes[shard.rank // 2] += cells * cell_bytes(table, model)
    lost = int(np.argmin(sizes))
    left = tuple(h for h in range(3) if h != lost)
    assert limit.max_bytes == pytest.approx(sum(counted(plan, limit.start, model, lost, left)))


def test_failures_weigh_moves_against_slower_iterations() -> None:
    mtbf_s = 3600.0 * 50
    asked = FamilyRequest(lost_hosts=1, mtbf_s=mtbf_s)
    first, last = members_of(with_family(solved(1), asked, search=SEARCH))

    def lost_s(times: list[float], move_s: float) -> float:
        fastest = [m.fastest_s for m in (first, last)]
        waits = [
            (t / f - 1) * mtbf_s / hosts for t, f, hosts in zip(times, fastest, (3, 2), strict=True)
        ]
        return sum(waits) + move_s

    own = [m.result.estimate.time.time_s for m in (first, last)]
    chosen = lost_s(own, mean(x.time_s for x in last.losses))
    alone = lost_s([first.alone_s, last.alone_s], mean(x.time_s for x in last.alone))
    assert chosen <= alone * (1 + 1e-9)
    stall_s = first.checkpoint_bytes / 10e9
    young = math.sqrt(2 * stall_s * mtbf_s / 3)
    assert first.checkpoint_interval_s == pytest.approx(max(young, first.checkpoint_bytes / 1e9))


def test_the_batch_stays_as_asked() -> None:
    problem = solved(0).problem
    kept = fewer_hosts(problem, FamilyRequest(lost_hosts=1))
    assert kept.workload.local_batch_size == 3072  # 6 x 2048 samples on 4 ranks
    own = fewer_hosts(problem, FamilyRequest(lost_hosts=1, keeps_global_batch=False))
    assert own.workload.local_batch_size == 2048


def test_the_batch_is_rounded_up_once() -> None:
    """After two losses it was rounded twice, and not what the ranks that are left share evenly."""
    problem = solved(0).problem
    problem = replace(problem, workload=replace(problem.workload, local_batch_size=5))
    sizes = [
        fewer_hosts(problem, FamilyRequest(lost_hosts=2), lost).workload.local_batch_size
        for lost in (1, 2)
    ]
    assert sizes == [8, 15]  # 6 x 5 samples on 4 ranks and on 2; from 4 x 8 it would be 16


def test_a_system_keeps_what_its_hosts_have_in_common() -> None:
    problem = solved(0).problem
    ranks = replace(SYSTEM, speed_by_rank_ratio=(1.0, 0.5) * 3)
    found = fewer_hosts(replace(problem, topology=ranks), FamilyRequest(lost_hosts=1)).topology
    assert found.speed_by_rank_ratio == (1.0, 0.5) * 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topology": replace(SYSTEM, speed_by_rank_ratio=(1.0,) * 5 + (0.5,))}, "alike"),
        ({"topology": replace(SYSTEM, ddr_capacity_by_host_bytes=(1e9, 1e9, 2e9))}, "alike"),
        ({"topology": replace(cases.topology(4, 2), domain_size=4)}, "scale-up domain"),
        ({"topology": cases.topology(2, 2)}, "needs at least 3 hosts"),
        ({"constraints": Constraints(tables=(TableConstraint(pattern="*", ranks=(0,)),))}, "name"),
        (
            {
                "constraints": Constraints(
                    memory=(MemoryLimit(most_bytes=1e9, level=Level.RANK, places=(0,)),)
                )
            },
            "name ranks or hosts",
        ),
        ({"workload": TRACED}, "add --keep-batch rank"),
    ],
)
def test_what_has_no_family_is_refused_by_name(changes: dict[str, object], words: str) -> None:
    problem = replace(PlanningProblem(workload=MODEL, topology=SYSTEM), **changes)
    with pytest.raises(InvalidInputError, match=words):
        check(problem, FamilyRequest(lost_hosts=2))


def test_operators_of_one_batch_are_no_hindrance_where_ranks_keep_theirs() -> None:
    problem = PlanningProblem(workload=TRACED, topology=SYSTEM)
    check(problem, FamilyRequest(lost_hosts=2, keeps_global_batch=False))


def test_too_little_memory_names_the_hosts() -> None:
    tables = tuple(cases.table(f"t{i}", 2_000_000, 128) for i in range(6))
    system = cases.topology(3, 1, hbm_gib=2.6, ddr_gib=0.1)
    problem = PlanningProblem(
        workload=cases.workload(tables), topology=system, constraints=cases.DEVICE_ONLY
    )
    result = api.solve(problem, search=SEARCH)
    with pytest.raises(InfeasibleError, match="with 2 hosts left: "):
        with_family(result, FamilyRequest(lost_hosts=1), search=SEARCH)


def test_it_says_whether_slower_steps_are_worth_it(family: tuple[FamilyMember, ...]) -> None:
    """The figures of the note follow from the members."""
    slower = family[0].result.estimate.time.time_s / family[0].alone_s - 1
    told = " ".join(notes(FamilyRequest(lost_hosts=2), family))
    assert ("made one by one" in told) == (slower >= 1e-3)
    if slower >= 1e-3:
        assert f"{100 * slower:.2g} % slower" in told
        own, alone = (
            sum(mean(x.time_s for x in losses) for losses in found)
            for found in ([m.losses for m in family[1:]], [m.alone for m in family[1:]])
        )
        assert ("takes no less time" in told) == (own >= alone)


def test_a_plan_in_the_place_of_another_is_not_called_optimal_for_it() -> None:
    """Nor is a bound told that it is below, because it keeps a cut of a larger plan."""
    result = solved(0)
    time_s = result.estimate.time.time_s
    proven = replace(result.solver, status=Status.OPTIMAL, value=time_s, bound=time_s)
    result = replace(result, solver=proven)

    def taking(ratio: float) -> SolverReport:
        times = replace(result.estimate.time, time_s=ratio * time_s)
        other = replace(result.best, estimate=replace(result.estimate, time=times))
        return _with_plan(result, other).solver

    slower, same, faster = taking(1.01), taking(1.0 + 5e-5), taking(0.99)
    assert (slower.status, slower.bound) == (Status.GAP, time_s)
    assert slower.gap_ratio == pytest.approx(0.01 / 1.01)
    assert same.status is Status.OPTIMAL
    assert faster.bound == faster.value


def test_a_stop_leaves_the_plan_without_a_family() -> None:
    result = solved(0)
    found = with_family(
        result, FamilyRequest(lost_hosts=1), search=SEARCH, should_stop=lambda: True
    )
    assert found is result
