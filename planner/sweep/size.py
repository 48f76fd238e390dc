"""The smallest cluster that reaches a throughput."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.sweep.outcome import PointResult, PointStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The answer for one system: the smallest point that suffices, and every point tried."""

    system: str
    answer: PointResult | None
    tried: tuple[PointResult, ...]


def smallest(
    system: str,
    solve: Callable[[int], PointResult],
    *,
    target_samples_per_s: float,
    gpus_per_host: int,
    max_gpus: int,
) -> Sizing:
    """Search over whole hosts: double until it suffices, then halve the range.

    Throughput need not rise with every host, so the answer is the smallest *tried* size that
    suffices with every tried smaller one insufficient.

    Args:
        system: its name.
        solve: the best plan on so many ranks.
        target_samples_per_s: wanted.
        gpus_per_host: ranks of one host; sizes are multiples of it.
        max_gpus: largest size tried.
    """
    tried: dict[int, PointResult] = {}

    def suffices(hosts: int) -> bool:
        if hosts not in tried:
            tried[hosts] = solve(hosts * gpus_per_host)
        result = tried[hosts]
        reached = (result.samples_per_s or 0.0) * (result.availability_ratio or 0.0)
        return result.status is PointStatus.DONE and reached >= target_samples_per_s

    most = max(1, max_gpus // gpus_per_host)
    high = 1
    while not suffices(high) and high < most:
        high = min(2 * high, most)
    if not suffices(high):
        return Sizing(system=system, answer=None, tried=_ordered(tried))
    low = max((h for h in tried if h < high), default=0)
    while high - low > 1:
        middle = (low + high) // 2
        if suffices(middle):
            high = middle
        else:
            low = middle
    return Sizing(system=system, answer=tried[high], tried=_ordered(tried))


def _ordered(tried: dict[int, PointResult]) -> tuple[PointResult, ...]:
    return tuple(tried[h] for h in sorted(tried))
