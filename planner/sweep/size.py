"""Finds the smallest cluster that reaches a throughput."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner import api
from planner.errors import InfeasibleError, InvalidInputError, StoppedError
from planner.sweep.economics import economics
from planner.sweep.outcome import PointResult, PointStatus
from planner.sweep.runner import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The answer for one system.

    Attributes:
        system: the name of the system.
        answer: the smallest point that reaches the throughput; None if no size does.
        tried: every point that was searched, in order of size.
        ruled_out: numbers of ranks, rising, that are proven to be too slow, without a search.
        is_cut: whether the user ended it: a smaller size than the answer may do.
    """

    system: str
    answer: PointResult | None
    tried: tuple[PointResult, ...]
    ruled_out: tuple[int, ...] = ()
    is_cut: bool = False


def smallest(
    system: str,
    solve: Callable[[int], PointResult],
    *,
    at_most: Callable[[int], float],
    target_samples_per_s: float,
    sizes: Sequence[int],
) -> Sizing:
    """Find the smallest size whose best plan reaches a throughput.

    Sizes are doubled until one reaches it, and the range below that size is halved again and again.
    Throughput need not rise with every host. Therefore all other sizes below the one found (or all
    other sizes, if none was found) come next, the smallest first; a size that is proven to be too
    slow is not searched. In the end every size below the answer has been searched or ruled out, and
    so has every size if there is no answer. Where a search is stopped, the answer is the smallest
    size that has been found to suffice by then.

    Args:
        system: the name of the system.
        solve: searches the best plan for a number of ranks; a ``StoppedError`` ends it all.
        at_most: proves how many samples per second no plan on this number of ranks exceeds;
            infinite if nothing is proven. It is called only if it may save a search.
        target_samples_per_s: the throughput to reach, with the time lost to failures and
            checkpoints counted.
        sizes: the numbers of ranks that may be tried, rising; at least one.
    """
    tried: dict[int, PointResult] = {}
    ruled_out: list[int] = []

    def suffices(size: int) -> bool:
        if size not in tried:
            tried[size] = solve(size)
        result = tried[size]
        reached = result.trained_samples_per_s or 0.0
        return result.status is PointStatus.DONE and reached >= target_samples_per_s

    def may_suffice(size: int) -> bool:
        if at_most(size) >= target_samples_per_s:
            return True
        ruled_out.append(size)
        return False

    is_cut = False
    try:
        found = _by_doubling(sizes, suffices)
        left = [s for s in sizes if s not in tried and (found is None or s < found)]
        found = next((s for s in left if may_suffice(s) and suffices(s)), found)
    except StoppedError:
        is_cut, found = True, next((s for s in sorted(tried) if suffices(s)), None)
    return Sizing(
        system=system,
        answer=None if found is None else tried[found],
        tried=tuple(tried[size] for size in sorted(tried)),
        ruled_out=tuple(ruled_out),
        is_cut=is_cut,
    )


def _by_doubling(sizes: Sequence[int], suffices: Callable[[int], bool]) -> int | None:
    """A size that suffices, found by doubling and then halving; None if no tried one does."""
    low, high, most = 0, 1, len(sizes)
    while not suffices(sizes[high - 1]):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if suffices(sizes[middle - 1]):
            high = middle
        else:
            low = middle
    return sizes[high - 1]


def most_samples_per_s(task: Task, *, should_stop: Callable[[], bool] = lambda: False) -> float:
    """Samples per second that no plan of a point exceeds, proven without a search for a plan.

    If a problem has so many options that some are not listed, this holds for plans of the listed
    ones, which are the only plans that a search finds (:func:`planner.api.floor`). The time lost to
    failures counts; checkpoints are taken as empty. The result is 0 if nothing fits, and infinite
    if the problem is not valid; a search then tells why.

    Raises:
        StoppedError: ``should_stop`` was True.
    """
    problem = task.problem
    try:
        least_s = api.floor(problem, should_stop=should_stop).value
    except InfeasibleError:
        return 0.0
    except InvalidInputError:
        return math.inf
    if least_s <= 0.0:
        return math.inf
    workload, topology = problem.workload, problem.topology
    samples_per_s = workload.samples_per_rank * topology.trainers.world_size / least_s
    money = economics(
        task.operation,
        samples_per_s=samples_per_s,
        checkpoint_bytes=0.0,
        hosts=topology.num_hosts,
        ranks=topology.world_size,
        usd_per_device_hour=None,
    )
    return samples_per_s * money.availability_ratio
