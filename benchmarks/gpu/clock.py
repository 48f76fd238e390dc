"""Times one call many times, on a GPU by events."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_FLUSH_BYTES = 256 * 2**20
US = 1e6


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Medians of ``repeats`` calls, after two warm ones.

    ``cold`` writes 256 MiB before each call, so that no cache holds what the call reads.
    """

    device: torch.device
    repeats: int

    def median_us(self, calls: Callable[[int], object], *, cold: bool = False) -> float:
        """Median time of ``calls(i)``; ``i`` lets the call choose among its inputs."""
        flush = torch.empty(_FLUSH_BYTES // 4 if cold else 0, device=self.device)
        for i in range(2):
            calls(i)
        times = [self._once(calls, i, flush) for i in range(self.repeats)]
        return sorted(times)[len(times) // 2]

    def _once(self, calls: Callable[[int], object], i: int, flush: torch.Tensor) -> float:
        flush.fill_(float(i))
        if self.device.type != "cuda":
            start = time.perf_counter()
            calls(i)
            return US * (time.perf_counter() - start)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(4_000_000)  # keeps the device busy until the host has queued the call
        begin.record()
        calls(i)
        end.record()
        end.synchronize()
        return 1000.0 * begin.elapsed_time(end)

    def host_us(self, call: Callable[[], object], number: int) -> float:
        """Host time per call when ``number`` of them are issued without waiting."""
        call()
        self.wait()
        start = time.perf_counter()
        for _ in range(number):
            call()
        spent = time.perf_counter() - start
        self.wait()
        return US * spent / number

    def wait(self) -> None:
        """Until the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
