"""Planning on TorchRec's terms, without TorchRec."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from costmodels.sharding import ComputeKernel, Plan, ShardingType
from costmodels.system_models import default_models
from costmodels.topology import Topology
from costmodels.torchrec_estimates import CACHE_LOAD_FACTOR, TorchrecMachine
from costmodels.units import GIB
from costmodels.workload import Workload
from planner import api
from planner import torchrec_terms as torchrec_space_module
from planner.errors import InvalidInputError
from planner.objectives import objective_named
from planner.options.enumeration import Listing, enumerate_options, torchrec_widths
from planner.problem import Constraints, PlanningProblem, TableConstraint
from planner.solving.prepare import searched_options
from planner.space.evaluation import SearchSpace
from planner.torchrec_terms import TorchrecPipeline, TorchrecPricing, torchrec_space
from tests.differential.judging.judge import torchrec_shards
from tests.planner import cases
from tests.strategies import make_device, make_host, make_table, make_topology, make_workload

NAMES = ("torchrec", "torchrec-critical-path")


def problem_of(num_hosts: int = 1, hbm_gib: float = 40.0) -> PlanningProblem:
    tables = [
        make_table("a", num_embeddings=2_000_000, embedding_dim=64),
        make_table("b", num_embeddings=500_000, embedding_dim=96),
        make_table("c", num_embeddings=50, embedding_dim=32),
    ]
    topology = make_topology(num_hosts, 2, device=make_device(hbm_capacity_bytes=hbm_gib * GIB))
    return PlanningProblem(
        workload=make_workload(*tables, batch_size_per_rank=512), topology=topology
    )


def pipeline_of(problem: PlanningProblem, name: str) -> TorchrecPipeline:
    models = default_models(problem.topology)
    by_phase = name == NAMES[1]
    return TorchrecPricing(by_phase=by_phase)(problem.workload, problem.topology, models)


def priced(plan: Plan, workload: Workload, topology: Topology) -> dict[str, float]:
    """Both objectives of a plan, shard by shard."""
    machine = TorchrecMachine.of(topology)
    load: dict[int, float] = defaultdict(float)
    phases: dict[object, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for placement in plan.placements:
        for shard, theirs in torchrec_shards(placement, workload, machine):
            perf = theirs.perf()
            load[shard.rank] += perf.total_s
            kind = placement.sharding_type
            phases["forward"][shard.rank] += perf.fwd_compute_s
            phases["backward"][shard.rank] += perf.bwd_compute_s
            phases[kind, "out"][shard.rank] += perf.fwd_comms_s
            phases[kind, "back"][shard.rank] += perf.bwd_comms_s
    path = sum(max(ranks.values()) for ranks in phases.values())
    return {NAMES[0]: max(load.values()), NAMES[1]: path}


def all_options(problem: PlanningProblem, pipeline: TorchrecPipeline) -> Listing:
    return enumerate_options(problem, pipeline, every_kernel=True)


def least(space: SearchSpace, name: str) -> float:
    return cases.least_value(space, objective_named(name, space))


@pytest.mark.parametrize("name", NAMES)
def test_value_is_the_sum_over_shards(name: str) -> None:
    problem = problem_of(num_hosts=2)
    found = api.plan(
        problem.workload, problem.topology, objective=name, max_evaluations=3000, time_limit_s=None
    )
    value = priced(found.plan, problem.workload, problem.topology)[name]
    assert found.solver.value == pytest.approx(value, rel=1e-9)
    assert found.solver.bound is not None
    assert found.solver.bound <= found.solver.value * (1 + 1e-9)


@pytest.mark.parametrize(
    ("name", "num_hosts", "hbm_gib"), list(itertools.product(NAMES, (1, 2), (40.0, 0.3)))
)
def test_options_left_out_are_in_no_better_plan(name: str, num_hosts: int, hbm_gib: float) -> None:
    problem = problem_of(num_hosts, hbm_gib)
    # Everything is too many to price; two tables cut in half, with every kernel, are few enough.
    rule = TableConstraint(pattern="*", min_column_width=32, cache_load_factors=(0.2,))
    problem = PlanningProblem(
        workload=replace(problem.workload, tables=problem.workload.tables[::2]),
        topology=problem.topology,
        constraints=Constraints(tables=(rule,)),
    )
    pipeline = pipeline_of(problem, name)
    whole = SearchSpace(problem, pipeline, all_options(problem, pipeline))
    pruned = torchrec_space(problem, pipeline)
    assert len(pruned.options) < len(whole.options)
    assert any("options that no better plan" in line for line in searched_options(pruned))
    assert not any("options that no better plan" in line for line in searched_options(whole))
    assert least(pruned, name) == pytest.approx(least(whole, name), rel=1e-12)


def test_every_option_is_left_where_no_quick_plan_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of()
    pipeline = pipeline_of(problem, NAMES[0])
    whole = SearchSpace(problem, pipeline, all_options(problem, pipeline))
    monkeypatch.setattr(torchrec_space_module, "_placed", lambda *_: None)
    assert torchrec_space(problem, pipeline).options == whole.options


def test_every_option_of_torchrec_is_listed() -> None:
    problem = problem_of(num_hosts=2)
    pipeline = pipeline_of(problem, NAMES[0])
    for listed in all_options(problem, pipeline).tables:
        dim = listed.table.embedding_dim
        found = {(o.sharding_type, o.kernel, o.column_widths) for o in listed.options}
        factors = {o.cache_load_factor_ratio for o in listed.options}
        assert CACHE_LOAD_FACTOR in factors
        assert (ShardingType.DATA_PARALLEL, ComputeKernel.DENSE, (dim,)) in found
        for kernel in (k for k in ComputeKernel if k is not ComputeKernel.DENSE):
            assert (ShardingType.ROW_WISE, kernel, (dim,)) in found
            assert (ShardingType.COLUMN_WISE, kernel, (dim,)) in found
            assert (ShardingType.COLUMN_WISE, kernel, torchrec_widths(dim, 4)) in found
            assert (ShardingType.GRID_SHARD, kernel, (dim,)) in found


@pytest.mark.parametrize(
    ("dim", "widths"),
    [
        (64, (64,)),
        (128, (128,)),
        (255, (255,)),
        (256, (128, 128)),
        (384, (128,) * 3),
        (260, (260,)),
    ],
)
def test_torchrec_cuts_columns_no_narrower_than_128(dim: int, widths: tuple[int, ...]) -> None:
    assert torchrec_widths(dim, 4) == widths


@pytest.mark.parametrize("name", NAMES)
def test_tables_go_to_host_memory_where_devices_are_full(name: str) -> None:
    problem = problem_of(hbm_gib=0.3)
    found = api.plan(
        problem.workload, problem.topology, objective=name, max_evaluations=2000, time_limit_s=None
    )
    kernels = {p.kernel for p in found.plan.placements}
    assert kernels & {ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING}
    machine = TorchrecMachine.of(problem.topology)
    used: dict[int, float] = defaultdict(float)
    for placement in found.plan.placements:
        for shard, theirs in torchrec_shards(placement, problem.workload, machine):
            used[shard.rank] += theirs.storage(shard.num_rows)[0]
    limits = machine.device_limits_bytes(problem.workload)
    assert all(used[r] <= limits[r] for r in used)


def test_host_memory_is_limited_rank_by_rank() -> None:
    problem = problem_of()
    pipeline = pipeline_of(problem, NAMES[0])
    space = torchrec_space(problem, pipeline)
    objective = objective_named(NAMES[0], space)
    share = pipeline.machine.ddr_limits_bytes[0]
    work = np.zeros((2, 2, pipeline.num_features))
    work[0, :, 1] = [1.5 * share, 0.4 * share]  # fits the host, but not the first rank's share
    work[1, :, 1] = [0.9 * share, 0.9 * share]
    assert list(np.isfinite(objective.values(work))) == [False, True]


def test_machine_of_torchrecs_own_figures() -> None:
    topology = make_topology(2, 4, host=make_host(ddr_capacity_bytes=1.0 * GIB))
    theirs = TorchrecMachine.of(topology, torchrec_figures=True)
    assert theirs.world_size == 8
    assert theirs.local_world_size == 4
    assert theirs.hbm_capacity_by_rank_bytes == (32 * GIB,) * 8
    assert theirs.ddr_limits_bytes == (128 * GIB,) * 8
    ours = TorchrecMachine.of(topology)
    assert ours.ddr_limits_bytes == (GIB / 4,) * 8
    assert ours.inter_host_bandwidth_bytes_per_s == topology.network_link.bandwidth_bytes_per_s


def test_scenarios_are_refused() -> None:
    problem = problem_of()
    with pytest.raises(InvalidInputError, match="do not see index distributions"):
        api.plan(
            problem.workload,
            problem.topology,
            objective="torchrec",
            scenarios=(problem.workload,),
        )


@pytest.mark.parametrize("name", NAMES)
def test_the_quick_plan_is_handed_on(name: str) -> None:
    """The plan that ruled options out is one of the space it left, and no worse than its bound."""
    problem = problem_of(2)
    pipeline = pipeline_of(problem, name)
    space = torchrec_space(problem, pipeline)
    assert space.known is not None
    work = space.work(space.known)
    assert space.overflow_ratio(work) <= 0
    value = float(objective_named(name, space).values(work))
    found = api.solve(problem, search=replace(api.SEARCH, objective=name, with_baselines=False))
    assert found.solver.value <= value * (1 + 1e-12)
    assert found.solver.bound is not None
    assert found.solver.bound <= value * (1 + 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_a_reserve_that_does_not_count_is_said(name: str) -> None:
    problem = problem_of(hbm_gib=10.0)
    for reserved_gib, is_said in ((0.0, False), (9.9, True)):
        workload = replace(problem.workload, reserved_bytes=reserved_gib * GIB)
        found = api.plan(workload, problem.topology, objective=name, max_evaluations=20)
        assert found.best.memory.fits != is_said
        words = f"does not fit beside the workload's memory.reserve: objective {name} keeps"
        assert any(words in line for line in found.warnings) == is_said
