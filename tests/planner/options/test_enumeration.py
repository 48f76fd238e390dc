"""Options per table: legal, constrained, and nothing that another option replaces."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.workload import Pooling
from planner import load_system
from planner.errors import InvalidInputError
from planner.fit.estimate import on_reference_cores
from planner.options.enumeration import column_splits, enumerate_options
from planner.options.table_limits import TableOptions
from planner.problem import Constraints, PlanningProblem, TableConstraint
from tests.planner import cases

T = ShardingType


def options(
    tables: tuple[object, ...] | None = None,
    *,
    hosts: int = 2,
    local: int = 4,
    hbm_gib: float = 80,
    constraints: Constraints | None = None,
    device: str = "cuda",
) -> tuple[TableOptions, ...]:
    model = cases.workload(tables or (cases.table("a", dim=64), cases.table("b", dim=20)))  # type: ignore[arg-type]
    system = cases.topology(hosts, local, hbm_gib=hbm_gib)
    if device == "cpu":
        cores = on_reference_cores(load_system("cpu_gloo")).measurements
        system = replace(system, calibration="cores", measurements=cores)
    problem = PlanningProblem(
        workload=model, topology=system, constraints=constraints or Constraints()
    )
    return enumerate_options(problem, CostPipeline(model, system)).tables


def cuts(table: TableOptions) -> set[tuple[ShardingType, int]]:
    return {(o.sharding_type, len(o.column_widths)) for o in table.options}


def test_every_number_of_equal_pieces_that_is_a_multiple_of_four() -> None:
    assert [len(w) for w in column_splits(64, 4, 16)] == [1, 2, 4, 8, 16]
    assert [len(w) for w in column_splits(96, 16, 16)] == [1, 2, 3, 4, 6]
    assert [len(w) for w in column_splits(30, 4, 16)] == [1]
    assert list(column_splits(24, 8, 16)) == [(24,), (12, 12), (8, 8, 8)]
    assert list(column_splits(20, 4, 2)) == [(20,)]
    assert list(column_splits(10, 4, 4)) == [(10,)]


def test_types_that_another_replaces_are_left_out() -> None:
    a, _ = options()
    assert cuts(a) == {
        (T.DATA_PARALLEL, 1),
        (T.ROW_WISE, 1),
        *((T.COLUMN_WISE, n) for n in (1, 2, 4, 8)),
        (T.GRID_SHARD, 1),
        (T.GRID_SHARD, 2),
    }
    single_host = options(hosts=1)[0]
    assert T.GRID_SHARD not in {t for t, _ in cuts(single_host)}


def test_they_return_where_constraints_forbid_the_other() -> None:
    limited = Constraints(sharding_types=(T.TABLE_WISE, T.TABLE_COLUMN_WISE, T.TABLE_ROW_WISE))
    a, _ = options(constraints=limited)
    assert cuts(a) == {
        (T.TABLE_WISE, 1),
        (T.TABLE_COLUMN_WISE, 1),
        (T.TABLE_COLUMN_WISE, 2),
        (T.TABLE_COLUMN_WISE, 4),
        (T.TABLE_ROW_WISE, 1),
    }
    only = TableConstraint(pattern="a", sharding_types=(T.TABLE_COLUMN_WISE,))
    assert (T.TABLE_COLUMN_WISE, 1) in cuts(options(constraints=Constraints(tables=(only,)))[0])


def test_host_kernels_appear_when_memory_is_scarce_or_nothing_else_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    big = (cases.table("a", 10_000_000, 64), cases.table("b", 100, 64))
    few = options(big)
    assert ComputeKernel.FUSED_UVM in {o.kernel for o in few[1].options}
    monkeypatch.setattr("planner.options.enumeration._EVERY", 0)
    roomy = options(big)
    assert {o.kernel for o in roomy[0].options} == {ComputeKernel.FUSED, ComputeKernel.DENSE}
    scarce = options(big, hbm_gib=0.6)
    kernels = {o.kernel for o in scarce[0].options}
    assert {ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING} <= kernels
    factors = {o.cache_load_factor_ratio for o in scarce[0].options} - {None}
    assert factors == {0.05, 0.1, 0.2, 0.4}
    assert ComputeKernel.FUSED_UVM not in {o.kernel for o in scarce[1].options}
    rule = TableConstraint(
        pattern="a", kernels=(ComputeKernel.FUSED_UVM_CACHING,), cache_load_factors=(0.3,)
    )
    forced = options(big, constraints=Constraints(tables=(rule,)))[0]
    assert {o.kernel for o in forced.options} == {ComputeKernel.FUSED_UVM_CACHING}
    assert {o.cache_load_factor_ratio for o in forced.options} == {0.3}


def test_rank_and_host_limits_exclude_what_spans_others() -> None:
    rule = TableConstraint(pattern="a", hosts=(1,), min_column_width=16)
    a, b = options(constraints=Constraints(tables=(rule,)))
    assert a.ranks == (4, 5, 6, 7)
    assert a.hosts == (1,)
    assert {t for t, _ in cuts(a)} == {T.COLUMN_WISE, T.GRID_SHARD}
    assert max(n for _, n in cuts(a)) == 4
    assert b.ranks == tuple(range(8))
    pinned = options(constraints=Constraints(tables=(TableConstraint(pattern="a", ranks=(2,)),)))[0]
    assert cuts(pinned) == {(T.COLUMN_WISE, 1), *((T.COLUMN_WISE, n) for n in (2, 4, 8))}


def test_unpooled_and_odd_tables_and_cpu() -> None:
    sequence = replace(cases.table("a"), pooling=Pooling.NONE)
    odd = cases.table("b", dim=10)
    a, b = options((sequence, odd))
    assert T.GRID_SHARD not in {t for t, _ in cuts(a)}
    assert cuts(b) == {(T.DATA_PARALLEL, 1)}
    on_cpu = options(device="cpu", hbm_gib=0.01)[0]
    assert {o.kernel for o in on_cpu.options} <= {ComputeKernel.FUSED, ComputeKernel.DENSE}


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (TableConstraint(pattern="zz*"), "matches no table"),
        (TableConstraint(pattern="a", ranks=(99,)), "outside 0..7"),
        (
            TableConstraint(
                pattern="a", kernels=(ComputeKernel.DENSE,), sharding_types=(T.ROW_WISE,)
            ),
            "'a'",
        ),
        (TableConstraint(pattern="a", ranks=(1,), sharding_types=(T.DATA_PARALLEL,)), "no option"),
    ],
)
def test_constraints_that_leave_nothing_are_refused(rule: TableConstraint, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        options(constraints=Constraints(tables=(rule,)))


def test_all_problems_are_reported_at_once() -> None:
    rules = (TableConstraint(pattern="zz*"), TableConstraint(pattern="a", hosts=(7,)))
    with pytest.raises(InvalidInputError) as caught:
        options(constraints=Constraints(tables=rules))
    assert len(caught.value.problems) >= 2


def test_cores_that_were_never_calibrated_have_no_kernels_of_host_memory_either() -> None:
    """As on the shipped system, whose device memory is so small that they would be listed."""
    model, system = cases.synthetic(6), load_system("cpu_gloo", gpus=2)
    assert not system.calibration
    assert system.compute_device == "cpu"
    problem = PlanningProblem(workload=model, topology=system)
    found = enumerate_options(problem, CostPipeline(model, system), every_kernel=True).tables
    kernels = {option.kernel for table in found for option in table.options}
    assert kernels == {ComputeKernel.FUSED, ComputeKernel.DENSE}


def test_a_table_that_torchrec_cannot_train_is_refused_for_its_columns() -> None:
    """And not for constraints, of which there are none."""
    table = replace(cases.table("a", dim=6), pooling=Pooling.NONE)
    assert options((table,))[0].options
    with pytest.raises(InvalidInputError, match="unpooled tables of 6 columns on CPU cores"):
        options((table,), device="cpu")


def test_cache_sizes_without_one_in_common_are_refused_where_caches_are_allowed() -> None:
    """The caches were left out in silence, as long as another kernel was left."""
    one = TableConstraint(pattern="a", cache_load_factors=(0.2, 0.3))
    other = TableConstraint(pattern="*", cache_load_factors=(0.5,))
    with pytest.raises(
        InvalidInputError, match=r"'a', '\*' name cache_load_factors that have none"
    ):
        options(constraints=Constraints(tables=(one, other)))
    both = replace(other, cache_load_factors=(0.3, 0.5))
    options(constraints=Constraints(tables=(one, both)))
    options(constraints=Constraints(tables=(one, replace(other, kernels=(ComputeKernel.FUSED,)))))
