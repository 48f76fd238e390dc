"""Times gloo collectives with equal and with unequal messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist

from costmodels.calibration.points import CollectivePoint
from costmodels.datatypes import FloatArray
from planner.integrations.measure.gloo_ranks import (
    NETWORK_QUANTILE,
    network_seconds,
    own_seconds,
    rendezvous,
)
from planner.integrations.measure.pace import Pace

_WARM_UP = 3


def measure_collectives(
    cases: Sequence[CollectivePoint], rank: int, pace: Pace, *, repeats: int
) -> list[CollectivePoint]:
    """Measure collectives: medians of this rank's processor time over ``repeats`` rounds."""
    calls = [collective_call(case, rank) for case in cases]
    times = np.zeros((len(cases), repeats + _WARM_UP, 2))
    for i in range(repeats + _WARM_UP):
        pace.read()
        rendezvous()
        calls[0]()  # a small collective takes longer directly after a large one
        for k, call in enumerate(calls):
            rendezvous()
            own, network = own_seconds(), network_seconds()
            call()
            times[k, i] = own_seconds() - own, network_seconds() - network
    quiet = _quiet_seconds(times[:, _WARM_UP:])
    return [replace(case, time_s=float(m)) for case, m in zip(cases, quiet, strict=True)]


def _quiet_seconds(times: FloatArray) -> FloatArray:
    """Undisturbed seconds ``[cases]`` from ``times`` ``[cases, repeats, 2]``.

    The last axis has own seconds, of which the medians count, and those of network threads, of
    which low quantiles count.
    """
    own, network = times[..., 0], times[..., 1]
    return np.asarray(np.median(own, axis=1) + np.quantile(network, NETWORK_QUANTILE, axis=1))


def collective_call(
    case: CollectivePoint, rank: int, device: torch.device | None = None
) -> Callable[[], None]:
    """A function that runs the collective of a case, with its buffers allocated on a device.

    All-to-all sends ``sent_bytes[rank]`` in equal parts to the other ranks. All-reduce works on a
    buffer of the kept bytes, other collectives on one of ``world_size`` times the kept bytes.
    """
    world = case.world_size
    if case.operation == "all_to_all":
        return _all_to_all(case, rank, device)
    part = torch.ones(max(1, int(case.kept_bytes[rank]) // 4), device=device)
    whole = torch.ones(part.numel() * world, device=device)
    if case.operation == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole)
    if case.operation == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part)
    return lambda: dist.all_reduce(part)


def _all_to_all(
    case: CollectivePoint, rank: int, device: torch.device | None
) -> Callable[[], None]:
    world = case.world_size

    def elements(source: int, target: int) -> int:
        if source == target:
            return int(case.kept_bytes[source]) // 4
        return int(case.sent_bytes[source] / max(world - 1, 1)) // 4

    leaving = [elements(rank, r) for r in range(world)]
    arriving = [elements(r, rank) for r in range(world)]
    source = torch.ones(sum(leaving), device=device)
    target = torch.empty(sum(arriving), device=device)
    return lambda: dist.all_to_all_single(target, source, arriving, leaving)
