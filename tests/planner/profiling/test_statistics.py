"""What is fitted is what was drawn: Zipf laws, clusters, predictions for other batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from costmodels.datatypes import FloatArray, IntArray
from costmodels.distribution.zipf import Zipf
from planner.profiling import statistics
from planner.profiling.profiler import profile_files
from planner.profiling.statistics import ProfileOptions, fit_zipf
from planner.profiling.stats import TableStats, load_stats
from tests.counted import law_of_counts
from tests.index_laws import range_share, unique_rows_in_range
from tests.planner.cases import first
from tests.planner.profiling.samples import write_npz, zipf_ids

SAMPLES = 150_000


def profiled(
    ids: IntArray, tmp_path: Path, batch_sizes: tuple[int, ...] = (512, 4_096)
) -> TableStats:
    """Statistics of one table, read back from the file; ``ids`` is [samples] or [samples, hot]."""
    path = write_npz(tmp_path / "ids.npz", [ids.reshape(len(ids), -1)])
    output = tmp_path / "stats.json"
    profile_files([path], output, ProfileOptions(batch_sizes=batch_sizes))
    return load_stats(output).tables["cat_0"]


def unique_rows(ids: IntArray, batch: int) -> float:
    """Distinct rows per batch of consecutive samples: the truth."""
    starts = range(0, len(ids) - batch + 1, batch)
    return float(np.mean([len(np.unique(ids[i : i + batch])) for i in starts]))


# ------------------------------------------------------------------ Zipf


@pytest.mark.parametrize(
    ("rows", "exponent", "shift"),
    [
        (100_000, 1.05, 0.0),
        (2_000, 1.5, 3.0),
        (1_000_000, 0.8, 0.0),
        pytest.param(100_000, 1.2, 5.0, marks=pytest.mark.slow),
        pytest.param(10_000_000, 1.05, 10.0, marks=pytest.mark.slow),
    ],
)
def test_zipf_is_recovered(tmp_path: Path, rows: int, exponent: float, shift: float) -> None:
    ids = zipf_ids(rows, exponent, shift, 400_000)
    zipf = profiled(ids, tmp_path).zipf
    assert zipf is not None
    assert zipf.exponent == pytest.approx(exponent, abs=0.03)
    assert zipf.shift == pytest.approx(shift, abs=0.1 + 0.1 * shift)
    assert zipf.ks_ratio < 0.01


def test_what_is_no_zipf_law_shows(tmp_path: Path) -> None:
    ids = np.where(
        np.arange(SAMPLES) % 2, zipf_ids(100, 0.0, 0.0, SAMPLES), zipf_ids(10**5, 0.0, 0.0, SAMPLES)
    )
    zipf = profiled(ids, tmp_path).zipf
    assert zipf is not None
    assert zipf.ks_ratio > 0.03


def test_a_handful_of_rows_has_no_zipf_law() -> None:
    assert fit_zipf(law_of_counts([5, 4, 3], 3), 12, (3,)) is None


def test_most_rows_never_drawn() -> None:
    counts = np.random.default_rng(0).poisson(100 / np.arange(1, 501) ** 0.5)
    law = law_of_counts(counts, 10**8)
    fit = fit_zipf(law, int(counts.sum()), (500, 10**8))
    assert fit is not None
    assert fit.num_ranks == 500
    assert fit.exponent == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("seed", first(range(12), 6))
def test_no_law_of_a_grid_is_nearer(seed: int) -> None:
    """Laws of the family are found again; for others, no exponent and shift of a grid is better."""
    rng = np.random.default_rng(seed)
    rows, exponent = int(10 ** rng.uniform(0.8, 8)), float(rng.choice([0.0, rng.uniform(0, 3)]))
    edges = np.round(np.geomspace(1.0, min(max(rows / 10, 2.0), rows), 80))
    edges = np.unique(np.append(edges, rows))

    def until(exponent: float, shift: float) -> FloatArray:
        law = Zipf(num_embeddings=rows, exponent=exponent, shift=shift)
        return statistics._mass_until(edges, *law.frequency_bins())

    def distance(exponent: float, shift: float) -> float:
        model = np.maximum(np.diff(until(exponent, shift), prepend=0.0), 1e-300)
        return float(mass @ np.log(mass / model))

    true = np.diff(until(exponent, float(rng.choice([0.0, 10 ** rng.uniform(-1, 4)]))), prepend=0.0)
    mass = true if seed % 2 else true * rng.lognormal(0.0, 0.5, len(true))
    mass = mass / mass.sum()
    found, law = statistics._nearest(rows, edges, np.cumsum(mass))
    assert found == pytest.approx(distance(law.exponent, law.shift), abs=1e-9)
    shifts = np.expm1(np.linspace(0.0, np.log1p(10.0 * rows), 40))
    grid = [distance(s, q) for s in np.linspace(0.0, 8.0, 41) for q in shifts]
    assert found <= min(grid) + 1e-9
    if seed % 2:
        assert found < 1e-8, "the law itself"


# ------------------------------------------------------------------ other batch sizes


@pytest.mark.parametrize(
    ("rows", "exponent"),
    [(50_000, 1.05), (5_000, 1.3), pytest.param(500_000, 0.8, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("scattered", [True, False])
def test_independent_draws(tmp_path: Path, rows: int, exponent: float, scattered: bool) -> None:
    ids = zipf_ids(rows, exponent, 1.0, SAMPLES)
    if scattered:
        ids = np.random.default_rng(5).permutation(rows)[ids]
    law = profiled(ids, tmp_path).distribution(rows)
    for batch in (64, 1_024, 2_048, 16_384, 65_536):
        assert law.expected_unique_rows(batch) == pytest.approx(unique_rows(ids, batch), rel=0.03)


def tuples(rows: int, hot: int, draws: IntArray) -> IntArray:
    """MLPerf's construction: every original id brings a fixed tuple of ids of its own."""
    rng = np.random.default_rng(11)
    return rng.integers(0, rows, (int(draws.max()) + 1, hot))[draws]


def test_ids_that_come_together(tmp_path: Path) -> None:
    ids = tuples(400_000, 8, zipf_ids(30_000, 1.1, 2.0, 60_000))
    law = profiled(ids, tmp_path).distribution(400_000)
    for batch in (128, 1_024, 2_048, 8_192):
        assert law.expected_unique_rows(8 * batch) == pytest.approx(
            unique_rows(ids, batch), rel=0.03
        )


def test_ids_that_repeat_in_time(tmp_path: Path) -> None:
    """Ten samples in a row look at the same row: batches touch far fewer rows."""
    ids = np.repeat(zipf_ids(200_000, 0.9, 0.0, SAMPLES // 10), 10)
    law = profiled(ids, tmp_path, (256, 1_024, 4_096, 16_384)).distribution(200_000)
    for batch in (512, 2_048, 8_192):
        assert law.expected_unique_rows(batch) == pytest.approx(unique_rows(ids, batch), rel=0.03)
    for batch in (64, 128, 32_768):  # outside the measured sizes
        assert law.expected_unique_rows(batch) == pytest.approx(unique_rows(ids, batch), rel=0.15)


# ------------------------------------------------------------------ clusters


def range_truth(ids: IntArray, batch: int, offset: int, rows: int) -> tuple[float, float]:
    """Share of accesses and distinct rows per batch among some ids."""
    inside = (ids >= offset) & (ids < offset + rows)
    starts = range(0, len(ids) - batch + 1, batch)
    unique = [len(np.unique(ids[i : i + batch][inside[i : i + batch]])) for i in starts]
    return float(inside.mean()), float(np.mean(unique))


def test_clustered_ids(tmp_path: Path) -> None:
    rows = 64_000
    near = 40_000 + zipf_ids(8_000, 0.6, 0.0, SAMPLES)
    far = zipf_ids(rows, 0.0, 0.0, SAMPLES, seed=4)
    ids = np.where(np.arange(SAMPLES) % 4 > 0, near, far)
    table = profiled(ids, tmp_path)
    assert table.ranges is not None
    assert table.ranges.clustered
    assert table.ranges.access_ratio[40] > 0.09
    law = table.distribution(rows)
    assert not law.scattered
    for offset in range(0, rows, 8_000):
        share, unique = range_truth(ids, 16_384, offset, 8_000)
        assert range_share(law, offset, 8_000) == pytest.approx(share, rel=0.01)
        assert unique_rows_in_range(law, 16_384, offset, 8_000) == pytest.approx(unique, rel=0.03)
    assert law.expected_unique_rows(16_384) == pytest.approx(unique_rows(ids, 16_384), rel=0.03)


def test_ids_in_order_of_frequency(tmp_path: Path) -> None:
    rows = 100_000
    ids = zipf_ids(rows, 1.0, 20.0, SAMPLES)
    truth = Zipf(num_embeddings=rows, exponent=1.0, shift=20.0, scattered=False)
    law = profiled(ids, tmp_path).distribution(rows)
    for offset in range(0, rows, 25_000):
        assert range_share(law, offset, 25_000) == pytest.approx(
            range_share(truth, offset, 25_000), rel=0.03
        )
        assert unique_rows_in_range(law, 8_192, offset, 25_000) == pytest.approx(
            unique_rows_in_range(truth, 8_192, offset, 25_000), rel=0.03
        )


@pytest.mark.parametrize("exponent", first([0.0, 1.05, 1.3, 0.5, 0.8], 3))
def test_scattered_ids_are_not_clustered(tmp_path: Path, exponent: float) -> None:
    rows = 50_000
    for seed in range(2):
        place = np.random.default_rng(seed).permutation(rows)
        ids = place[zipf_ids(rows, exponent, 1.0, SAMPLES, seed)]
        ranges = profiled(ids, tmp_path).ranges
        assert ranges is not None
        assert not ranges.clustered, ranges.clustering_ratio
        assert sum(ranges.access_ratio) == pytest.approx(1.0)


def test_even_ids_need_no_ranges(tmp_path: Path) -> None:
    ids = zipf_ids(50_000, 0.0, 0.0, SAMPLES)
    table = profiled(ids, tmp_path)
    assert table.ranges is not None
    assert table.ranges.rows == []
    assert table.distribution(50_000).scattered


def test_hot_rows_and_caches(tmp_path: Path) -> None:
    truth = Zipf(num_embeddings=100_000, exponent=1.05)
    table = profiled(zipf_ids(100_000, 1.05, 0.0, 400_000), tmp_path)
    for hottest, ratio in table.hottest_rows.items():
        share = truth.access_share(float(hottest) * 100_000)
        assert ratio == pytest.approx(share, abs=0.005)
    for cached, ratio in table.cache.items():
        hits = truth.hit_ratio(float(cached) * 100_000)
        assert ratio == pytest.approx(hits, abs=0.01)
