"""Statistics of small data sets, compared with what is counted by hand."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from planner.profiling.profiler import profile_files
from planner.profiling.statistics import ByFeature
from planner.profiling.stats import TableStats
from tests.planner.profiling.samples import (
    OPTIONS,
    SAMPLES,
    SKIPPING,
    TEXT_OPTIONS,
    write_npy,
    write_npz,
    write_tsv,
    zipf_ids,
)


def ids_of(days: list[Path], column: int) -> Counter[int]:
    return Counter(np.concatenate([np.load(day)[:, column] for day in days]).tolist())


def check_counts(table: TableStats, counts: Counter[int]) -> None:
    """The statistics say exactly what the ids are."""
    assert table.num_indices == counts.total()
    assert table.num_unique_rows == len(counts)
    assert table.highest_index == max(counts)
    histogram = table.histogram
    seen = sorted(counts.values(), reverse=True)
    assert histogram.rows[-1] == table.num_embeddings - len(counts)
    assert sum(histogram.accesses) == counts.total()
    start = 0
    for low, rows, accesses in zip(
        histogram.lowest_count, histogram.rows[:-1], histogram.accesses, strict=False
    ):
        assert sum(seen[start : start + rows]) == accesses
        assert all(count >= low for count in seen[start : start + rows])
        start += rows
    assert sum(c == 1 for c in seen) / counts.total() == pytest.approx(table.unseen_mass_ratio)


def test_counts_are_exact(days: list[Path], tmp_path: Path) -> None:
    stats = profile_files(days, tmp_path / "stats.json", OPTIONS)
    assert list(stats.tables) == ["cat_0", "cat_1", "cat_2"]
    for column in range(3):
        check_counts(stats.tables[f"cat_{column}"], ids_of(days, column))
    assert stats.source.num_samples == 2 * SAMPLES
    assert stats.source.files == ["day_0_sparse.npy", "day_1_sparse.npy"]
    assert not list(tmp_path.glob(".stats*"))


def test_batches_are_those_of_the_data(days: list[Path], tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, batch_sizes=(1_000, 500, 10**6))
    stats = profile_files(days[:1], tmp_path / "stats.json", options)
    ids = np.load(days[0])[:, 1]
    batches = {b.batch_size: b for b in stats.tables["cat_1"].batches}
    assert list(batches) == [500, 1_000, 10**6]
    parts = [Counter(ids[i : i + 1_000].tolist()) for i in range(0, SAMPLES, 1_000)]
    measured = batches[1_000]
    assert measured.num_batches == len(parts)
    assert measured.mean_indices == 1_000
    assert measured.mean_unique_rows == pytest.approx(np.mean([len(p) for p in parts]))
    never = batches[10**6]
    assert never.num_batches == 0
    assert never.mean_unique_rows > measured.mean_unique_rows


@pytest.mark.parametrize("length", [1, 100])
def test_users_in_order_are_counted_as_they_are(tmp_path: Path, length: int) -> None:
    """Distinct rows, what neighbouring batches share, and the head equal a direct count."""
    rng = np.random.default_rng(1)
    users = rng.integers(0, 100_000, (3_000, 20)) ** 2 // 100_000
    ids = users[np.arange(3_000)[:, None], rng.integers(0, 20, (3_000, 1_000))].reshape(-1)
    ids[rng.random(len(ids)) < 0.2] = 99_000
    path = write_npz(tmp_path / "day_0_sparse_multi_hot.npz", [ids.reshape(-1, length)])
    size = 102_400 // length
    options = dataclasses.replace(OPTIONS, batch_sizes=(size,))
    (table,) = profile_files([path], tmp_path / "s.json", options).tables.values()
    parts = [np.unique(ids[i : i + 102_400]) for i in range(0, len(ids) - 102_399, 102_400)]
    shared = [len(np.intersect1d(a, b)) for a, b in itertools.pairwise(parts)]
    (batch,) = table.batches
    assert batch.num_batches == len(parts) == 29
    assert batch.mean_unique_rows == pytest.approx(np.mean([len(p) for p in parts]), rel=1e-8)
    assert batch.next_batch_ratio == pytest.approx(
        sum(shared) / sum(len(p) for p in parts[:-1]), rel=1e-8
    )
    batches = [ids[i : i + 102_400] for i in range(0, len(parts) * 102_400, 102_400)]
    again = [np.isin(a, b).mean() for a, b in itertools.pairwise(batches)]
    assert batch.next_batch_indices_ratio == pytest.approx(np.mean(again), rel=1e-8)
    assert table.next_batch_ratio(distinct=True) == batch.next_batch_ratio
    assert table.next_batch_ratio(distinct=False) == batch.next_batch_indices_ratio
    counts = np.sort(np.bincount(ids))[::-1]
    head = table.histogram.rank_end[:20]
    assert head[0] == 1
    assert (
        np.cumsum(table.histogram.accesses[:20]).tolist()
        == np.cumsum(counts)[np.array(head) - 1].tolist()
    )
    law = table.distribution(table.num_embeddings)
    for rank in (1, 1_000):
        assert law.access_share(rank) == pytest.approx(counts[:rank].sum() / len(ids), rel=0.01)
    assert law.expected_unique_rows(102_400) == pytest.approx(batch.mean_unique_rows, rel=0.005)


def test_measured_batches_span_pieces_of_files(tmp_path: Path) -> None:
    paths = [
        write_npy(tmp_path / f"{i}.npy", np.full((10, 2), i)) for i in range(4)
    ]  # a batch of 40 samples reaches over all files
    options = dataclasses.replace(OPTIONS, batch_sizes=(40,))
    stats = profile_files(paths, tmp_path / "stats.json", options)
    assert stats.tables["cat_0"].batches[0].mean_unique_rows == 4


# ------------------------------------------------------------------ bags and tables


def test_pooling_factors(tmp_path: Path) -> None:
    rows: list[list[int | None]] = [
        [None if i % 4 == 0 else i for _ in range(26)] for i in range(40)
    ]
    path = write_tsv(tmp_path / "train.txt", rows)
    stats = profile_files([path], tmp_path / "s.json", TEXT_OPTIONS, readers=[SKIPPING])
    pooling = stats.tables["cat_5"].pooling
    assert (pooling.mean, pooling.p50, pooling.p99, pooling.max) == (0.75, 1, 1, 1)
    assert pooling.empty_ratio == 0.25
    assert stats.tables["cat_5"].ids_are_hashes


def test_features_that_share_a_table(tmp_path: Path) -> None:
    arrays = [zipf_ids(500, 1.0, 0.0, 3_000 * size, size).reshape(3_000, size) for size in (3, 1)]
    path = write_npz(tmp_path / "day_0_sparse_multi_hot.npz", arrays)
    by_feature = ByFeature({"cat_0": "items", "cat_1": "items"}, {"items": 900})
    options = dataclasses.replace(OPTIONS, by_feature=by_feature)
    (table,) = profile_files([path], tmp_path / "s.json", options).tables.values()
    assert table.num_embeddings == 900
    assert table.pooling.mean == 4
    assert {name: p.mean for name, p in table.features.items()} == {"cat_0": 3, "cat_1": 1}
    counts = Counter(np.concatenate([a.reshape(-1) for a in arrays]).tolist())
    check_counts(table, counts)
    first = np.concatenate([a[:1_000].reshape(-1) for a in arrays])
    batch = next(b for b in table.batches if b.batch_size == 1_000)
    assert batch.mean_indices == 4_000
    assert batch.mean_unique_rows == pytest.approx(len(set(first.tolist())), rel=0.05)


def test_only_some_features(days: list[Path], tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, features=("cat_2", "cat_0"))
    stats = profile_files(days, tmp_path / "s.json", options)
    assert list(stats.tables) == ["cat_0", "cat_2"]


def test_folded_ids(days: list[Path], tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, max_ind_range=700)
    stats = profile_files(days, tmp_path / "s.json", options)
    folded: Counter[int] = Counter()
    for key, count in ids_of(days, 1).items():
        folded[key % 700] += count
    check_counts(stats.tables["cat_1"], folded)
    assert stats.tables["cat_1"].num_embeddings == 700
    assert stats.tables["cat_2"].num_embeddings == 3
    known = dataclasses.replace(options, by_feature=ByFeature({"cat_1": "t"}, {"t": 50}))
    table = profile_files(days, tmp_path / "s.json", known).tables["t"]
    assert (table.num_embeddings, table.highest_index) == (50, 49)


# ------------------------------------------------------------------ which samples


def test_the_first_samples(days: list[Path], tmp_path: Path) -> None:
    stats = profile_files(
        days, tmp_path / "s.json", dataclasses.replace(OPTIONS, first_samples=SAMPLES + 100)
    )
    assert stats.source.num_samples == SAMPLES + 100
    ids = np.concatenate([np.load(days[0])[:, 1], np.load(days[1])[:100, 1]])
    check_counts(stats.tables["cat_1"], Counter(ids.tolist()))


def test_the_first_samples_of_text(tmp_path: Path) -> None:
    rows: list[list[int | None]] = [[i] * 26 for i in range(1, 501)]
    paths = [
        write_tsv(tmp_path / "day_0", rows[:300]),
        write_tsv(tmp_path / "day_1.gz", rows[300:]),
    ]
    options = dataclasses.replace(TEXT_OPTIONS, first_samples=410)
    stats = profile_files(paths, tmp_path / "s.json", options)
    assert stats.source.num_samples == 410
    assert stats.tables["cat_5"].highest_index == 410


def test_samples_spread_over_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.profiling.readers.CHUNK_SAMPLES", 100)
    paths = [
        write_npy(tmp_path / "a.npy", np.arange(4_000).reshape(-1, 1)),
        write_npy(tmp_path / "b.npy", np.arange(4_000, 5_000).reshape(-1, 1)),
    ]
    options = dataclasses.replace(OPTIONS, sample_rows=1_000)
    table = profile_files(paths, tmp_path / "s.json", options).tables["cat_0"]
    assert table.num_indices == 1_000
    assert table.ranges is not None
    eighths = np.array(table.ranges.access_ratio).reshape(8, 8).sum(axis=1)
    assert np.all(np.abs(eighths - 0.125) < 0.05)
    everything = dataclasses.replace(options, sample_rows=10**6)
    assert profile_files(paths, tmp_path / "s.json", everything).source.num_samples == 5_000


def test_few_samples_are_spread_too(tmp_path: Path) -> None:
    """A sample that fits one block was the beginning of the file."""
    path = write_npy(tmp_path / "a.npy", np.arange(64_000).reshape(-1, 1))
    options = dataclasses.replace(OPTIONS, sample_rows=800)
    table = profile_files([path], tmp_path / "s.json", options).tables["cat_0"]
    assert table.num_indices == 800
    assert table.highest_index == 7 * 8_000 + 99
    one = dataclasses.replace(OPTIONS, sample_rows=1)
    assert profile_files([path], tmp_path / "t.json", one).source.num_samples == 1


def test_text_spread_over_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.profiling.readers.CHUNK_SAMPLES", 50)
    path = write_tsv(tmp_path / "day_0", [[i + 1] * 26 for i in range(2_000)])
    options = dataclasses.replace(TEXT_OPTIONS, sample_rows=200)
    stats = profile_files([path], tmp_path / "s.json", options)
    assert 180 <= stats.source.num_samples <= 300
    assert stats.tables["cat_0"].highest_index > 1_400
