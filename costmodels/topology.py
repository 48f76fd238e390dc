"""Where it is trained: devices, hosts, and three link levels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.errors import require
from costmodels.estimates import Provenance, Source
from costmodels.workload import DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, by its achieved (not peak) rates.

    ``row_half_bytes`` is the row size at which random row reads reach half the streaming rate.
    ``update_efficiency_ratio`` is the share of streaming bandwidth that random read-modify-write
    of rows reaches. ``flops_per_s`` maps element types to peak matrix rates;
    ``flops_efficiency_ratio`` is the share large layers reach. ``overlap_slowdown_ratio`` is the
    compute time lost per second of communication that runs beside it. ``num_multiprocessors`` of 0
    means that matrix products are not quantized into waves. ``single_stream`` says that compute
    and communication share one processor, so that nothing runs beside anything else.
    """

    name: str
    hbm_capacity_bytes: float
    hbm_bandwidth_bytes_per_s: float
    l2_capacity_bytes: float
    l2_bandwidth_bytes_per_s: float
    flops_per_s: tuple[tuple[DataType, float], ...]
    flops_efficiency_ratio: float
    kernel_latency_s: float
    launch_latency_s: float
    row_half_bytes: float
    update_efficiency_ratio: float
    sort_rate_per_s: float
    overlap_slowdown_ratio: float = 0.0
    num_multiprocessors: int = 0
    single_stream: bool = False

    def __post_init__(self) -> None:
        """Check that times on it are finite."""
        rates = (
            self.hbm_bandwidth_bytes_per_s,
            self.l2_bandwidth_bytes_per_s,
            self.flops_efficiency_ratio,
            self.update_efficiency_ratio,
            self.sort_rate_per_s,
            *(rate for _, rate in self.flops_per_s),
        )
        name = f"device {self.name!r}"
        require(all(r > 0 for r in rates), f"{name}: rates and efficiencies must be above 0")
        require(len(self.flops_per_s) >= 1, f"{name}: flops_per_s needs one element type at least")
        sizes = (
            self.hbm_capacity_bytes,
            self.l2_capacity_bytes,
            self.kernel_latency_s,
            self.launch_latency_s,
            self.row_half_bytes,
            self.overlap_slowdown_ratio,
            self.num_multiprocessors,
        )
        require(all(s >= 0 for s in sizes), f"{name}: sizes and latencies must not be negative")

    def matrix_rate(self, dtype: DataType) -> float:
        """Peak FLOP/s for ``dtype``; types without an entry run at the slowest listed rate."""
        rates = dict(self.flops_per_s)
        return rates.get(dtype, min(rates.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine: memory shared by its ranks, and the link of one device to it."""

    ddr_capacity_bytes: float
    ddr_bandwidth_bytes_per_s: float
    device_link_bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        """Check that times on it are finite."""
        require(self.ddr_capacity_bytes >= 0, "ddr_capacity must not be negative")
        rates = (self.ddr_bandwidth_bytes_per_s, self.device_link_bandwidth_bytes_per_s)
        require(all(r > 0 for r in rates), "host bandwidths must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One level of the network, per rank and direction.

    ``half_size_bytes`` is the message that reaches half of the rate, and ``fabric`` the kind of
    network (:mod:`costmodels.fabrics`). Both are empty where only rate and latency are known.
    ``pod_hosts`` hosts, such as those of a rack, reach one another at the full rate; what they send
    beyond shares 1 / ``oversubscription_ratio`` of that. 0 stands for a network without pods.
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    half_size_bytes: float = 0.0
    fabric: str = ""
    pod_hosts: int = 0
    oversubscription_ratio: float = 1.0

    def __post_init__(self) -> None:
        """Check that times over it are finite."""
        ratio = self.oversubscription_ratio
        require(ratio >= 1, f"oversubscription must be at least 1, got {ratio}")
        require(self.pod_hosts >= 0, "hosts of a pod must not be negative")
        require(self.bandwidth_bytes_per_s > 0, "a link needs a bandwidth above 0")
        require(self.latency_s >= 0, "a link latency must not be negative")
        require(self.half_size_bytes >= 0, "a half-size message must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The three link levels of a system, see :class:`Topology`."""

    host: Link
    domain: Link
    network: Link


FITTED_KINDS: Final = ("lookup", "collective", "dense", "host")
"""Kinds of time that runs of one's own correct, in the order of :class:`FittedFactors`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedFactors:
    """What runs of one's own say about a system: a factor on each kind of time.

    Attributes:
        lookup_ratio: on lookups, forward and backward, without the latency of their kernels.
        collective_ratio: on collectives, or on exchanges with the copies around them.
        dense_ratio: on matrix products and what else the dense part computes.
        host_ratio: on the host's kernel launches.
        spread_ratio: log-standard deviations that are left, as the rows of a lower triangle in the
            order of the factors: ``ln`` of the true factors is off by this matrix times four
            independent standard normal draws. Empty for those of the system.
    """

    lookup_ratio: float = 1.0
    collective_ratio: float = 1.0
    dense_ratio: float = 1.0
    host_ratio: float = 1.0
    spread_ratio: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        """Check that times stay positive, and the shape of the spread."""
        good = all(math.isfinite(r) and r > 0 for r in self.ratios)
        require(good, f"fitted factors must be finite and above 0, got {self.ratios}")
        rows = [len(row) for row in self.spread_ratio]
        triangle = list(range(1, len(FITTED_KINDS) + 1))
        finite = all(math.isfinite(v) for row in self.spread_ratio for v in row)
        require(
            finite and rows in ([], triangle),
            "the spread of fitted factors must be a lower triangle with rows of 1, 2, 3 and 4 "
            f"numbers, got rows of {rows}",
        )

    @property
    def ratios(self) -> tuple[float, ...]:
        """The factors in the order of ``FITTED_KINDS``."""
        return self.lookup_ratio, self.collective_ratio, self.dense_ratio, self.host_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """``num_hosts`` hosts with ``local_world_size`` ranks each.

    Ranks count through hosts in order. ``domain_size`` ranks (a multiple of the local world size)
    share a scale-up fabric such as one NVLink domain: link ``host`` joins ranks of one host,
    ``domain`` ranks of different hosts inside a domain, ``network`` everything else.
    ``hbm_capacity_by_rank_bytes`` and ``speed_by_rank_ratio`` describe ranks that differ from the
    device, ``ddr_capacity_by_host_bytes`` hosts that do; empty means all equal.
    ``collective_curves`` names sets of measured curves, best first. ``calibration`` is the file of
    constants of a system whose ranks are CPU cores. ``fitted`` holds what runs of one's own
    correct; its factor on host time is in the device's launch latency already. ``whole`` is the
    system of all ranks where these are one group of them that has a copy of the tables of its own
    (2D parallelism); the dense part is trained by all of those.
    """

    name: str
    device: Device
    host: Host
    num_hosts: int
    local_world_size: int
    domain_size: int
    host_link: Link
    domain_link: Link
    network_link: Link
    price_per_device_usd_per_hour: float | None = None
    hbm_capacity_by_rank_bytes: tuple[float, ...] = ()
    speed_by_rank_ratio: tuple[float, ...] = ()
    provenance: tuple[Provenance, ...] = ()
    collective_curves: tuple[str, ...] = ()
    calibration: str = ""
    ddr_capacity_by_host_bytes: tuple[float, ...] = ()
    fitted: FittedFactors | None = None
    whole: Topology | None = None

    def __post_init__(self) -> None:
        """Check that the levels nest."""
        require(self.num_hosts >= 1, f"num_hosts must be at least 1, got {self.num_hosts}")
        require(
            self.local_world_size >= 1,
            f"gpus_per_host must be at least 1, got {self.local_world_size}",
        )
        fits = self.domain_size % self.local_world_size == 0 and self.domain_size >= 1
        require(
            fits,
            f"domain_size {self.domain_size} must be a multiple of "
            f"gpus_per_host {self.local_world_size}",
        )
        for values in (self.hbm_capacity_by_rank_bytes, self.speed_by_rank_ratio):
            require(
                len(values) in (0, self.world_size),
                f"per-rank values need {self.world_size} entries, got {len(values)}",
            )
            require(all(math.isfinite(v) and v > 0 for v in values), "per-rank values must be > 0")
        require(
            len(self.ddr_capacity_by_host_bytes) in (0, self.num_hosts),
            f"per-host values need {self.num_hosts} entries, "
            f"got {len(self.ddr_capacity_by_host_bytes)}",
        )
        require(
            all(math.isfinite(v) and v >= 0 for v in self.ddr_capacity_by_host_bytes),
            "per-host memory must not be negative",
        )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.num_hosts * self.local_world_size

    @property
    def trainers(self) -> Topology:
        """All ranks that train the dense part: these, or those of all groups."""
        return self if self.whole is None else self.whole

    @property
    def compute_device(self) -> str:
        """What TorchRec runs on: ``cpu`` where ranks are CPU cores, ``cuda`` otherwise.

        They are CPU cores where the system is calibrated, or its device is named ``cpu``.
        """
        return "cpu" if self.calibration or self.device.name == "cpu" else "cuda"

    @property
    def links(self) -> Links:
        """All link levels."""
        return Links(host=self.host_link, domain=self.domain_link, network=self.network_link)

    def with_links(self, links: Links) -> Topology:
        """The same ranks on other links."""
        return replace(
            self, host_link=links.host, domain_link=links.domain, network_link=links.network
        )

    def host_of(self, rank: int) -> int:
        """Index of the host of ``rank``."""
        return rank // self.local_world_size

    def hbm_capacities(self) -> NDArray[np.float64]:
        """Device memory per rank in bytes, shape ``[world_size]``."""
        if self.hbm_capacity_by_rank_bytes:
            return np.array(self.hbm_capacity_by_rank_bytes)
        return np.full(self.world_size, self.device.hbm_capacity_bytes)

    def ddr_capacities(self) -> NDArray[np.float64]:
        """Host memory per host in bytes, shape ``[num_hosts]``."""
        if self.ddr_capacity_by_host_bytes:
            return np.array(self.ddr_capacity_by_host_bytes)
        return np.full(self.num_hosts, self.host.ddr_capacity_bytes)

    def speeds(self) -> NDArray[np.float64]:
        """Compute speed of each rank relative to the device, shape ``[world_size]``."""
        if self.speed_by_rank_ratio:
            return np.array(self.speed_by_rank_ratio)
        return np.ones(self.world_size)

    def resized(self, num_hosts: int, local_world_size: int) -> Topology:
        """The same system with another number of ranks; the domain keeps its size where it fits."""
        spans_hosts = self.domain_size > self.local_world_size
        domain = self.domain_size if spans_hosts else local_world_size
        domain = max(local_world_size, domain - domain % local_world_size)
        return replace(
            self,
            num_hosts=num_hosts,
            local_world_size=local_world_size,
            domain_size=domain,
            hbm_capacity_by_rank_bytes=(),
            speed_by_rank_ratio=(),
            ddr_capacity_by_host_bytes=(),
        )

    def weakest_source(self) -> Source:
        """The weakest source among the numbers of the system."""
        return max(
            (p.source for p in self.provenance), key=lambda s: s.strength, default=Source.USER
        )
