"""A plan file is written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import InvalidInputError
from planner.io import save_plan
from planner.result import PlanningResult
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
