"""What a setup is judged by: iteration time, throughput, cost, free memory, or several at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodels import units
from planner.errors import InvalidInputError
from planner.result import usd_per_billion_samples
from planner.support.digits import significant
from planner.tuning.design import DesignSpace
from planner.tuning.setups import Setup

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A setup in figures: those of its plan, or the best that any plan could have.

    Attributes:
        time_s: of an iteration, with its share of averaging copies.
        samples_per_s: over all ranks.
        usd_per_billion_samples: None for a system without price.
        free_bytes: device memory that is free on the fullest rank, the reserve included.
    """

    time_s: float
    samples_per_s: float
    usd_per_billion_samples: float | None
    free_bytes: float

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One thing to make small or large.

    ``value`` is what becomes small: negative where large is good.
    """

    title: str
    large_is_good: bool
    figure: Callable[[Facts], float]
    write: Callable[[float], str]

    def value(self, facts: Facts) -> float:
        """The figure, with its sign turned where large is good."""
        return -self.figure(facts) if self.large_is_good else self.figure(facts)


GOALS: Final = {
    "iteration": Goal(
        title="iteration",
        large_is_good=False,
        figure=lambda f: f.time_s,
        write=units.format_time,
    ),
    "throughput": Goal(
        title="samples/s",
        large_is_good=True,
        figure=lambda f: f.samples_per_s,
        write=units.format_count,
    ),
    "cost": Goal(
        title="USD per 1e9 samples",
        large_is_good=False,
        figure=lambda f: math.inf if (usd := f.usd_per_billion_samples) is None else usd,
        write=lambda usd: significant(usd, 4),
    ),
    "headroom": Goal(
        title="free memory",
        large_is_good=True,
        figure=lambda f: f.free_bytes,
        write=units.format_bytes,
    ),
}


def facts_of(space: DesignSpace, setup: Setup, time_s: float, free_bytes: float) -> Facts:
    """A setup in figures.

    Args:
        space: holds its cluster.
        setup: the pick.
        time_s: of an iteration, with its share of averaging copies.
        free_bytes: on the fullest rank beside the reserve.
    """
    problem = space.problem_of(setup)
    workload, topology = problem.workload, problem.topology
    larger = setup.batch_size / workload.local_batch_size
    samples = workload.samples_per_rank * larger * topology.world_size
    return Facts(
        time_s=time_s,
        samples_per_s=samples / time_s if time_s > 0 else math.inf,
        usd_per_billion_samples=usd_per_billion_samples(time_s / larger, workload, topology),
        free_bytes=free_bytes + setup.reserved_bytes,
    )


def check_goals(names: Sequence[str], space: DesignSpace) -> None:
    """Refuse goals that do not exist or that lack what they need.

    Raises:
        InvalidInputError: an unknown goal, one named twice, or cost on a system without price.
    """
    unknown = [name for name in names if name not in GOALS]
    if unknown or len(set(names)) < len(names) or not names:
        message = f"--objective {','.join(names)}: name some of {', '.join(GOALS)}, each once"
        raise InvalidInputError(message)
    unpriced = [
        p.topology.name for p in space.problems if p.topology.price_per_device_usd_per_hour is None
    ]
    if "cost" in names and unpriced:
        message = (
            f"--objective cost: the system {unpriced[0]!r} has no price; add price: 4.5 USD/h to "
            "its file, or give --price"
        )
        raise InvalidInputError(message)


def usual_goals(space: DesignSpace) -> tuple[str, ...]:
    """Iteration time where every setup trains as many samples in one; else throughput."""
    samples = {s.gpus * s.batch_size for s in space.setups}
    return ("iteration",) if len(samples) == 1 else ("throughput",)


def values_of(names: Iterable[str], facts: Facts) -> tuple[float, ...]:
    """What becomes small, one number per goal."""
    return tuple(GOALS[name].value(facts) for name in names)


def behind(found: FloatArray, values: FloatArray) -> FloatArray:
    """``[n]`` by what share each of ``values [n, K]`` could better the found ones ``[m, K]``.

    The least, over what was found, of the largest gain over goals; at most 0 where something found
    is as good in every goal. Infinite where nothing is found.
    """
    if not len(found):
        return np.full(len(values), math.inf)
    scale = np.maximum(np.abs(found), 1e-300)
    least = np.full(len(values), math.inf)
    for own, size in zip(found, scale, strict=True):
        np.minimum(least, ((own - values) / size).max(axis=1), out=least)
    return least


def front_of(values: FloatArray) -> list[int]:
    """Rows of ``[n, K]`` that no other is as good as in every goal, and better in one."""
    kept = []
    for i, row in enumerate(values):
        as_good = (values <= row).all(axis=1)
        better = (values < row).any(axis=1)
        same_before = (values[:i] == row).all(axis=1).any()
        if not (as_good & better).any() and not same_before:
            kept.append(i)
    return kept
