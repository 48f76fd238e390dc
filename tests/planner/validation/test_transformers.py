"""Steps of transformers that others measured, and what is fitted to them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fit_published import PRIOR, fitted_shares, left_out, unmeasured
from costmodels.sustained import SHARES, STEP_GROUPS, UNMEASURED, Shares
from costmodels.workload import DenseOptimizer, DenseParallelism, Workload
from planner import io
from planner.io.workload.workload_file import workload_text
from planner.validation import steps
from planner.validation.cases import AS_SHIPPED, StepCase, json_file, left_out_groups, summarize
from planner.validation.steps import NAIVE, UNFITTED
from tests.planner.cases import first
from tests.planner.cli.command_line import Run
from tests.planner.cli.conftest import run  # noqa: F401 - a fixture

A100_HALF = "A100 half"


@pytest.fixture(scope="module")
def cases() -> tuple[StepCase, ...]:
    return steps.transformer_cases()


@pytest.fixture(scope="module")
def some(cases: tuple[StepCase, ...]) -> tuple[StepCase, ...]:
    """MPT 350m and 1b, and GPT-2 in two bytes."""
    wanted = ("MPT-350m", "MPT-1b", "GPT-2 124M")
    return tuple(
        c for c in cases if c.groups["model"] in wanted and c.groups["device"] == A100_HALF
    )


def test_the_selection_has_models_precisions_and_devices(
    cases: tuple[StepCase, ...],
) -> None:
    assert len(cases) >= 60
    assert {c.groups["family"] for c in cases} == {"BERT", "MPT", "GPT-2", "Llama"}
    assert {"V100 fp32", "V100 half", A100_HALF, "A100 tf32"} <= {c.groups["device"] for c in cases}
    assert len({c.name for c in cases}) == len(cases)
    assert all(c.reference for c in cases)
    assert len(STEP_GROUPS) == len({c.groups["model"] for c in cases})


@pytest.mark.parametrize("every", first([2, 1], 1))
def test_other_sources_are_predicted_within_their_intervals(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = steps.transformer_cases
    monkeypatch.setattr(steps, "transformer_cases", lambda *file: honest(*file)[::every])
    found = steps.unfitted(UNFITTED)
    assert {p.case.topology.device.name.split("-")[0] for p in found} == {
        *("A40", "A100", "H100", "H200", "B200", "GB200", "B300", "GB300"),
    }
    inside = [p.is_inside for p in found]
    assert sum(inside) >= 0.95 * len(found)
    assert sum(abs(p.error_ratio) for p in found) <= 0.065 * len(found)


def test_no_step_is_both_fitted_to_and_held_against(cases: tuple[StepCase, ...]) -> None:
    def key(case: StepCase) -> tuple[object, ...]:
        return (
            replace(case.workload, name=""),
            case.topology.name,
            case.topology.world_size,
            case.measured_s,
        )

    assert not {key(c) for c in cases} & {key(c) for c in steps.transformer_cases(UNFITTED)}


def test_a_row_is_predicted_within_its_interval(some: tuple[StepCase, ...]) -> None:
    found = [steps.estimate(case) for case in some]
    inside = [e.low_s <= c.measured_s <= e.high_s for c, e in zip(some, found, strict=True)]
    assert sum(inside) >= 0.85 * len(some)
    errors = [abs(e.time_s / c.measured_s - 1) for c, e in zip(some, found, strict=True)]
    assert sum(errors) / len(errors) <= 0.06


def test_nothing_is_fitted_to_the_model_that_is_judged(
    some: tuple[StepCase, ...],
) -> None:
    """Thrice the measured times of one model move nothing that is predicted for it."""
    few = some[::3]
    changed = tuple(
        replace(c, measured_s=3 * c.measured_s) if c.groups["model"] == "MPT-1b" else c for c in few
    )
    before, after = left_out("transformers", few), left_out("transformers", changed)
    for way in left_out_groups("transformers"):
        moved = [before[way][key] != after[way][key] for key in before[way]]
        judged = [key.startswith("MPT-1b") for key in before[way]]
        assert way != "model left out" or moved == [not found for found in judged]


def test_a_fit_finds_the_shares_that_made_the_times(some: tuple[StepCase, ...]) -> None:
    """Kernels between products are a small part of these steps, so that the prior of 0.9 counts."""
    made = replace(PRIOR, product_ratio=0.7, memory_ratio=0.8, flash_1_ratio=0.5)
    computed = tuple(replace(c, measured_s=steps.estimate(c, made).time_s) for c in some)
    found = fitted_shares(computed)[A100_HALF]
    assert found.product_ratio == pytest.approx(0.7, rel=0.04)
    assert found.memory_ratio == pytest.approx(0.8, rel=0.1)
    assert found.flash_1_ratio == pytest.approx(0.5, rel=0.08)


def test_too_few_rows_leave_the_prior(cases: tuple[StepCase, ...]) -> None:
    llama = tuple(c for c in cases if c.groups["family"] == "Llama")
    assert fitted_shares(llama) == {}
    assert unmeasured({}) == PRIOR


def test_a_device_that_was_not_measured_streams_as_the_others_do() -> None:
    found = {
        "V100 fp32": Shares(product_ratio=1.0, memory_ratio=0.5),
        "V100 half": Shares(product_ratio=0.7, memory_ratio=0.5),
        "A100 half": Shares(product_ratio=0.8, memory_ratio=0.98),
    }
    told = unmeasured(found)
    assert told.memory_ratio == pytest.approx(0.7)  # a generation counts once
    assert told.product_ratio == pytest.approx((0.7 * 0.8) ** 0.5)
    assert unmeasured(found, "fp32").product_ratio == 1.0
    shipped = unmeasured(SHARES)
    for name in ("memory_ratio", "product_ratio"):
        assert getattr(shipped, name) == pytest.approx(getattr(UNMEASURED, name), abs=1e-3)


@pytest.mark.slow
def test_one_generation_tells_the_share_of_fp32(cases: tuple[StepCase, ...]) -> None:
    """docs/accuracy.md says so, with these numbers."""
    plain = [c for c in cases if c.groups["device"].endswith(" fp32")]
    fitted = {group: share for group, share in SHARES.items() if group.endswith(" fp32")}
    assert list(fitted) == ["V100 fp32"]
    assert fitted["V100 fp32"].product_ratio == 0.994
    assert (
        sum(c.groups["device"] == "V100 fp32" and c.groups["family"] == "BERT" for c in plain) == 32
    )
    (other,) = (c for c in plain if c.groups["device"] != "V100 fp32")
    assert (other.groups["model"], other.groups["device"]) == ("GPT-2 124M", "A100 fp32")
    error_ratio = steps.estimate(other).time_s / other.measured_s - 1.0
    assert round(100.0 * error_ratio) == 4


@pytest.mark.parametrize("every", first([3, 1], 1))
def test_errors_stay_where_they_are(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 % and 85 % inside, also for models that were left out of the fit; of every third row."""
    honest = steps.transformer_cases
    monkeypatch.setattr(steps, "transformer_cases", lambda *file: honest(*file)[::every])
    monkeypatch.setattr(steps, "unfitted", lambda *_: ())  # the test above looks at them
    errors = summarize(steps.transformers()[0].found)
    assert errors[AS_SHIPPED].mean_error_ratio <= 0.07
    assert errors["model left out"].mean_error_ratio <= 0.10
    assert errors["family left out"].mean_error_ratio <= 0.10
    assert all(
        errors[name].coverage_ratio >= 0.85
        for name in (AS_SHIPPED, *left_out_groups("transformers"))
    )
    assert errors[NAIVE].mean_error_ratio >= 0.25


def test_the_shipped_shares_are_those_fitted(cases: tuple[StepCase, ...]) -> None:
    """Those without each model and each family are in the file of constants."""
    stored = json_file("left_out.json")["transformers"]
    for way, shares_of in left_out("transformers").items():
        assert set(shares_of) == set(stored[way])
        for key, constants in shares_of.items():
            assert constants == pytest.approx(stored[way][key], rel=0.02, abs=1e-8)
    for name, shares in fitted_shares(cases).items():
        assert SHARES[name].product_ratio == pytest.approx(shares.product_ratio, abs=2e-3)
        assert SHARES[name].memory_ratio == pytest.approx(shares.memory_ratio, abs=2e-3)


def test_the_command_prints_errors_by_model(
    run: Run,  # noqa: F811
    some: tuple[StepCase, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "transformer_cases", lambda *_: some[::4])
    done = run("validate", "published", "--what", "transformers")
    assert done.code == 0
    assert "model left out" in done.out
    assert "6ND roofline" in done.out
    told = json.loads(run("validate", "published", "--what", "transformers", "--json").out)
    assert set(told) == {"unfitted", "frameworks", "fitted"}
    assert set(told["fitted"]["errors"]) == {AS_SHIPPED, *left_out_groups("transformers"), NAIVE}


def test_how_the_dense_part_is_trained_reads_back(
    tmp_path: Path, cases: tuple[StepCase, ...]
) -> None:
    trained: Workload = replace(
        cases[0].workload,
        dense_optimizer=DenseOptimizer.LAMB,
        dense_parallelism=DenseParallelism.FSDP,
        gradient_accumulation=3,
    )
    path = tmp_path / "w.yaml"
    path.write_text(workload_text(trained), encoding="utf-8")
    assert io.load_workload(path) == trained
