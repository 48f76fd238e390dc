"""Every way to a price gives the same one, on every shipped system."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.errors import InvalidValueError
from costmodels.pipeline import CostPipeline
from planner import estimate, load_system, load_workload, plan, save_plan
from planner.cli.run import run
from planner.io.documents import names
from planner.io.system.system_file import load_smallest
from tests.strategies import make_topology


@pytest.mark.parametrize("name", names("systems"))
def test_command_function_and_pipeline_give_one_price(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    system = load_smallest(name)
    system = load_system(name, gpus=2 * system.world_size)
    workload = load_workload("small_demo")
    found = plan(workload, system, strategy="random", max_evaluations=5, with_baselines=False)
    price = found.estimate.time.time_s
    path = tmp_path / "plan.json"
    save_plan(path, found)
    args = ["estimate", "small_demo", str(path), "--system", name, "--gpus", str(system.world_size)]
    assert run([*args, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["predicted"]["iteration_time_s"] == price
    assert estimate(workload, system, found.plan).estimate.time.time_s == price
    assert CostPipeline(workload, system).estimate(found.plan).time.time_s == price


@pytest.mark.parametrize("named", [{"collective_curves": ("mine",)}, {"calibration": "a.json"}])
def test_what_a_system_names_and_nobody_read_is_refused(named: dict[str, object]) -> None:
    topology = replace(make_topology(), **named)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match=r"which was not read: planner\.load_system"):
        CostPipeline(load_workload("small_demo"), topology)
