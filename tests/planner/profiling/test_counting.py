"""Counts are exact whatever memory there is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.profiling.counting import IdCounter, Run, count_ids, merge_runs, merged


@given(st.lists(st.integers(0, 2**40), max_size=50) | st.lists(st.integers(0, 5), max_size=50))
def test_count_ids(values: list[int]) -> None:
    ids, counts = count_ids(np.array(values, dtype=np.int64))
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == {
        v: values.count(v) for v in values
    }
    assert np.all(np.diff(ids) > 0)


def test_merged_runs_add_up() -> None:
    one = np.array([1, 4]), np.array([2, 3])
    two = np.array([4, 9]), np.array([5, 1])
    ids, counts = merged([one, two])
    assert ids.tolist() == [1, 4, 9]
    assert counts.tolist() == [2, 8, 1]
    empty = np.empty(0, dtype=np.int64)
    assert len(merged([(empty, empty), (empty, empty)])[0]) == 0


@pytest.mark.parametrize("budget", [1.0, 2_000.0, 50_000.0, 1e9])
def test_spilled_counts_are_exact(tmp_path: Path, budget: float) -> None:
    rng = np.random.default_rng(3)
    data = [rng.zipf(1.3, 4_000) % 10_000, rng.integers(0, 50, 4_000)]
    path = tmp_path / "counts.bin"
    with path.open("wb") as file:
        counter = IdCounter(2, file, budget)
        for start in range(0, 4_000, 250):
            for table in (0, 1):
                counter.add(table, data[table][start : start + 250])
        counter.spill()
    for table in (0, 1):
        runs = [Run(path, at, size) for at, size in counter.runs[table]]
        assert (len(runs) > 1) == (budget <= 2_000.0)
        blocks = list(merge_runs(runs, max(budget, 1_000.0)))
        ids = np.concatenate([block[0] for block in blocks])
        counts = np.concatenate([block[1] for block in blocks])
        expected, expected_counts = np.unique(data[table], return_counts=True)
        assert np.array_equal(ids, expected)
        assert np.array_equal(counts, expected_counts)
    if budget == 1.0:
        assert len(list(merge_runs([Run(path, *counter.runs[0][0])], 1_000.0))) > 1


def test_runs_that_are_empty(tmp_path: Path) -> None:
    path = tmp_path / "counts.bin"
    path.write_bytes(np.array([5, 7, 1, 2], dtype=np.int64).tobytes())
    runs = [Run(path, 0, 0), Run(path, 0, 2)]
    assert [len(ids) for ids, _ in merge_runs(runs, 1e9)] == [2]
    assert sum(len(ids) for ids, _ in merge_runs(runs, 1.0)) == 2
    assert list(merge_runs([], 1.0)) == []
