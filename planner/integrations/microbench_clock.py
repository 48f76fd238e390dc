"""What a microbenchmark reads: processor time of the thread, or finished work of a GPU."""

from __future__ import annotations

import time

import torch


class DeviceClock:
    """Seconds of the device under test."""

    def __init__(self, device: torch.device) -> None:
        """Remember the kind of device."""
        self._cuda = device.type == "cuda"

    def now(self) -> float:
        """A time stamp; on CUDA everything before it has finished."""
        if self._cuda:
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.thread_time()
