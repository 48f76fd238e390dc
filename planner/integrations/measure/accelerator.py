"""The device under test: its clock, its memory, and what holds it until the host has queued work.

Everything that ``shardplan calibrate`` measures point by point goes through these few functions, on
a GPU and on CPU cores alike; only the clock differs.
"""

from __future__ import annotations

import gc
import os
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final

import torch

from costmodels.units import US
from planner.integrations.measure.calibrate import machine_name
from planner.support.cores import usable_cores

Step = Callable[[int], object]
"""Work to be timed; its argument counts the calls, so that inputs can take turns."""

_HOLD_S: Final = 1.5e-3
"""How long the device is held at first; a held call that outlasts it is repeated, held longer."""
_LONGEST_HOLD_S: Final = 0.1
_SLEEP_CYCLES: Final = 1_000_000
_DRIVER: Final = Path("/proc/driver/nvidia/version")
_PACKAGES: Final = (("fbgemm", ("fbgemm-gpu", "fbgemm-gpu-cpu")), ("torchrec", ("torchrec",)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Seconds of steps, one list for each step, and whether the host was outside all of them."""

    each_s: tuple[tuple[float, ...], ...]
    is_held: bool


class AbstractAccelerator(ABC):
    """A device, the seconds of its work, and its description."""

    def __init__(self, device: torch.device) -> None:
        """Remember the device."""
        self.device = device

    @property
    @abstractmethod
    def memory_bytes(self) -> float:
        """Memory that points may use."""

    @abstractmethod
    def timed(
        self, steps: Sequence[Step], *, repeats: int, warm_up: int = 3, is_held: bool = True
    ) -> Timed:
        """The seconds that the device works on each of ``steps``, which follow each other.

        Args:
            steps: what is timed, each by itself.
            repeats: how often.
            warm_up: calls before, which are not counted.
            is_held: whether to keep the device from starting until the host has queued all steps.
                Copies of pageable memory wait for the device and cannot be held.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done everything."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What the first row of a file says of the device and its software."""

    def tidy(self) -> None:
        """Give freed memory back."""
        gc.collect()


class Cores(AbstractAccelerator):
    """The core of this process; calls have ended when they return, so nothing is held."""

    def __init__(self) -> None:
        """Take the CPU."""
        super().__init__(torch.device("cpu"))

    @property
    def memory_bytes(self) -> float:
        """Physical memory of the machine."""
        return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")

    def timed(
        self, steps: Sequence[Step], *, repeats: int, warm_up: int = 3, is_held: bool = True
    ) -> Timed:
        """Seconds by the clock of this machine; see the base class."""
        del is_held
        times: list[list[float]] = []
        for i in range(warm_up + repeats):
            marks = [time.perf_counter()]
            for step in steps:
                step(i)
                marks.append(time.perf_counter())
            times.append([b - a for a, b in pairwise(marks)])
        return Timed(each_s=tuple(zip(*times[warm_up:], strict=True)), is_held=True)

    def synchronize(self) -> None:
        """Return at once."""

    def facts(self) -> dict[str, Any]:
        """Processor and software."""
        return {"cpu": machine_name(), **_software()}


class Cuda(AbstractAccelerator):
    """A CUDA device: events on its stream, and a sleep that holds it while the host queues."""

    def __init__(self, index: int) -> None:
        """Take the device and time its sleep."""
        torch.cuda.set_device(index)
        super().__init__(torch.device("cuda", index))
        self._cycles_per_s = self._cycle_rate()
        self._hold_s = _HOLD_S

    @property
    def memory_bytes(self) -> float:
        """Memory that is free now."""
        return float(torch.cuda.mem_get_info(self.device)[0])

    def timed(
        self, steps: Sequence[Step], *, repeats: int, warm_up: int = 3, is_held: bool = True
    ) -> Timed:
        """Seconds between events around each step; see the base class."""
        for i in range(warm_up):
            for step in steps:
                step(i)
        self.synchronize()
        times, was_held, turns = [], is_held, count(warm_up)
        for _ in range(repeats):
            marks, queued_in_time = self._once(steps, next(turns), is_held=is_held)
            while is_held and not queued_in_time and self._hold_s < _LONGEST_HOLD_S:
                self._hold_s *= 2.0
                marks, queued_in_time = self._once(steps, next(turns), is_held=is_held)
            was_held = was_held and queued_in_time
            pairs = pairwise(marks)
            times.append([1e-3 * a.elapsed_time(b) for a, b in pairs])
        if not was_held:
            self._hold_s = _HOLD_S
        return Timed(each_s=tuple(zip(*times, strict=True)), is_held=was_held)

    def _once(
        self, steps: Sequence[Step], turn: int, *, is_held: bool
    ) -> tuple[list[torch.cuda.Event], bool]:
        """Events around each step, and whether the host queued all before the first one began."""
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(steps) + 1)]
        if is_held:
            torch.cuda._sleep(int(self._hold_s * self._cycles_per_s))
        marks[0].record()
        for step, mark in zip(steps, marks[1:], strict=True):
            step(turn)
            mark.record()
        queued_in_time = not marks[0].query()
        self.synchronize()
        return marks, queued_in_time

    def _cycle_rate(self) -> float:
        """Cycles of a sleep per second, from the second of two sleeps."""
        for _ in range(2):
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            torch.cuda._sleep(_SLEEP_CYCLES)
            ended.record()
            torch.cuda.synchronize()
        return _SLEEP_CYCLES / max(1e-3 * begun.elapsed_time(ended), US)

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self.device)

    def tidy(self) -> None:
        """Give freed memory back to the device."""
        super().tidy()
        torch.cuda.empty_cache()

    def facts(self) -> dict[str, Any]:
        """Device, driver and software."""
        properties = torch.cuda.get_device_properties(self.device)
        return {
            "gpu": properties.name,
            "sms": properties.multi_processor_count,
            "mem": properties.total_memory,
            "l2": getattr(properties, "L2_cache_size", None),
            "cuda": torch.version.cuda,
            "nccl": _nccl(),
            "driver": _driver(),
            **_software(),
        }


def accelerator(kind: str, index: int = 0) -> AbstractAccelerator:
    """The device of a rank: ``cuda`` number ``index`` of this machine, or ``cpu``."""
    return Cuda(index) if kind == "cuda" else Cores()


def _driver() -> str:
    """Version of NVIDIA's driver as its kernel module says; empty if it does not."""
    try:
        words = _DRIVER.read_text(encoding="utf-8").splitlines()[0].split()
    except (OSError, IndexError):
        return ""
    return next((w for w in words if w[:1].isdigit() and "." in w), "")


def _nccl() -> str:
    """Version of NCCL; empty where torch was built without it."""
    if not torch.distributed.is_nccl_available():
        return ""
    return ".".join(map(str, torch.cuda.nccl.version()))


def _software() -> dict[str, Any]:
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpus": usable_cores(),
        "measured": datetime.now(UTC).date().isoformat(),
    }
    for key, names in _PACKAGES:
        versions = [v for v in map(_version, names) if v]
        if versions:
            found[key] = versions[0]
    return found


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
