"""What samples of known laws tell about their hottest rows."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.datatypes import FloatArray
from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.samples import draws_needed, hot_share_range, tells
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from tests.counted import law_of_counts
from tests.index_laws import range_share


def drawn(law: AbstractIndexDistribution, count: int, seed: int) -> FloatArray:
    """How often each row that was seen was drawn."""
    rng = np.random.default_rng(seed)
    rows, probability = law.frequency_bins()
    bins = rng.choice(len(rows), count, p=rows * probability / (rows @ probability))
    first = np.cumsum(rows) - rows
    ids = first[bins] + np.floor(rng.random(count) * rows[bins])
    return np.unique(ids, return_counts=True)[1].astype(float)


def known(seen: FloatArray, law: AbstractIndexDistribution) -> tuple[float, float]:
    counts, rows = np.unique(seen, return_counts=True)
    return hot_share_range(counts, rows.astype(float), law.num_embeddings, law.num_embeddings / 100)


def law_of(rows: int, exponent: float) -> AbstractIndexDistribution:
    if not exponent:
        return Uniform(num_embeddings=rows)
    return Zipf(num_embeddings=rows, exponent=exponent)


@pytest.mark.parametrize("rows", [10**5, 10**7, 120_000_000])
@pytest.mark.parametrize("exponent", [0.0, 0.3, 0.5, 0.8, 1.05, 1.4])
def test_the_truth_lies_in_the_range(rows: int, exponent: float) -> None:
    """Up to 0.3 points and 3 % of the share, at every size of the sample."""
    law = law_of(rows, exponent)
    truth, slack = law.access_share(rows / 100), 0.003
    for count in (5_000, 50_000, 200_000):
        for seed in range(2):
            low, high = known(drawn(law, count, seed), law)
            assert low - slack <= truth * 1.03
            assert truth * 0.97 <= high + slack


@pytest.mark.parametrize("count", [50_000, 200_000])
@pytest.mark.parametrize("seed", range(3))
def test_even_rows_are_found_even(count: int, seed: int) -> None:
    """120 M equally likely rows: the few rows drawn twice are no hot ones."""
    law = Uniform(num_embeddings=120_000_000)
    found = law_of_counts(drawn(law, count, seed).astype(int), law.num_embeddings)
    assert found.access_share(law.num_embeddings / 100) == pytest.approx(0.01, rel=1e-6)


def test_more_samples_tell() -> None:
    law = law_of(10**6, 0.8)
    widths = []
    for count in (20_000, 100_000, 500_000):
        low, high = known(drawn(law, count, seed=1), law)
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)
    assert not tells(0.0, widths[0])
    assert tells(0.0, widths[-1])
    needed = draws_needed(law.frequency_bins(), 20_000, 10**4)
    assert needed is not None
    assert tells(*known(drawn(law, int(needed), seed=2), law))
    assert needed <= 500_000


def test_what_cannot_be_told_is_not_promised() -> None:
    assert draws_needed(law_of(2**48, 0.9).frequency_bins(), 10, 2**48 / 100) is None


def test_alternatives_have_the_shares_of_the_ends() -> None:
    law = law_of_counts(drawn(law_of(10**6, 0.8), 20_000, 3).astype(int), 10**6)
    assert law.alternatives() == ()
    rows, probability = law.frequency_bins()
    halves = np.stack([rows * 0.75, rows * 0.25])
    for ranges in (None, halves):
        uncertain = Empirical.from_bins(
            *(rows, probability, 10**6),
            range_rows=ranges,
            num_ids_in_ranges=10**6,
            hot_share_ratio=(0.2, 0.7),
        )
        least, most = uncertain.alternatives()
        assert 0.2 <= least.access_share(10**4) < 0.22  # rows of the others are hotter now
        assert most.access_share(10**4) == pytest.approx(0.7, rel=1e-6)
        assert range_share(most, 0, 500_000) == pytest.approx(0.75 if ranges is not None else 0.5)
