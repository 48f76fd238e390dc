"""The learned factor of lookups: what it sees, when it is kept, and that it only corrects."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.lookup_residual import fit_residual
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.errors import InvalidValueError
from costmodels.lookup.base import LookupShard, LookupShards, LookupWork
from costmodels.lookup.residual import Corrected, shards_features
from costmodels.lookup.roofline import Roofline
from costmodels.measured.lookup_residual import NUM_FEATURES, LearnedFactor, LookupResidual
from costmodels.sharding import ComputeKernel
from costmodels.workload import Optimizer
from tests.strategies import make_table, make_topology

TOPOLOGY = make_topology()


def shard(rows: int = 10**6, dim: int = 64, bags: float = 4096, pooling: float = 8) -> LookupShard:
    return LookupShard(
        table=make_table(
            num_embeddings=rows, embedding_dim=dim, distribution=Uniform(num_embeddings=rows)
        ),
        kernel=ComputeKernel.FUSED,
        row_offset=0,
        num_rows=rows,
        num_cols=dim,
        num_indices=bags * pooling,
        num_table_indices=bags * pooling,
        num_bags=bags,
        output_element_bytes=4,
        index_bytes=8,
        optimizer=Optimizer.ROWWISE_ADAGRAD,
        cache_load_factor_ratio=None,
    )


def factor_of(value: float, limit: float = math.log(2.0)) -> LearnedFactor:
    flat = (0.0,) * NUM_FEATURES
    return LearnedFactor(
        center_ratio=flat,
        spread_ratio=(1.0,) * NUM_FEATURES,
        weights_ratio=flat,
        intercept_ratio=math.log(value),
        limit_ratio=limit,
    )


def test_reuse_shares_are_those_of_the_batch() -> None:
    """65,536 draws on 10^6 rows hit almost every row once; on 16 rows each 4,096 times."""
    once = shards_features(LookupShards.of(shard(pooling=16)))[0]
    assert once[6] == pytest.approx(0.97, abs=0.02)
    assert once[6:].sum() == pytest.approx(1.0, abs=1e-6)
    few = shards_features(LookupShards.of(shard(rows=16, pooling=16)))[0]
    assert few[6 + 12 : 6 + 14].sum() == pytest.approx(1.0, abs=1e-3)
    assert few[4] == pytest.approx(math.log(16))
    base = shard()
    skewed = replace(
        base, table=replace(base.table, distribution=Zipf(num_embeddings=10**6, exponent=1.2))
    )
    assert (
        shards_features(LookupShards.of(skewed))[0][5]
        > shards_features(LookupShards.of(base))[0][5]
    )


def test_factors_scale_each_phase_and_work_still_adds_up() -> None:
    plain = Roofline()
    residual = LookupResidual(forward=factor_of(1.5), backward=factor_of(0.8))
    model = Corrected(inner=plain, residual=residual)
    work = plain.shard_work(shard(), TOPOLOGY)
    found = model.shard_work(shard(), TOPOLOGY)
    assert model.forward_time(found, TOPOLOGY) == pytest.approx(
        1.5 * plain.forward_time(work, TOPOLOGY)
    )
    assert model.backward_time(found, TOPOLOGY) == pytest.approx(
        0.8 * plain.backward_time(work, TOPOLOGY)
    )
    only = Corrected(inner=plain, residual=LookupResidual(forward=factor_of(1.5)))
    np.testing.assert_allclose(
        only.shard_work(shard(), TOPOLOGY)[LookupWork.INDICES], work[LookupWork.INDICES]
    )


def test_a_factor_corrects_and_does_not_invent() -> None:
    seen = shards_features(LookupShards.of(shard()))[0]
    assert factor_of(10.0).at(seen) == pytest.approx(2.0)
    assert factor_of(0.01).at(seen) == pytest.approx(0.5)
    with pytest.raises(InvalidValueError, match="numbers of each kind"):
        LearnedFactor(
            center_ratio=(0.0,), spread_ratio=(1.0,), weights_ratio=(0.0,), intercept_ratio=0.0
        )


def points() -> tuple[np.ndarray, list[tuple[int, int]]]:
    seen, tables = [], []
    for rows in (10**4, 10**5, 10**6):
        for dim in (16, 64, 128):
            for bags in (512, 4096, 32768):
                seen.append(
                    shards_features(LookupShards.of(shard(rows=rows, dim=dim, bags=bags)))[0]
                )
                tables.append((rows, dim))
    return np.array(seen), tables


def test_a_factor_is_kept_where_unseen_tables_gain() -> None:
    seen, tables = points()
    pattern = 0.2 * (seen[:, 3] - seen[:, 3].mean()) + 0.1
    fit = fit_residual(seen, pattern, tables)
    assert fit.factor is not None
    assert fit.corrected_ratio < 0.5 * fit.analytic_ratio
    assert fit.factor.at(seen[0]) == pytest.approx(math.exp(pattern[0]), rel=0.1)


def test_noise_teaches_nothing() -> None:
    seen, tables = points()
    fit = fit_residual(seen, np.random.default_rng(3).normal(0.0, 0.1, len(seen)), tables)
    assert fit.factor is None
    assert fit.reason == "does not lower the held-out error"


def test_too_few_tables_are_refused() -> None:
    seen, tables = points()
    fit = fit_residual(seen[:9], np.full(9, 0.3), tables[:9])
    assert fit.factor is None
    assert fit.reason.startswith("needs")
    with pytest.raises(InvalidValueError, match="per point"):
        fit_residual(seen, np.zeros(3), tables)
