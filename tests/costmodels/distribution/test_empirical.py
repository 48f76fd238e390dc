"""The law that is measured: smoothing, ranges, repeats inside a batch."""

from __future__ import annotations

import dataclasses
import itertools
import pickle

import numpy as np
import pytest

from costmodels.datatypes import FloatArray, IntArray
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.zipf import Zipf
from costmodels.errors import InvalidValueError
from tests.counted import law_of_counts
from tests.index_laws import expected_misses, range_share, unique_rows_in_range


def draw_counts(law: Zipf, num_indices: int, seed: int = 0) -> IntArray:
    """Accesses of every row in a sample of independent draws, hottest row first."""
    rng = np.random.default_rng(seed)
    rows, probability = law.frequency_bins()
    mean = np.repeat(probability, rows.astype(np.int64)) * num_indices
    return rng.poisson(mean).astype(np.int64)


def two_bins(**changes: object) -> Empirical:
    values: dict[str, object] = {
        "num_embeddings": 100,
        "num_rows_per_bin": (10.0, 80.0, 10.0),
        "probability_ratio": (0.06, 0.005, 0.0),
    }
    return Empirical(**{**values, **changes})  # type: ignore[arg-type]


# ------------------------------------------------------------------ smoothing


@pytest.mark.parametrize(
    ("rows", "exponent", "shift"),
    [
        (100_000, 1.05, 0.0),
        (1_000_000, 1.05, 10.0),
        (1_000_000, 0.7, 0.0),
        (1_000_000, 0.0, 0.0),
        (100_000, 1.5, 50.0),
        (1_000, 1.2, 0.0),
    ],
)
def test_unique_rows_of_any_batch_up_to_the_sample(
    rows: int, exponent: float, shift: float
) -> None:
    truth = Zipf(num_embeddings=rows, exponent=exponent, shift=shift)
    sample = 500_000
    law = law_of_counts(draw_counts(truth, sample), rows)
    for batch in (100, 2_048, 16_384, 131_072, sample):
        expected = truth.expected_unique_rows(batch)
        assert law.expected_unique_rows(batch) == pytest.approx(expected, rel=0.01)
    assert law.expected_unique_rows(3 * sample) == pytest.approx(
        truth.expected_unique_rows(3 * sample), rel=0.03
    )


def test_new_rows_keep_coming_at_the_rate_of_good_and_turing() -> None:
    truth = Zipf(num_embeddings=1_000_000, exponent=0.9)
    counts = draw_counts(truth, 200_000)
    law = law_of_counts(counts, 1_000_000)
    draws = int(counts.sum())
    seen, once = int((counts > 0).sum()), int((counts == 1).sum())
    new = law.expected_unique_rows(draws * 1.01) - law.expected_unique_rows(draws)
    assert law.expected_unique_rows(draws) == pytest.approx(seen, rel=0.01)
    assert new == pytest.approx(0.01 * once, rel=0.05)


def test_rows_never_drawn_are_told_from_rows_not_seen_yet() -> None:
    counts = np.zeros(1_000_000, dtype=np.int64)
    counts[:1_000] = np.random.default_rng(0).poisson(50, 1_000)
    law = law_of_counts(counts, 1_000_000)
    assert law.expected_unique_rows(500_000) == pytest.approx(1_000, rel=0.001)


def test_hot_shares_are_not_inflated_by_noise() -> None:
    law = law_of_counts(draw_counts(Zipf(num_embeddings=10**6, exponent=0.0), 10**6), 10**6)
    assert law.access_share(10_000) == pytest.approx(0.01, abs=0.005)


def test_cache_hits_follow_the_true_law() -> None:
    truth = Zipf(num_embeddings=200_000, exponent=1.1)
    law = law_of_counts(draw_counts(truth, 1_000_000), 200_000)
    for share in (0.001, 0.01, 0.1, 0.5):
        assert law.hit_ratio(share * 200_000) == pytest.approx(
            truth.hit_ratio(share * 200_000), abs=0.005
        )


@pytest.mark.parametrize("counts", [[1], [5], [1000], [1, 1, 1], [1000, 1], [128, 129, 130]])
def test_tiny_samples(counts: list[int]) -> None:
    for rows in (len(counts), len(counts) + 1, 10**9):
        law = law_of_counts(counts, rows)
        assert 1 <= law.expected_unique_rows(10) <= min(rows, 10)


def test_a_sample_must_fit_the_table() -> None:
    with pytest.raises(InvalidValueError, match="touched 3 rows, more than the 2"):
        law_of_counts([1, 1, 1], 2)
    with pytest.raises(InvalidValueError, match="without any index"):
        law_of_counts([0], 2)


# ------------------------------------------------------------------ bins


def test_bins_are_fitted_to_the_table() -> None:
    rows, probability = np.array([10.0, 80.0, 10.0]), np.array([0.06, 0.005, 0.0])
    larger = Empirical.from_bins(rows, probability, 1_000)
    assert larger.num_rows_per_bin[-1] == pytest.approx(900)
    assert larger.expected_unique_rows(50) == pytest.approx(two_bins().expected_unique_rows(50))
    smaller = Empirical.from_bins(rows, probability, 50)
    assert sum(smaller.num_rows_per_bin) == pytest.approx(50)
    assert smaller.access_share(10) == pytest.approx(0.6 / 0.8)


def test_laws_are_values() -> None:
    law, twin = two_bins(), two_bins()
    assert law == twin
    assert hash(law) == hash(twin)
    assert pickle.loads(pickle.dumps(law)) == law
    assert hash(pickle.loads(pickle.dumps(law))) == hash(law)
    assert dataclasses.replace(law, num_unique_curve=((10.0, 5.0),)) != law
    assert law.scattered


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_embeddings": 0}, "num_embeddings must be 1..2"),
        ({"num_rows_per_bin": (10.0, 80.0)}, "as many probabilities"),
        ({"num_rows_per_bin": (10.0, 80.0, float("nan"))}, "finite"),
        ({"num_rows_per_bin": (10.0, 90.0, -0.1)}, "not negative"),
        ({"probability_ratio": (0.005, 0.06, 0.0)}, "hottest first"),
        ({"num_embeddings": 200}, "must sum to 200"),
        ({"probability_ratio": (0.07, 0.005, 0.0)}, "must sum to 1"),
        ({"num_unique_curve": ((10.0, 11.0),)}, "distinct rows <= indices"),
        ({"num_unique_curve": ((10.0, 9.0), (20.0, 8.0))}, "must ascend"),
        ({"num_rows_per_range": ((10.0, 80.0),), "num_ids_in_ranges": 100}, "each of the 3 bins"),
        ({"num_rows_per_range": ((10.0, 80.0, 10.0),)}, "at least 1 id"),
        ({"num_ids_in_ranges": 100}, "ids_in_ranges 100 needs rows_per_range"),
        (
            {"num_rows_per_range": ((5.0, 80.0, 15.0),), "num_ids_in_ranges": 100},
            "hold 0.7000 of all accesses",
        ),
    ],
)
def test_wrong_laws_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        two_bins(**changes)


# ------------------------------------------------------------------ ranges


def clustered() -> Empirical:
    """Ten hot rows in the first of four ranges, the ten dead ones in the last."""
    ranges = ((10.0, 15.0, 0.0), (0.0, 25.0, 0.0), (0.0, 25.0, 0.0), (0.0, 15.0, 10.0))
    return two_bins(num_rows_per_range=ranges, num_ids_in_ranges=100)


def test_ranges_follow_the_data() -> None:
    law = clustered()
    assert not law.scattered
    assert range_share(law, 0, 25) == pytest.approx(0.6 + 15 * 0.005)
    assert range_share(law, 25, 25) == pytest.approx(0.125)
    assert range_share(law, 0, 5) == pytest.approx(range_share(law, 0, 25) / 5)
    assert range_share(law, 0, 100) == pytest.approx(1.0)


@pytest.mark.parametrize("cuts", [(0, 100), (0, 50, 100), (0, 13, 25, 77, 100)])
def test_parts_of_a_table_add_up(cuts: tuple[int, ...]) -> None:
    law = clustered()
    parts = list(itertools.pairwise(cuts))
    assert sum(range_share(law, a, b - a) for a, b in parts) == pytest.approx(1.0)
    unique = sum(unique_rows_in_range(law, 70, a, b - a) for a, b in parts)
    assert unique == pytest.approx(law.expected_unique_rows(70))


def test_ids_beyond_the_ranges_were_never_seen() -> None:
    rows: FloatArray = np.array([10.0, 80.0, 10.0])
    ranges = np.array(clustered().num_rows_per_range)
    law = Empirical.from_bins(
        rows, np.array([0.06, 0.005, 0.0]), 200, range_rows=ranges, num_ids_in_ranges=100
    )
    assert range_share(law, 100, 100) == 0.0
    assert range_share(law, 0, 100) == pytest.approx(1.0)


def test_an_even_law_gives_even_ranges() -> None:
    law = two_bins()
    assert range_share(law, 0, 25) == pytest.approx(0.25)
    assert law.range_rows(0, 25) == pytest.approx([2.5, 20.0, 2.5])


# ------------------------------------------------------------------ repeats inside a batch


def test_measured_batches_win_over_independent_draws() -> None:
    curve = ((1_000.0, 60.0), (10_000.0, 85.0))
    law = two_bins(num_unique_curve=curve)
    for indices, unique in curve:
        assert law.expected_unique_rows(indices) == pytest.approx(unique, rel=1e-6)
    assert law.effective_draws(1.0) == 1.0
    assert law.effective_draws(0.5) == 0.5


def test_unique_rows_rise_with_the_batch() -> None:
    law = two_bins(num_unique_curve=((100.0, 30.0), (1_000.0, 60.0)))
    unique = [law.expected_unique_rows(n) for n in np.geomspace(1, 1e6, 200)]
    assert np.all(np.diff(unique) >= 0)
    assert unique[-1] <= 90


def test_a_curve_of_independent_draws_changes_nothing() -> None:
    plain = two_bins()
    curve = tuple((n, plain.expected_unique_rows(n) * 1.001) for n in (100.0, 500.0))
    law = two_bins(num_unique_curve=curve)
    for n in (10.0, 100.0, 300.0, 5_000.0):
        assert law.expected_unique_rows(n) == pytest.approx(plain.expected_unique_rows(n), rel=0.01)


def test_batches_without_repeats() -> None:
    law = two_bins(num_unique_curve=((80.0, 80.0),))
    assert law.expected_unique_rows(80.0) == pytest.approx(80.0, rel=1e-6)
    for n in (2.0, 10.0, 40.0):
        assert law.expected_unique_rows(n) <= n


def test_saturated_batches_need_no_correction() -> None:
    law = two_bins(num_unique_curve=((1e5, 90.0), (1e6, 90.0)))
    assert law.effective_draws(1e5) == pytest.approx(1e5)


def test_repeats_reach_ranges_and_caches() -> None:
    plain, repeating = two_bins(), two_bins(num_unique_curve=((100.0, 20.0),))
    assert unique_rows_in_range(repeating, 100, 0, 50) == pytest.approx(10.0)
    assert repeating.expected_unique_misses(100, 20) < plain.expected_unique_misses(100, 20)
    assert expected_misses(repeating, 100, 10) < expected_misses(plain, 100, 10)
