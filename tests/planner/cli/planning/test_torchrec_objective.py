"""``plan --objective torchrec``, with the real planner."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.planner.cli.command_line import Run

pytestmark = pytest.mark.usefixtures("no_process_beside")


@pytest.mark.parametrize("objective", ["torchrec", "torchrec-critical-path"])
def test_plans_on_torchrecs_terms(
    run: Run, workload_file: Path, system_file: Path, objective: str
) -> None:
    asked = ("plan", workload_file, "--system", system_file, "--gpus", 4, "--objective", objective)
    done = run(*asked, "--evaluations", 8, "--json", "-q")
    assert done.code == 0, done.err
    ours = json.loads(done.out)["solver"]
    assert ours["objective"] == objective
    again = run(*asked, "--torchrec-defaults", "--evaluations", 8, "--json", "-q")
    assert again.code == 0, again.err
    theirs = json.loads(again.out)["solver"]
    assert theirs["bound"] != pytest.approx(ours["bound"])


def test_torchrecs_figures_need_its_objective(
    run: Run, workload_file: Path, system_file: Path
) -> None:
    done = run("plan", workload_file, "--system", system_file, "--torchrec-defaults")
    assert done.code == 2
    assert "--objective torchrec" in done.err
