"""Two days of one-hot indices of three tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planner.profiling.samples import day_columns, write_npy


@pytest.fixture
def days(tmp_path: Path) -> list[Path]:
    return [write_npy(tmp_path / f"day_{i}_sparse.npy", day_columns(10 * i)) for i in range(2)]
