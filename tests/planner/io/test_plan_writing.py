"""A plan file is written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planner.errors import InvalidInputError
from planner.io import save_plan
from planner.io.plan.result_json import plan_text
from planner.result import PlanningResult
from planner.support.files import write_texts_atomic
from tests.planner.io.files import write
from tests.planner.report.report_samples import make_result


@pytest.fixture
def result() -> PlanningResult:
    return make_result()


def test_the_place_cannot_be_written(tmp_path: Path, result: PlanningResult) -> None:
    write(tmp_path, "file", "kept")
    for path in (tmp_path / "file" / "plan.json", tmp_path):
        with pytest.raises(InvalidInputError, match="cannot be written"):
            save_plan(path, result)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_an_interrupted_write_leaves_the_old_file(
    tmp_path: Path, result: PlanningResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "plan.json", "old")

    def interrupt(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_plan(path, result)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_a_link_stays_and_the_file_behind_it_is_written(
    tmp_path: Path, result: PlanningResult
) -> None:
    (tmp_path / "kept").mkdir()
    link = tmp_path / "plan.json"
    for target in (write(tmp_path / "kept", "old.json", "old"), tmp_path / "kept" / "new.json"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        save_plan(link, result)
        assert link.readlink() == target
        assert target.read_text() == plan_text(result)
    assert sorted(p.name for p in tmp_path.rglob("*.*")) == ["new.json", "old.json", "plan.json"]


def test_a_pipe_is_written_into_and_not_replaced(tmp_path: Path, result: PlanningResult) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_texts_atomic({pipe: "told", tmp_path / "file": "written"})
        assert os.read(reader, 100) == b"told"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert (tmp_path / "file").read_text() == "written"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "pipe"]
