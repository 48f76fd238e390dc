"""The same bytes out, whoever works and however often the work is stopped; or nothing at all."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from planner.errors import InvalidInputError
from planner.profiling import partial, profiler
from planner.profiling.profiler import profile_files
from planner.profiling.stats import Stats
from planner.profiling.table_map import ByFeature
from planner.profiling.workers import WorkerError
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


def test_processes_change_nothing(days: list[Path], tmp_path: Path, reference: bytes) -> None:
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


@pytest.mark.filterwarnings("ignore::Warning")
def test_dask_changes_nothing(days: list[Path], tmp_path: Path, reference: bytes) -> None:
    distributed = pytest.importorskip("distributed")
    output = tmp_path / "dask.json"
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
    ) as cluster:
        options = dataclasses.replace(OPTIONS, dask=cluster.scheduler_address)
        profile_files(days, output, options)
        assert output.read_bytes() == reference
        np.save(days[0], np.full((4, 3), -1))
        with pytest.raises(InvalidInputError, match="negative"):
            profile_files(days, output, options)


@pytest.mark.filterwarnings("ignore::Warning")
def test_workers_of_another_version_are_refused(
    days: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any of them is sent what it may not know."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(distributed.Client, "run", lambda *_: {"tcp://worker": "0.0.1"})
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        options = dataclasses.replace(OPTIONS, dask=cluster.scheduler_address)
        with pytest.raises(InvalidInputError, match=r"workers have shardplan 0\.0\.1"):
            profile_files(days, tmp_path / "s.json", options)


@pytest.mark.filterwarnings("ignore::Warning")
def test_dask_with_processes_of_its_own(days: list[Path], tmp_path: Path, reference: bytes) -> None:
    pytest.importorskip("distributed")
    output = tmp_path / "dask.json"
    profile_files(days, output, dataclasses.replace(OPTIONS, dask="local", jobs=2))
    assert output.read_bytes() == reference


def test_dask_that_is_not_there(
    days: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    options = dataclasses.replace(OPTIONS, dask="nonsense://x")
    with pytest.raises(WorkerError, match="no Dask scheduler answers"):
        profile_files(days, tmp_path / "s.json", options)
    assert not (tmp_path / ".s.json.state").exists()
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(InvalidInputError, match=r"shardplan\[dask\]"):
        profile_files(days, tmp_path / "t.json", options)


class Stop(KeyboardInterrupt):
    """Ctrl-C in the middle."""


def stop_after(count: int) -> profiler.Progress:
    calls = 0

    def progress(what: str, done: float, total: float) -> None:
        nonlocal calls
        calls += 1
        if calls > count:
            raise Stop

    return progress


def test_a_stopped_profile_continues(days: list[Path], tmp_path: Path, reference: bytes) -> None:
    output = tmp_path / "stopped.json"
    worked: list[int] = []
    for count in (1, 2, 4, 3):
        with pytest.raises(Stop):
            profile_files(days, output, OPTIONS, progress=stop_after(count))
        assert not output.exists()
        state = tmp_path / ".stopped.json.state"
        worked.append(len(list(state.glob("unit-*"))))
        assert not list(state.glob(".unit-*"))
    assert worked == sorted(worked)
    assert 0 < worked[-1] < 6
    profile_files(days, output, dataclasses.replace(OPTIONS, resume=True))
    assert output.read_bytes() == reference
    assert not (tmp_path / ".stopped.json.state").exists()


def test_a_killed_process_continues(days: list[Path], tmp_path: Path, reference: bytes) -> None:
    output = tmp_path / "killed.json"
    child = multiprocessing.get_context("spawn").Process(
        target=profile_until_killed, args=(days, output)
    )
    child.start()
    child.join()
    assert child.exitcode == -9
    state = tmp_path / ".killed.json.state"
    finished = len(list(state.glob("unit-*")))
    assert finished > 0
    before = {path: path.stat().st_mtime_ns for path in state.glob("unit-*/*")}
    seen: list[float] = []
    profile_files(days, output, OPTIONS, progress=lambda what, done, total: seen.append(done))
    assert before
    assert seen[0] > 0
    assert output.read_bytes() == reference


def profile_until_killed(days: list[Path], output: Path) -> None:
    profile_files(days, output, OPTIONS, progress=kill)


def kill(what: str, done: float, total: float) -> None:
    if done > 50_000:
        os.kill(os.getpid(), 9)


def test_a_stopped_profile_of_other_data(days: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "s.json"
    with pytest.raises(Stop):
        profile_files(days, output, OPTIONS, progress=stop_after(3))
    other = dataclasses.replace(OPTIONS, max_ind_range=10)
    with pytest.raises(InvalidInputError, match="add --restart to drop it"):
        profile_files(days, output, other)
    stats = profile_files(days, output, dataclasses.replace(other, resume=False))
    assert stats.source.max_ind_range == 10
    with pytest.raises(InvalidInputError, match="nothing to resume"):
        profile_files(days, output, dataclasses.replace(OPTIONS, resume=True))


# ------------------------------------------------------------------ failures


def test_bad_data_leaves_nothing(days: list[Path], tmp_path: Path) -> None:
    bad = day_columns()
    bad[4_000, 1] = -7
    write_npy(days[1], bad)
    before = sorted(tmp_path.rglob("*"))
    for jobs in (1, 2):
        with pytest.raises(InvalidInputError, match=r"day_1_sparse.npy.*cat_1: index -7"):
            profile_files(days, tmp_path / "a/b/s.json", dataclasses.replace(OPTIONS, jobs=jobs))
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
        tmp_path: "is a folder",
        notes: "was not written by",
        notes / "s.json": "is a file, not a folder",
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


def test_a_lost_worker(
    days: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: bytes
) -> None:
    output = tmp_path / "lost.json"
    monkeypatch.setattr(profiler, "work_on", die)
    with pytest.raises(WorkerError, match="a worker failed"):
        profile_files(days, output, dataclasses.replace(OPTIONS, jobs=2))
    monkeypatch.setattr(profiler, "work_on", partial.work_on)
    profile_files(days, output, OPTIONS)
    assert output.read_bytes() == reference


def die(unit: object, options: object, folder: Path) -> None:
    os._exit(3)
