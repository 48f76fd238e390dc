"""CPU ranks that nobody calibrated: runs correct the constants of other cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodels.calibration.points import random_plan
from costmodels.pipeline import CostPipeline
from costmodels.topology import FITTED_KINDS, FittedFactors, Topology
from planner import io
from planner.fit.estimate import Run, fit, on_reference_cores
from planner.io.system.system_writer import write_fitted_system
from planner.problem import PlanningProblem
from planner.validation.tasks import MIXES, random_workload

OWN = """\
name: own_cores
base: cpu_gloo
device:
  name: cpu
  hbm_capacity: 3 GiB (user, half of the machine)
"""
HIDDEN = (1.5, 1.8, 1.3, 1.0)


def runs_of(topology: Topology, count: int, seed: int = 1) -> tuple[PlanningProblem, list[Run]]:
    """Random plans on cores that are slower than the reference by hidden factors."""
    workload, rng = random_workload(seed), np.random.default_rng(seed)
    plans = [random_plan(workload, 2, MIXES[i % 4], rng) for i in range(count)]
    factors = dict(zip((f"{kind}_ratio" for kind in FITTED_KINDS), HIDDEN, strict=True))
    slower = replace(on_reference_cores(topology), fitted=FittedFactors(**factors))
    truth = CostPipeline(workload, slower)
    runs = [
        Run(name=str(i), plan=p, iteration_s=truth.estimate(p).time.time_s)
        for i, p in enumerate(plans)
    ]
    return PlanningProblem(workload=workload, topology=topology), runs


@pytest.mark.parametrize("own", [False, True])
def test_two_runs_predict_the_others_and_the_file_says_the_same(tmp_path: Path, own: bool) -> None:
    source = "cpu_gloo"
    if own:
        (tmp_path / "mine").mkdir()
        source = str(tmp_path / "mine" / "own.yaml")
        Path(source).write_text(OWN)
    topology = io.load_system(source, gpus=2)
    problem, runs = runs_of(topology, 6)
    found = fit(problem, runs[:2])
    assert found.topology.calibration
    left = found.left_out_ratio
    assert left is not None
    assert left < found.before_ratio
    written = write_fitted_system(
        tmp_path / "fitted.yaml", source, found.topology, found.factors,
        settled_ratio=found.settled_ratio, num_runs=2,
    )  # fmt: skip
    assert len(written) == 2
    mine = io.load_system(tmp_path / "fitted.yaml", gpus=2)
    assert mine.device.single_stream
    assert mine.device.hbm_capacity_bytes == topology.device.hbm_capacity_bytes
    pipeline = CostPipeline(problem.workload, mine)
    for run in runs[2:]:
        time = pipeline.estimate(run.plan).time
        assert time.time_s == pytest.approx(run.iteration_s, rel=0.08)
        assert time.low_s < run.iteration_s < time.high_s
    if own:  # what stands in the folder of the output belongs to somebody else
        assert Path(source).read_text() == OWN
    again = fit(replace(problem, topology=mine), runs[2:])  # rests on the first, without a copy
    assert again.topology is mine
    assert again.before_ratio < 0.08


def test_others_keep_their_models() -> None:
    for name, gpus, hosts in (("h100_sxm", 8, 1), ("cpu_gloo", 4, 2)):
        topology = io.load_system(name, gpus=gpus, gpus_per_host=gpus // hosts)
        assert on_reference_cores(topology) is topology
