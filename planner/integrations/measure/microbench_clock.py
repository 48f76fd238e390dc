"""The clock of microbenchmarks: processor time of the thread, or finished work of a GPU."""

from __future__ import annotations

import time

import numpy as np
import torch

from costmodels.datatypes import FloatArray
from planner.integrations.measure.gloo_ranks import NETWORK_QUANTILE


class DeviceClock:
    """Measures seconds of the device under test."""

    def __init__(self, device: torch.device) -> None:
        """Remember the kind of device."""
        self._cuda = device.type == "cuda"

    def now(self) -> float:
        """A time stamp; on CUDA everything before it has finished."""
        if self._cuda:
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.thread_time()


def quiet_seconds(times: FloatArray) -> FloatArray:
    """Undisturbed seconds from repeated measurements.

    Args:
        times: ``[cases, repeats, ..., 2]``; own seconds and those of network threads.

    Returns:
        ``[cases, ...]``: medians of the first plus low quantiles of the second.
    """
    own, network = times[..., 0], times[..., 1]
    return np.asarray(np.median(own, axis=1) + np.quantile(network, NETWORK_QUANTILE, axis=1))
