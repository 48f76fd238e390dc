"""Calibrates this machine: from microbenchmarks of its ranks to a system file."""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

from costmodels.calibration.device import DeviceJob, device_points, exchange_points
from costmodels.calibration.fit_machine import fit_machine
from costmodels.calibration.fitting import Calibration
from costmodels.calibration.points import QUICK, CalibrationPoints, MeasuringEffort
from costmodels.measured.cpu_constants import Caches
from costmodels.topology import Topology
from planner.errors import refuse
from planner.integrations.measure.gloo_ranks import run_on_ranks
from planner.io import load_system
from planner.io.system.system_writer import write_calibrated_system
from planner.support.files import write_text_atomic

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNKNOWN = Caches(l2_bytes=1e6, l3_bytes=16e6)
_L3_SHARE = 0.5
_MOST_L3_BYTES = 32e6
"""A larger cache is taken for shared with virtual machines that a guest cannot see."""


def measure_machine(effort: MeasuringEffort, *, world_size: int, seed: int) -> CalibrationPoints:
    """Run all microbenchmarks; lookups differ from rank to rank, which gives more points."""
    from planner.integrations.measure.microbench_cpu import measure_rank

    per_rank = run_on_ranks(measure_rank, world_size, effort.shared_by(world_size), seed)
    return CalibrationPoints(
        lookups=tuple(p for points in per_rank for p in points.lookups),
        steps=tuple(
            # One step with the seconds of every rank.
            replace(same[0], stages_s=tuple(s for p in same for s in p.stages_s))
            for same in zip(*(r.steps for r in per_rank), strict=True)
        ),
        collectives=tuple(
            max(same, key=lambda p: p.time_s)
            for same in zip(*(r.collectives for r in per_rank), strict=True)
        ),
        operators=tuple(p for points in per_rank for p in points.operators),
        pace_s=geometric_mean(points.pace_s or math.nan for points in per_rank),
        pace_sigma_ratio=max(points.pace_sigma_ratio for points in per_rank),
    )


def fit_here(points: CalibrationPoints, *, world_size: int, seed: int, effort: str) -> Calibration:
    """Fit the constants of this machine to what its ranks have measured."""
    ranks = load_system("cpu_gloo", gpus=world_size, gpus_per_host=world_size)
    constants, errors = fit_machine(points, caches(), ranks, machine=machine_name())
    return Calibration(constants=constants, errors=errors, seed=seed, effort=effort)


def caches() -> Caches:
    """Second- and last-level cache of one core; typical sizes if the system does not say."""
    sizes: dict[int, float] = {}
    for folder in sorted(_CACHES.glob("index*")):
        try:
            level = int((folder / "level").read_text())
            sizes[level] = 1024.0 * float((folder / "size").read_text().strip().removesuffix("K"))
        except (OSError, ValueError):
            continue
    if 2 not in sizes:
        return _UNKNOWN
    last = _L3_SHARE * min(sizes.get(3, _UNKNOWN.l3_bytes / _L3_SHARE), _MOST_L3_BYTES)
    return Caches(l2_bytes=sizes[2], l3_bytes=max(last, sizes[2]))


def machine_name() -> str:
    """Processor and number of cores."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    name = next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), "CPU")
    return f"{name}, {os.cpu_count()} cores"


def memory_bytes() -> float:
    """Physical memory of this machine."""
    return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")


def calibrated_topology(folder: Path, world_size: int, progress: Callable[[str], None]) -> Topology:
    """This machine as a system after a quick calibration, whose files are in ``folder``."""
    progress("measuring")
    points = measure_machine(QUICK, world_size=world_size, seed=0)
    progress("fitting")
    calibration = fit_here(points, world_size=world_size, seed=0, effort="quick")
    path, _ = write_calibrated_system(folder / "cpu.yaml", calibration, memory_bytes=memory_bytes())
    return load_system(path, gpus=world_size, gpus_per_host=world_size)


def sees_gpus() -> int:
    """How many CUDA devices torch sees in this process."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def write_rows(job: DeviceJob, *, world_size: int, progress: Callable[[str], None]) -> None:
    """Measure a device row by row into ``job.path``, by ranks with one device each.

    Raises:
        InvalidInputError: the file cannot be written, or there are fewer GPUs than ranks.
    """
    from planner.integrations.measure.device_rows import measure_device

    on_gpus = job.kind == "cuda"
    if on_gpus and not 0 < world_size <= sees_gpus():
        refuse(f"{world_size} ranks need as many GPUs, and torch sees {sees_gpus()}")
    path, total = Path(job.path), 1 + len(device_points(job.effort, job.seed))
    if world_size > 1:
        total += len(exchange_points(world_size, size_ratio=job.effort.size_ratio))
    write_text_atomic(path, "")

    def tell() -> None:
        done = path.read_bytes().count(b"\n") if path.exists() else 0
        progress(f"measured {done} of about {total} points")

    run_on_ranks(measure_device, world_size, job, on_gpus=on_gpus, while_waiting=tell)
