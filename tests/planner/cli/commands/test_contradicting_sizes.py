"""Workloads that contradict some sizes of a system: those sizes fail alone, with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import planner
from planner.errors import InvalidInputError
from planner.io import load_system, load_workload
from tests.planner.cli.command_line import WORKLOAD_TEXT, Run

SHARES = "8 shares for {} ranks; give one for each rank, or proportional"
EFFORT = ("--evaluations", 5, "--json")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A workload with shares of the batch for eight ranks."""
    path = tmp_path / "shared.yaml"
    training = "training: {batch_shares: [1, 2, 1, 2, 1, 2, 1, 2], "
    path.write_text(WORKLOAD_TEXT.replace("training: {", training))
    return path


def test_a_study_lists_sizes_that_a_workload_contradicts(run: Run, shared: Path) -> None:
    """The first of them ended the whole study, and what it had found was lost."""
    asked = ("study", shared, "--system", "h100_sxm", "--gpus", "8,16", "--workers", 1, "--grid")
    done = run(*asked, *EFFORT)
    assert done.code == 0, done.err
    setups = {p["gpus"]: (p["status"], p["reason"]) for p in json.loads(done.out)["setups"]}
    assert setups[8] == ("done", "")
    assert setups[16][0] == "failed"
    assert SHARES.format(16) in setups[16][1]


def test_size_goes_on_beyond_sizes_that_a_workload_contradicts(run: Run, shared: Path) -> None:
    asked = ("study", shared, "--system", "h100_sxm", "--max-gpus", 16, *EFFORT)
    done = run(*asked, "--smallest-for", "1e12")
    assert done.code == 1, done.err
    tried = json.loads(done.out)["setups"]
    assert [(p["gpus"], p["status"]) for p in tried] == [(8, "done"), (16, "failed")]
    none = run(*asked[:-1], "--smallest-for", 1, "--gpus-per-host", 3)
    assert none.code == 2
    assert SHARES.format(3) in " ".join(none.err.split())


def test_the_python_functions_refuse_it_as_they_say(shared: Path) -> None:
    """They raised an error of the cost models, which is none of the planner's."""
    workload = load_workload(shared)
    eight, four = (load_system("h100_sxm", gpus=gpus) for gpus in (8, 4))
    found = planner.plan(workload, eight, max_evaluations=5, with_baselines=False)
    with pytest.raises(InvalidInputError, match=SHARES.format(4)):
        planner.plan(workload, four, max_evaluations=5)
    with pytest.raises(InvalidInputError, match=SHARES.format(4)):
        planner.estimate(workload, four, found.plan)
