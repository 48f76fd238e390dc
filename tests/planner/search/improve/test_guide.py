"""What the bound rules out: an option goes only if no plan with it can beat the incumbent."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.sharding import ShardingType
from planner.objectives import objective_named
from planner.search.bounds.bound_program import Relaxation, TypeSet, uses
from planner.search.common.linear import LinearModel
from planner.search.improve.ruin import allowed_options
from planner.space.evaluation import SearchSpace
from tests.planner import cases

BOUND = 10.0


@pytest.fixture(scope="module")
def model() -> LinearModel:
    """A small space and the minorant of its objective."""
    space = cases.space(cases.synthetic(4, seed=2), cases.topology(1, 2))
    model = LinearModel(space, objective_named("iteration", space))
    rng = np.random.default_rng(0)
    for row in rng.uniform(0.0, 1e6, (3, space.pool.shape[1])):
        model.add_tangents(row)
    return model


def relaxed(space: SearchSpace, types: TypeSet | None, seed: int = 0) -> Relaxation:
    """With reduced costs from below 0 to a third of the bound."""
    costs = np.random.default_rng(seed).uniform(-1.0, BOUND / 3, len(space.options))
    return Relaxation(types=types, bound=BOUND, reduced_costs=costs)


@pytest.mark.parametrize("incumbent", [10.0, 11.0, 12.5, 13.2])
def test_options_stay_while_their_bound_does_not_exceed_the_incumbent(
    model: LinearModel, incumbent: float
) -> None:
    found = relaxed(model.space, None)
    assert found.reduced_costs is not None
    allowed = allowed_options(model.space, [found], incumbent)
    for option, cost in enumerate(found.reduced_costs):
        assert allowed[option] == (BOUND + max(cost, 0.0) <= incumbent), option


def test_an_option_stays_if_one_set_of_types_allows_it(model: LinearModel) -> None:
    """Sets of sharding types have relaxations of their own; an option is in those with its type."""
    space = model.space
    sets = [frozenset({kind}) for kind in (ShardingType.COLUMN_WISE, ShardingType.ROW_WISE)]
    known = [relaxed(space, types, seed) for seed, types in enumerate(sets)]
    allowed = allowed_options(space, known, 11.5)
    expected = np.zeros(len(space.options), dtype=bool)
    for other in known:
        assert other.reduced_costs is not None
        expected |= uses(other.types, space) & (BOUND + np.maximum(other.reduced_costs, 0) <= 11.5)
    assert allowed.tolist() == expected.tolist()
    assert 0 < allowed.sum() < len(allowed)


def test_where_nothing_is_left_everything_is_tried(model: LinearModel) -> None:
    """An incumbent below the bound, or no reduced costs."""
    found = relaxed(model.space, None)
    assert allowed_options(model.space, [found], 9.5).all()
    bare = Relaxation(types=None, bound=BOUND)
    assert allowed_options(model.space, [bare], 11.0).all()
