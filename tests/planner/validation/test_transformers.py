"""Steps of transformers that others measured, and what is fitted to them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.sustained import PRIOR, SHARES, STEP_GROUPS, UNMEASURED, Shares
from costmodels.workload import DenseOptimizer, DenseParallelism, Workload
from planner import io
from planner.io.workload.workload_file import workload_text
from planner.validation import transformers
from planner.validation.cases import AS_SHIPPED, Prediction, summarize
from planner.validation.transformers import (
    LEFT_OUT,
    NAIVE,
    UNFITTED,
    TransformerCase,
    fitted_shares,
)
from tests.planner.cases import first
from tests.planner.cli.command_line import Run
from tests.planner.cli.conftest import run  # noqa: F401 - a fixture

A100_HALF = "A100 half"


@pytest.fixture(scope="module")
def cases() -> tuple[TransformerCase, ...]:
    return transformers.load_cases()


@pytest.fixture(scope="module")
def some(cases: tuple[TransformerCase, ...]) -> tuple[TransformerCase, ...]:
    """MPT 350m and 1b, and GPT-2 in two bytes."""
    wanted = ("MPT-350m", "MPT-1b", "GPT-2 124M")
    return tuple(c for c in cases if c.model in wanted and c.group == A100_HALF)


def test_the_selection_has_models_precisions_and_devices(
    cases: tuple[TransformerCase, ...],
) -> None:
    assert len(cases) >= 60
    assert {c.family for c in cases} == {"BERT", "MPT", "GPT-2", "Llama"}
    assert {"V100 fp32", "V100 half", A100_HALF, "A100 tf32"} <= {c.group for c in cases}
    assert len({c.name for c in cases}) == len(cases)
    assert all(c.reference for c in cases)
    assert len(STEP_GROUPS) == len({c.model for c in cases})


def test_other_sources_are_predicted_within_their_intervals() -> None:
    found = transformers.unfitted(UNFITTED)
    assert {p.case.topology.device.name.split("-")[0] for p in found} == {
        *("A40", "A100", "H100", "H200", "B200", "GB200", "B300", "GB300"),
    }
    inside = [p.is_inside for p in found]
    assert sum(inside) >= 0.95 * len(found)
    assert sum(abs(p.error_ratio) for p in found) <= 0.065 * len(found)


def test_no_step_is_both_fitted_to_and_held_against(cases: tuple[TransformerCase, ...]) -> None:
    def key(case: TransformerCase) -> tuple[object, ...]:
        return (
            replace(case.workload, name=""),
            case.topology.name,
            case.topology.world_size,
            case.measured_s,
        )

    assert not {key(c) for c in cases} & {key(p.case) for p in transformers.unfitted(UNFITTED)}


def test_a_row_is_predicted_within_its_interval(some: tuple[TransformerCase, ...]) -> None:
    found = [transformers.estimate(case) for case in some]
    inside = [e.low_s <= c.measured_s <= e.high_s for c, e in zip(some, found, strict=True)]
    assert sum(inside) >= 0.85 * len(some)
    errors = [abs(e.time_s / c.measured_s - 1) for c, e in zip(some, found, strict=True)]
    assert sum(errors) / len(errors) <= 0.06


def test_nothing_is_fitted_to_the_model_that_is_judged(
    some: tuple[TransformerCase, ...],
) -> None:
    """Thrice the measured times of one model move nothing that is predicted for it."""
    few = some[::3]
    changed = tuple(
        replace(c, measured_s=3 * c.measured_s) if c.model == "MPT-1b" else c for c in few
    )
    before, after = transformers.predictions(few), transformers.predictions(changed)
    for old, new in zip(before, after, strict=True):
        is_judged = old.case.model == "MPT-1b"
        moved = new.predicted["model left out"].time_s != old.predicted["model left out"].time_s
        assert moved != is_judged
        assert new.predicted[AS_SHIPPED].time_s == old.predicted[AS_SHIPPED].time_s
    assert set(summarize(before)) == {AS_SHIPPED, *LEFT_OUT, NAIVE}


def test_a_fit_finds_the_shares_that_made_the_times(some: tuple[TransformerCase, ...]) -> None:
    """Kernels between products are a small part of these steps, so that the prior of 0.9 counts."""
    made = replace(PRIOR, product_ratio=0.7, memory_ratio=0.8, flash_1_ratio=0.5)
    computed = tuple(replace(c, measured_s=transformers.estimate(c, made).time_s) for c in some)
    found = fitted_shares(computed)[A100_HALF]
    assert found.product_ratio == pytest.approx(0.7, rel=0.04)
    assert found.memory_ratio == pytest.approx(0.8, rel=0.1)
    assert found.flash_1_ratio == pytest.approx(0.5, rel=0.08)


def test_too_few_rows_leave_the_prior(cases: tuple[TransformerCase, ...]) -> None:
    llama = tuple(c for c in cases if c.family == "Llama")
    assert fitted_shares(llama) == {}
    assert transformers.unmeasured({}) == PRIOR


def test_a_device_that_was_not_measured_streams_as_the_others_do() -> None:
    found = {
        "V100 fp32": Shares(product_ratio=1.0, memory_ratio=0.5),
        "V100 half": Shares(product_ratio=0.7, memory_ratio=0.5),
        "A100 half": Shares(product_ratio=0.8, memory_ratio=0.98),
    }
    told = transformers.unmeasured(found)
    assert told.memory_ratio == pytest.approx(0.7)  # a generation counts once
    assert told.product_ratio == pytest.approx((0.7 * 0.8) ** 0.5)
    assert transformers.unmeasured(found, "fp32").product_ratio == 1.0
    shipped = transformers.unmeasured(SHARES)
    for name in ("memory_ratio", "product_ratio"):
        assert getattr(shipped, name) == pytest.approx(getattr(UNMEASURED, name), abs=1e-3)


@pytest.mark.slow
def test_one_generation_tells_the_share_of_fp32(cases: tuple[TransformerCase, ...]) -> None:
    """docs/accuracy.md says so, with these numbers."""
    plain = [c for c in cases if c.group.endswith(" fp32")]
    fitted = {group: share for group, share in SHARES.items() if group.endswith(" fp32")}
    assert list(fitted) == ["V100 fp32"]
    assert fitted["V100 fp32"].product_ratio == 0.994
    assert sum(c.group == "V100 fp32" and c.family == "BERT" for c in plain) == 32
    (other,) = (c for c in plain if c.group != "V100 fp32")
    assert (other.model, other.group) == ("GPT-2 124M", "A100 fp32")
    error_ratio = transformers.estimate(other).time_s / other.measured_s - 1.0
    assert round(100.0 * error_ratio) == 4


@pytest.mark.parametrize("step", first([2, 1], 1))
def test_errors_stay_where_they_are(cases: tuple[TransformerCase, ...], step: int) -> None:
    """What the issue asks for: 10 % and 85 % inside, also for models that were left out.

    By default of every other row, also of those that are fitted to.
    """
    found: tuple[Prediction[TransformerCase], ...] = transformers.predictions(cases[::step])
    errors = summarize(found)
    assert errors[AS_SHIPPED].mean_error_ratio <= 0.07
    assert errors["model left out"].mean_error_ratio <= 0.10
    assert errors["family left out"].mean_error_ratio <= 0.10
    assert all(errors[name].coverage_ratio >= 0.85 for name in (AS_SHIPPED, *LEFT_OUT))
    assert errors[NAIVE].mean_error_ratio >= 0.25


def test_the_shipped_shares_are_those_fitted(cases: tuple[TransformerCase, ...]) -> None:
    for name, shares in fitted_shares(cases).items():
        assert SHARES[name].product_ratio == pytest.approx(shares.product_ratio, abs=2e-3)
        assert SHARES[name].memory_ratio == pytest.approx(shares.memory_ratio, abs=2e-3)


def test_the_command_prints_errors_by_model(
    run: Run,  # noqa: F811
    some: tuple[TransformerCase, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transformers, "load_cases", lambda *_: some[::4])
    done = run("validate", "published", "--what", "transformers")
    assert done.code == 0
    assert "model left out" in done.out
    assert "6ND roofline" in done.out
    told = json.loads(run("validate", "published", "--what", "transformers", "--json").out)
    assert set(told) == {"unfitted", "frameworks", "fitted"}
    assert set(told["fitted"]["errors"]) == {AS_SHIPPED, *LEFT_OUT, NAIVE}


def test_how_the_dense_part_is_trained_reads_back(
    tmp_path: Path, cases: tuple[TransformerCase, ...]
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
