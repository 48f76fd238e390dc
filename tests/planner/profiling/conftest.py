"""Two days of one-hot indices of three tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planner.profiling.samples import two_days


@pytest.fixture
def days(tmp_path: Path) -> list[Path]:
    return two_days(tmp_path)
