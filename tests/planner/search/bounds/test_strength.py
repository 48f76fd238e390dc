"""Bounds keep their strength: shares of the optimum that they proved are not lost.

A bound that gives something away is still a bound, and no test of soundness notices. Optima are
those of all plans, priced one by one. The shares are what the bounds proved when this was written,
cut after the third digit; a stronger bound may raise them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from costmodels.lookup.fbgemm import Fbgemm
from costmodels.lookup.roofline import Roofline
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.stages.models import CostModels
from costmodels.units import GIB
from planner.errors import InfeasibleError
from planner.objectives import objective_named
from planner.problem import Constraints, PlanningProblem
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.bound_program import RankFreeProgram, type_sets
from planner.search.bounds.feasibility import require_feasible
from planner.search.bounds.proofs import Branching, linear_floor
from planner.search.common.linear import LinearModel
from planner.solving.prepare import search_space
from planner.space.evaluation import SearchSpace
from tests.planner import cases

LAWS = {"fbgemm": Fbgemm(), "roofline": Roofline()}
"""Times linear in the work with floors of calls, as systems have them; and convex, curved ones."""
KINDS = {
    "whole tables or rows": (1, 3, ("table_wise", "row_wise"), 4, 2.0, (64,)),
    "ranks or hosts": (2, 2, ("table_wise", "table_row_wise", "data_parallel"), 4, 4.0, (32, 128)),
    "columns or hosts": (2, 2, ("column_wise", "table_row_wise"), 3, 5.0, (64,)),
}
"""Hosts, ranks of each, sharding types; tables, how much more often each is looked up, widths."""


@cache
def space_of(name: str, law: str = "fbgemm") -> SearchSpace:
    """A few tables, some of them too large to share a rank evenly."""
    hosts, local, kinds, count, step, widths = KINDS[name]
    tables = tuple(
        cases.table(f"t{i}", 300_000 + 90_000 * i, widths[i % len(widths)], 3.0 + step * i)
        for i in range(count)
    )
    rules = Constraints(
        sharding_types=tuple(ShardingType(k) for k in kinds), kernels=(ComputeKernel.FUSED,)
    )
    problem = PlanningProblem(
        workload=cases.workload(tables, batch=4096),
        topology=cases.topology(hosts, local),
        constraints=rules,
        models=CostModels(lookup=LAWS[law]),
    )
    return search_space(problem, CostPipeline)


PROVEN = {
    ("whole tables or rows", "roofline"): 0.970,
    ("ranks or hosts", "roofline"): 0.989,
    ("columns or hosts", "roofline"): 0.977,
    ("whole tables or rows", "fbgemm"): 0.962,
    ("ranks or hosts", "fbgemm"): 0.976,
    ("columns or hosts", "fbgemm"): 0.966,
}
"""The share of the optimum that linear programs prove."""


def proven(bounds: RankFreeBound) -> float:
    """The least bound over all sets of sharding types."""
    return min(bounds.relax(types).bound for types in type_sets(bounds.space))


@pytest.mark.parametrize(("name", "law"), PROVEN)
def test_programs_prove_as_much_as_they_did(name: str, law: str) -> None:
    space = space_of(name, law)
    objective = objective_named("phases", space)
    best = cases.least_value(space, objective)
    bounds = RankFreeBound(LinearModel(space, objective))
    assert PROVEN[name, law] <= proven(bounds) / best <= 1 + 1e-9


SPLIT = {
    (0, "roofline"): (0.993, 0.993, 0.993, 0.993),
    (1, "roofline"): (0.946, 0.946, 0.956, 0.956),
    (3, "roofline"): (0.991, 0.992, 0.992, 0.995),
    (0, "fbgemm"): (0.995, 0.995, 0.995, 0.995),
    (1, "fbgemm"): (0.942, 0.942, 0.942, 0.944),
    (3, "fbgemm"): (0.911, 0.915, 0.921, 0.921),
}
"""By seed and law: before any step, and after one, four and eight."""


@pytest.mark.parametrize(("seed", "law"), SPLIT)
def test_splits_prove_as_much_as_they_did(seed: int, law: str) -> None:
    problem = replace(cases.two_tables(seed), models=CostModels(lookup=LAWS[law]))
    space = search_space(problem, CostPipeline)
    objective = objective_named("iteration", space)
    best = cases.least_value(space, objective)
    bounds = RankFreeBound(LinearModel(space, objective))
    relaxed = {types: bounds.relax(types) for types in type_sets(space)}
    branching = Branching(bounds, dict(relaxed))
    shares = [branching.bound(math.inf) / best]
    for _ in range(8):
        branching.step(1.05 * best)
        shares.append(branching.bound(1.05 * best) / best)
    assert shares == sorted(shares)
    assert shares[-1] <= 1 + 1e-9
    for found, least in zip((shares[k] for k in (0, 1, 4, 8)), SPLIT[seed, law], strict=True):
        assert found >= least


def test_limits_are_a_little_wider_than_memory_and_no_more() -> None:
    """So that a plan that fills a rank to the byte is not ruled out by rounding."""
    space = space_of("ranks or hosts")
    made = RankFreeProgram(LinearModel(space, objective_named("phases", space)))
    assert made.unlisted_bytes == 0
    hosts = np.repeat(space.pipeline.host_limits, space.local_world_size)
    memory = np.column_stack([space.pipeline.device_limits, hosts])
    mean = memory.mean(axis=0) / (1, space.local_world_size)
    for limits, least in ((made.rank_limits, memory), (made.limits, mean)):
        assert (limits > least).all()
        assert limits == pytest.approx(least, rel=1e-6)


def test_what_unlisted_kernels_would_keep_off_devices_comes_on_top_of_their_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """64 elements and one of state in each row; one rank may be spared all, and both half each.

    No plan leaves more of a rank than the rest of all memory if each table takes as little as can
    be, and what is not listed nothing.
    """
    monkeypatch.setattr("planner.options.enumeration._EVERY", 0)
    monkeypatch.setattr("planner.options.enumeration._SMALL_RATIO", 0.02)
    rows = {**{f"s{i}": 140_000 for i in range(20)}, **{f"l{i}": 72_000_000 for i in range(3)}}
    tables = tuple(cases.table(name, count, 64) for name, count in rows.items())
    system = cases.topology(1, 2, hbm_gib=40, ddr_gib=400)
    kinds = Constraints(sharding_types=(ShardingType.TABLE_WISE,))
    space = cases.space(cases.workload(tables), system, kinds)
    names = space.listing.left_out_tables
    assert 0 < len(names) < len(rows)
    unlisted = sum(rows[name] * (64 * 4 + 4.0) for name in names)
    model = LinearModel(space, objective_named("phases", space))
    made, device = RankFreeProgram(model), space.pipeline.device_limits
    assert made.unlisted_bytes == pytest.approx(unlisted)
    assert made.limits[0] == pytest.approx(device.mean() + unlisted / 2, rel=1e-8)
    assert made.rank_limits[:, 0] == pytest.approx(device + unlisted, rel=1e-8)
    least = dict.fromkeys(range(len(rows)), math.inf)
    for table, own in zip(space.table_of.tolist(), space.rows, strict=True):
        least[table] = min(least[table], float((space.pool[own] @ space.device).sum()))
    free = linear_floor(space, objective_named("phases", space)).free_bytes
    assert free == pytest.approx(device.mean() + (unlisted - sum(least.values())) / 2, rel=1e-9)


@pytest.mark.parametrize(("host_gib", "told"), [(8.0, "host memory"), (1.0, "device memory")])
def test_what_cannot_fit_is_told_of_the_option_that_lacks_least_per_rank(
    host_gib: float, told: str
) -> None:
    """Two ranks share the memory of their host: 10 GiB too few of it are 5 for each."""
    table = cases.table("t", 18 * 2**22, 64, 1.0)  # 18 GiB of weights
    kernels = (ComputeKernel.FUSED, ComputeKernel.FUSED_UVM)
    whole = Constraints(sharding_types=(ShardingType.TABLE_WISE,), kernels=kernels)
    system = cases.topology(1, 2, hbm_gib=10.5, ddr_gib=host_gib)
    space = cases.space(cases.workload((table,)), system, whole)
    with pytest.raises(InfeasibleError, match=told) as refused:
        require_feasible(space)
    assert refused.value.shortfall_bytes is not None
    assert refused.value.shortfall_bytes < 8.5 * GIB


@pytest.mark.parametrize("room", [0.9, 1.1])
def test_a_rank_without_room_for_its_rows_rules_them_out(room: float) -> None:
    """Where the mean over ranks would have room: the other rank has twice what it needs."""
    tables = tuple(cases.table(f"t{i}", 400_000, 64, 4.0) for i in range(2))
    only = Constraints(sharding_types=(ShardingType.ROW_WISE,), kernels=(ComputeKernel.FUSED,))
    space = cases.space(cases.workload(tables), cases.topology(1, 2), only)
    needed = float((space.mean_work @ space.device).sum())
    space.pipeline.device_limits[:] = (room * needed, 2 * needed)
    bounds = RankFreeBound(LinearModel(space, objective_named("phases", space)))
    assert math.isinf(bounds.relax(type_sets(space)[0]).bound) is (room < 1)
