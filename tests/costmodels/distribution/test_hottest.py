"""The share of the hottest rank of a table of hashed ids, against simulated placements."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.lookup.base import LookupWork
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, Plan, ShardingType
from tests.lookups import lookup_columns
from tests.planner.cases import first
from tests.strategies import make_placement, make_table, make_topology, make_workload

PLACEMENTS = 200


def drawn_law(seed: int) -> tuple[AbstractIndexDistribution, np.ndarray]:
    """A law that a seed draws, and the probability of each of its rows."""
    rng = np.random.default_rng(seed)
    rows = int(10 ** rng.uniform(2.0, 5.0))
    if seed % 3:
        exponent = float(rng.uniform(0.1, 2.0))
        weight = np.arange(1, rows + 1) ** -exponent
        return Zipf(num_embeddings=rows, exponent=exponent), weight / weight.sum()
    hot = int(rng.integers(1, 40))
    weight = np.r_[np.sort(rng.pareto(1.0, hot) + 1.0)[::-1] * rng.uniform(2, 500), np.ones(rows)]
    weight = weight[:rows] / weight[:rows].sum()
    bins = np.r_[np.ones(hot), rows - hot]
    law = Empirical.from_bins(bins, weight[: hot + 1], rows)
    return law, weight


def share_of_hottest_rank(law: AbstractIndexDistribution, ranks: int) -> float:
    """Of the indices of a table that is cut by rows, in its blocks of rows as they are."""
    topology = make_topology(local_world_size=ranks)
    table = make_table(num_embeddings=law.num_embeddings, distribution=law)
    plan = Plan(placements=(make_placement(table, ShardingType.ROW_WISE, topology),))
    work = CostPipeline(make_workload(table), topology).plan_work(plan)
    indices = work[:, lookup_columns(ComputeKernel.FUSED)][:, LookupWork.INDICES]
    return float(indices.max() / indices.sum())


@pytest.mark.parametrize("seed", first(range(20), 6))
@pytest.mark.parametrize("ranks", [2, 4, 16, 64])
def test_expected_share_of_the_hottest_rank_is_that_of_simulated_placements(
    seed: int, ranks: int
) -> None:
    law, weight = drawn_law(seed)
    rng = np.random.default_rng(1000 + seed)
    starts = np.arange(0, len(weight), -(-len(weight) // ranks))
    largest = [np.add.reduceat(rng.permutation(weight), starts).max() for _ in range(PLACEMENTS)]
    assert share_of_hottest_rank(law, ranks) == pytest.approx(np.mean(largest), rel=0.05)


@pytest.mark.parametrize("parts", [1, 2, 7, 300])
def test_parts_of_a_uniform_law_are_equal(parts: int) -> None:
    assert Uniform(num_embeddings=1000).hottest_share(parts) == pytest.approx(1.0 / parts)
