"""Caches that know the next batches: what they hold and miss, against a simulation."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from costmodels.distribution.laws import Laws
from costmodels.distribution.zipf import Zipf
from costmodels.errors import InvalidValueError
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, Plan, ShardingType
from costmodels.workload import Pipeline, Workload
from planner import io
from planner.errors import InvalidInputError
from tests.strategies import make_placement, make_table, make_topology, make_workload

ROWS, INDICES = 5000, 400
LAW = Zipf(num_embeddings=ROWS, exponent=1.05)
FIRST, COUNT = np.zeros(1, dtype=np.int64), np.array([float(INDICES)])


def simulated(batches: int, steps: int = 400) -> tuple[float, float]:
    """Rows fetched per batch, and rows held that it does not use, where rows needed soon stay."""
    rows, probability = LAW.frequency_bins()
    each = np.repeat(probability, rows.astype(int))
    rng, uses = np.random.default_rng(0), defaultdict(list)
    for step in range(steps):
        for row in set(rng.choice(len(each), size=INDICES, p=each / each.sum()).tolist()):
            uses[row].append(step)
    begin, end = batches + 1, steps - batches - 1
    gaps = [(a, b) for seen in uses.values() for a, b in pairwise([-steps, *seen])]
    before, at = np.array(gaps).T
    fetched = int(((begin <= at) & (at < end) & (at - before > batches)).sum())
    near = at <= before + batches
    held = [int((near & (before < t) & (t < at)).sum()) for t in range(begin, end, 7)]
    return fetched / (end - begin), float(np.mean(held))


@pytest.mark.parametrize("batches", [1, 2, 4, 12])
def test_what_is_held_and_missed_is_as_simulated(batches: int) -> None:
    fetched, held = simulated(batches)
    laws = Laws((LAW,))
    draws = laws.lookahead_draws(FIRST, COUNT, np.array([float(ROWS)]), batches).item()
    assert draws == pytest.approx(batches * INDICES)
    bins = laws._bins[0]
    kept, coming = bins.kept(draws, INDICES), laws.unique_rows(FIRST, COUNT).item()
    assert kept == pytest.approx(held, rel=0.04, abs=1e-6)
    fits = np.array([kept + coming + 1.0])
    missed = laws.expected_unique_misses(FIRST, COUNT, fits, batches).item()
    assert missed <= 1.05 * fetched
    assert missed <= laws.expected_unique_misses(FIRST, COUNT, fits).item()
    touched = bins.rows * bins.touched(float(INDICES))
    assert touched @ np.exp(-draws * bins.probability) == pytest.approx(fetched, rel=0.05)
    half = laws.lookahead_draws(FIRST, COUNT, np.array([coming + 0.5 * kept]), batches).item()
    assert bins.kept(half, INDICES) == pytest.approx(0.5 * kept, abs=1e-6)
    assert laws.lookahead_draws(FIRST, COUNT, np.array([0.5 * coming]), batches).item() < 1.0


def test_hot_rows_and_a_cache_with_hardly_any_room_overflow_nothing() -> None:
    """Fewer draws than those of one batch are tried here, of a row that has thousands of them."""
    laws, count = Laws((Zipf(num_embeddings=100_000, exponent=1.2),)), np.array([50_000.0])
    coming = laws.unique_rows(FIRST, count)
    for room, least, most in ((-0.5, 0.0, 1e-9), (0.05, 1.0, 2.0)):
        draws = laws.lookahead_draws(FIRST, count, coming * (1.0 + room), 8) / count
        assert least <= draws.item() <= most
    assert laws._bins[0].kept(1.0, 50_000.0) == 0.0


def cached(batches: int) -> tuple[Workload, CostPipeline, Plan]:
    table = make_table(num_embeddings=10**6)
    topology = make_topology(local_world_size=2)
    workload = make_workload(
        table, batch_size_per_rank=4096, pipeline=Pipeline.LOOKAHEAD, lookahead_batches=batches
    )
    placement = make_placement(
        table,
        ShardingType.TABLE_WISE,
        topology,
        kernel=ComputeKernel.FUSED_UVM_CACHING,
        cache_load_factor_ratio=0.05,
    )
    return workload, CostPipeline(workload, topology), Plan(placements=(placement,))


def test_the_further_ahead_the_less_is_fetched_and_the_more_ids_are_held() -> None:
    fetched, held = [], []
    for batches in (0, 1, 2, 64):
        _, pipeline, plan = cached(batches)
        work = pipeline.plan_work(plan)
        fetched.append(float(pipeline.stage_times(work).cache_fetch_s.max()))
        held.append(pipeline.memory(plan).ranks[0].buffers_bytes)
    assert fetched == sorted(fetched, reverse=True)
    assert fetched[-1] < fetched[0]
    assert held == sorted(held)
    assert held[1] > held[0]
    told = pipeline.estimate(plan).warnings
    assert any("no counterpart in TorchRec" in w for w in told)


def test_it_is_refused_where_it_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="lookahead 8 needs pipeline lookahead"):
        make_workload(lookahead_batches=8)
    text = "name: a\ntraining: {batch_size_per_rank: 64, pipeline: lookahead}\n"
    text += "tables: [{name: t, num_embeddings: 1000, embedding_dim: 16}]\n"
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match="pipeline lookahead needs lookahead"):
        io.load_workload(path)
    path.write_text(text.replace("lookahead}", "lookahead, lookahead: 8}"))
    assert io.load_workload(path).lookahead_batches == 8
