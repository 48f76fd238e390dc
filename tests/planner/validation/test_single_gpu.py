"""The single-GPU iterations of Lin et al. 2022, and the host profile of their software."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fit_published import left_out
from costmodels.workload import HostProfile
from planner import io
from planner.io.documents import configs_folder
from planner.io.workload.workload_file import workload_text
from planner.validation import steps
from planner.validation.cases import (
    AS_SHIPPED,
    Part,
    Prediction,
    json_file,
    left_out_groups,
    summarize,
)
from planner.validation.steps import single_gpu_cases
from tests.planner.cli.command_line import Run
from tests.planner.cli.conftest import run  # noqa: F401 - a fixture


@pytest.fixture(scope="module")
def part() -> Part:
    (part,) = steps.single_gpu()
    return part


@pytest.fixture(scope="module")
def found(part: Part) -> list[Prediction]:
    return list(part.found)


def test_iterations_are_predicted_without_their_model_and_without_their_gpu(
    found: list[Prediction],
) -> None:
    errors = summarize(found)
    assert len(found) == 36
    assert errors["model left out, same GPU"].geomean_error_ratio <= 0.07
    assert errors["model left out, all GPUs"].geomean_error_ratio <= 0.07
    assert errors["GPU left out"].geomean_error_ratio <= 0.08
    assert all(e.coverage_ratio >= 0.8 for e in errors.values())


def test_nothing_is_fitted_to_the_case_that_is_judged() -> None:
    """Other measurements for one model on one GPU do not move what is predicted for them."""
    judged = {"GPU": "V100", "model": "DLRM_DDP"}
    cases = [
        replace(c, measured_s=3 * c.measured_s) if c.groups == judged else c
        for c in single_gpu_cases()
    ]
    before, after = json_file("left_out.json")["single-gpu"], left_out("single-gpu", cases)
    for way, titles in left_out_groups("single-gpu").items():
        key = " ".join(judged[title] for title in titles)
        assert after[way][key] == pytest.approx(before[way][key])
        assert any(pair != pytest.approx(before[way][k]) for k, pair in after[way].items())


def test_the_command_prints_every_case_and_the_errors(
    run: Run,  # noqa: F811
    part: Part,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "single_gpu", lambda: (part,))
    printed = run("validate", "published", "--what", "single-gpu", "-v").out
    assert printed.count("titan_xp") == 12
    assert all(name in printed for name in (AS_SHIPPED, *left_out_groups("single-gpu")))
    told = json.loads(run("validate", "published", "--what", "single-gpu", "--json").out)
    data = told["iterations"]
    assert len(data["cases"]) == 36
    assert data["errors"][AS_SHIPPED]["count"] == 36


def test_files_choose_the_profile_and_the_time_between_steps(tmp_path: Path) -> None:
    assert io.load_workload("small_demo").host_profile is HostProfile.EAGER
    shipped = io.load_workload(configs_folder() / "published" / "lin22" / "dlrm_ddp.yaml")
    assert shipped.host_profile is HostProfile.EAGER_2021
    chosen = replace(shipped, between_steps_s=1.5e-3)
    path = tmp_path / "again.yaml"
    path.write_text(workload_text(chosen), encoding="utf-8")
    again = io.load_workload(path)
    assert (again.host_profile, again.between_steps_s) == (HostProfile.EAGER_2021, 1.5e-3)
