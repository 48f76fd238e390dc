"""The instances whose costs add up: their loads, and a bound that holds for every plan."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.search.additive import (
    BACKWARD,
    FORWARD,
    HBM,
    INTER,
    INTRA,
    AdditivePhases,
    search,
    space_of,
)
from costmodels.sharding import Spread
from planner.search.auto import Auto
from planner.search.base import Record
from planner.space.evaluation import Assignment, Budget, Evaluator
from tests.planner.cases import first, scheduled

pytestmark = pytest.mark.usefixtures("no_process_beside")


def test_the_value_is_the_sum_of_the_slowest() -> None:
    """Whatever rank is slowest in which phase; the exchange counts twice."""
    work = np.zeros((2, 6))
    work[0, FORWARD], work[1, BACKWARD] = 1.0, 2.0
    work[0, INTRA], work[1, INTER] = 3.0, 4.0
    assert float(AdditivePhases().values(work)) == pytest.approx(1 + 2 + 2 * 4)


def test_column_pieces_share_what_a_table_costs() -> None:
    """Halves hold half the bytes and exchange half the vectors, but compute more in all."""
    space = space_of("26x8")
    first, last = int(space.first[0]), int(space.first[1])
    split = {
        o.num_pieces: space.pool[space.rows[i]]
        for i, o in enumerate(space.options[first:last], first)
        if o.spread is Spread.RANKS and o.cache_load_factor_ratio is None
    }
    one, two = split[1].sum(axis=0), split[2].sum(axis=0)
    # Rows have four bytes of optimizer state each, whatever their width.
    rows = space.problem.workload.tables[0].num_embeddings
    assert two[HBM] == pytest.approx(one[HBM] + 4 * rows)
    assert two[INTRA] == pytest.approx(one[INTRA])
    assert two[FORWARD] > one[FORWARD]


@pytest.mark.parametrize("seed", first(range(3), 1))
def test_no_plan_beats_the_bound(seed: int) -> None:
    """Random plans of an instance too large to enumerate."""
    space = space_of("26x8")
    evaluate = Evaluator(space, AdditivePhases(), Budget(max_evaluations=300))
    with scheduled(second_size=10**9):
        found = Auto().search(Record(evaluate), seed=seed)
    assert found.bound is not None
    rng = np.random.default_rng(seed)
    for _ in range(200):
        options, places = [], []
        for t in range(space.num_tables):
            index = int(rng.integers(space.first[t + 1] - space.first[t]))
            option = space.option(t, index)
            count = 0 if option.spread is Spread.UNIFORM else option.num_pieces
            options.append(index)
            places.append(tuple(int(r) for r in rng.integers(space.world_size, size=count)))
        value = evaluate.value(Assignment(options=tuple(options), places=tuple(places)))
        assert value >= found.bound


@pytest.mark.slow
def test_gaps_of_published_size() -> None:
    """What ``python -m benchmarks.search.additive`` prints: within a few percent of the proof."""
    for case, most in (("26x8", 0.03), ("300x8", 0.002)):
        found = search(space_of(case), 10.0)
        assert found.bound is not None
        assert 1 - found.bound / found.values[0] < most
