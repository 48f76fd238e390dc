"""Proofs on cases small enough for a closed form: pigeonholes, sums, and plans that stay."""

from __future__ import annotations

import pytest

from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.topology import Topology
from costmodels.units import format_bytes
from costmodels.workload import Table
from planner.errors import InfeasibleError
from planner.options.enumeration import enumerate_options
from planner.problem import Constraints, PlanningProblem
from planner.search.bounds.feasibility import least_excess_bytes, require_feasible
from planner.search.bounds.makespan import Makespan
from planner.space.evaluation import SearchSpace
from tests.planner import cases
from tests.planner.fullest_device import FullestDevice

FUSED = (ComputeKernel.FUSED,)
UVM = (ComputeKernel.FUSED_UVM,)
WHOLE = (ShardingType.TABLE_WISE,)


def alike(count: int, *, rows: int = 1_000_000) -> tuple[Table, ...]:
    return tuple(cases.table(f"t{i}", rows, 64) for i in range(count))


def space_of(
    tables: tuple[Table, ...],
    system: Topology,
    *,
    kinds: tuple[ShardingType, ...] = WHOLE,
    kernels: tuple[ComputeKernel, ...] = FUSED,
    device_bytes: float = 1e15,
    host_bytes: float = 1e15,
) -> SearchSpace:
    """Of whole tables in device memory, unless told otherwise, with so many bytes of memory."""
    problem = PlanningProblem(
        workload=cases.workload(tables),
        topology=system,
        constraints=Constraints(sharding_types=kinds, kernels=kernels),
    )
    pipeline = CostPipeline(problem.workload, system)
    pipeline.device_limits[:] = device_bytes
    pipeline.host_limits[:] = host_bytes
    return SearchSpace(problem, pipeline, enumerate_options(problem, pipeline))


def each_bytes(
    ranks: int = 2, kernels: tuple[ComputeKernel, ...] = FUSED, tables: tuple[Table, ...] = ()
) -> float:
    """Device or host bytes of the largest of the tables, on so many ranks of a host.

    Its buffers depend on the other tables: all together use the room that activations leave.
    """
    space = space_of(tables or alike(1), cases.topology(1, ranks), kernels=kernels)
    memory = space.host if kernels == UVM else space.device
    return float((space.pool @ memory).max())


def shortfall(space: SearchSpace) -> tuple[float, str]:
    with pytest.raises(InfeasibleError) as caught:
        require_feasible(space)
    return caught.value.shortfall_bytes, str(caught.value)


# ------------------------------------------------------------------ memory


def test_a_table_larger_than_a_device() -> None:
    each = each_bytes()
    lacks, told = shortfall(space_of(alike(1), cases.topology(1, 2), device_bytes=0.75 * each))
    assert lacks == pytest.approx(0.25 * each, rel=1e-6)
    assert "table 't0' exceeds the device memory" in told
    assert "host memory" not in told.partition(" in the best")[0]
    require_feasible(space_of(alike(1), cases.topology(1, 2), device_bytes=1.0001 * each))


def test_a_table_larger_than_a_host() -> None:
    """Its shortfall is told per rank, of which the host has two."""
    each = each_bytes(kernels=UVM)
    given = {"kernels": UVM, "host_bytes": 0.75 * each}
    lacks, told = shortfall(space_of(alike(1), cases.topology(1, 2), **given))  # type: ignore[arg-type]
    assert lacks == pytest.approx(0.25 * each / 2, rel=1e-6)
    assert "exceeds the host memory of an empty host" in told
    assert "add host memory" not in told


@pytest.mark.parametrize(
    ("count", "ranks", "room", "lacks", "words"),
    [
        (3, 2, 1.4, 0.1, "device memory is"),  # 3 of 2.8
        (3, 2, 1.6, 0.4, "3 tables put"),  # two of three share a rank
        (3, 2, 2.0, None, ""),
        (2, 2, 1.0, None, ""),  # what just fits is no more than there is
        (4, 2, 2.0, None, ""),
        (450, 2, 1.0, 224.0, "device memory is"),
        (5, 2, 2.6, 0.4, "5 tables put"),  # three of five
        (5, 2, 3.0, None, ""),
        (4, 3, 1.5, 0.5, "4 tables put"),
        (7, 3, 2.4, 0.6, "7 tables put"),
        (17, 2, 8.6, 0.4, "17 tables put"),
        (19, 2, 9.6, None, ""),  # ten on one rank, which is more than are counted
    ],
)
def test_pigeonholes(count: int, ranks: int, room: float, lacks: float | None, words: str) -> None:
    each = each_bytes(ranks, tables=alike(count))
    space = space_of(alike(count), cases.topology(1, ranks), device_bytes=room * each)
    if lacks is None:
        require_feasible(space)
        return
    found, told = shortfall(space)
    assert found == pytest.approx(lacks * each, rel=1e-6)
    assert words in told


def test_the_smallest_of_those_that_meet_counts() -> None:
    """The third largest of three on two ranks meets one no smaller than itself."""
    tables = (*alike(2), cases.table("s", 600_000, 64))
    large = each_bytes(tables=tables)
    small = float((space_of(tables, cases.topology(1, 2)).pool_device).min())
    space = space_of(tables, cases.topology(1, 2), device_bytes=1.4 * large)
    require_feasible(space)  # twice 0.6 is below 1.4: not proven, though no plan fits
    space = space_of(tables, cases.topology(1, 2), device_bytes=1.1 * large)
    # all three together, 2.6, are more than 2.2
    assert shortfall(space)[0] == pytest.approx((2 * large + small) / 2 - 1.1 * large, rel=1e-6)


def test_hosts_that_are_too_small_in_all() -> None:
    each = each_bytes(kernels=UVM)
    space = space_of(alike(3), cases.topology(2, 2), kernels=UVM, host_bytes=1.2 * each)
    lacks, told = shortfall(space)
    assert "host memory is" in told
    assert lacks == pytest.approx((3 - 2.4) * each / 4, rel=1e-6)
    assert f"short on each of 2 hosts, which have {format_bytes(1.2 * each)}" in told
    require_feasible(space_of(alike(3), cases.topology(2, 2), kernels=UVM, host_bytes=1.51 * each))
    require_feasible(space_of(alike(4), cases.topology(2, 2), kernels=UVM, host_bytes=2 * each))


def test_devices_and_hosts_together_are_too_small() -> None:
    """Each device has room for one of four tables, and the host for another one."""
    space = space_of(
        alike(4),
        cases.topology(1, 2),
        kernels=(*FUSED, *UVM),
        device_bytes=1.0001 * each_bytes(tables=alike(4)),
        host_bytes=1.0001 * each_bytes(kernels=UVM),
    )
    lacks, told = shortfall(space)
    assert "even with all host memory used" in told
    assert lacks == pytest.approx(each_bytes() / 2, rel=0.02)


def test_advice_names_what_is_not_yet_allowed() -> None:
    each = each_bytes()

    def advice(**more: object) -> str:
        given = {"device_bytes": 0.5 * each, "host_bytes": 0.5 * each_bytes(kernels=UVM), **more}
        with pytest.raises(InfeasibleError) as caught:
            require_feasible(space_of(alike(3), cases.topology(1, 2), **given))  # type: ignore[arg-type]
        return " | ".join(caught.value.advice)

    plain = advice()
    for words in ("fused_uvm", "allow row_wise", "allow column_wise", "use more GPUs"):
        assert words in plain
    assert "add host memory" not in plain
    hosts = advice(kernels=(*FUSED, *UVM))
    assert "add host memory" in hosts
    assert "allow the kernels" not in hosts
    rows = advice(kinds=(*WHOLE, ShardingType.ROW_WISE))
    assert "allow row_wise" not in rows
    assert "allow column_wise" in rows
    columns = advice(kinds=(*WHOLE, ShardingType.COLUMN_WISE))
    assert "allow column_wise" not in columns


def test_the_least_excess_is_that_of_the_fullest_rank() -> None:
    each = each_bytes(tables=alike(3))
    for room, excess in ((1.5, 0.5), (1.9, 0.1), (2.0, 0.0), (9.0, 0.0)):
        space = space_of(alike(3), cases.topology(1, 2), device_bytes=room * each)
        found = least_excess_bytes(space)
        assert found == pytest.approx(excess * each, rel=1e-6, abs=1e-6)
    host = each_bytes(kernels=UVM)
    space = space_of(alike(3), cases.topology(1, 2), kernels=UVM, host_bytes=2.5 * host)
    assert least_excess_bytes(space) == pytest.approx(0.5 * host / 2, rel=1e-6)


# ------------------------------------------------------------------ how shards share ranks


@pytest.mark.parametrize(
    ("rows", "ranks", "most"),
    [
        ((10, 10, 10), 2, 20),
        ((10, 10, 10, 10, 10), 2, 30),
        ((10,) * 7, 3, 30),
        ((6, 6, 6, 4, 4), 3, 10),
        ((7, 5, 5, 4, 4), 2, 13),  # 25 in all; 12.5 cannot be had
        ((10, 3, 3), 2, 10),
        ((9, 1), 1, 10),
    ],
)
def test_whole_shards_on_few_ranks(rows: tuple[int, ...], ranks: int, most: int) -> None:
    """The fullest device: bytes are as rows are."""
    tables = tuple(cases.table(f"t{i}", 10_000_000 * n, 64) for i, n in enumerate(rows))
    space = space_of(tables, cases.topology(1, ranks))
    best = cases.least_value(space, FullestDevice(space))
    one = float((space_of(alike(1, rows=10_000_000), cases.topology(1, ranks)).pool_device).max())
    assert best == pytest.approx(most * one, rel=1e-3)
    found = Makespan(space, space.device).bound(0.3 * best, 1.7 * best, lambda: False)
    assert (1 - 4e-3) * best < found.bound <= best * (1 + 1e-9)
    assert found.choices, "a choice of options that the plan itself has is never ruled out"
    assert not Makespan(space, space.device).bound(0.3 * best, 1.7 * best, lambda: True).choices


def test_rows_on_every_rank_add_up() -> None:
    """Row-wise tables load every rank: nothing to pack, and the sum is the bound."""
    for kinds, count in (((ShardingType.ROW_WISE,), 3), ((*WHOLE, ShardingType.ROW_WISE), 4)):
        space = space_of(alike(count), cases.topology(1, 3), kinds=kinds)
        best = cases.least_value(space, FullestDevice(space))
        found = Makespan(space, space.device).bound(0.3 * best, 1.7 * best, lambda: False)
        assert (1 - 4e-3) * best < found.bound <= best * (1 + 1e-9)
