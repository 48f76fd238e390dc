"""A prediction is never a bare number: value, interval, and where it came from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from costmodels.errors import require


class Source(StrEnum):
    """Where a number comes from, strongest first."""

    MEASURED = "measured"
    CALIBRATED = "calibrated"
    DATASHEET = "datasheet"
    USER = "user"
    DEFAULT = "default"

    @property
    def strength(self) -> int:
        """0 for the strongest; sums keep the weakest source of their parts."""
        return list(Source).index(self)


RELATIVE_SIGMA: dict[Source, float] = {
    Source.MEASURED: 0.05,
    Source.CALIBRATED: 0.08,
    Source.DATASHEET: 0.20,
    Source.USER: 0.20,
    Source.DEFAULT: 0.30,
}
"""Log-standard deviation assumed for a time that rests on a number of this source.

Used where no calibration residual says better."""

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
    """Seconds with a 90 % interval and the weakest source that entered."""

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

    @classmethod
    def lognormal(cls, time_s: float, sigma: float, source: Source) -> Estimate:
        """Interval ``time * exp(+-Z90 * sigma)``."""
        spread = math.exp(Z90 * sigma)
        return cls(time_s=time_s, low_s=time_s / spread, high_s=time_s * spread, source=source)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """One stage of the iteration on every rank: when it starts and how long it takes.

    ``stream`` is host, compute, data_dist or communication. Lists have one entry per rank. The
    wait of an early rank for a collective lies before ``start_s`` and is not part of the duration.
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

    ``exposed_s`` is communication during which its compute stream idles; ``slack_s`` is the time
    it waits for later ranks, which it could compute for free.
    """

    rank: int
    compute_s: float
    communication_s: float
    exposed_s: float
    idle_s: float
    slack_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationEstimate:
    """One synchronized training step of a plan."""

    time: Estimate
    samples_per_s: float
    stages: tuple[StageTime, ...]
    critical_path: tuple[CriticalStep, ...]
    ranks: tuple[RankEstimate, ...]
    slowest_rank: int
    imbalance_ratio: float
    exposed_communication_s: float
    provenance: tuple[Provenance, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes on one rank's device, by purpose, and its part of the host memory."""

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
        """Device memory in use, the reserve included."""
        return (
            self.weights_bytes
            + self.optimizer_bytes
            + self.gradients_bytes
            + self.cache_bytes
            + self.buffers_bytes
            + self.dense_bytes
            + self.reserved_bytes
        )

    @property
    def headroom_bytes(self) -> float:
        """Free device memory; negative when the plan does not fit."""
        return self.capacity_bytes - self.used_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Host memory of one host: tables of UVM kernels on all its ranks, against its capacity."""

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
        """Whether no rank and no host exceeds its capacity, but for the rounding of sums."""
        return all(r.headroom_bytes >= -_ROUNDING * r.capacity_bytes for r in self.ranks) and all(
            h.used_bytes <= h.capacity_bytes * (1.0 + _ROUNDING) for h in self.hosts
        )

    @property
    def fullest(self) -> RankMemory:
        """The rank with the least head-room."""
        return min(self.ranks, key=lambda r: r.headroom_bytes)
