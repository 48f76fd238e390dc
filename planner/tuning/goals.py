"""The goals that setups are judged by: iteration time, throughput, cost, and free memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from costmodels import units
from costmodels.datatypes import FloatArray
from planner.errors import InvalidInputError
from planner.result import usd_per_billion_samples
from planner.support.digits import significant
from planner.tuning.design import DesignSpace
from planner.tuning.setups import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The figures of a setup: those of its plan, or bounds that no plan under it can better.

    Attributes:
        time_s: seconds per iteration, including the share of averaging copies.
        samples_per_s: samples per second of all ranks.
        usd_per_billion_samples: None for a system without price.
        free_bytes: free device memory on the fullest rank, including the reserve.
    """

    time_s: float
    samples_per_s: float
    usd_per_billion_samples: float | None
    free_bytes: float

    def to_json(self) -> dict[str, Any]:
        """The figures as a dictionary that JSON can store."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One figure to make small or large.

    Attributes:
        title: its name for people.
        large_is_good: whether a large figure is good.
        figure: takes the figure out of the facts of a setup.
        write: writes the figure with its unit.
    """

    title: str
    large_is_good: bool
    figure: Callable[[Facts], float]
    write: Callable[[float], str]

    def value(self, facts: Facts) -> float:
        """The value that a study minimises: the figure, or minus the figure if large is good."""
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
    """The figures of a setup.

    Args:
        space: the design space, which has the problem on the setup's cluster.
        setup: the setup.
        time_s: seconds per iteration, including the share of averaging copies.
        free_bytes: free bytes on the fullest rank, without the reserve, which is added here.
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
    """Refuse goals that do not exist, or that need what a system does not have.

    Raises:
        InvalidInputError: a goal is unknown or named twice, or is ``cost`` on a system without
            price.
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
    """Iteration time if all setups train the same number of samples in one, else throughput."""
    samples = {s.gpus * s.batch_size for s in space.setups}
    return ("iteration",) if len(samples) == 1 else ("throughput",)


def values_of(names: Iterable[str], facts: Facts) -> tuple[float, ...]:
    """The values that a study minimises, one number for each goal."""
    return tuple(GOALS[name].value(facts) for name in names)


def behind(found: FloatArray, values: FloatArray) -> FloatArray:
    """``[n]`` by what share a setup with these values could better all setups that were found.

    For each found setup take the largest gain over the goals, then the least of these over found
    setups. It is at most 0 if a found setup is as good in every goal, infinite if there is none.

    Args:
        found: ``[m, K]`` values of the setups that were found.
        values: ``[n, K]`` values to compare, usually bounds.
    """
    if not len(found):
        return np.full(len(values), math.inf)
    scale = np.maximum(np.abs(found), 1e-300)
    least = np.full(len(values), math.inf)
    for own, size in zip(found, scale, strict=True):
        np.minimum(least, ((own - values) / size).max(axis=1), out=least)
    return least


def front_of(values: FloatArray) -> list[int]:
    """The rows of ``values [n, K]`` that no other row dominates (the Pareto front).

    A row dominates another if it is as good in every goal, and better in at least one.
    """
    kept = []
    for i, row in enumerate(values):
        as_good = (values <= row).all(axis=1)
        better = (values < row).any(axis=1)
        same_before = (values[:i] == row).all(axis=1).any()
        if not (as_good & better).any() and not same_before:
            kept.append(i)
    return kept
