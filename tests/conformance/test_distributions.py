"""What every index distribution must satisfy; new files in the folder are tested at once."""

from __future__ import annotations

import itertools
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodels.distribution
from costmodels import discovery
from costmodels.datatypes import FloatArray
from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from tests.conformance.instances import laws
from tests.index_laws import (
    characteristic_draws,
    expected_misses,
    range_share,
    unique_rows_in_range,
)


def all_laws(rows: int, *, scattered: bool = True) -> list[AbstractIndexDistribution]:
    return [law for found in laws(rows, scattered=scattered).values() for law in found]


def test_every_file_is_covered() -> None:
    found = set(discovery.names(costmodels.distribution))
    assert found == set(laws(10)), "give the new distribution laws in instances.py"
    for name, examples in laws(10).items():
        kind = discovery.load(costmodels.distribution, name, AbstractIndexDistribution)
        assert examples
        assert all(type(law) is kind for law in examples)


def exact(law: AbstractIndexDistribution) -> FloatArray:
    """The law spelled out, one probability per row: from its definition where it has one."""
    if isinstance(law, Zipf):
        rank = np.arange(1, law.num_embeddings + 1, dtype=float)
        weight = np.exp(-law.exponent * np.log((rank + law.shift) / (1 + law.shift)))
        tuples = np.repeat(weight / weight.sum() / law.ids_per_draw, law.ids_per_draw)
        kept = tuples[: law.num_embeddings]
        return np.asarray(kept + (1.0 - kept.sum()) / law.num_embeddings)
    rows, probability = law.frequency_bins()
    return np.repeat(probability, rows.astype(int))


SIZES = [1, 2, 37, 512, 513, 600, 5_000, 100_000]


@pytest.mark.parametrize("rows", [*SIZES, 10**9, 2**48])
def test_bins_cover_the_table_hottest_first(rows: int) -> None:
    for law in all_laws(rows):
        count, probability = law.frequency_bins()
        assert count.sum() == pytest.approx(rows, rel=1e-12)
        assert count @ probability == pytest.approx(1.0, rel=1e-12)
        assert np.all(np.diff(probability) <= 1e-12 * probability[:-1])
        assert np.all(count >= 0)
        assert np.all(probability >= 0)


# ------------------------------------------------------------------ unique rows


@pytest.mark.parametrize("rows", SIZES)
def test_unique_rows_equal_the_sum_over_ranks(rows: int) -> None:
    draws = np.array([1, 10, 1_000, 30_000, 1_000_000])
    for law in all_laws(rows):
        with np.errstate(divide="ignore"):
            stay = np.log1p(-exact(law))
        for n in draws:
            expected = -np.expm1(n * stay).sum()
            assert law.expected_unique_rows(n) == pytest.approx(expected, rel=1e-4)


@given(st.integers(1, 10**9), st.floats(1e-3, 1e12), st.floats(1.0, 100.0))
def test_unique_rows_are_bounded_and_monotone(rows: int, draws: float, factor: float) -> None:
    for law in all_laws(rows):
        unique = law.expected_unique_rows(draws)
        assert min(1.0, draws) * (1 - 1e-9) <= unique <= min(draws, rows) * (1 + 1e-9)
        assert unique <= law.expected_unique_rows(draws * factor) * (1 + 1e-12)
        assert law.expected_unique_rows(0) == 0


@pytest.mark.parametrize("rows", [50, 3_000])
def test_unique_rows_match_a_draw(rows: int) -> None:
    rng = np.random.default_rng(1)
    draws, repeats = 2_000, 40
    for law in all_laws(rows):
        ids = rng.choice(rows, size=(repeats, draws), p=exact(law))
        seen = np.array([len(np.unique(batch)) for batch in ids])
        error = max(seen.std(ddof=1), 0.5) / np.sqrt(repeats)
        assert abs(law.expected_unique_rows(draws) - seen.mean()) < 4 * error


def test_skew_means_fewer_unique_rows() -> None:
    for rows in (100, 10_000, 10**8):
        uniform = Uniform(num_embeddings=rows)
        for law in all_laws(rows):
            for draws in (10, 1e4, 1e7):
                unique, most = law.expected_unique_rows(draws), uniform.expected_unique_rows(draws)
                assert unique <= most * (1 + 1e-9)


# ------------------------------------------------------------------ shares


@given(st.integers(1, 10**7), st.lists(st.floats(0, 1), min_size=2, max_size=8).map(sorted))
def test_access_shares_rise_from_0_to_1(rows: int, places: list[float]) -> None:
    for law in all_laws(rows):
        shares = [law.access_share(p * rows) for p in places]
        assert law.access_share(0) == 0
        assert law.access_share(rows) == pytest.approx(1, rel=1e-12)
        assert shares == sorted(shares)
        assert all(s >= p - 1e-9 for s, p in zip(shares, places, strict=True))


@pytest.mark.parametrize("scattered", [True, False])
@given(rows=st.integers(1, 10**6), data=st.data())
def test_any_partition_shares_all_accesses(rows: int, scattered: bool, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, rows), max_size=6).map(sorted))
    edges = [0, *cuts, rows]
    parts = [(a, b - a) for a, b in itertools.pairwise(edges)]
    draws = data.draw(st.sampled_from([0.5, 100.0, 1e6]))
    for law in all_laws(rows, scattered=scattered):
        shares = [range_share(law, *part) for part in parts]
        assert all(-1e-12 <= s <= 1 + 1e-12 for s in shares)
        assert sum(shares) == pytest.approx(1, rel=1e-9)
        inside = sum(law.range_rows(*part) for part in parts)
        np.testing.assert_allclose(inside, law.frequency_bins()[0], rtol=1e-9, atol=1e-9)
        unique = [unique_rows_in_range(law, draws, *part) for part in parts]
        assert sum(unique) == pytest.approx(law.expected_unique_rows(draws), rel=1e-9)
        for u, (_, size) in zip(unique, parts, strict=True):
            assert 0 <= u <= size * (1 + 1e-9)


def test_ordered_ids_put_the_heat_first() -> None:
    for rows in (1000, 10**6):
        for law in all_laws(rows, scattered=False):
            first, last = (
                range_share(law, 0, rows // 10),
                range_share(law, rows - rows // 10, rows // 10),
            )
            assert first >= last * (1 - 1e-9)
            p = exact(law)
            assert first == pytest.approx(p[: rows // 10].sum(), rel=1e-4)


# ------------------------------------------------------------------ caches


@given(st.integers(1, 10**8), st.lists(st.floats(0, 1.5), min_size=2, max_size=8).map(sorted))
def test_caches_forget_later_and_hit_more_when_larger(rows: int, places: list[float]) -> None:
    for law in all_laws(rows):
        draws = [characteristic_draws(law, p * rows) for p in places]
        hits = [law.hit_ratio(p * rows) for p in places]
        assert all(b >= a * (1 - 1e-12) for a, b in itertools.pairwise(draws))
        assert all(b >= a - 1e-12 for a, b in itertools.pairwise(hits))
        assert all(0 <= h <= 1 for h in hits)


@pytest.mark.parametrize("rows", SIZES)
def test_caches_of_everything_and_of_nothing(rows: int) -> None:
    for law in all_laws(rows):
        assert characteristic_draws(law, rows) == np.inf
        assert law.hit_ratio(rows) == 1
        assert law.expected_unique_misses(1000, rows) == 0
        assert expected_misses(law, 1000, rows) == law.expected_unique_rows(1000)
        assert characteristic_draws(law, 0) == 0
        assert law.hit_ratio(0) == 0
        assert expected_misses(law, 1000, 0) == pytest.approx(1000)
        unique = law.expected_unique_rows(1000)
        assert law.expected_unique_misses(1000, 0) == pytest.approx(unique, rel=1e-9)


@given(st.integers(2, 10**8), st.floats(1, 1e9), st.floats(0, 1.2))
def test_misses_lie_between_unique_rows_and_draws(rows: int, draws: float, place: float) -> None:
    for law in all_laws(rows):
        unique = law.expected_unique_rows(draws)
        misses = expected_misses(law, draws, place * rows)
        assert unique * (1 - 1e-9) <= misses <= draws * (1 + 1e-9)
        assert misses <= expected_misses(law, draws * 1.1, place * rows) * (1 + 1e-9)
        assert expected_misses(law, draws, place * rows * 1.1) <= misses * (1 + 2e-2)
        held = law.expected_unique_misses(draws, place * rows)
        assert -1e-9 <= held <= unique * (1 + 1e-9)


def lru_misses(ids: FloatArray, size: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether each draw misses a cache of ``size`` rows that is empty at first."""
    cache: OrderedDict[int, None] = OrderedDict()
    missed = np.zeros(len(ids), dtype=bool)
    for i, row in enumerate(ids.tolist()):
        if row in cache:
            cache.move_to_end(row)
            continue
        missed[i] = True
        cache[row] = None
        if len(cache) > size:
            cache.popitem(last=False)
    return missed


@pytest.mark.parametrize("size", [20, 200, 1_000])
def test_cold_misses_match_a_simulated_lru_cache(size: int) -> None:
    rng = np.random.default_rng(2)
    rows, draws = 2_000, 20_000
    for law in all_laws(rows):
        missed = lru_misses(rng.choice(rows, size=draws, p=exact(law)), size)
        for n in (draws // 10, draws):
            expected = missed[:n].sum()
            assert expected_misses(law, n, size) == pytest.approx(expected, rel=0.05, abs=60)


@pytest.mark.parametrize("size", [20, 200, 1_000])
def test_unique_misses_of_a_batch_match_a_simulated_warm_cache(size: int) -> None:
    rng = np.random.default_rng(3)
    rows, batch, batches = 2_000, 1_500, 12
    warm = [w for w in all_laws(rows) if characteristic_draws(w, size) < 10 * batch]
    assert len(warm) > 3
    for law in warm:
        ids = rng.choice(rows, size=(batches + 10, batch), p=exact(law))
        held: OrderedDict[int, None] = OrderedDict()
        counts = []
        for k, drawn in enumerate(ids):
            if k >= 10:
                counts.append(len(set(drawn.tolist()) - set(held)))
            for row in drawn.tolist():
                held[row] = None
                held.move_to_end(row)
                if len(held) > size:
                    held.popitem(last=False)
        expected = law.expected_unique_misses(batch, size)
        assert expected == pytest.approx(np.mean(counts), rel=0.05, abs=5)


# ------------------------------------------------------------------ values


def test_laws_are_values() -> None:
    for one, other in zip(all_laws(1000), all_laws(1000), strict=True):
        assert one == other
        assert hash(one) == hash(other)
        with pytest.raises(AttributeError):
            one.num_embeddings = 3
