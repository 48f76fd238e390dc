"""Which rows and cuts a solution breaks, and what is added to the next program, by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from costmodels.datatypes import FloatArray
from costmodels.sharding import ComputeKernel, ShardingType
from planner.objectives import objective_named
from planner.problem import Constraints, TableConstraint
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.bound_program import RankFreeProgram, type_sets
from planner.search.common.linear import LinearModel
from planner.space.objective import Cut
from tests.planner import cases


def test_rows_are_broken_by_what_is_above_the_limit_and_have_names_of_phases() -> None:
    """Phases 2 and 5 of seven are in use, the first by two tangents; memory counts as phase 7."""
    model = SimpleNamespace(
        used=np.array([2, 5]),
        starts=np.array([0, 2]),
        num_tangents=3,
        phase_index=np.array([0, 0, 1]),
        objective=SimpleNamespace(weights=np.ones(7)),
    )
    builder = cast("Any", SimpleNamespace(model=model))
    broken = RankFreeProgram.broken
    allowed = np.array([1.0, 1.0, 4.0, 100.0, 50.0])
    kept = np.array([[1.0, 0.5, 4.0, 100.0, 0.0], [0.0, 0.0, 0.0, 0.0, 50.0]])
    assert broken(builder, kept, allowed) == set(), "what is just allowed breaks nothing"
    expected = [(2, 0), (2, 1), (5, 0), (7, 0), (7, 1)]
    for row in (0, 1):
        for column, (phase, within) in enumerate(expected):
            above: FloatArray = kept.copy()
            above[row, column] = 1.001 * allowed[column]
            assert broken(builder, above, allowed) == {(row, phase, within)}
    assert len(broken(builder, np.full((2, 5), 101.0), allowed)) == 10


@pytest.mark.parametrize("seed", range(3))
def test_some_rank_has_at_least_the_peaks_of_a_solution(seed: int) -> None:
    """The largest shard of a table beside uniform options, these on each rank, and the mean.

    The devices of the last case are not equally fast.
    """
    system = cases.topology(2, 2)
    system = cases.unequal(system) if seed == 2 else system
    space = cases.space(cases.synthetic(3, seed=seed), system, cases.DEVICE_ONLY)
    model = LinearModel(space, objective_named("phases", space))
    builder = RankFreeProgram(model)
    rng = np.random.default_rng(seed)
    shares = rng.exponential(size=len(space.options))
    shares /= np.add.reduceat(shares, space.first[:-1])[space.table_of]
    size, ranks = model.num_tangents + 2, builder.ranks.tolist()
    slow = cases.slow_phases(space, model)[ranks]
    assert len(ranks) > 1
    per_unit = np.column_stack([model.tangents.T, space.device, space.host])
    base, mean = np.zeros(size), np.zeros(size)
    largest = np.zeros((space.num_tables, size))
    everywhere = np.zeros((len(ranks), size))
    for flat, option in enumerate(space.options):
        loads = (space.pool[space.rows[flat]] @ per_unit).reshape(-1, size)
        mean += shares[flat] * loads.sum(axis=0) / space.world_size
        if option.is_uniform:
            base += shares[flat] * loads.min(axis=0)
            everywhere += shares[flat] * loads[ranks] * slow
        else:
            largest[space.table_of[flat]] += shares[flat] * loads.max(axis=0)
    found = builder.peaks(shares)
    assert found[0] == pytest.approx(largest + base)
    assert found[1] == pytest.approx(everywhere)
    each = np.concatenate([largest + base, everywhere, mean[None]])
    assert found[2] == pytest.approx(each.max(axis=0))
    assert {int(i) for i in each.argmax(axis=0)} != {len(each) - 1}, "not the mean alone"


def test_a_cut_is_added_unless_one_with_its_slopes_is_about_as_high(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cut with other slopes is another path, however high its base is."""
    space = cases.tiny(0)
    bounds = RankFreeBound(LinearModel(space, objective_named("iteration", space)))
    (types, *_) = type_sets(space)
    flat, steep = np.zeros(4), np.arange(4.0)
    peaks = bounds.model.mean.sum(axis=0)

    def added(base: float, slopes: FloatArray) -> bool:
        cut = Cut(base=base, slopes=slopes)
        monkeypatch.setattr(bounds.model, "longer_cut", lambda *_: cut)
        return bounds._add_cut(peaks, 0.0, types)

    assert added(5.0, steep)
    assert not added(5.0, steep)
    assert not added(5.0 * (1 + 1e-7), steep), "no more than solvers tell apart"
    assert added(5.0 * (1 + 1e-3), steep)
    assert added(3.0, flat)
    assert not added(3.0, flat)
    assert [cut.base for cut in bounds.cuts[types]] == [5.0, 5.0 * (1 + 1e-3), 3.0]
    monkeypatch.setattr(bounds.model, "longer_cut", lambda *_: None)
    assert not bounds._add_cut(peaks, 0.0, types)
    assert not bounds._add_cut(peaks, 0.0, None), "all types together have no cuts"


def test_no_phase_of_a_set_that_leaves_a_table_no_option_is_long_enough() -> None:
    """There are no such plans."""
    tables = (cases.table("a"), cases.table("b"))
    rules = Constraints(
        kernels=(ComputeKernel.FUSED,),
        tables=tuple(
            TableConstraint(pattern=table.name, sharding_types=(kind,))
            for table, kind in zip(
                tables, (ShardingType.TABLE_WISE, ShardingType.ROW_WISE), strict=True
            )
        ),
    )
    space = cases.space(cases.workload(tables), cases.topology(1, 2), rules)
    model = LinearModel(space, objective_named("phases", space))
    phase = int(model.used[0])
    bounds = RankFreeBound(model)
    both = frozenset({ShardingType.TABLE_WISE, ShardingType.ROW_WISE})
    assert 0 < bounds.least_phases(both)[phase] < 1.0
    assert math.isinf(bounds.least_phases(frozenset({ShardingType.ROW_WISE}))[phase])
