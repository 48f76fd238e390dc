"""Raw rows of a device: the functions that measure a GPU, here on cores of this machine."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from costmodels.calibration.device import (
    CORE_SIZES,
    DeviceEffort,
    DeviceJob,
    collective_curves,
    fit_rates,
)
from planner.errors import InvalidInputError
from planner.integrations.measure import calibrate, device_rows
from planner.integrations.measure.device_rows import Device
from planner.io.system.system_writer import read_rows

TINY = DeviceEffort(num_lookups=(3, 2, 1, 1), num_products=3, repeats=2, size_ratio=CORE_SIZES)


@pytest.fixture(autouse=True)
def untidy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's collector would go through all objects of all tests before each measurement."""
    monkeypatch.setattr(gc, "collect", lambda *_: 0)


def job(folder: Path) -> DeviceJob:
    return DeviceJob(kind="cpu", effort=TINY, seed=0, path=str(folder / "rows.jsonl"))


@pytest.mark.torchrec
@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_every_block_is_measured(tmp_path: Path, world_size: int) -> None:
    said: list[str] = []
    calibrate.write_rows(job(tmp_path), world_size=world_size, progress=said.append)
    measured = read_rows(tmp_path / "rows.jsonl")
    about = int(said[-1].split()[-2])
    assert abs(len(measured.rows) + len(measured.failed) - about) <= 4
    assert {row["block"] for row in measured.rows} == {
        "ceilings",
        "hbm",
        "seq",
        *(["collectives"] if world_size > 1 else []),
    }
    assert [line.split(":")[0] for line in measured.failed] == ["uvm", "uvmc"]
    rates = fit_rates(measured.environment, measured.rows)
    assert rates["products_flops"]
    assert rates["kernel_latency_s"] < 1e-3
    assert 1e-7 < rates["eager_call_s"] < rates["eager_pass_s"] < 1e-2
    curves = collective_curves(measured.rows, version="", source="here")
    assert len(curves) == (4 if world_size > 1 else 0)


def test_without_fbgemm_everything_else_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_rows, "find_spec", lambda name: None)
    device_rows.measure_device(0, 1, job(tmp_path))
    measured = read_rows(tmp_path / "rows.jsonl")
    assert {row["block"] for row in measured.rows} == {"ceilings"}
    assert "hbm: fbgemm_gpu is not installed" in measured.failed


@pytest.mark.parametrize("fatal", [False, True])
def test_a_point_that_fails_is_told_and_a_broken_device_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fatal: bool
) -> None:
    def fails(_device: object, row: dict[str, Any], _repeats: int) -> dict[str, Any]:
        reason = "CUDA error: an illegal memory access" if fatal else "out of memory"
        if row["what"] == "gemm":
            raise RuntimeError(reason)
        return {"us": 1.0}

    monkeypatch.setitem(device_rows.MEASURES, "gemm", fails)
    monkeypatch.setattr(device_rows, "find_spec", lambda name: None)
    device_rows.measure_device(0, 1, job(tmp_path))
    measured = read_rows(tmp_path / "rows.jsonl")
    assert measured.failed[0].startswith("ceilings gemm: RuntimeError")
    assert ("the device failed" in measured.failed[-1]) == fatal
    assert any(row["what"] == "gemm_shape" for row in measured.rows) != fatal


def test_more_ranks_than_gpus_are_refused(tmp_path: Path) -> None:
    gpus = DeviceJob(kind="cuda", effort=TINY, seed=0, path=str(tmp_path / "rows.jsonl"))
    with pytest.raises(InvalidInputError, match="as many GPUs"):
        calibrate.write_rows(gpus, world_size=64, progress=lambda _: None)
    assert not list(tmp_path.iterdir())


def test_the_first_row_is_the_machine(tmp_path: Path) -> None:
    facts = Device("cpu").facts()
    assert facts["torch"] == torch.__version__
    assert "cores" in facts["cpu"]
    assert json.dumps(facts)


class _FakeGpu:
    """Stands for ``torch.cuda``: a clock that a sleep and calls move, and events on it."""

    def __init__(self, host_s: float) -> None:
        self.host_s = host_s
        self.at_s = self.busy_until_s = 0.0
        self.held_s: list[float] = []

    def event(self, *, enable_timing: bool) -> _FakeEvent:
        assert enable_timing
        return _FakeEvent(self)

    def _sleep(self, cycles: int) -> None:
        self.busy_until_s = max(self.busy_until_s, self.at_s) + cycles / 1e9
        self.held_s.append(cycles / 1e9)

    def call(self, seconds: float) -> None:
        self.at_s += self.host_s
        self.busy_until_s = max(self.busy_until_s, self.at_s) + seconds

    def set_device(self, device: object) -> None:
        del device

    def synchronize(self, device: object = None) -> None:
        del device
        self.at_s = max(self.at_s, self.busy_until_s)


class _FakeEvent:
    def __init__(self, gpu: _FakeGpu) -> None:
        self.gpu, self.done_s = gpu, 0.0

    def record(self) -> None:
        self.done_s = max(self.gpu.busy_until_s, self.gpu.at_s)

    def query(self) -> bool:
        return self.done_s <= self.gpu.at_s

    def elapsed_time(self, later: _FakeEvent) -> float:
        return 1e3 * (later.done_s - self.done_s)


@pytest.mark.parametrize(("host_s", "is_held"), [(1e-4, True), (5e-3, True), (0.5, False)])
def test_a_gpu_is_held_until_the_host_has_queued_the_call(
    monkeypatch: pytest.MonkeyPatch, host_s: float, is_held: bool
) -> None:
    gpu = _FakeGpu(host_s)
    for name in ("_sleep", "set_device", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, getattr(gpu, name))
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    timed = Device("cuda:0").timed([lambda _: gpu.call(3e-5), lambda _: gpu.call(9e-5)], repeats=3)
    assert timed.is_held == is_held
    if is_held:
        assert timed.each_s == (pytest.approx((3e-5,) * 3), pytest.approx((9e-5,) * 3))
        assert gpu.held_s[-1] > 2 * host_s
    else:
        assert timed.each_s[1][0] > host_s
