"""What reports say about a family beside its plans: checkpoints, and assumptions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean
from typing import Final

from costmodels import units
from planner.family.request import FamilyRequest
from planner.result import FamilyMember, PlanningResult
from planner.sweep.economics import Operation, economics

_NOTABLE_RATIO: Final = 1e-3
"""A plan is called slower only if its iteration is longer by at least this share."""


def checkpoint(result: PlanningResult, mtbf_s: float | None) -> tuple[float, float]:
    """Bytes of the rank that has most to save, and seconds between two checkpoints."""
    topology = result.problem.topology
    saved = max(r.weights_bytes + r.optimizer_bytes for r in result.best.memory.ranks)
    found = economics(
        Operation(mtbf_s=mtbf_s or math.inf),
        samples_per_s=result.estimate.samples_per_s,
        checkpoint_bytes=saved,
        hosts=topology.num_hosts,
        ranks=topology.world_size,
        usd_per_device_hour=None,
    )
    return saved, found.checkpoint_interval_s


def notes(asked: FamilyRequest, members: Sequence[FamilyMember]) -> tuple[str, ...]:
    """Lines that say what the figures assume, and what happens to the batch."""
    first = members[0].result.problem
    tolerance = f"{100 * asked.tolerance_ratio:g} %"
    chosen = (
        "the fewest bytes that ranks receive"
        if asked.mtbf_s is None
        else "the least time lost to moves and to slower iterations until the next failure"
    )
    samples = [
        m.result.problem.workload.local_batch_size * m.result.problem.topology.world_size
        for m in members
    ]
    batch = f"every step has {samples[0]:,} samples"
    if not asked.keeps_global_batch:
        batch = f"every rank has {first.workload.local_batch_size:,} samples"
    elif len(set(samples)) > 1:
        batch += f", rounded up to {', '.join(f'{n:,}' for n in samples[1:])}"
    told = [
        f"The plans are chosen together for {chosen}; each is at most {tolerance} slower than the "
        f"fastest plan found for its hosts. On fewer hosts {batch}.",
        "Any host may be lost; the figures are means over all hosts. Each host that is left "
        "becomes a host of the smaller plan, such that as much as possible stays where it is "
        "('seats' in plan.json). Ranks go back to the last checkpoint: shards that only the lost "
        f"host had are read from it at {units.format_rate(asked.restore_bytes_per_s)} per rank, "
        "then the rest moves over the links.",
    ]
    told += _worth(members)
    if first.topology.network_link.pod_hosts:
        told.append("Hosts are taken to fill one pod after the other, also after a loss.")
    if asked.mtbf_s is not None:
        rate = units.format_rate(Operation().snapshot_bytes_per_s)
        told.append(
            "checkpoint every: sqrt(2 C M) by Young and Daly, or the time to write a checkpoint "
            "to storage if that is longer. C is the time to copy the state of the fullest rank "
            f"to host memory at {rate}; M is {asked.mtbf_s / 3600:g} hours divided by the number "
            "of hosts."
        )
    return tuple(told)


def _worth(members: Sequence[FamilyMember]) -> list[str]:
    """A line on how often hosts must fail for a family to pay, if its first plan is slower.

    The family's quicker moves then make up for its slower steps.
    """
    first, rest = members[0], members[1:]
    slower = first.result.estimate.time.time_s / first.alone_s - 1.0
    own_s, alone_s = (
        mean(mean(loss.time_s for loss in losses) for losses in found)
        for found in ([m.losses for m in rest], [m.alone for m in rest])
    )
    if slower < _NOTABLE_RATIO:
        return []
    words = f"Compared with plans made one by one, the first plan is {100 * slower:.2g} % slower"
    if own_s >= alone_s:
        return [f"{words} and a loss moves fewer bytes, but takes no less time."]
    often = units.format_long_time((alone_s - own_s) / slower)
    saved = units.format_time(alone_s - own_s)
    return [
        f"{words} and a loss takes {saved} less: this pays if a host is lost every {often} or more "
        "often."
    ]
