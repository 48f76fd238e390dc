"""Where an explanation puts a table, and what it leaves out of the constraints: worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from costmodels.sharding import ComputeKernel, Plan, ShardingType
from planner.explain.explainer import Explainer, OptionCost, _with_more_memory, relaxed
from planner.problem import (
    Constraints,
    CountLimit,
    Level,
    MemoryLimit,
    PlanningProblem,
    TableConstraint,
    TableGroup,
)
from planner.rules.placement_rules import rules_on, table_words
from tests.planner import cases
from tests.strategies import make_placement

GIB_ROWS = 2**30 // (64 * 4 + 4)
"""Rows of 64 columns and one element of state that fill 1 GiB."""
WHOLE = Constraints(kernels=(ComputeKernel.FUSED,), sharding_types=(ShardingType.TABLE_WISE,))


def placed_anew(
    sizes: dict[str, tuple[float, float, int]], *, num_ranks: int, rules: Constraints = WHOLE
) -> tuple[OptionCost, ...]:
    """The options of the first table, its own and table-wise unless rules allow more.

    ``sizes`` are GiB, pooling factor and rank of each table.

    The first table is cut by columns, so that table-wise is another option than its own.
    """
    tables = tuple(
        cases.table(name, int(gib * GIB_ROWS), 64, pooling)
        for name, (gib, pooling, _) in sizes.items()
    )
    topology = cases.topology(1, num_ranks, hbm_gib=8)
    first, *others = tables
    halves = make_placement(
        *(first, ShardingType.COLUMN_WISE, topology),
        where=(0, 1),
        column_widths=(32, 32),
    )
    whole = (
        make_placement(t, ShardingType.TABLE_WISE, topology, where=(sizes[t.name][2],))
        for t in others
    )
    problem = PlanningProblem(
        workload=cases.workload(tables, batch=16_384), topology=topology, constraints=rules
    )
    return Explainer(problem, Plan(placements=(halves, *whole))).table(first.name).options


def test_a_table_goes_where_it_fits_and_the_plan_is_fastest() -> None:
    """Rank 0 is busy and rank 2 is full."""
    sizes = {"t": (0.5, 5.0, 0), "busy": (0.5, 200.0, 0), "full": (7.7, 0.001, 2)}
    option, _ = placed_anew(sizes, num_ranks=3)
    assert not option.is_chosen
    assert option.placement.ranks == (1,)
    assert option.plan_time_s < math.inf


def test_a_table_that_fits_nowhere_goes_to_the_emptiest_rank_and_has_no_time() -> None:
    """8 GiB each: 3 more overflow the second by less than the first."""
    sizes = {"t": (3.0, 5.0, 0), "fuller": (6.4, 1.0, 0), "emptier": (5.6, 1.0, 1)}
    own, option = placed_anew(sizes, num_ranks=2)
    assert own.is_chosen, "what fits comes first"
    assert option.placement.ranks == (1,)
    assert option.plan_time_s == math.inf


def test_what_fits_nowhere_goes_to_the_emptiest_rank_beside_options_that_fit() -> None:
    """Whole, it overflows all ranks; in halves it fits, and is priced together with the whole."""
    sizes = {
        "t": (3.0, 5.0, 0),
        **{"fuller": (6.4, 1.0, 0), "emptier": (5.6, 1.0, 1), "full": (6.2, 1.0, 2)},
    }
    types = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)
    options = placed_anew(sizes, num_ranks=3, rules=replace(WHOLE, sharding_types=types))
    fitting = [o for o in options if o.plan_time_s < math.inf]
    assert len(fitting) > 1
    (whole,) = (o for o in options if len(o.placement.shards) == 1)
    assert whole.placement.ranks == (1,)
    assert whole.plan_time_s == math.inf


def test_each_constraint_is_dropped_alone_and_named() -> None:
    tables = (
        TableConstraint(pattern="a", ranks=(1, 2)),
        TableConstraint(
            pattern="b", hosts=(0,), min_column_width=8, cache_load_factors=(0.05, 0.2)
        ),
    )
    given = Constraints(
        tables=tables,
        together=(TableGroup(patterns=("a", "b")),),
        apart=(TableGroup(patterns=("c",)), TableGroup(patterns=("d", "e"))),
        counts=(CountLimit(most=3, patterns=("x*",)),),
        memory=(MemoryLimit(most_bytes=1e9, level=Level.RANK),),
    )
    found = dict(relaxed(given))
    assert list(found) == [
        "a: ranks 1, 2",
        "b: hosts 0; cached 0.05, 0.2; columns >= 8",
        "together [a, b] on one rank",
        "apart [c] on different ranks",
        "apart [d, e] on different ranks",
        "max_tables_per_rank 3 of [x*]",
        "device_memory 954 MiB",
    ]
    assert found["a: ranks 1, 2"] == replace(given, tables=tables[1:])
    assert found["b: hosts 0; cached 0.05, 0.2; columns >= 8"] == replace(given, tables=tables[:1])
    assert found["together [a, b] on one rank"] == replace(given, together=())
    assert found["apart [c] on different ranks"] == replace(given, apart=given.apart[1:])
    assert found["apart [d, e] on different ranks"] == replace(given, apart=given.apart[:1])
    assert found["max_tables_per_rank 3 of [x*]"] == replace(given, counts=())
    assert found["device_memory 954 MiB"] == replace(given, memory=())


@pytest.mark.parametrize(("width", "told"), [(4, "a: ranks 0"), (5, "a: ranks 0; columns >= 5")])
def test_the_usual_least_width_is_not_told(width: int, told: str) -> None:
    rule = TableConstraint(pattern="a", ranks=(0,), min_column_width=width)
    assert table_words(rule) == told


def test_one_gib_more_is_for_every_rank() -> None:
    even = cases.topology(1, 2, hbm_gib=8)
    assert _with_more_memory(even).hbm_capacities().tolist() == [9 * cases.GIB] * 2
    uneven = replace(even, hbm_capacity_by_rank_bytes=(8.0 * cases.GIB, 4.0 * cases.GIB))
    found = _with_more_memory(uneven).hbm_capacities().tolist()
    assert found == [9 * cases.GIB, 5 * cases.GIB]


def test_a_limit_on_memory_is_widened_with_the_devices() -> None:
    """Otherwise one GiB more per rank would be a GiB that no table may use."""
    limit = MemoryLimit(most_bytes=2.0 * cases.GIB, level=Level.RANK)
    limited = Constraints(memory=(limit,)).limited(cases.topology(1, 2, hbm_gib=8))
    assert _with_more_memory(limited).hbm_capacities().tolist() == [3 * cases.GIB] * 2


def test_rules_for_all_tables_are_named_and_dropped_too() -> None:
    every = Constraints(
        sharding_types=tuple(t for t in ShardingType if t is not ShardingType.GRID_SHARD),
        kernels=(ComputeKernel.FUSED,),
        memory=(MemoryLimit(most_bytes=2.0**30, level=Level.HOST, places=(1, 2)),),
    )
    found = dict(relaxed(every))
    assert list(found) == [
        "all tables: not grid_shard",
        "all tables: fused",
        "host_memory 1 GiB on hosts 1, 2",
    ]
    assert rules_on("any", every) == tuple(found)
    assert found["all tables: fused"] == replace(every, kernels=tuple(ComputeKernel))
    assert found["all tables: not grid_shard"] == replace(every, sharding_types=tuple(ShardingType))


def test_equal_rules_are_dropped_one_at_a_time() -> None:
    rule = CountLimit(most=3)
    given = Constraints(counts=(rule, rule))
    assert [left.counts for _, left in relaxed(given)] == [(rule,), (rule,)]


def test_a_rule_that_says_the_usual_width_alone_is_named_by_it() -> None:
    assert table_words(TableConstraint(pattern="a", min_column_width=4)) == "a: columns >= 4"
