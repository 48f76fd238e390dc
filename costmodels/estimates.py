"""Predictions: a time always comes with an interval and the source of its inputs."""

import math
from dataclasses import dataclass
from enum import StrEnum

from costmodels.errors import require


class Source(StrEnum):
    """Where a number comes from; the most certain source comes first.

    A sum has the least certain source of its parts.
    """

    MEASURED = "measured"
    CALIBRATED = "calibrated"
    DATASHEET = "datasheet"
    USER = "user"
    DEFAULT = "default"


RELATIVE_SIGMA: dict[Source, float] = {
    Source.MEASURED: 0.05,
    Source.CALIBRATED: 0.08,
    Source.DATASHEET: 0.20,
    Source.USER: 0.20,
    Source.DEFAULT: 0.30,
}
"""Log-standard deviation of a time that rests on a number of this source.

An assumption; it is used where no errors of a calibration are known."""

_ROUNDING = 1e-11
"""Share by which sums of many bytes may be off."""

Z90 = 1.6448536269514722
"""Half-width of a 90 % interval in standard deviations (normal quantile at 0.95)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """One input number: its name, value as written, source kind and reference."""

    name: str
    value: str
    source: Source
    reference: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds with a 90 % interval, and the least certain source of the inputs."""

    time_s: float
    low_s: float
    high_s: float
    source: Source

    def __post_init__(self) -> None:
        """Check low <= time <= high."""
        ordered = self.low_s <= self.time_s * (1 + 1e-9) and self.time_s <= self.high_s * (1 + 1e-9)
        require(
            math.isfinite(self.time_s) and self.time_s >= 0 and ordered,
            f"an estimate needs 0 <= low <= time <= high, "
            f"got {self.low_s}, {self.time_s}, {self.high_s}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """One stage of the iteration on every rank: when it starts and how long it takes.

    Attributes:
        name: of the stage.
        stream: the queue it runs on, such as compute or communication.
        start_s: of each rank. The time that an early rank waits for a collective lies before it.
        duration_s: of each rank.
    """

    name: str
    stream: str
    start_s: tuple[float, ...]
    duration_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalStep:
    """One link of the critical path: the stage that the iteration waits for, and on which rank."""

    rank: int
    stage: str
    start_s: float
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEstimate:
    """One rank's iteration.

    Attributes:
        rank: its number.
        compute_s: kernels that are no collectives run on its compute stream.
        communication_s: some exchange of it runs.
        exposed_s: some exchange runs and its compute stream idles.
        idle_s: its compute stream idles.
        slack_s: it waits for later ranks while its compute stream idles; so much more compute would
            not make the iteration longer.
    """

    rank: int
    compute_s: float
    communication_s: float
    exposed_s: float
    idle_s: float
    slack_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationEstimate:
    """One synchronized training step of a plan.

    Attributes:
        time: iteration time.
        samples_per_s: of all ranks together.
        stages: every stage with its times on all ranks.
        critical_path: the chain of stages that the iteration waits for, the earliest first.
        ranks: the sums of each rank.
        slowest_rank: the rank that computes longest.
        imbalance_ratio: its compute time over the mean of all ranks.
        exposed_communication_s: the largest of all ranks.
        warnings: what makes the estimate less certain, or what sets the pace beside the plan.
    """

    time: Estimate
    samples_per_s: float
    stages: tuple[StageTime, ...]
    critical_path: tuple[CriticalStep, ...]
    ranks: tuple[RankEstimate, ...]
    slowest_rank: int
    imbalance_ratio: float
    exposed_communication_s: float
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes on one rank's device, by purpose, and its bytes in the memory of its host."""

    rank: int
    weights_bytes: float
    optimizer_bytes: float
    gradients_bytes: float
    cache_bytes: float
    buffers_bytes: float
    dense_bytes: float
    reserved_bytes: float
    capacity_bytes: float
    host_bytes: float

    @property
    def used_bytes(self) -> float:
        """Device memory in use, including the reserve."""
        tables = self.weights_bytes + self.optimizer_bytes + self.gradients_bytes
        tables += self.cache_bytes + self.buffers_bytes
        return tables + self.dense_bytes + self.reserved_bytes

    @property
    def headroom_bytes(self) -> float:
        """Free device memory; negative when the plan does not fit."""
        return self.capacity_bytes - self.used_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Memory of one host: what tables in host memory take on all its ranks, and its size."""

    host: int
    used_bytes: float
    capacity_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLedger:
    """Memory of a plan on every rank and host."""

    ranks: tuple[RankMemory, ...]
    hosts: tuple[HostMemory, ...]

    @property
    def fits(self) -> bool:
        """Whether no rank and no host is over its capacity; rounding of sums does not count."""
        return all(r.headroom_bytes >= -_ROUNDING * r.capacity_bytes for r in self.ranks) and all(
            h.used_bytes <= h.capacity_bytes * (1.0 + _ROUNDING) for h in self.hosts
        )

    @property
    def fullest(self) -> RankMemory:
        """The rank with the least free memory."""
        return min(self.ranks, key=lambda r: r.headroom_bytes)
