"""The same bytes out, whatever the memory and the threads; or nothing at all."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.errors import InvalidInputError
from planner.profiling import statistics
from planner.profiling.profiler import profile_files
from planner.profiling.statistics import ByFeature, ProfileOptions, open_indices
from planner.profiling.stats import Stats
from tests.planner.cases import first
from tests.planner.profiling.samples import (
    OPTIONS,
    SKIPPING,
    TEXT_OPTIONS,
    day_columns,
    two_days,
    write_npy,
    write_tsv,
)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What one process makes of the two days, which every test has in a folder of its own."""
    folder = tmp_path_factory.mktemp("reference")
    output = folder / "reference.json"
    profile_files(two_days(folder), output, OPTIONS)
    return output.read_bytes()


@pytest.mark.parametrize("memory_bytes", first([20_000.0, 1e6, 1.0], 2))
def test_memory_changes_nothing(
    days: list[Path], tmp_path: Path, reference: bytes, memory_bytes: float
) -> None:
    output = tmp_path / "small.json"
    profile_files(days, output, dataclasses.replace(OPTIONS, memory_bytes=memory_bytes))
    assert output.read_bytes() == reference


def test_threads_change_nothing(days: list[Path], tmp_path: Path, reference: bytes) -> None:
    output = tmp_path / "parallel.json"
    told: list[tuple[str, float, float]] = []
    profile_files(
        days,
        output,
        dataclasses.replace(OPTIONS, jobs=2),
        progress=lambda what, done, total: told.append((what, done, total)),
    )
    assert output.read_bytes() == reference
    for what in ("reading", "summing up"):
        steps = [(done, total) for name, done, total in told if name == what]
        assert steps[0][0] == 0
        assert steps[-1][0] == pytest.approx(steps[-1][1])


class Stop(KeyboardInterrupt):
    """Ctrl-C in the middle."""


def test_a_stopped_profile_leaves_nothing(
    days: list[Path], tmp_path: Path, reference: bytes
) -> None:
    before, output = sorted(tmp_path.rglob("*")), tmp_path / "stopped.json"
    for count in (1, 3, 4):
        calls = itertools.count()

        def progress(*_: object, calls: Iterator[int] = calls, count: int = count) -> None:
            if next(calls) == count:
                raise Stop

        with pytest.raises(Stop):
            profile_files(days, output, OPTIONS, progress=progress)
        assert sorted(tmp_path.rglob("*")) == before, count
    profile_files(days, output, OPTIONS)
    assert output.read_bytes() == reference


def test_more_than_the_memory_goes_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million ids that occur once take more than 32 MiB, which DuckDB then keeps to."""
    monkeypatch.setattr(statistics, "LEAST_MEMORY_BYTES", 2.0**25)
    ids = np.random.default_rng(0).permutation(2**20).astype(np.int32)
    path = write_npy(tmp_path / "day_0_sparse.npy", ids.reshape(-1, 1))
    options = ProfileOptions(memory_bytes=2.0**25, batch_sizes=(2048,))
    table = profile_files([path], tmp_path / "s.json", options).tables["cat_0"]
    assert table.num_unique_rows == table.num_indices == table.num_embeddings == 2**20
    made = statistics.Indices.__init__

    def without_disk(self: statistics.Indices, connection: Any, *rest: Any) -> None:
        connection.execute("SET max_temp_directory_size = '0KB'")
        made(self, connection, *rest)

    monkeypatch.setattr(statistics.Indices, "__init__", without_disk)
    with pytest.raises(InvalidInputError, match="counting stopped: Out of Memory"):
        profile_files([path], tmp_path / "s.json", options)


def test_a_disk_that_is_full_is_said(days: list[Path], tmp_path: Path) -> None:
    with open_indices(["a"], tmp_path, 1.0, 1) as indices:
        indices._run("SET max_temp_directory_size = '1MB'")
        with pytest.raises(InvalidInputError, match=r"counting stopped: .*; give more --memory"):
            indices._run("CREATE TABLE t AS SELECT hash(i) AS h FROM range(90000000) x(i)")


def test_without_duckdb(days: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(InvalidInputError, match=r"shardplan\[data\]"):
        profile_files(days, tmp_path / "s.json", OPTIONS)


# ------------------------------------------------------------------ failures


def test_bad_data_leaves_nothing(days: list[Path], tmp_path: Path) -> None:
    bad = day_columns()
    bad[4_000, 1] = -7
    write_npy(days[1], bad)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidInputError, match=r"day_1_sparse.npy.*cat_1: index -7"):
        profile_files(days, tmp_path / "a/b/s.json", OPTIONS)
    assert sorted(tmp_path.rglob("*")) == before


def test_ids_beyond_the_table(days: list[Path], tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, by_feature=ByFeature({"cat_1": "t"}, {"t": 50}))
    with pytest.raises(InvalidInputError, match="table 't' has 50 rows; correct the table map"):
        profile_files(days, tmp_path / "s.json", options)


def test_a_table_without_indices(tmp_path: Path) -> None:
    path = write_tsv(tmp_path / "train.txt", [[None] + [1] * 25 for _ in range(5)])
    with pytest.raises(InvalidInputError, match="'cat_0' received no index at all"):
        profile_files(
            [path],
            tmp_path / "s.json",
            TEXT_OPTIONS,
            readers=[SKIPPING],
        )


def test_outputs_that_cannot_be(days: list[Path], tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("precious")
    cases = {
        notes: "was not written by",
        Path(os.devnull): "is a pipe or a device; name a file",
    }
    for output, message in cases.items():
        with pytest.raises(InvalidInputError, match=message):
            profile_files(days, output, OPTIONS)
    assert notes.read_text() == "precious"
    assert Path(os.devnull).is_char_device()
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "new" / "s.json")
    assert isinstance(profile_files(days, link, OPTIONS), Stats)
    assert link.is_symlink()
