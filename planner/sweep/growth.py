"""Says where more ranks of one system train fewer samples per second."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from planner.support.digits import significant
from planner.sweep.outcome import PointResult

_ALLOWED_RATIO: Final = 0.03
"""Losses up to this share are not spoken of: gaps of searches are as wide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """A point, and one with fewer ranks and otherwise the same, which is faster.

    Time lost to failures and checkpoints is left out, because it is not the plan's.
    """

    slow: PointResult
    fast: PointResult

    @property
    def most_samples_per_s(self) -> float | None:
        """Samples per second that no plan of the slow point exceeds; None if nothing is proven."""
        slow = self.slow
        if not slow.bound_s or not slow.iteration_time_s:
            return None
        return _speed(slow) * slow.iteration_time_s / slow.bound_s

    @property
    def text(self) -> str:
        """Both speeds in words, what is proven, and what may help."""
        slow, fast, most = self.slow.point, self.fast.point, self.most_samples_per_s
        trains_always = (self.slow.availability_ratio or 1.0) >= 1.0
        aside = "" if trains_always else ", failures aside"
        told = (
            f"{slow.name} trains {_millions(_speed(self.slow))} samples/s{aside}, and "
            f"{fast.gpus} GPUs train {_millions(_speed(self.fast))}"
        )
        if most is None or most >= _speed(self.fast):
            return f"{told}; more --evaluations may find a better plan for {slow.gpus} GPUs"
        return (
            f"{told}; no plan for {slow.gpus} GPUs reaches more than {_millions(most)}. shardplan "
            "tune --groups tries a copy of the tables on each group of GPUs, so that their "
            "exchanges join fewer ranks"
        )


def slowdowns(results: Sequence[PointResult]) -> Iterator[Slowdown]:
    """The largest slower point of each line, beside the fastest point that has fewer ranks."""
    for line in lines([r for r in results if _speed(r)]):
        for i in reversed(range(1, len(line))):
            fast = max(line[:i], key=_speed)
            if _speed(line[i]) < (1.0 - _ALLOWED_RATIO) * _speed(fast):
                yield Slowdown(slow=line[i], fast=fast)
                break


def lines(results: Sequence[PointResult]) -> list[list[PointResult]]:
    """Points that differ in the number of ranks alone, fewest first, line by line."""
    found: dict[Hashable, list[PointResult]] = {}
    for result in sorted(results, key=lambda r: r.point.gpus):
        p = result.point
        line = (p.system, p.batch_size, p.global_batch_size, p.pipeline)
        found.setdefault(line, []).append(result)
    return list(found.values())


def _speed(result: PointResult) -> float:
    return result.samples_per_s or 0.0


def _millions(samples_per_s: float) -> str:
    return f"{significant(samples_per_s / 1e6)} M"
