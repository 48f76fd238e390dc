"""What training costs if machines fail and checkpoints are written."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from planner.result import PlanningResult

_HOUR_S: Final = 3600.0
_BILLION: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """How often a job fails, and how fast it writes checkpoints.

    Attributes:
        mtbf_s: mean time between failures (or spot interruptions) of one host; infinite for none.
        restart_s: seconds from a failure to the first new iteration.
        snapshot_bytes_per_s: copies of each rank from device to host memory; training waits.
        persist_bytes_per_s: writes of each rank from host memory to storage, in the background.
    """

    mtbf_s: float = math.inf
    restart_s: float = 300.0
    snapshot_bytes_per_s: float = 10e9
    persist_bytes_per_s: float = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Economics:
    """Availability and cost of a job.

    Attributes:
        availability_ratio: share of the paid time in which the job trains.
        checkpoint_interval_s: seconds between two checkpoints.
        usd_per_hour: price of all ranks; None if it is unknown.
        usd_per_billion_samples: cost of training, with the time that failures and checkpoints take.
    """

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
    """Compute the availability and the cost of a job.

    A checkpoint stops training for C seconds, while its snapshot is taken, and is then written to
    storage in the background, as CheckFreq does (FAST'21). Two checkpoints are therefore at least
    the time of this writing apart. The interval is ``sqrt(2 C MTBF)`` (Young, Daly), or the time of
    writing if that is longer. The share of time lost is
    ``C / interval + (interval / 2 + restart) / MTBF``.

    Args:
        operation: failures, and speeds of checkpoints.
        samples_per_s: samples per second while the job trains.
        checkpoint_bytes: bytes of the rank that has most to save.
        hosts: number of hosts. Hosts fail independently, so that the MTBF of the job is that of one
            host divided by this number.
        ranks: number of ranks that are paid for.
        usd_per_device_hour: price of one rank; None if it is unknown.
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


def with_checkpoints(result: PlanningResult, mtbf_s: float) -> PlanningResult:
    """Add to a result how often its training should write checkpoints.

    Args:
        result: the plan; the rank with most weights and optimizer state is the slowest to save.
        mtbf_s: mean time between failures of one host.
    """
    topology = result.problem.topology
    found = economics(
        Operation(mtbf_s=mtbf_s),
        samples_per_s=result.estimate.samples_per_s,
        checkpoint_bytes=max(r.weights_bytes + r.optimizer_bytes for r in result.best.memory.ranks),
        hosts=topology.num_hosts,
        ranks=topology.world_size,
        usd_per_device_hour=None,
    )
    return replace(result, checkpoint_interval_s=found.checkpoint_interval_s)
