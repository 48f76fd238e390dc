"""What a throughput costs once machines fail and checkpoints are written."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_HOUR_S: Final = 3600.0
_BILLION: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """How a job is run.

    Attributes:
        mtbf_s: mean time between failures (or spot interruptions) of one host; infinite for none.
        restart_s: from a failure to the first new iteration.
        snapshot_bytes_per_s: per rank, device to host memory: the job stands still meanwhile.
        persist_bytes_per_s: per rank, host memory to storage, in the background.
    """

    mtbf_s: float = math.inf
    restart_s: float = 300.0
    snapshot_bytes_per_s: float = 10e9
    persist_bytes_per_s: float = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Economics:
    """What comes of it. ``availability_ratio`` is the share of paid time that trains."""

    availability_ratio: float
    checkpoint_interval_s: float
    usd_per_hour: float | None
    usd_per_billion_samples: float | None


def economics(
    operation: Operation,
    *,
    samples_per_s: float,
    checkpoint_bytes: float,
    hosts: int,
    ranks: int,
    usd_per_device_hour: float | None,
) -> Economics:
    """Availability and cost.

    A checkpoint stalls training for its snapshot C and is persisted in the background, as CheckFreq
    does (FAST'21), so that two are at least the time to persist apart. The interval is Young's and
    Daly's ``sqrt(2 C MTBF)`` or that, whichever is longer, and the share of time lost is
    ``C / interval + (interval / 2 + restart) / MTBF``.

    Args:
        operation: failures and speeds.
        samples_per_s: while training.
        checkpoint_bytes: on the rank that has most to save.
        hosts: each fails on its own, so the job fails as many times as often.
        ranks: paid for.
        usd_per_device_hour: None if unknown.
    """
    mtbf_s = operation.mtbf_s / hosts
    availability, interval_s = 1.0, math.inf
    if math.isfinite(mtbf_s):
        stall_s = checkpoint_bytes / operation.snapshot_bytes_per_s
        persist_s = checkpoint_bytes / operation.persist_bytes_per_s
        interval_s = max(math.sqrt(2.0 * stall_s * mtbf_s), persist_s, 1e-9)
        lost = stall_s / interval_s + (interval_s / 2.0 + operation.restart_s) / mtbf_s
        availability = max(0.0, 1.0 - lost)
    paid = None if usd_per_device_hour is None else usd_per_device_hour * ranks
    trained = samples_per_s * availability * _HOUR_S
    cost = None if paid is None or trained <= 0 else paid * _BILLION / trained
    return Economics(
        availability_ratio=availability,
        checkpoint_interval_s=interval_s,
        usd_per_hour=paid,
        usd_per_billion_samples=cost,
    )
