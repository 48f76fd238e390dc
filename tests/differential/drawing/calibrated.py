"""Ranks on CPU cores of calibrated machines: the shipped one, and others made up from it.

A made-up machine has every measured constant of the shipped one times a factor of its own, or
nothing in its place; and often learned factors on its lookups. Its files are written to a folder
that goes with the process; a stored case names the file alone, which is then written again.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from costmodels.calibration.fitting import Calibration
from costmodels.measured.cpu_constants import NUM_SHAPE, CpuConstants, LookupConstants, Residual
from costmodels.topology import Topology
from costmodels.units import GIB
from planner import load_system
from planner.io.system.system_file import read_calibration
from planner.io.system.system_writer import write_calibrated_system

_SHIPPED = (
    Path(__file__).resolve().parents[3] / "configs" / "calibrations" / "cpu_gloo.calibration.json"
)
_AS_SHIPPED = 4
"""Of so many numbers of machines one is the shipped machine."""
_NOTHING, _SPREAD = 0.15, 1.2
"""Share of constants that are nothing, and the log-standard deviation of the others' factors."""
_LEAST, _MOST = -11.0, -8.0
"""Powers of ten between which constants lie, in seconds, that the shipped machine has not."""


def calibrated_topology(number: int, hosts: int, local: int) -> Topology:
    """Ranks on a machine, which has a number of its own."""
    system = calibration_path(f"{number}.calibration.json")
    system = system.with_name(f"{number}.yaml")
    topology = load_system(str(system), gpus=hosts * local, gpus_per_host=local)
    return replace(topology, price_per_device_usd_per_hour=1.0)


@cache
def calibration_path(name: str) -> Path:
    """The calibration of a drawn machine, by the name of its file."""
    number = int(name.split(".", maxsplit=1)[0])
    rng = np.random.default_rng(number)
    found = read_calibration(_SHIPPED)
    if number % _AS_SHIPPED:
        found = _made_up(rng, found)
    bytes_ = float(rng.choice([1.0, 64.0])) * GIB
    _, beside = write_calibrated_system(_folder() / f"{number}.yaml", found, memory_bytes=bytes_)
    return beside


@cache
def _folder() -> Path:
    """Where machines are written; removed when the process ends."""
    path = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _made_up(rng: np.random.Generator, shipped: Calibration) -> Calibration:
    old = shipped.constants
    varied: CpuConstants = _varied(rng, replace(old, operators=None))
    lookups = {name: _learned(rng, getattr(varied, name)) for name in ("fused", "replicated")}
    ranks = int(rng.choice([2, 4]))
    made = replace(varied, operators=old.operators, world_size=ranks, **lookups)
    return replace(shipped, constants=made)


def _varied(rng: np.random.Generator, value: Any, name: str = "") -> Any:
    """Constants of the same shape: every number of seconds varied, nothing else."""
    if is_dataclass(value) and not isinstance(value, type):
        inside = {f.name: _varied(rng, getattr(value, f.name), f.name) for f in fields(value)}
        return replace(value, **inside)
    if isinstance(value, tuple) and name.endswith("_s"):
        return tuple(_varied(rng, v, name) for v in value)
    if isinstance(value, float) and name.endswith("_s"):
        usual = value or float(10.0 ** rng.uniform(_LEAST, _MOST))
        factor = float(np.exp(_SPREAD * rng.normal()))
        return 0.0 if rng.random() < _NOTHING else usual * factor
    return value


def _learned(rng: np.random.Generator, constants: LookupConstants) -> LookupConstants:
    """With factors on the times of both directions, half of the time."""
    if rng.random() < 0.5:
        return constants
    forward, backward = (
        Residual(
            points_ratio=tuple(map(tuple, rng.normal(5.0, 4.0, (4, NUM_SHAPE)).tolist())),
            weights_ratio=tuple(rng.normal(0.0, 0.5, 4).tolist()),
            lengths_ratio=tuple(rng.uniform(2.0, 8.0, NUM_SHAPE).tolist()),
        )
        for _ in range(2)
    )
    return replace(constants, forward_residual=forward, backward_residual=backward)
