"""Cores that this process may use, and that they are counted in one place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_a_process_that_is_pinned_has_the_cores_it_is_pinned_to() -> None:
    core = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{core}}}); "
        "from planner.support.cores import usable_cores; print(usable_cores())"
    )
    done = subprocess.run(
        (sys.executable, "-c", code), cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"


def test_cores_are_counted_in_one_place() -> None:
    """The name of a machine in a calibration says how many it has; ranks are pinned to theirs."""
    words = ("os.cpu_count", "sched_getaffinity")
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "planner").rglob("*.py")
        if any(word in path.read_text() for word in words)
    }
    assert found == {
        "planner/integrations/measure/calibrate.py",
        "planner/integrations/measure/gloo_ranks.py",
    }
