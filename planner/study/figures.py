"""The figures that setups are judged by, and what failures and checkpoints take of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

import numpy as np
from pydantic import Field, FiniteFloat

from costmodels import units
from costmodels.datatypes import FloatArray
from planner.errors import refuse
from planner.problem import PlanningProblem
from planner.result import PlanningResult, usd_per_billion_samples
from planner.support.text import significant


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

    def checkpoints(self, checkpoint_bytes: float, hosts: int) -> tuple[float, float]:
        """The share of time in which a job trains, and the seconds between two checkpoints.

        A checkpoint stops training for C seconds, while its snapshot is taken, and is then written
        to storage in the background, as CheckFreq does (FAST'21). Two checkpoints are therefore at
        least the time of this writing apart. The interval is ``sqrt(2 C MTBF)`` (Young, Daly), or
        the time of writing if that is longer. The share of time lost is
        ``C / interval + (interval / 2 + restart) / MTBF``.

        Args:
            checkpoint_bytes: bytes of the rank that has most to save.
            hosts: number of hosts. They fail independently, so that the MTBF of the job is that of
                one host divided by this number.
        """
        mtbf_s = self.mtbf_s / hosts
        if math.isinf(mtbf_s):
            return 1.0, math.inf
        stall_s = checkpoint_bytes / self.snapshot_bytes_per_s
        persist_s = checkpoint_bytes / self.persist_bytes_per_s
        interval_s = max(math.sqrt(2.0 * stall_s * mtbf_s), persist_s, 1e-9)
        lost = stall_s / interval_s + (interval_s / 2.0 + self.restart_s) / mtbf_s
        return max(0.0, 1.0 - lost), interval_s


NO_FAILURES: Final = Operation()


def saved_bytes(result: PlanningResult) -> float:
    """Bytes of a checkpoint of the rank that has most weights and optimizer state."""
    return max(r.weights_bytes + r.optimizer_bytes for r in result.best.memory.ranks)


def with_checkpoints(result: PlanningResult, mtbf_s: float) -> PlanningResult:
    """Add to a result how often its training should write checkpoints.

    Args:
        result: the plan.
        mtbf_s: mean time between failures of one host.
    """
    hosts = result.problem.topology.num_hosts
    _, every_s = Operation(mtbf_s=mtbf_s).checkpoints(saved_bytes(result), hosts)
    return replace(result, checkpoint_interval_s=every_s)


Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A number of 0 or more, as what reads a journal checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of a setup: those of its plan, or bounds that no plan under it can better.

    Attributes:
        time_s: seconds per iteration, including the share of averaging copies.
        samples_per_s: samples of all ranks per second of paid time.
        free_bytes: free device memory on the fullest rank, including the reserve.
        usd_per_billion_samples: None for a system without price, or if nothing is trained.
        usd_per_hour: price of all ranks; None for a system without price.
        availability_ratio: share of the paid time in which the job trains.
        checkpoint_interval_s: seconds between two checkpoints; None without failures.
        low_s: lower end of the 90 % interval of ``time_s``.
        high_s: upper end of it.
    """

    time_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    samples_per_s: Amount
    free_bytes: FiniteFloat
    usd_per_billion_samples: Amount | None = None
    usd_per_hour: Amount | None = None
    availability_ratio: Amount = 1.0
    checkpoint_interval_s: Amount | None = None
    low_s: Amount | None = None
    high_s: Amount | None = None


def figures_of(
    problem: PlanningProblem,
    operation: Operation,
    *,
    time_s: float,
    free_bytes: float,
    checkpoint_bytes: float = 0.0,
) -> Figures:
    """The figures of a setup.

    Args:
        problem: the problem of all ranks.
        operation: failures, and speeds of checkpoints.
        time_s: seconds per iteration, including the share of averaging copies.
        free_bytes: free bytes on the fullest rank, without the reserve, which is added here.
        checkpoint_bytes: bytes of a checkpoint of the rank that has most to save; bounds have 0.
    """
    workload, topology = problem.workload, problem.topology
    available, every_s = operation.checkpoints(checkpoint_bytes, topology.num_hosts)
    samples = workload.samples_per_rank * topology.trainers.world_size
    usd, price = None, topology.price_per_device_usd_per_hour
    if time_s > 0 and available > 0:
        usd = usd_per_billion_samples(time_s / available, workload, topology)
    return Figures(
        time_s=time_s,
        samples_per_s=samples * available / time_s if time_s > 0 else math.inf,
        free_bytes=free_bytes + workload.reserved_bytes,
        usd_per_billion_samples=usd,
        usd_per_hour=None if price is None else price * topology.world_size,
        availability_ratio=available,
        checkpoint_interval_s=every_s if math.isfinite(every_s) else None,
    )


def _usd(figures: Figures) -> float:
    usd = figures.usd_per_billion_samples
    return math.inf if usd is None else usd


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure to make small or large.

    Attributes:
        title: its name for people.
        better: words that compare the best setup with the usual one.
        sign: 1 if a small figure is good, -1 if a large one is.
        figure: takes the figure out of the figures of a setup.
        write: writes the figure with its unit.
    """

    title: str
    better: str
    sign: int
    figure: Callable[[Figures], float]
    write: Callable[[float], str]

    def value(self, figures: Figures) -> float:
        """The value that a study minimises: the figure, or minus the figure if large is good."""
        return self.sign * self.figure(figures)


GOALS: Final = {
    "iteration": Goal("iteration", "as fast as", 1, lambda f: f.time_s, units.format_time),
    "throughput": Goal(
        "samples/s", "the throughput of", -1, lambda f: f.samples_per_s, units.format_count
    ),
    "cost": Goal("USD per 1e9 samples", "as cheap as", 1, _usd, significant),
    "headroom": Goal(
        "free memory", "the free memory of", -1, lambda f: f.free_bytes, units.format_bytes
    ),
}


def check_goals(names: Sequence[str], problems: Iterable[PlanningProblem]) -> None:
    """Refuse goals that do not exist, or that need what a system does not have.

    Raises:
        InvalidInputError: a goal is unknown or named twice, or is ``cost`` on a system without
            price.
    """
    if not set(names) <= set(GOALS) or len(set(names)) < len(names) or not names:
        refuse(f"--objective {','.join(names)}: name some of {', '.join(GOALS)}, each once")
    priced = {p.topology.name: p.topology.price_per_device_usd_per_hour for p in problems}
    unpriced = [name for name, price in priced.items() if price is None]
    if "cost" in names and unpriced:
        refuse(f"--objective cost: system {unpriced[0]!r} has no price; give --price")


def behind(found: FloatArray, values: FloatArray) -> FloatArray:
    """``[n]`` by what share a setup with these values could better all setups that were found.

    For each found setup take the largest gain over the goals, then the least of these over found
    setups. It is at most 0 if a found setup is as good in every goal, infinite if there is none.

    Args:
        found: ``[m, K]`` values of the setups that were found.
        values: ``[n, K]`` values to compare, usually bounds.
    """
    least = np.full(len(values), math.inf)
    for own in found:
        size = np.where(np.isfinite(own), np.maximum(np.abs(own), 1e-300), 1.0)
        with np.errstate(invalid="ignore"):
            gains = np.where(values == own, 0.0, (own - values) / size)
        np.minimum(least, gains.max(axis=1), out=least)
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
