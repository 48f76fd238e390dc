"""Host profiles, input copies, and the single-GPU iterations of Lin et al. 2022."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.errors import InvalidValueError
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType
from costmodels.stages.host import _UNPROFILED, PROFILES, input_bytes
from costmodels.workload import HostProfile, Pipeline, Workload
from planner import io
from planner.io.library import configs_folder
from planner.io.workload.workload_writer import workload_text
from planner.validation import single_gpu
from planner.validation.single_gpu import AS_SHIPPED, LEFT_OUT, SingleGpuPrediction
from tests.planner.cli.command_line import Run
from tests.planner.cli.conftest import run  # noqa: F401 - a fixture
from tests.strategies import make_placement, make_table, make_topology, make_workload


@pytest.fixture(scope="module")
def found() -> tuple[SingleGpuPrediction, ...]:
    return single_gpu.predictions()


def test_iterations_are_predicted_without_their_model_and_without_their_gpu(
    found: tuple[SingleGpuPrediction, ...],
) -> None:
    errors = single_gpu.summarize(found)
    assert len(found) == 36
    assert errors["model left out, same GPU"].geomean_error_ratio <= 0.07
    assert errors["model left out, all GPUs"].geomean_error_ratio <= 0.07
    assert errors["GPU left out"].geomean_error_ratio <= 0.08
    assert all(e.coverage_ratio >= 0.8 for e in errors.values())


def test_nothing_is_fitted_to_the_case_that_is_judged(
    found: tuple[SingleGpuPrediction, ...], monkeypatch: pytest.MonkeyPatch
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
    found: tuple[SingleGpuPrediction, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(single_gpu, "predictions", lambda: found)
    printed = run("validate", "published", "--what", "single-gpu").out
    assert printed.count("titan_xp") == 12
    assert all(name in printed for name in (AS_SHIPPED, *LEFT_OUT))
    data = json.loads(run("validate", "published", "--what", "single-gpu", "--json").out)
    assert len(data["cases"]) == 36
    assert data["errors"][AS_SHIPPED]["count"] == 36


def test_the_profile_of_2021_is_what_the_shipped_overheads_add_up_to() -> None:
    path = configs_folder() / "published" / "lin22_host_overheads.csv"
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    us = {(row["type"], row["operator"]): float(row["mean_us"]) for row in rows}
    gap, launch = us["T1", "(all ops)"], us["T4", "cudaLaunchKernel"]

    def around(operator: str, *, last: str = "") -> float:
        return gap + us["T2", operator] + us["T3", last or operator]

    linear, relu = around("aten::linear"), around("aten::relu")
    addmm = around("AddmmBackward0", last="AddmmBackward") + us["T5", "AddmmBackward"] + 2 * launch
    backward = addmm + around("ReluBackward0") + launch + gap + us["T5", "TBackward"]
    gradient = "torch::autograd::AccumulateGrad"
    step, zero = "Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"
    loss = around("aten::mse_loss") + around("aten::ones_like")
    expected = {
        "operator": (linear + relu) / 2,
        "per_gradient": around(gradient) + us["T5", gradient],
        "per_update": us["T5", step] + us["T5", zero] + 2 * launch,
        "update": around(step) + around(zero),
        "lookup_forward": around("LookupFunction"),
        "lookup_backward": around("LookupFunctionBackward"),
        "collective": gap + us["T2", "All2All_Req"],
        "copy": around("aten::to") + us["T4", "cudaMemcpyAsync"],
        "loss": loss + around("MseLossBackward0", last="MseLossBackward") + 3 * launch,
        "launch": launch,
    }
    profile = PROFILES[HostProfile.EAGER_2021]
    for name, microseconds in expected.items():
        shipped = getattr(profile, f"{name}_ratio") * 5.0 / _UNPROFILED
        assert shipped == pytest.approx(microseconds, rel=0.01), name
    ratio = backward / (linear + relu + 2 * launch)
    assert profile.backward_ratio == pytest.approx(ratio, rel=0.01)


# ------------------------------------------------------------------ copies and profiles


def time_s(workload: Workload, **links: float) -> float:
    topology = make_topology(1, 2)
    topology = replace(topology, host=replace(topology.host, **links))
    placed = make_placement(workload.tables[0], ShardingType.TABLE_WISE, topology)
    plan = Plan(placements=(placed,))
    return CostPipeline(workload, topology).estimate(plan).time.time_s


SLOW = {"device_link_bandwidth_bytes_per_s": 1e9}


def test_a_batch_is_copied_over_the_link_of_the_device() -> None:
    workload = make_workload(make_table(), local_batch_size=1000)
    per_sample = 4 * (13 + 1) + 8 * workload.index_bytes + workload.index_bytes
    assert input_bytes(workload) == 1000 * per_sample


def test_a_feature_of_two_tables_is_copied_once() -> None:
    one = make_table()
    wide = replace(one, name="wide", embedding_dim=2 * one.embedding_dim)
    shared = make_workload(one, wide)
    assert input_bytes(shared) == input_bytes(make_workload(one))
    weighted = replace(wide, is_weighted=True)
    assert input_bytes(make_workload(one, weighted)) > input_bytes(shared)


def test_the_copy_is_exposed_without_a_pipeline_and_hidden_with_one() -> None:
    workload = make_workload(make_table(), local_batch_size=20_000, cuda_graph=True)
    copied_s = input_bytes(workload) * (1 / 1e9 - 1 / 20e9)
    plain = replace(workload, pipeline=Pipeline.NONE)
    assert time_s(plain, **SLOW) - time_s(plain) == pytest.approx(copied_s, rel=1e-3)
    for pipeline in (Pipeline.SPARSE_DIST, Pipeline.PREFETCH_SPARSE_DIST, Pipeline.HUGECTR):
        hidden = replace(workload, pipeline=pipeline)
        assert time_s(hidden, device_link_bandwidth_bytes_per_s=19e9) == time_s(hidden)
        crawling = {"device_link_bandwidth_bytes_per_s": 1e6}
        assert time_s(hidden, **crawling) == pytest.approx(input_bytes(workload) / 1e6, rel=1e-4)


def test_profiles_differ_as_their_software_does() -> None:
    workload = make_workload(make_table(), local_batch_size=64)
    by_profile = {p: time_s(replace(workload, host_profile=p)) for p in HostProfile}
    assert by_profile[HostProfile.CUDA_GRAPH] < by_profile[HostProfile.EAGER]
    assert by_profile[HostProfile.EAGER] < by_profile[HostProfile.EAGER_2021]
    assert by_profile[HostProfile.CUDA_GRAPH] == time_s(replace(workload, cuda_graph=True))
    later = replace(workload, between_steps_s=0.5)
    assert time_s(later) - time_s(workload) == pytest.approx(0.5, rel=1e-2)
    with pytest.raises(InvalidValueError, match="contradicts host_profile"):
        replace(workload, cuda_graph=True, host_profile=HostProfile.EAGER_2021)


def test_files_choose_the_profile_and_the_time_between_steps(tmp_path: Path) -> None:
    assert io.load_workload("small_demo").host_profile is HostProfile.EAGER
    shipped = io.load_workload(configs_folder() / "published" / "lin22" / "dlrm_ddp.yaml")
    assert shipped.host_profile is HostProfile.EAGER_2021
    chosen = replace(shipped, between_steps_s=1.5e-3)
    path = tmp_path / "again.yaml"
    path.write_text(workload_text(chosen), encoding="utf-8")
    again = io.load_workload(path)
    assert (again.host_profile, again.between_steps_s) == (HostProfile.EAGER_2021, 1.5e-3)
