"""The single-GPU iterations of Lin et al. 2022, and the host profile of their software."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.workload import HostProfile
from planner import io
from planner.io.library import configs_folder
from planner.io.workload.workload_file import workload_text
from planner.validation import single_gpu
from planner.validation.cases import AS_SHIPPED, Prediction, summarize
from planner.validation.single_gpu import LEFT_OUT, SingleGpuCase
from tests.planner.cli.command_line import Run
from tests.planner.cli.conftest import run  # noqa: F401 - a fixture


@pytest.fixture(scope="module")
def found() -> tuple[Prediction[SingleGpuCase], ...]:
    return single_gpu.predictions()


def test_iterations_are_predicted_without_their_model_and_without_their_gpu(
    found: tuple[Prediction[SingleGpuCase], ...],
) -> None:
    errors = summarize(found)
    assert len(found) == 36
    assert errors["model left out, same GPU"].geomean_error_ratio <= 0.07
    assert errors["model left out, all GPUs"].geomean_error_ratio <= 0.07
    assert errors["GPU left out"].geomean_error_ratio <= 0.08
    assert all(e.coverage_ratio >= 0.8 for e in errors.values())


def test_nothing_is_fitted_to_the_case_that_is_judged(
    found: tuple[Prediction[SingleGpuCase], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other measurements for one model on one GPU do not move what is predicted for them."""
    judged = ("V100", "DLRM_DDP")
    cases = tuple(
        replace(c, measured_s=3 * c.measured_s) if (c.gpu, c.model) == judged else c
        for c in single_gpu.load_cases()
    )
    monkeypatch.setattr(single_gpu, "load_cases", lambda: cases)
    moved = False
    for before, after in zip(found, single_gpu.predictions(), strict=True):
        for name in LEFT_OUT:
            same = before.predicted[name] == after.predicted[name]
            assert same or (before.case.gpu, before.case.model) != judged
            moved = moved or not same
    assert moved


def test_the_command_prints_every_case_and_the_errors(
    run: Run,  # noqa: F811
    found: tuple[Prediction[SingleGpuCase], ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(single_gpu, "predictions", lambda: found)
    printed = run("validate", "published", "--what", "single-gpu", "-v").out
    assert printed.count("titan_xp") == 12
    assert all(name in printed for name in (AS_SHIPPED, *LEFT_OUT))
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
