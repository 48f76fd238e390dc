"""Proofs that nothing fits, on random memory, against all places, all plans and linear programs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from scipy.optimize import linprog

from costmodels.datatypes import FloatArray
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, ShardingOption, ShardingType, Spread
from costmodels.units import format_bytes
from planner.errors import InfeasibleError
from planner.objectives import objective_named
from planner.options.enumeration import enumerate_options
from planner.options.table_limits import TableOptions, lacking_bytes
from planner.problem import Constraints, PlanningProblem, TableConstraint
from planner.search.bounds import feasibility
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.feasibility import least_excess_bytes, require_feasible
from planner.search.common.linear import LinearModel
from planner.search.construct.greedy import list_greedy
from planner.search.construct.walk import count_assignments, every_assignment
from planner.space.evaluation import SearchSpace
from tests.planner import cases
from tests.planner.search.bounds.test_proofs_by_hand import alike, each_bytes, space_of


def drawn(seed: int, count: int, fullness: float, uneven: float = 0.6) -> SearchSpace:
    """Tables on ranks and hosts with so large a share of the memory that they take.

    Args:
        seed: of sizes, rules and memory.
        count: of tables.
        fullness: the share, on average.
        uneven: how far the memory of a rank or host may be from the average.
    """
    rng = np.random.default_rng(seed)
    hosts, local = ((2, 2), (1, 3), (1, 2))[seed % 3]
    tables = tuple(
        cases.table(f"t{i}", int(10 ** rng.uniform(4.5, 5.5)), 16, 4.0) for i in range(count)
    )
    kinds = (ShardingType.TABLE_WISE, ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE)
    kernels = (ComputeKernel.FUSED, ComputeKernel.FUSED_UVM)
    if rng.random() < 0.5:
        kinds, kernels = kinds[:1], kernels[: 1 + int(rng.integers(2))]
    pinned = TableConstraint(pattern="t0", ranks=tuple(range(1, hosts * local)))
    rules = Constraints(
        sharding_types=kinds, kernels=kernels, tables=(pinned,) if rng.random() < 0.5 else ()
    )
    problem = PlanningProblem(
        workload=cases.workload(tables), topology=cases.topology(hosts, local), constraints=rules
    )
    pipeline = CostPipeline(problem.workload, problem.topology)
    roomy = SearchSpace(problem, pipeline, enumerate_options(problem, pipeline))
    for limits, bytes_of in (
        (pipeline.device_limits, roomy.device),
        (pipeline.host_limits, roomy.host),
    ):
        each = np.maximum.reduceat(roomy.mean_work @ bytes_of, roomy.first[:-1]).sum()
        share = (
            fullness
            * rng.uniform(1 - uneven, 1 + uneven, len(limits))
            * roomy.world_size
            / len(limits)
        )
        limits[:] = np.maximum(share * each, 1.0)
    return SearchSpace(problem, pipeline, roomy.listing)


def lacks(
    space: SearchSpace,
    table: TableOptions,
    option: ShardingOption,
    device: FloatArray,
    host: FloatArray,
) -> tuple[float, float]:
    """What the piece that lacks most lacks in the place that is best for it, empty as it is."""
    local, world = space.local_world_size, space.world_size
    if option.is_uniform:
        places = [[(r, device[r], host[r]) for r in range(world)]]
        pieces = [places]
    elif option.spread is Spread.RANKS:
        allowed = table.ranks or range(world)
        pieces = [[[(r, d, h)] for r in allowed] for d, h in zip(device, host, strict=True)]
    else:
        allowed = table.hosts or range(space.num_hosts)
        pieces = [
            [[(q * local + i, d[i], h[i]) for i in range(local)] for q in allowed]
            for d, h in zip(device, host, strict=True)
        ]
    found = []
    for piece in pieces:
        by_place = []
        for place in piece:
            on_host = np.zeros(space.num_hosts)
            for rank, _, h in place:
                on_host[rank // local] += h
            over = np.where(on_host > 0, on_host - space.pipeline.host_limits, -np.inf)
            on_rank = max(d - space.pipeline.device_limits[r] for r, d, _ in place)
            by_place.append((on_rank, float(over.max())))
        found.append([min(p[k] for p in by_place) for k in (0, 1)])
    device_lack, host_lack = (max(0.0, *(f[k] for f in found)) for k in (0, 1))
    return device_lack, host_lack


SEEDS = range(30)


def test_tables_may_share_the_rank_with_most_room() -> None:
    """Two of three fit the larger rank, and one the other."""
    space = space_of(alike(3), cases.topology(1, 2))
    space.pipeline.device_limits[:] = np.array([2.0, 1.0]) * each_bytes(tables=alike(3))
    require_feasible(space)


def test_a_table_that_is_too_large_is_told_of_its_best_option() -> None:
    """What it lacks, of which memory, and how much an empty rank or host has."""
    told: list[tuple[bool, bool]] = []
    for seed in SEEDS:
        space = drawn(seed, 2, 0.15)
        local, first = space.local_world_size, True
        for table, fitting in zip(space.listing.tables, space.tables, strict=True):
            each = []
            for option, work in zip(table.options, table.works, strict=True):
                given = (work @ space.device, work @ space.host)
                expected = lacks(space, table, option, *given)
                found = lacking_bytes(option, *given, table, space.pipeline)
                assert found == pytest.approx(expected, abs=1e-3)
                each.append(expected)
            if fitting.options or not first:
                continue
            first = False
            device, host = min(each, key=lambda m: (max(m[0], m[1] / local), m[0] + m[1] / local))
            with pytest.raises(InfeasibleError) as caught:
                require_feasible(space)
            text = str(caught.value)
            assert table.table.name in text
            assert caught.value.shortfall_bytes == pytest.approx(max(device, host / local))
            for kind, lack, limits in (
                ("device memory of an empty rank", device, space.pipeline.device_limits),
                ("host memory of an empty host", host, space.pipeline.host_limits),
            ):
                if lack > 0:
                    own = limits[list(table.ranks)] if table.ranks and lack is device else limits
                    assert f"{kind} ({format_bytes(own.max())}) by" in text
                    assert format_bytes(lack) in text
                else:
                    assert kind not in text
            told.append((device > 0, host > 0))
    assert len(set(told)) >= 2


@pytest.mark.parametrize(
    ("lacking", "told", "short"),
    [
        ([(9.0, 0.0), (5.0, 0.0), (7.0, 0.0)], (5.0, None), 5.0),
        ([(0.0, 24.0), (13.0, 0.0)], (None, 24.0), 12.0),  # a host is shared by two ranks
        ([(5.0, 10.0), (5.0, 4.0), (5.0, 8.0)], (5.0, 4.0), 5.0),  # as much on a rank, less in all
        ([(5.0, 0.0), (3.0, 10.0)], (5.0, None), 5.0),
        ([(5.0, 4.0), (1.0, 10.0)], (1.0, 10.0), 5.0),
        ([(5.0, 10.0), (0.0, 10.0)], (None, 10.0), 5.0),
        ([(0.5, 4.0)], (0.5, 4.0), 2.0),
        ([(0.0, 0.5)], (None, 0.5), 0.25),
        ([(0.0, 0.0)], (0.0, None), 0.0),  # it fits one place by its device, another by its host
    ],
)
def test_a_refusal_names_the_memory_that_the_best_option_lacks(
    monkeypatch: pytest.MonkeyPatch,
    lacking: list[tuple[float, float]],
    told: tuple[float | None, float | None],
    short: float,
) -> None:
    """Per rank and host, of two ranks each: the least on any rank, then the least in all."""
    space = space_of(alike(1), cases.topology(1, 2))
    options = [space.listing.tables[0].options[0]] * len(lacking)
    works = [space.listing.tables[0].works[0]] * len(lacking)
    table = replace(space.listing.tables[0], options=tuple(options), works=tuple(works))
    left = iter(lacking)
    monkeypatch.setattr(feasibility.table_limits, "lacking_bytes", lambda *_: next(left))
    with pytest.raises(InfeasibleError) as caught:
        feasibility._too_large(space, table)
    assert caught.value.shortfall_bytes == short
    text = str(caught.value)
    for kind, lack in zip(("empty rank", "empty host"), told, strict=True):
        assert (kind in text) == (lack is not None)
        if lack is not None:
            own = text.partition(kind)[2]
            assert f"by at least {format_bytes(lack)}" in own.partition(" and ")[0]


def test_cuts_are_advised_as_long_as_some_table_may_not_have_them() -> None:
    """Of two tables that are too large, one may be cut in every way and the other one may not."""
    kinds = (ShardingType.TABLE_WISE, ShardingType.ROW_WISE, ShardingType.COLUMN_WISE)
    whole = TableConstraint(pattern="t1", sharding_types=kinds[:1])
    for tables, advised in (((whole,), True), ((), False)):
        problem = PlanningProblem(
            workload=cases.workload(alike(2)),
            topology=cases.topology(1, 2),
            constraints=Constraints(
                sharding_types=kinds, kernels=(ComputeKernel.FUSED,), tables=tables
            ),
        )
        pipeline = CostPipeline(problem.workload, problem.topology)
        pipeline.device_limits[:] = 1e6
        space = SearchSpace(problem, pipeline, enumerate_options(problem, pipeline))
        with pytest.raises(InfeasibleError) as refused:
            feasibility._refuse("too little", 0.0, space)
        advice = " | ".join(refused.value.advice)
        assert ("allow row_wise" in advice) is advised
        assert ("allow column_wise" in advice) is advised


@pytest.mark.parametrize("seed", range(6))
def test_what_unlike_pieces_lack_is_that_of_the_piece_that_lacks_most(seed: int) -> None:
    """Three pieces, on some of four ranks or of two hosts that have unlike memory."""
    space, rng = drawn(3 * seed, 2, 0.5), np.random.default_rng(seed)
    world, local = space.world_size, space.local_world_size
    assert (space.num_hosts, local) == (2, 2)
    table = cast(
        "Any", SimpleNamespace(ranks=(1, 2, 3)[seed % 3 :], hosts=((0, 1), (1,))[seed % 2])
    )
    device_room, host_room = space.pipeline.device_limits.max(), space.pipeline.host_limits.max()
    for spread, shape in ((None, (world,)), (Spread.RANKS, (3,)), (Spread.HOSTS, (3, local))):
        option = cast("Any", SimpleNamespace(is_uniform=spread is None, spread=spread))
        for _ in range(10):
            device = rng.uniform(0.3, 1.6, shape) * device_room
            host = rng.uniform(0.3, 1.6, shape) * host_room
            expected = lacks(space, table, option, device, host)
            assert lacking_bytes(option, device, host, table, space.pipeline) == pytest.approx(
                expected
            )


@pytest.mark.parametrize("kernel", [ComputeKernel.FUSED, ComputeKernel.FUSED_UVM])
def test_nothing_fits_where_tables_need_more_than_all_ranks_have(kernel: ComputeKernel) -> None:
    """Eight equal tables on two hosts of two ranks: two for each rank, or four for each host."""
    given = alike(8), cases.topology(2, 2)
    roomy = space_of(*given, kernels=(kernel,))
    on_host = kernel is ComputeKernel.FUSED_UVM
    each = float((roomy.pool @ (roomy.host if on_host else roomy.device)).max())
    for room, fits in ((0.99, False), (1.01, True)):
        limit = room * each * (4 if on_host else 2)
        limits = {"host_bytes": limit} if on_host else {"device_bytes": limit}
        space = space_of(*given, kernels=(kernel,), **limits)
        bounds = RankFreeBound(LinearModel(space, objective_named("phases", space)))
        assert np.isfinite(bounds.relax(None).bound) == fits


def missing_in_all(space: SearchSpace) -> tuple[float, float]:
    """Bytes of device memory per rank, or of host memory per host, that have to be added.

    The linear program: all bytes of a mix of options are within all memory and what is added.
    """
    count = len(space.options)
    one = np.zeros((space.num_tables, count + 1))
    one[space.table_of, np.arange(count)] = 1.0
    found = []
    for extended in (0, 1):
        rows, most = [], []
        for kind, (bytes_of, limits) in enumerate(
            ((space.device, space.pipeline.device_limits), (space.host, space.pipeline.host_limits))
        ):
            unit = max(float(limits.sum()), 1.0)
            load = space.mean_work @ bytes_of * space.world_size / unit
            rows.append(np.append(load, -1.0 if kind == extended else 0.0))
            most.append(1.0)
        cost = np.append(np.zeros(count), 1.0)
        least = linprog(cost, A_ub=rows, b_ub=most, A_eq=one, b_eq=np.ones(len(one)))
        memory = (space.pipeline.device_limits, space.pipeline.host_limits)[extended]
        found.append(np.inf if least.status == 2 else float(least.fun) * float(memory.mean()))
    return found[0], found[1]


def test_what_is_missing_in_all_is_that_of_the_linear_program() -> None:
    """And whatever is refused has no plan, not even with almost as much more as is missing."""
    refused = {"device memory is": 0, "host memory is": 0, "tables put": 0}
    for seed in SEEDS:
        for count, fullness, uneven in ((3, 0.45, 0.3), (5, 0.85, 0.05)):
            space = drawn(seed, count, fullness, uneven)
            if not all(t.options for t in space.tables):
                continue
            device, host = missing_in_all(space)
            try:
                require_feasible(space)
            except InfeasibleError as error:
                (kind,) = (k for k in refused if k in str(error))
                refused[kind] += 1
                short = error.shortfall_bytes
            else:
                assert device < 0.02 * space.pipeline.device_limits.mean()
                continue
            if kind == "device memory is":
                assert 0.97 * device <= short <= device * (1 + 1e-6)
            if kind == "host memory is":
                assert np.isinf(device)
                assert short == pytest.approx(host / space.local_world_size, rel=1e-6)
            on_host = kind == "host memory is"
            limits = space.pipeline.host_limits if on_host else space.pipeline.device_limits
            limits[:] = limits + 0.99 * short * (space.local_world_size if on_host else 1)
            if count_assignments(space, 10_000) > 10_000:
                continue
            for _, works in every_assignment(space):
                assert (space.overflow_ratio(works) > 0).all()
    assert min(refused["device memory is"], refused["host memory is"]) > 0, refused


def test_the_least_excess_is_counted_rank_by_rank() -> None:
    for seed in SEEDS[:8]:
        space = drawn(seed, 3, 0.5)
        if not all(t.options for t in space.tables):
            continue
        sizes = np.array([float(t.weight_bytes) for t in space.problem.workload.tables])
        plan = space.plan(list_greedy(space, sizes))
        work = space.pipeline.plan_work(plan)
        excess = [0.0]
        for rank, row in enumerate(work):
            excess.append(float(row @ space.device - space.pipeline.device_limits[rank]))
        for host in range(space.num_hosts):
            local = space.local_world_size
            own = work[host * local : (host + 1) * local] @ space.host
            excess.append((float(own.sum()) - space.pipeline.host_limits[host]) / local)
        assert least_excess_bytes(space) == pytest.approx(max(excess), rel=1e-6, abs=1.0)
