"""The tables of promises: made-up models are read, and processes that are left are seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.promises import MODELS, busy, of_session, source_of
from planner import load_workload


def test_made_up_models_are_the_same_again_and_read(tmp_path: Path) -> None:
    model = next(m for m in MODELS if not m.shipped)
    texts = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        made = Path(source_of(model, tmp_path / name))
        texts.append(made.read_text())
        assert len(load_workload(made).tables) == model.tables
    assert texts[0] == texts[1]


def test_processes_that_are_left_are_seen() -> None:
    leaves_one = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'])"
    parent = subprocess.Popen(
        [sys.executable, "-c", leaves_one], stdin=subprocess.PIPE, start_new_session=True
    )
    parent_input = parent.stdin
    assert parent_input is not None
    try:
        parent.wait(30)
        assert len(of_session(parent.pid)) == 1
    finally:
        parent_input.close()


def test_busy_loops_end() -> None:
    with busy(1):
        pass
    assert of_session(-1) == []
