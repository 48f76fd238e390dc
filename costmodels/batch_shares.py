"""Unequal batches: each rank's share of the global batch.

``Workload.batch_share_ratio`` holds one share per rank in any unit, or ``proportional`` to how fast
the ranks are; empty means equal shares. ``Workload.batch_size_per_rank`` is the mean over
the ranks.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.errors import require
from costmodels.topology import Topology
from costmodels.workload import Pipeline, Workload

PROPORTIONAL: Final = "proportional"


def batch_ratios(workload: Workload, topology: Topology) -> FloatArray | None:
    """Samples of each rank over the mean, ``[world_size]``; None where all are equal.

    Raises:
        InvalidValueError: a share is not above 0 or leaves a rank no sample, there is not one per
            rank, or something cannot be run or is not priced with unequal batches.
    """
    shares = workload.batch_share_ratio
    if not shares:
        return None
    given = topology.speeds() if shares == PROPORTIONAL else np.array(shares, dtype=float)
    require(
        len(given) == topology.world_size,
        f"batch_shares: {len(given)} shares for {topology.world_size} ranks; give one for each "
        f"rank, or {PROPORTIONAL}",
    )
    good = all(math.isfinite(s) and s > 0 for s in given)
    require(good, f"batch_shares must be above 0, got {given.tolist()}")
    refuse_contradictions(workload)
    there = topology.device.single_stream
    require(not there, "batch_shares contradict ranks that are CPU cores; remove one of them")
    fewest = workload.batch_size_per_rank * given.min() / given.mean()
    require(
        round(fewest) >= 1,
        f"batch_shares: rank {given.argmin()} would have {fewest:.2g} samples of a mean of "
        f"{workload.batch_size_per_rank}; give it a larger share, or all a larger batch",
    )
    return None if given.min() == given.max() else given / given.mean()


def refuse_contradictions(workload: Workload) -> None:
    """Refuse shares beside what cannot be run, or is not priced, with unequal batches.

    Raises:
        InvalidValueError: names the first such setting.
    """
    if not workload.batch_share_ratio:
        return
    conflicts = {
        "pipeline hugectr, which cuts a batch evenly": workload.pipeline is Pipeline.HUGECTR,
        "tensor_parallel, whose ranks share their samples": workload.tensor_parallel > 1,
        "gradient_accumulation": workload.gradient_accumulation > 1,
        "operators of the dense part, which are for one batch": workload.dense.operators
        is not None,
        "deduplicate_indices": any(t.deduplicates_indices for t in workload.tables),
        "communication": any(t.communication is not None for t in workload.tables),
    }
    for what, there in conflicts.items():
        require(not there, f"batch_shares contradict {what}; remove one of them")


def shares_remark(workload: Workload, topology: Topology) -> str:
    """What people should know who train with these shares."""
    ratios = batch_ratios(workload, topology)
    if ratios is None:
        return "batch_shares: the shares of all ranks are equal, so that nothing changes"
    least, most = (round(workload.batch_size_per_rank * r) for r in (ratios.min(), ratios.max()))
    return (
        f"batch_shares: ranks have {least:,} to {most:,} samples; DistributedDataParallel weights "
        "all ranks alike, so multiply each rank's loss by its samples over the mean"
    )


def with_batch(workload: Workload, ratio: float) -> Workload:
    """The workload as a rank of so many times the mean batch sees it."""
    return replace(workload, batch_size_per_rank=round(workload.batch_size_per_rank * ratio))
