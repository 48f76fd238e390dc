"""The DCNv2 example differs from a script for TorchRec's own planner in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torchrec")

pytestmark = [pytest.mark.torchrec, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "05_mlperf_dcnv2_in_torchrec.py"
OURS = (
    "from planner.integrations.torchrec_planner import ShardPlanner as EmbeddingShardingPlanner\n"
)
THEIRS = "from torchrec.distributed.planner import EmbeddingShardingPlanner\n"


def output(script: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_one_line_decides_which_planner_runs(tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    head, code = text.split('"""', 2)[1], text.split('"""', 2)[2]
    assert f"+{OURS}" in head
    assert f"-{THEIRS}" in head
    assert code.count(OURS) == 1
    script = tmp_path / "torchrecs.py"
    script.write_text(code.replace(OURS, THEIRS), encoding="utf-8")
    ours, theirs = output(EXAMPLE), output(script)
    assert ours[0].startswith("ShardPlanner: ")
    assert theirs[0].startswith("EmbeddingShardingPlanner: ")
    assert (
        [line[:7] for line in ours[1:]]
        == [line[:7] for line in theirs[1:]]
        == [
            "step 0:",
            "step 1:",
            "step 2:",
        ]
    )
