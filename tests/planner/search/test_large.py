"""Thousands of tables on hundreds of ranks, from the command line, within 4 GiB."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

GIB_IN_KIB = 2**20


@pytest.mark.slow
def test_three_thousand_tables_on_512_ranks(tmp_path: Path) -> None:
    """A plan that fits and a bound below it; the largest process stays below 4 GiB."""
    shardplan = [sys.executable, "-m", "planner"]
    model, out = tmp_path / "model.yaml", tmp_path / "out"
    subprocess.run([*shardplan, "import", "tables", str(model), "--tables", "3000"], check=True)
    command = [*shardplan, "plan", str(model), "--system", "h100_sxm", "--gpus", "512"]
    done = subprocess.run(
        [*command, "--time-limit", "90s", "-o", str(out)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode in {0, 4}, done.stderr
    solver = json.loads((out / "plan.json").read_text())["solver"]
    assert 0 < solver["bound"] <= solver["value"]
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert peak_kib < 4 * GIB_IN_KIB
