"""TorchRec 1.9's orchestrators plan with systems of ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrec")
pytest.importorskip("torchrec.distributed.planner.provider", reason="needs torchrec 1.9")

from torchrec.distributed.planner.api import ProductionPlannerOrchestrator
from torchrec.distributed.planner.dry_run import CacheConfig, DryRunRequest, SkuOverride
from torchrec.distributed.planner.executor import DefaultPlannerExecutor
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    PlannerConfig,
    PlannerErrorType,
    PlannerSessionContext,
    PlannerVariant,
    ProposerConfig,
    ShardingPlanRequest,
    StorageReservationPolicy,
)
from torchrec.distributed.sharding_plan import get_default_sharders

from costmodels.units import GIB, format_time
from costmodels.workload import Pipeline
from planner import io
from planner.errors import InvalidInputError
from planner.integrations import torchrec_dry_run
from planner.integrations.torchrec_dry_run import dry_run
from planner.integrations.torchrec_planner import TIME_LIMIT_S
from planner.integrations.torchrec_provider import (
    USED,
    ShardplanProvider,
    SystemPlanner,
    requested_system,
)
from planner.integrations.torchrec_workload import built_model
from tests.integration import contract
from tests.integration.models import Model, bags
from tests.integration.read_back import from_sharding_plan
from tests.planner.cli.command_line import Run
from tests.planner.cli.conftest import run  # noqa: F401 - a fixture

pytestmark = pytest.mark.torchrec

SYSTEMS = ("h100_sxm", "a100_80gb_sxm", "v100_32gb_sxm")
SHAPES = [("a", 4_000_000, 128), ("b", 300_000, 64), ("c", 900, 64), ("d", 20_000, 32)]
CODE = f"""
from torchrec.distributed.planner.types import ParameterConstraints
from tests.integration.models import Model, bags

def build():
    limits = {{"b": ParameterConstraints(pooling_factors=[5.0]),
              "c": ParameterConstraints(sharding_types=["data_parallel"])}}
    return Model(bags({SHAPES!r})), limits
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A model of the user's, in the working folder."""
    (tmp_path / "dry_run_model.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield "dry_run_model:build"
    sys.modules.pop("dry_run_model", None)


def request(**more: Any) -> DryRunRequest:
    asked: dict[str, Any] = {
        "model": Model(bags(SHAPES)),
        "sharders": get_default_sharders(),
        "sku_list": ["h100_sxm"],
        "world_size": 8,
        "local_world_size": 8,
        "batch_size": 1024,
        "training_framework": "apf",
    }
    return DryRunRequest(**{**asked, **more})


def configured(**more: Any) -> DryRunRequest:
    return request(planner_config=PlannerConfig(**more))


def quick(**more: Any) -> ShardplanProvider:
    return ShardplanProvider(max_evaluations=30, **more)


def built(asked: ShardingPlanRequest, provider: ShardplanProvider | None = None) -> SystemPlanner:
    """The planner of the first system, without planning."""
    made, sku = provider or quick(), "h100_sxm"
    context = PlannerSessionContext(request=asked, results={})
    return made.build_planner(
        sku,
        topology=made.build_topology(sku, asked, context),
        storage_reservation=made.build_storage_reservation(sku, asked),
        ctx=context,
    )


# ------------------------------------------------------------------ the same plans


def test_a_dry_run_returns_the_plans_of_the_command_line(
    run: Run,  # noqa: F811
    package: str,
    tmp_path: Path,
) -> None:
    """On three systems: of the workload file, and of the model itself."""
    file = tmp_path / "w.yaml"
    assert run("import", "module", package, "-o", file, "--batch-size", 1024).code == 0
    model, limits = built_model(package)
    asked = request(model=model, constraints=limits, sku_list=list(SYSTEMS))
    results, reporter, context = dry_run(asked)
    assert list(results) == list(SYSTEMS)
    assert (context.warnings, list(reporter.blocks)) == ([], list(SYSTEMS))
    workload = io.load_workload_file(file).workload
    for sku, result in results.items():
        done = run("plan", file, "--system", sku, "--gpus", 8, "-o", tmp_path / sku, "-q")
        assert done.code == 0, done.err
        saved = io.load_plan(tmp_path / sku / "plan.json", workload)
        assert result.success, result.planner_failure_reason
        assert from_sharding_plan(result.sharding_plan, workload) == saved.plan, sku
        written = json.loads((tmp_path / sku / "plan.json").read_text())
        predicted_s = written["predicted"]["iteration_time_s"]
        assert f"predicted step   {format_time(predicted_s)}" in reporter.blocks[sku]
        assert len(result.sharding_options) == len(SHAPES)
        assert context.hw_source[sku] == f"shardplan system {sku}"
    plans = [from_sharding_plan(r.sharding_plan, workload) for r in results.values()]
    assert {p.placement("c").sharding_type.value for p in plans} == {"data_parallel"}
    steps = {
        block.partition("predicted step")[2].split(",")[0] for block in reporter.blocks.values()
    }
    assert len(steps) == len(SYSTEMS)  # else one plan and price for all would pass, too


def test_the_production_orchestrator_gives_the_plan_of_the_dry_run() -> None:
    asked = request()
    base = {f.name: getattr(asked, f.name) for f in fields(ShardingPlanRequest)}
    job = ShardingPlanRequest(**base)
    context = PlannerSessionContext(request=job, results={})
    executor = DefaultPlannerExecutor(quick())
    planned = ProductionPlannerOrchestrator(executor, "a100_80gb_sxm").plan(job, context)
    results, _, _ = dry_run(replace(asked, sku_list=["a100_80gb_sxm"]), quick())
    one, other = planned["a100_80gb_sxm"], results["a100_80gb_sxm"]
    assert str(one.sharding_plan) == str(other.sharding_plan)
    assert one.sharding_plan is not None


def test_what_does_not_fit_fails_in_a_dry_run_and_is_planned_in_production() -> None:
    """By our count; TorchRec's leaves out a second batch, gradients and what ranks receive."""
    shapes = [("a", 1_300_000, 128), ("b", 1_300_000, 128)]
    only = ParameterConstraints(pooling_factors=[20.0], compute_kernels=["fused"])
    asked = request(
        model=Model(bags(shapes)),
        batch_size=2**15,
        constraints={"a": only, "b": only},
        world_size=2,
        local_world_size=2,
        hbm_gb=0.72,
    )
    results, reporter, _ = dry_run(asked, quick())
    assert not results["h100_sxm"].success
    assert results["h100_sxm"].planner_error_type is PlannerErrorType.INSUFFICIENT_STORAGE
    assert reporter.blocks == {}
    job = ShardingPlanRequest(
        **{f.name: getattr(asked, f.name) for f in fields(ShardingPlanRequest)}
    )
    context = PlannerSessionContext(request=job, results={})
    executor = DefaultPlannerExecutor(quick())
    planned = ProductionPlannerOrchestrator(executor, "h100_sxm").plan(job, context)
    assert planned["h100_sxm"].success


# ------------------------------------------------------------------ settings of a request


def test_sizes_of_a_request_are_obeyed() -> None:
    asked = request(world_size=16, hbm_gb=10.0, ddr_gb=20.0, batch_size=64, pod_size=2)
    system, changed = requested_system("h100_sxm", asked)
    assert (system.num_hosts, system.local_world_size) == (2, 8)
    assert system.hbm_capacities().tolist() == [10 * GIB] * 16
    assert system.host.ddr_capacity_bytes == 8 * 20 * GIB
    assert (changed.hbm_cap_bytes, changed.ddr_cap_bytes) == (10 * GIB, 20 * GIB)
    topology = built(asked)._topology
    assert (topology.world_size, topology.local_world_size, topology.intra_group_size) == (
        16,
        8,
        16,
    )
    assert {d.storage.hbm for d in topology.devices} == {10 * GIB}
    assert {d.storage.ddr for d in topology.devices} == {20 * GIB}
    assert built(asked)._batch_size == 64


def test_a_device_and_constraints_of_a_request_are_obeyed() -> None:
    limits = {"a": ParameterConstraints(sharding_types=["row_wise"])}
    planner = built(request(compute_device="cpu", constraints=limits))
    assert planner._topology.compute_device == "cpu"
    plan = planner.plan(Model(bags(SHAPES)), get_default_sharders()).plan["sparse.bags"]
    assert plan["a"].sharding_type == "row_wise"
    assert "cpu" in str(plan["a"].sharding_spec)


def test_overrides_of_a_system_are_obeyed() -> None:
    """And the links change the predicted time, also where collectives follow measured curves."""
    slow = SkuOverride(hbm_gb=9.0, ddr_gb=8.0, intra_host_bw=1.0, inter_host_bw=2.0)
    asked = request(per_sku_overrides={"h100_sxm": slow}, hbm_gb=50.0)
    system, changed = requested_system("h100_sxm", asked)
    assert system.device.hbm_capacity_bytes == 9 * GIB
    assert system.host.ddr_capacity_bytes == 8 * 8 * GIB
    assert system.host_link.bandwidth_bytes_per_s == GIB
    assert system.domain_link.bandwidth_bytes_per_s == GIB
    assert system.network_link.bandwidth_bytes_per_s == 2 * GIB
    assert changed.intra_host_bw == GIB / 1000
    times = []
    for override in (SkuOverride(), SkuOverride(intra_host_bw=1.0)):
        provider = quick()
        dry_run(request(per_sku_overrides={"h100_sxm": override}), provider)
        result = provider.planners["h100_sxm"].result
        assert result is not None
        times.append(result.estimate.time.time_s)
    assert times[1] > 1.5 * times[0]


def test_a_storage_reservation_follows_the_request() -> None:
    """Our count gets back the few bytes of the dense part, for which a reservation has room."""

    def left(**more: Any) -> float:
        planner = built(request(**more))
        model, sharders = Model(bags(SHAPES)), get_default_sharders()
        planner.plan(model, sharders)
        assert planner.result is not None
        return float(planner.result.problem.topology.hbm_capacities().min()) / (80 * GIB)

    fixed = StorageReservationPolicy.FIXED_PERCENTAGE
    assert left() == 1.0
    assert left(storage_reservation=FixedPercentageStorageReservation(percentage=0.4)) == (
        pytest.approx(0.6, abs=1e-4)
    )
    config = PlannerConfig(storage_reservation_policy=fixed, storage_reservation_percentage=0.3)
    assert left(planner_config=config) == pytest.approx(0.7, abs=1e-4)
    config = PlannerConfig(storage_reservation_percentage=0.3, dense_tensor_estimate=8 * GIB)
    assert 0.5 < left(planner_config=config) < 0.61  # TorchRec's heuristic: also the dense part
    less, more = (left(planner_config=PlannerConfig(parameter_multiplier=f)) for f in (1.0, 1e8))
    assert 0.5 < more < less < 0.86


def test_a_policy_that_torchrec_does_not_build_fails_by_name() -> None:
    sku_aware = StorageReservationPolicy.SKU_AWARE
    results, _, _ = dry_run(configured(storage_reservation_policy=sku_aware))
    assert "sku_aware" in str(results["h100_sxm"].planner_failure_reason)


def test_another_planner_and_another_pipeline_are_refused() -> None:
    variant = PlannerVariant.LINEAR_PROGRAMMING
    results, _, _ = dry_run(configured(planner_variant=variant))
    assert "planner_variant 'linear_programming' is another planner" in str(
        results["h100_sxm"].planner_failure_reason
    )
    with pytest.raises(InvalidInputError, match="pipeline_type 'fast' is not one of none, train"):
        built(configured(pipeline_type="fast"))
    with pytest.raises(InvalidInputError, match="use ShardPlanner"):
        ShardplanProvider(objective="torchrec")
    with pytest.raises(TypeError, match="stratgy"):
        quick(stratgy="auto")


def test_pipeline_debug_and_limit_of_a_configuration_are_obeyed() -> None:
    planner = built(configured(pipeline_type="train_base", debug=True, timeout_seconds=7))
    assert (planner._debug, planner._limit_s) == (True, 7.0)
    assert planner._hints.pipeline is Pipeline.NONE
    assert built(request())._hints.pipeline is Pipeline.SPARSE_DIST
    assert (built(request())._debug, built(request())._limit_s) == (False, TIME_LIMIT_S)


def test_labels_of_a_request_reach_the_result() -> None:
    """And TorchRec's search space, where it is asked for."""
    asked = request(launcher_hardware="TC_ANY", request_id="r1", capture_search_space=True)
    results, _, context = dry_run(asked, quick())
    result = results["h100_sxm"]
    assert (result.request_id, result.request_hash) == ("r1", asked.request_hash)
    assert result.request_fingerprint == asked.fingerprint("h100_sxm")
    assert asked.request_hash != request(launcher_hardware="H100").request_hash
    assert {o.fqn.rpartition(".")[2] for o in context.search_space["h100_sxm"]} == {
        name for name, _, _ in SHAPES
    }


@pytest.mark.parametrize(
    ("place", "kind"), [(contract.REQUEST, DryRunRequest), (contract.CONFIG, PlannerConfig)]
)
def test_every_field_has_a_row(place: str, kind: type[Any]) -> None:
    assert {f.name for f in fields(kind)} == {r.name for r in contract.rows() if r.place == place}
    assert set(USED) == {
        r.name for r in contract.rows() if r.place == contract.CONFIG and r.verdict != "warned"
    }


SET = {
    "proposer_type": "greedy",
    "proposer_config": ProposerConfig(kind="greedy"),
    "partitioner_type": "greedy_perf",
    "partitioner_sort_by": "perf",
    "balance_modules": True,
    "memory_balanced_max_search_count": 3,
    "memory_balanced_tolerance": 0.1,
    "performance_model": "storage",
    "use_hardware_based_compute": True,
    "use_hardware_based_bandwidth": True,
    "use_batch_inputs_for_expected_cache_fetches": True,
    "use_linear_regression_prefetch_estimate": True,
    "bwd_compute_multiplier": 3.0,
    "manifold_path": "x",
    "model_base_bytes": 5,
    "home_sku": "x",
}


@pytest.mark.parametrize("name", sorted(SET))
def test_settings_that_change_nothing_are_warned_of(name: str) -> None:
    asked = configured(**{name: SET[name]})
    context = PlannerSessionContext(request=asked, results={})
    provider = quick()
    topology = provider.build_topology("h100_sxm", asked, context)
    reservation = provider.build_storage_reservation("h100_sxm", asked)
    for _ in range(2):  # a second system does not say it again
        provider.build_planner(
            "h100_sxm", topology=topology, storage_reservation=reservation, ctx=context
        )
    assert [w.split("=")[0] for w in context.warnings] == [f"planner_config.{name}"]


def test_what_no_policy_reads_plan_caches_and_large_hosts_are_warned_of() -> None:
    fixed = StorageReservationPolicy.FIXED_PERCENTAGE
    config = PlannerConfig(storage_reservation_policy=fixed, dense_tensor_estimate=GIB)
    cache = CacheConfig(enabled=True, manifold_bucket="b")
    asked = request(planner_config=config, cache_config=cache, world_size=16, local_world_size=16)
    _, _, context = dry_run(asked, quick())
    assert [line.split()[0] for line in context.warnings] == [
        f"planner_config.dense_tensor_estimate={GIB}",
        "cache_config",
        "local_world_size",
    ]


# ------------------------------------------------------------------ the command line


def test_the_command_line_plans_a_model_of_the_users(
    package: str, capsys: pytest.CaptureFixture[str]
) -> None:
    size = ["--world-size", "4", "--batch-size", "64"]
    skus = ["--sku-list", "h100_sxm,v100_32gb_sxm"]
    assert torchrec_dry_run.main([package, *skus, *size]) == 0
    out = capsys.readouterr().out
    assert "[OK] h100_sxm" in out
    assert "[OK] v100_32gb_sxm" in out
    assert out.count("predicted step") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sku-list", "nope"], "nope: no such file and no shipped system"),
        (["--sku-list", "h100_sxm", "--local-world-size", "3"], "must be divisible"),
        (["--sku-list", "my/box.yaml", "--save-plan-dir", "x"], "names files after SKUs"),
        (["--sku-list", "h100_sxm", "--planner-variant", "manifold"], "is another planner"),
        (["--sku-list", "h100_sxm", "--storage-reservation-policy", "sku_aware"], "sku_aware"),
        (["x:y", "--sku-list", "h100_sxm", "--num-tables", "9"], "--num-tables: only the synth"),
        (["no_such_package:f", "--sku-list", "h100_sxm"], "cannot be imported"),
    ],
)
def test_bad_input_is_one_message(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert torchrec_dry_run.main([*arguments, "--world-size", "4"]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
