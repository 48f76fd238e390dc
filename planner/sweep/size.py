"""The smallest cluster that reaches a throughput."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    sizes: Sequence[int],
) -> Sizing:
    """Search over sizes: go twice as far along them until one suffices, then halve the range.

    Throughput need not rise with every host, so the answer is the smallest *tried* size that
    suffices with every tried smaller one insufficient.

    Args:
        system: its name.
        solve: the best plan on so many ranks.
        target_samples_per_s: wanted; time lost to failures and checkpoints counts.
        sizes: numbers of ranks that may be tried, rising; one at least.
    """
    tried: dict[int, PointResult] = {}

    def suffices(number: int) -> bool:
        """Whether the size of that number, counted from 1, suffices."""
        if number not in tried:
            tried[number] = solve(sizes[number - 1])
        result = tried[number]
        reached = result.trained_samples_per_s or 0.0
        return result.status is PointStatus.DONE and reached >= target_samples_per_s

    most, high = len(sizes), 1
    while not suffices(high) and high < most:
        high = min(2 * high, most)
    if not suffices(high):
        return Sizing(system=system, answer=None, tried=_ordered(tried))
    low = max((n for n in tried if n < high), default=0)
    while high - low > 1:
        middle = (low + high) // 2
        if suffices(middle):
            high = middle
        else:
            low = middle
    return Sizing(system=system, answer=tried[high], tried=_ordered(tried))


def _ordered(tried: dict[int, PointResult]) -> tuple[PointResult, ...]:
    return tuple(tried[n] for n in sorted(tried))
