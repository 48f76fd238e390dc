"""2D groups: what a group sees of its hosts, what a sync moves, and that whatever is reported fits.

The ledger here is written down independently: it lays groups out as ``DMPCollection`` does (group i
has ranks i, i + copies, ...), counts every shard of every copy, and adds up host by host.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.datatypes import FloatArray
from costmodels.dense.base import dense_parameters
from costmodels.estimates import HostMemory, MemoryLedger, RankMemory
from costmodels.measured.curves import Collective
from costmodels.memory import dense_bytes
from costmodels.sharding import ComputeKernel, Plan, ShardingType
from costmodels.system_models import default_models, scaled, sync_time_s
from costmodels.topology import FittedFactors, Topology, group_topology, members
from costmodels.units import GIB, MIB
from costmodels.workload import DenseArch, DenseParallelism, Workload
from planner import api
from planner.errors import InfeasibleError, NoPlanFoundError
from planner.problem import PlanningProblem
from planner.settings import SearchSettings
from planner.study import Effort, Study
from tests.differential.asking import Run
from tests.differential.check import check
from tests.differential.drawing.problems import draw
from tests.planner.study.spaces import space_of
from tests.strategies import (
    make_device,
    make_host,
    make_placement,
    make_table,
    make_topology,
    make_workload,
)

IN_HOST_MEMORY = (ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING)


def held_by_host(plan: Plan, workload: Workload, topology: Topology, group_size: int) -> FloatArray:
    """Bytes of tables in each host's memory with every copy counted."""
    copies = topology.world_size // group_size
    held: dict[int, float] = defaultdict(float)
    for placement in plan.placements:
        table = workload.table(placement.table)
        if placement.kernel not in IN_HOST_MEMORY:
            continue
        for shard in placement.shards:
            row = 4 * shard.num_cols + 4  # fp32 and the one number of row-wise adagrad
            assert table.embedding_dim >= shard.num_cols
            for group in range(copies):
                rank = group + shard.rank * copies
                held[rank // topology.local_world_size] += shard.num_rows * row
    return np.array([held[h] for h in range(topology.num_hosts)])


def ledger(*, device_bytes: float, host_bytes: float, ranks: int) -> MemoryLedger:
    """Ranks that hold weights alone."""
    none = dict.fromkeys(
        ("optimizer_bytes", "gradients_bytes", "cache_bytes", "buffers_bytes", "dense_bytes"), 0.0
    )
    return MemoryLedger(
        ranks=tuple(
            RankMemory(
                rank=r,
                weights_bytes=device_bytes,
                reserved_bytes=0.0,
                capacity_bytes=1e12,
                host_bytes=host_bytes,
                **none,
            )
            for r in range(ranks)
        ),
        hosts=(HostMemory(host=0, used_bytes=0.0, capacity_bytes=1e12),),
    )


@pytest.mark.parametrize(
    ("size", "between", "share"),
    [(16, False, 1), (8, False, 2), (2, False, 8), (1, False, 8), (8, True, 1), (4, True, 2)],
)
def test_groups_share_the_memory_of_their_hosts(size: int, between: bool, share: int) -> None:
    whole = make_topology(2, 8)
    group = group_topology(whole, size, between_hosts=between)
    assert group is not None
    assert group.world_size == size
    expected = whole.ddr_capacities()[0] / share
    assert group.ddr_capacities() == pytest.approx([expected] * group.num_hosts)


def test_a_place_counts_as_the_weakest_that_any_group_has_there() -> None:
    memory = tuple(float(g) * GIB for g in (10, 20, 30, 40))
    uneven = replace(
        make_topology(2, 2),
        hbm_capacity_by_rank_bytes=memory,
        speed_by_rank_ratio=(1.0, 0.5, 1.0, 1.0),
        ddr_capacity_by_host_bytes=(8.0 * GIB, 6.0 * GIB),
    )
    beside, blocks = (group_topology(uneven, 2, between_hosts=b) for b in (False, True))
    assert beside is not None
    assert blocks is not None
    assert members(uneven, 2).tolist() == [[0, 2], [1, 3]]
    assert beside.hbm_capacities().tolist() == [10 * GIB, 30 * GIB]
    assert beside.speeds().tolist() == [0.5, 1.0]
    assert beside.ddr_capacities().tolist() == [4 * GIB, 3 * GIB]
    assert members(uneven, 2, between_hosts=True).tolist() == [[0, 1], [2, 3]]
    assert blocks.hbm_capacities().tolist() == [10 * GIB, 20 * GIB]
    assert blocks.ddr_capacities().tolist() == [6 * GIB]


def test_a_rack_keeps_the_ranks_of_a_group_that_it_joins() -> None:
    rack = make_topology(4, 4, domain_hosts=2)
    group = group_topology(rack, 8)
    assert group is not None
    assert (group.num_hosts, group.local_world_size, group.domain_size) == (4, 2, 4)


def test_a_sync_costs_what_it_sends_and_what_lies_in_host_memory_counts() -> None:
    system = make_topology(2, 4)
    plain = ledger(device_bytes=1e9, host_bytes=0.0, ranks=4)
    assert sync_time_s(system, 8, plain) == 0.0
    near = sync_time_s(system, 4, plain)
    far = sync_time_s(system, 4, plain, between_hosts=True)
    assert 0 < near < far
    doubled = ledger(device_bytes=2e9, host_bytes=0.0, ranks=4)
    assert sync_time_s(system, 4, doubled) == pytest.approx(2 * near, rel=0.01)
    on_host = ledger(device_bytes=0.0, host_bytes=1e9, ranks=4)
    copied = 2e9 / system.host.device_link_bandwidth_bytes_per_s
    assert sync_time_s(system, 4, on_host) == pytest.approx(near + copied)


@pytest.mark.parametrize("size", [8, 4, 2, 1])
@pytest.mark.parametrize("between", [False, True])
def test_the_dense_part_is_trained_by_all_groups(size: int, *, between: bool) -> None:
    """Its gradients are reduced over all ranks, and shards of it lie on all of them."""
    whole = make_topology(2, 4)
    group = group_topology(whole, size, between_hosts=between)
    assert group is not None
    dense = DenseArch(num_dense_features=13, bottom_mlp=(64, 16), top_mlp=(1024, 1))
    table = make_table("t0", num_embeddings=1000, embedding_dim=16)
    workload = make_workload(table, dense=dense)
    placement = make_placement(table, ShardingType.TABLE_WISE, group, where=(0,))
    found = api.estimate(workload, group, Plan(placements=(placement,))).estimate
    (reduced,) = (s for s in found.stages if s.name == "last gradient all-reduce")
    num_bytes = np.array(4.0 * dense_parameters(workload))
    expected = default_models(whole).collective.buffer_s(
        Collective.ALL_REDUCE, num_bytes, whole, within_host=False
    )
    assert reduced.duration_s == pytest.approx([float(expected)] * size)
    sharded = replace(workload, dense_parallelism=DenseParallelism.FSDP)
    assert dense_bytes(sharded, group) == dense_bytes(sharded, whole)


def test_the_bound_of_a_group_counts_the_ranks_that_train_with_it() -> None:
    """Held against every plan of one group of a job of twice as many hosts."""
    case = draw(8)
    whole = case.topology.resized(2 * case.topology.num_hosts, case.topology.local_world_size)
    grouped = replace(case, topology=replace(case.topology, whole=whole))
    assert check(grouped, runs=(Run.ENGINE,), max_evaluations=40).faults == ()


def test_a_named_model_also_prices_the_averaging_of_copies() -> None:
    system, held = make_topology(2, 4), ledger(device_bytes=1e9, host_bytes=0.0, ranks=4)
    slow = replace(default_models(system), collective=AlphaBeta())
    slow = scaled(slow, FittedFactors(collective_ratio=3.0))
    once_s = sync_time_s(system, 4, held)
    assert sync_time_s(system, 4, held, models=slow) == pytest.approx(3.0 * once_s)
    least_s = sync_time_s(system, 4, 4e9)
    assert sync_time_s(system, 4, 4e9, models=slow) == pytest.approx(3.0 * least_s)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_is_reported_for_groups_fits_with_every_copy_counted(data: st.DataObject) -> None:
    hosts, local = data.draw(st.sampled_from([(1, 4), (2, 2), (2, 4), (4, 2), (3, 2), (1, 8)]))
    rows = data.draw(st.lists(st.integers(100_000, 800_000), min_size=1, max_size=3))
    table_bytes = sum(rows) * (16 * 4 + 4)
    memory = table_bytes * data.draw(st.floats(0.3, 1.2 * local))
    system = replace(
        make_topology(hosts, local),
        device=make_device(hbm_capacity_bytes=data.draw(st.integers(8, 60)) * MIB),
        host=make_host(ddr_capacity_bytes=memory),
    )
    workload = make_workload(
        *(make_table(f"t{i}", num_embeddings=n, embedding_dim=16) for i, n in enumerate(rows)),
        batch_size_per_rank=64,
    )
    problem = PlanningProblem(workload=workload, topology=system)
    space = space_of(problem, more={"copies": ("all",)})
    for setup in space.setups:
        try:
            found = api.solve(space.restricted(setup), search=SearchSettings(max_evaluations=4))
        except (InfeasibleError, NoPlanFoundError):
            continue
        held = held_by_host(found.plan, workload, system, space.group_size(setup))
        assert (held <= memory * (1 + 1e-9)).all()


def test_a_terabyte_of_tables_is_not_copied_eight_times_into_one_host() -> None:
    """One copy per rank: eight copies of 1 TB on one host of 2 TB do not fit."""
    system = make_topology(1, 8, host=make_host(ddr_capacity_bytes=2e12))
    table = make_table("t0", num_embeddings=9 * 10**8, embedding_dim=256)
    problem = PlanningProblem(
        workload=make_workload(table, batch_size_per_rank=64), topology=system
    )
    group = group_topology(system, 1)
    assert group is not None
    assert group.ddr_capacities()[0] < table.weight_bytes < system.ddr_capacities()[0]
    space = space_of(problem, more={"copies": ("all",)})
    study = Study(space, Effort(evaluations=4, is_grid=True))
    study.run()
    fitting = {r.setup.get("copies") for r in study.results if r.figures is not None}
    assert {r.setup.get("copies") for r in study.results} == {1, 2, 4, 8}
    assert {1} <= fitting <= {1, 2}
