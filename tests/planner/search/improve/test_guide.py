"""What the bound rules out: an option goes only if no plan with it can beat the incumbent."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.sharding import ShardingType
from planner.objectives import objective_named
from planner.search.bounds.relaxation import Relaxation, TypeSet, uses
from planner.search.common.linear import LinearModel
from planner.search.improve.local_search import guide_of
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
    guide = guide_of(model, found, [found], incumbent)
    for option, cost in enumerate(found.reduced_costs):
        assert guide.allowed[option] == (BOUND + max(cost, 0.0) <= incumbent), option
    assert guide.reduced_costs.tolist() == found.reduced_costs.tolist()


def test_an_option_stays_if_one_set_of_types_allows_it(model: LinearModel) -> None:
    """Sets of sharding types have relaxations of their own; an option is in those with its type."""
    space = model.space
    sets = [frozenset({kind}) for kind in (ShardingType.COLUMN_WISE, ShardingType.ROW_WISE)]
    known = [relaxed(space, types, seed) for seed, types in enumerate(sets)]
    allowed = guide_of(model, known[0], known, 11.5).allowed
    expected = np.zeros(len(space.options), dtype=bool)
    for other in known:
        assert other.reduced_costs is not None
        expected |= uses(other.types, space) & (BOUND + np.maximum(other.reduced_costs, 0) <= 11.5)
    assert allowed.tolist() == expected.tolist()
    assert 0 < allowed.sum() < len(allowed)


def test_options_outside_the_set_cost_more_than_all_inside(model: LinearModel) -> None:
    types = frozenset({ShardingType.COLUMN_WISE})
    found = relaxed(model.space, types)
    inside = uses(types, model.space)
    prices = guide_of(model, found, [found], 11.0).reduced_costs
    assert inside.any()
    assert (~inside).any()
    own = model.mean[:, : model.num_tangents].sum(axis=1)
    apart = float(own.max()) * model.space.num_tables
    assert prices[~inside] == pytest.approx((apart + own)[~inside])


def test_where_nothing_is_left_everything_is_tried(model: LinearModel) -> None:
    """An incumbent below the bound, or no reduced costs: the guide has no say."""
    found = relaxed(model.space, None)
    assert guide_of(model, found, [found], 9.5).allowed.all()
    bare = Relaxation(types=None, bound=BOUND)
    assert guide_of(model, bare, [bare], 11.0).allowed.all()
