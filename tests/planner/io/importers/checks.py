"""What tests of importers share."""

from __future__ import annotations

import json
from pathlib import Path

from costmodels.sharding import check_plan
from costmodels.workload import Workload
from planner import io
from planner.io.importers.base import Imported, imported_plan_text, imported_text
from tests.strategies import make_table, make_workload

SHAPES = {"hour": (24, 4)}


def save(folder: Path, value: object) -> Path:
    """A JSON file of that content."""
    path = folder / "file.json"
    path.write_text(json.dumps(value))
    return path


def three_tables() -> Workload:
    """What the plans of the samples number 0, 1 and 2."""
    return make_workload(*(make_table(f"t{i}") for i in range(3)))


def check_readable(imported: Imported, folder: Path) -> None:
    """The files that an import writes can be read, and say what was imported."""
    path = folder / "imported.yaml"
    path.write_text(imported_text(imported), encoding="utf-8")
    assert io.load_workload(path) == imported.workload
    for key in imported.assumed:
        assert f"Assumed: {key}:" in path.read_text()
    if imported.plan is not None and imported.world_size is not None:
        check_plan(imported.plan, imported.workload, imported.world_size)
        path = folder / "plan.json"
        path.write_text(imported_plan_text(imported))
        assert io.load_plan(path, imported.workload).plan == imported.plan
