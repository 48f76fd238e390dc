"""A calibrated system is a file like any other, with its constants beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter

from costmodels.calibration.fitting import Calibration, FitError
from costmodels.calibration.points import random_plan
from costmodels.cpu.exchange import CpuExchange
from costmodels.errors import InvalidValueError
from costmodels.estimates import Source
from costmodels.measured.cpu_constants import NUM_SHAPE, OperatorConstants, Residual
from costmodels.pipeline import CostPipeline
from costmodels.system_models import default_models
from costmodels.training.communication import Communication, Precision
from planner import io
from planner.errors import InvalidInputError
from planner.io.system.system_file import (
    load_constants,
    read_calibration,
    write_calibration,
)
from planner.io.system.system_writer import write_calibrated_system
from planner.validation.tasks import random_workload
from tests.costmodels.cpu.machines import MACHINE

CALIBRATION = Calibration(
    constants=MACHINE,
    errors=(
        FitError(
            name="lookup",
            num_points=3,
            geomean_ratio=0.1,
            held_out_ratio=0.2,
            p90_ratio=0.3,
        ),
    ),
    seed=7,
    effort="quick",
)


_ELEMENTWISE = ("elementwise", (1e-5, 1.5e-11, 0.5e-11, 1e-11, 0.0, 2e-11, 0.0, 0.0))
OPERATORS = OperatorConstants(
    forward_s=(_ELEMENTWISE,),
    backward_s=(_ELEMENTWISE,),
    update_s=(0.0,) * 7,
    sigma_ratio=0.1,
)
"""50 ps a byte beyond all caches: 20 GB/s."""


@pytest.mark.parametrize("stem", ["2026", "on", "a: b", "# mine"])
def test_any_name_of_a_file_and_a_machine_is_read_back(tmp_path: Path, stem: str) -> None:
    """Also those that mean something else to YAML: numbers, switches, keys and comments."""
    machine = replace(MACHINE, machine=f'Intel(R) "Xeon": {stem}, 2 cores')
    path, beside = write_calibrated_system(
        tmp_path / f"{stem}.yaml", replace(CALIBRATION, constants=machine), memory_bytes=2**30
    )
    topology = io.load_system(path)
    assert (topology.name, topology.calibration) == (stem, str(beside))


def test_a_written_system_loads_with_its_constants(tmp_path: Path) -> None:
    path, beside = write_calibrated_system(
        tmp_path / "my_cpu.yaml", CALIBRATION, memory_bytes=16 * 2**30
    )
    assert read_calibration(beside) == CALIBRATION
    topology = io.load_system(path)
    assert topology.world_size == 2
    assert topology.name == "my_cpu"
    assert topology.device.single_stream
    assert topology.device.kernel_latency_s == pytest.approx(MACHINE.call_s / 4)
    assert topology.device.hbm_capacity_bytes == pytest.approx(8 * 2**30)
    assert topology.weakest_source() is Source.DEFAULT  # rates that the calibrated models never use
    models = default_models(topology)
    workload = random_workload(0)
    plan = random_plan(workload, 2, (0.0, 0.0, 0.0), np.random.default_rng(0))
    time = CostPipeline(workload, topology, models).estimate(plan).time
    assert time.source is Source.CALIBRATED
    codec = workload.communicating(Communication.of(Precision.FP16, Precision.FP16))
    time = CostPipeline(codec, topology, models).estimate(plan).time
    assert time.source is Source.DEFAULT  # codecs count at the memory rate, which nothing measured
    found = replace(CALIBRATION, constants=replace(MACHINE, operators=OPERATORS))
    path, _ = write_calibrated_system(tmp_path / "other.yaml", found, memory_bytes=16 * 2**30)
    measured = io.load_system(path)
    assert measured.device.hbm_bandwidth_bytes_per_s == pytest.approx(2e10)
    faster = CostPipeline(codec, measured).estimate(plan).time
    assert faster.source is Source.CALIBRATED
    assert faster.time_s < time.time_s
    assert isinstance(models.exchange, CpuExchange)
    assert models.exchange.constants == MACHINE


def test_bad_calibrations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot read the calibration"):
        read_calibration(tmp_path / "none.json")
    bad = tmp_path / "bad.json"
    bad.write_text('{"seed": "x"}')
    with pytest.raises(InvalidInputError, match="is not a calibration"):
        read_calibration(bad)


def test_a_calibration_with_other_features_says_calibrate_again(tmp_path: Path) -> None:
    old = Residual(points_ratio=((0.0,) * 6,), weights_ratio=(0.1,), lengths_ratio=(1.0,) * 6)
    document = json.loads(TypeAdapter(Calibration).dump_json(CALIBRATION))
    document["constants"]["fused"]["forward_residual"] = asdict(old)
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidInputError, match="calibrate again"):
        read_calibration(path)


def test_a_calibration_with_other_counts_of_operators_says_calibrate_again(tmp_path: Path) -> None:
    found = replace(CALIBRATION, constants=replace(MACHINE, operators=OPERATORS))
    document = json.loads(TypeAdapter(Calibration).dump_json(found))
    document["constants"]["operators"]["update_s"] = [1e-5, 1e-6, 1e-10]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidInputError, match="calibrate again"):
        read_calibration(path)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("group", "backward_s"), []),
        (("table_wise", "gradient_s"), [1e-4]),
        (("row_wise", "input_s"), []),
        (("collective", "all_gather_s"), [1e-4]),
        (("dense", "forward_s"), [1e-4]),
        (("dense", "update_s"), []),
        (("fused", "backward_s"), [1e-4] * 14),
        (("sigmas_ratio",), [["lookups", 0.1]]),
        (("sigmas_ratio",), [["lookup", -0.1]]),
        (("fused", "forward_residual", "lengths_ratio"), [0.0] * NUM_SHAPE),
        (("fused", "forward_residual", "points_ratio"), [[math.nan] * NUM_SHAPE]),
        (("fused", "forward_residual", "weights_ratio"), [math.inf]),
    ],
    ids=str,
)
def test_a_calibration_with_other_lengths_or_kinds_says_calibrate_again(
    where: tuple[str, ...], value: list[object], tmp_path: Path
) -> None:
    """``check`` accepted them, and every plan was a bug."""
    document = json.loads(TypeAdapter(Calibration).dump_json(CALIBRATION))
    inner = document["constants"]
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidInputError, match="calibrate again"):
        read_calibration(path)


def _numbers(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where the numbers of a document are."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _numbers(part, (*path, key))
    elif isinstance(value, int | float):
        yield path


@pytest.mark.parametrize("wrong", ["NaN", "Infinity", "-1e-9", "1e400"])
def test_every_constant_has_to_be_finite_and_not_negative(wrong: str, tmp_path: Path) -> None:
    """With negative seconds per byte, bounds were wrong; NaN was priced."""
    constants = replace(MACHINE, operators=OPERATORS)
    text = TypeAdapter(Calibration).dump_json(replace(CALIBRATION, constants=constants))
    path, places = tmp_path / "edited.json", list(_numbers(json.loads(text)["constants"]))
    assert len(places) > 100
    for place in places:
        document = json.loads(text)
        inner = document["constants"]
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = "@"
        path.write_text(json.dumps(document).replace('"@"', wrong))
        with pytest.raises(InvalidInputError, match=r"edited\.json is not a calibration"):
            read_calibration(path)


@pytest.mark.parametrize("name", ["world_size", "l2_bytes", "l3_bytes"])
def test_no_ranks_and_no_caches_are_refused(name: str) -> None:
    with pytest.raises(InvalidValueError, match=f"again.: {name} must be .*, got 0"):
        replace(MACHINE, **{name: 0})
    with pytest.raises(InvalidValueError, match=r"all_gather_s\[0\] must be .*finite, got nan"):
        replace(MACHINE.collective, all_gather_s=np.full(4, np.nan))


def test_weights_of_learned_factors_may_be_negative() -> None:
    assert Residual(points_ratio=((-1.0,),), weights_ratio=(-0.1,), lengths_ratio=(1.0,))


def test_a_calibration_that_has_changed_is_read_again(tmp_path: Path) -> None:
    """A process that calibrates anew went on with the old constants."""
    path = tmp_path / "a.json"
    write_calibration(path, CALIBRATION)
    assert load_constants(str(path)) == MACHINE
    slower = replace(MACHINE, call_s=MACHINE.call_s * 2.0, machine="another")
    write_calibration(path, replace(CALIBRATION, constants=slower))
    assert load_constants(str(path)) == slower
