"""Measures what an eager call takes on this machine, in about a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import nn

from costmodels.calibration.device import HostCalls, host_calls_of

__all__ = ["HostCalls", "host_calls_of", "measure_host"]

_CALLS: Final = 200
_PASSES: Final = 20
"""Calls of one repeat: some milliseconds, so that most repeats meet no other process."""
_REPEATS: Final = 41
_WARM_UP: Final = 50
_UNDISTURBED: Final = 0.25
"""Quantile of the repeats that counts, as other processes only ever add to a time."""


def measure_host(device: torch.device | str | None = None) -> HostCalls:
    """Seconds of an eager call and of a tiny pass, after a warm-up.

    On CUDA each call is followed by the record of an event, and the device has finished before the
    clock is read.

    Args:
        device: None for a GPU where there is one, else the CPU.
    """
    measured = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    values = torch.zeros(8, device=measured)
    layer, samples = nn.Linear(8, 8).to(measured), torch.randn(8, 8, device=measured)

    def one_pass() -> None:
        layer(samples).sum().backward()

    if measured.type == "cuda":
        machine = f"host of {torch.cuda.get_device_name(measured)}"
    else:
        machine = f"eager calls on {measured.type}"
    return HostCalls(
        eager_call_s=_seconds(lambda: values.add_(1), _CALLS, measured),
        eager_pass_s=_seconds(one_pass, _PASSES, measured),
        machine=f"{machine}, PyTorch {torch.__version__.partition('+')[0]}",
    )


def _seconds(call: Callable[[], object], count: int, device: torch.device) -> float:
    """Seconds of one call, issued back to back."""
    on_gpu = device.type == "cuda"
    for _ in range(_WARM_UP):
        call()
    times_s = []
    for _ in range(_REPEATS):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count * on_gpu)]
        if on_gpu:
            torch.cuda.synchronize(device)
        start_s = time.perf_counter()
        for i in range(count):
            call()
            if on_gpu:
                events[i].record()
        if on_gpu:
            torch.cuda.synchronize(device)
        times_s.append((time.perf_counter() - start_s) / count)
    return float(np.quantile(times_s, _UNDISTURBED))
