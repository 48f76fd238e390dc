"""What is refused before options are listed: never a problem that has a plan, and at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodels.layers.hstu import Hstu
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.workload import DenseArch, Interaction, Workload
from planner import api, load_system
from planner.errors import InfeasibleError, StoppedError
from planner.options.enumeration import enumerate_options, priced
from planner.options.table_limits import refuse_hopeless
from planner.problem import Constraints, Level, MemoryLimit, PlanningProblem, TableConstraint
from tests.planner import cases

K, T = ComputeKernel, ShardingType
MANY = 3_000


def asked(
    workload: Workload, *, hosts: int = 2, local: int = 2, **changes: object
) -> tuple[PlanningProblem, CostPipeline]:
    constraints = Constraints(**changes)  # type: ignore[arg-type]
    topology = constraints.limited(cases.topology(hosts, local, hbm_gib=1, ddr_gib=4))
    problem = PlanningProblem(workload=workload, topology=topology, constraints=constraints)
    return problem, CostPipeline(workload, topology)


def test_a_limit_of_places_that_are_not_there_limits_no_other() -> None:
    topology = cases.topology(2, 2, hbm_gib=1, ddr_gib=4)
    limits = (
        MemoryLimit(most_bytes=5.0, level=Level.RANK, places=(1, 9)),
        MemoryLimit(most_bytes=7.0, level=Level.HOST, places=(2,)),
    )
    limited = Constraints(memory=limits).limited(topology)
    assert limited.hbm_capacities().tolist() == [2.0**30, 5.0, 2.0**30, 2.0**30]
    assert limited.ddr_capacities().tolist() == topology.ddr_capacities().tolist()


def dot_interaction(count: int) -> Workload:
    tables = tuple(cases.table(f"t{i}", rows=100, dim=16) for i in range(count))
    dense = DenseArch(
        num_dense_features=13,
        bottom_mlp=(64, 16),
        top_mlp=(512, 1),
        interaction=Interaction.DOT,
    )
    return replace(cases.workload(tables, reserved=2.0**20), dense=dense)


# ------------------------------------------------------------------ what is said


def test_a_dense_part_that_fills_the_device_is_refused_without_listing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dot interaction of 3,000 features has 4.5 million products: 9 GB of parameters."""

    def listed(*_: object) -> None:
        pytest.fail("options were priced")

    monkeypatch.setattr(CostPipeline, "options_work", listed)
    with pytest.raises(InfeasibleError) as found:
        refuse_hopeless(*asked(dot_interaction(MANY)))
    text = str(found.value)
    assert "the dense part and the reserve alone exceed every device by" in text
    assert "parameters with gradients and state" in text
    assert "1 MiB memory reserve" in text
    assert "the largest device has 1 GiB" in text
    assert any(
        "4,501,500 products" not in line and "cat or dcn" in line for line in found.value.advice
    )
    assert found.value.shortfall_bytes > 0


def test_scores_that_fused_kernels_do_not_write_are_named() -> None:
    layer = Hstu(layers=4, hidden=64, heads=4, seq=4096, before_tables=True)
    dense = DenseArch(num_dense_features=4096 * 64, layers=(layer,))
    workload = Workload(name="w", tables=(cases.table("t"),), batch_size_per_rank=8, dense=dense)
    with pytest.raises(InfeasibleError, match="the dense part and the reserve alone") as found:
        refuse_hopeless(*asked(workload))
    assert any("set fused_attention: true" in line for line in found.value.advice)


def test_a_few_tables_under_a_dot_interaction_are_no_reason() -> None:
    refuse_hopeless(*asked(dot_interaction(20)))


def test_more_bytes_than_all_memories_hold() -> None:
    """4 devices with 1 GiB and 2 hosts with 4 GiB hold 12 GiB; the tables take 19 GiB and state."""
    tables = tuple(cases.table(f"t{i}", rows=5_000_000, dim=128) for i in range(8))
    with pytest.raises(InfeasibleError, match=r"memory is .* short on each of 4 ranks") as found:
        api.solve(asked(cases.workload(tables))[0])
    assert "even with all host memory used" in str(found.value)
    assert found.value.shortfall_bytes > 0


def test_kernels_that_keep_tables_on_devices_leave_the_hosts_out() -> None:
    tables = tuple(cases.table(f"t{i}", rows=1_000_000, dim=128) for i in range(10))
    problem, _ = asked(cases.workload(tables), kernels=(K.FUSED, K.DENSE))
    with pytest.raises(InfeasibleError, match=r"device memory is .* short") as found:
        api.solve(problem)
    assert any("fused_uvm" in line for line in found.value.advice)


def test_a_table_whose_smallest_cut_is_too_large() -> None:
    table = cases.table("big", rows=8_000_000, dim=64)
    whole = TableConstraint(pattern="big", sharding_types=(T.TABLE_WISE,), kernels=(K.FUSED,))
    with pytest.raises(InfeasibleError, match=r"table 'big' exceeds the device memory") as found:
        api.solve(asked(cases.workload((table,)), tables=(whole,))[0])
    assert any("row_wise" in line for line in found.value.advice)
    # Over rows it would fit; copied to every rank it would not.
    copied = replace(whole, sharding_types=(T.DATA_PARALLEL,), kernels=(K.DENSE,))
    with pytest.raises(InfeasibleError):
        api.solve(asked(cases.workload((table,)), tables=(copied,))[0])


def test_a_table_larger_than_any_host() -> None:
    table = cases.table("huge", rows=2 * 10**12, dim=4)
    with pytest.raises(InfeasibleError, match=r"table 'huge' exceeds"):
        api.solve(asked(cases.workload((table,)))[0])


# ------------------------------------------------------------------ listing


def test_listing_says_how_far_it_is_and_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.options.enumeration._AT_ONCE", 40)
    problem, pipeline = asked(cases.synthetic(12))
    told: list[tuple[int, int]] = []
    listing = enumerate_options(problem, pipeline, progress=lambda *now: told.append(now))
    assert told[0] == (0, 12)
    assert told[-1] == (12, 12)
    assert len(told) > 2
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    for table in listing.tables:
        for option, work in zip(table.options, table.works, strict=True):
            np.testing.assert_allclose(
                work.full, pipeline.options_work((option,))[0].full, rtol=1e-12
            )
    answers = iter([False, True])
    with pytest.raises(StoppedError, match=r"listed, \d+ of 12"):
        api.solve(problem, should_stop=lambda: next(answers))
    assert priced(pipeline, []) == []


@pytest.mark.parametrize(("system", "is_advised"), [("h100_sxm", True), ("cpu_gloo", False)])
def test_kernels_that_a_device_does_not_have_are_not_advised(
    system: str, *, is_advised: bool
) -> None:
    """TorchRec runs kernels in host memory as fused ones on CPU ranks, so they free nothing."""
    topology = load_system(system, gpus=2)
    workload = cases.workload((cases.table("large", 10**10, 64),))
    only = (TableConstraint(pattern="*", kernels=(K.FUSED,)),)
    for rules in (Constraints(tables=only), Constraints()):
        with pytest.raises(InfeasibleError) as caught:
            api.plan(workload, topology, constraints=rules, max_evaluations=5)
        words = " ".join(caught.value.advice)
        assert ("allow the kernels" in words) is (is_advised and bool(rules.tables)), words
