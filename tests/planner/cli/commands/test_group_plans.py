"""Plans of one group of ranks, in the commands that read a plan: priced as they were made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodels.topology import group_topology
from planner import api, io
from tests.planner.cli.command_line import Run


@pytest.fixture
def group_plan(workload_file: Path, tmp_path: Path) -> Path:
    """The plan of a group of 4 ranks, 2 on each host, of a job of 8 ranks."""
    group = group_topology(io.load_system("h100_sxm", gpus=8, gpus_per_host=4), 4)
    assert group is not None
    workload = io.load_workload(workload_file)
    path = tmp_path / "run" / "plan.json"
    io.save_plan(path, api.plan(workload, group, max_evaluations=20, with_baselines=False))
    return path


def test_every_command_prices_it_as_one_group_of_the_job(
    run: Run, workload_file: Path, group_plan: Path
) -> None:
    told = json.loads(group_plan.read_text())
    assert told["whole"] == {"world_size": 8, "local_world_size": 4}
    predicted = told["predicted"]
    estimated = json.loads(run("estimate", workload_file, group_plan, "--json").out)
    assert estimated["predicted"]["iteration_time_s"] == predicted["iteration_time_s"]
    assert estimated["memory"] == told["memory"]
    samples = 8 * told["batch_size_per_rank"]
    assert predicted["samples_per_s"] == pytest.approx(samples / predicted["iteration_time_s"])
    explained = json.loads(run("explain", workload_file, group_plan, "--json").out)
    assert explained["plan_time_s"] == pytest.approx(predicted["iteration_time_s"])
    assert "one group of 8 ranks" in run("estimate", workload_file, group_plan).out
    alone = json.loads(run("estimate", workload_file, group_plan, "--gpus", 4, "--json").out)
    assert alone["whole"] is None


@pytest.mark.parametrize(("ranks", "local"), [(6, 2), (8, 8)])
def test_a_job_without_such_groups_is_refused(
    run: Run, workload_file: Path, group_plan: Path, ranks: int, local: int
) -> None:
    told = json.loads(group_plan.read_text())
    told["whole"] = {"world_size": ranks, "local_world_size": local}
    group_plan.write_text(json.dumps(told))
    done = run("estimate", workload_file, group_plan)
    assert done.code == 2
    assert "has no such groups" in done.err
