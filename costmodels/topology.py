"""The system that trains: devices, hosts, and three levels of links."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from costmodels.errors import require
from costmodels.estimates import Provenance, Source
from costmodels.fields import Amount, Count, Positive, Range, Several, settle
from costmodels.measured.cpu_constants import CpuConstants
from costmodels.measured.curves import CollectiveCurve
from costmodels.measured.fbgemm_constants import FbgemmConstants
from costmodels.workload import DataType, Pipeline, Workload

PASS_RATIO: Final = 15.0
"""A tiny forward and backward pass over an eager call, where it was not measured: 15.0 on the host
of an H200, 14.4 on a CPU."""
SLOWEST_DISPATCH_S: Final = 10.8e-6
"""The most that a dispatch is taken to cost where the pass was not measured: that of the H200's
host, a virtual machine at 2.1 GHz. A longer call is one whose launch takes longer. An eager call
took 24 us there and 39 us on another machine with the same processor, and a kernel of a TorchRec
step cost the host 53 us there and 67 us on the other: as much more as the launch."""
PASS_DISPATCHES: Final = 24.9
"""Dispatches of that pass: 14.4 on a CPU, and 10.5 to hand the backward pass to the thread of the
device and back. The latter is what is missing on the host of the H200 if its dispatches are to
those of the CPU as its ``torch.empty`` is."""
PASS_LAUNCHES: Final = 7.0
"""Kernels of that pass: product, sum, ones, product, sum, and two gradients added up."""
_LEAST_DISPATCH: Final = 0.1
"""The least share of a call that is the dispatch, and the least that is the launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, by the rates that it achieves (not the peak rates, except ``flops_per_s``).

    Attributes:
        name: of the device; ``cpu`` where ranks are CPU cores.
        hbm_capacity_bytes: size of the device memory.
        hbm_bandwidth_bytes_per_s: streaming rate of the device memory.
        l2_capacity_bytes: size of the second-level cache.
        l2_bandwidth_bytes_per_s: rate of that cache.
        flops_per_s: peak rate of matrix products by element type.
        flops_efficiency_ratio: share of the peak rate that large products reach.
        kernel_latency_s: least time of a kernel on the device.
        row_half_bytes: row size at which random reads of rows reach half the streaming rate.
        update_efficiency_ratio: share of the streaming rate that random updates of rows reach.
        sort_rate_per_s: indices sorted per second.
        overlap_slowdown_ratio: seconds of compute lost per second of communication beside it.
        num_multiprocessors: matrix products run in waves over them; 0 for no waves.
        single_stream: whether compute and communication share one processor, so that nothing runs
            beside anything else.

    Raises:
        InvalidValueError: a rate is not above 0, or a size or latency is negative.
    """

    name: str
    hbm_capacity_bytes: Amount
    hbm_bandwidth_bytes_per_s: Positive
    l2_capacity_bytes: Amount
    l2_bandwidth_bytes_per_s: Positive
    flops_per_s: tuple[tuple[DataType, Positive], ...]
    flops_efficiency_ratio: Positive
    kernel_latency_s: Amount
    row_half_bytes: Amount
    update_efficiency_ratio: Positive
    sort_rate_per_s: Positive
    overlap_slowdown_ratio: Amount = 0.0
    num_multiprocessors: Count = 0
    single_stream: bool = False

    def __post_init__(self) -> None:
        """Check that times on it are finite."""
        name = f"device {self.name!r}"
        settle(self, f"{name}: ")
        require(len(self.flops_per_s) >= 1, f"{name}: flops_per_s needs one element type at least")
        require(
            not self.single_stream or self.overlap_slowdown_ratio == 0,
            f"{name}: overlap_slowdown must be 0 where compute and communication share one "
            f"processor, so that nothing overlaps, got {self.overlap_slowdown_ratio}",
        )

    def rated_type(self, dtype: DataType) -> DataType:
        """The type at whose rate products in ``dtype`` are priced: ``dtype`` if it has a rate.

        Otherwise it is the fastest listed type that holds every value of ``dtype``, because
        products can always be computed in such a type. If there is none, it is the slowest type.
        """
        rates = dict(self.flops_per_s)
        if dtype in rates:
            return dtype
        wider = [t for t in rates if t in dtype.wider]
        return max(wider, key=lambda t: rates[t]) if wider else min(rates, key=lambda t: rates[t])

    def matrix_rate(self, dtype: DataType) -> float:
        """Peak FLOP/s for ``dtype``, which is the rate of :meth:`rated_type`."""
        return dict(self.flops_per_s)[self.rated_type(dtype)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine: memory shared by its ranks, the link of one device to it, and its calls.

    Attributes:
        ddr_capacity_bytes: size of its memory.
        ddr_bandwidth_bytes_per_s: rate of its memory.
        device_link_bandwidth_bytes_per_s: rate of copies between it and one device.
        eager_call_s: one eager call of a tiny kernel, issued back to back: an in-place addition on
            eight elements, and the record of an event.
        eager_pass_s: forward and backward pass of a linear layer of 8 by 8 on 8 samples and the sum
            of its result; None if it was not measured. It is then taken as :data:`PASS_RATIO`
            eager calls, with dispatches of at most :data:`SLOWEST_DISPATCH_S`.

    Raises:
        InvalidValueError: a rate is not above 0, a size or time is negative, or a pass is shorter
            than a call.
    """

    ddr_capacity_bytes: Amount
    ddr_bandwidth_bytes_per_s: Positive
    device_link_bandwidth_bytes_per_s: Positive
    eager_call_s: Amount = 5e-6
    eager_pass_s: float | None = None

    @property
    def dispatch_s(self) -> float:
        """Seconds of one dispatch: an eager call without the launch of its kernel.

        A pass is so many dispatches and launches, and a call is one of each. At least a tenth and
        at most nine tenths of a call is the dispatch.
        """
        call_s = self.eager_call_s
        pass_s = PASS_RATIO * call_s if self.eager_pass_s is None else self.eager_pass_s
        rest = (pass_s - PASS_LAUNCHES * call_s) / (PASS_DISPATCHES - PASS_LAUNCHES)
        if self.eager_pass_s is None:
            rest = min(rest, SLOWEST_DISPATCH_S)
        return min(max(rest, _LEAST_DISPATCH * call_s), (1.0 - _LEAST_DISPATCH) * call_s)

    @property
    def launch_s(self) -> float:
        """Seconds of the launch of one kernel."""
        return self.eager_call_s - self.dispatch_s

    def __post_init__(self) -> None:
        """Check that times on it are finite."""
        settle(self, "host: ")
        require(
            self.eager_pass_s is None or self.eager_pass_s >= self.eager_call_s,
            f"eager_pass ({self.eager_pass_s} s) must not be less than eager_call "
            f"({self.eager_call_s} s), because a pass consists of calls; leave it out, or measure "
            "both with 'shardplan calibrate --host'",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One level of links, per rank and direction.

    Attributes:
        latency_s: start-up time of a message.
        bandwidth_bytes_per_s: rate that large messages reach.
        half_size_bytes: size of the message that reaches half the rate; 0 if not known.
        fabric: kind of network (:mod:`costmodels.fabrics`); empty if not known.
        pod_hosts: hosts of one pod, such as a rack, that reach one another at the full rate; 0 for
            a network without pods.
        oversubscription_ratio: what a pod's hosts send beyond the pod shares 1 / this of the full
            rate.
        mesh_ranks: ranks that are joined pairwise, each pair by a link of its own, as over xGMI; 0
            for ranks on a switch. The bandwidth is that of all links of a rank together.

    Raises:
        InvalidValueError: a value is out of range.
    """

    latency_s: Amount
    bandwidth_bytes_per_s: Positive
    half_size_bytes: Amount = 0.0
    fabric: str = ""
    pod_hosts: Count = 0
    oversubscription_ratio: Annotated[float, Range(1)] = 1.0
    mesh_ranks: Count = 0

    def __post_init__(self) -> None:
        """Check that times over it are finite."""
        settle(self, "link: ")
        require(self.mesh_ranks == 0 or self.mesh_ranks >= 2, "a mesh needs 2 ranks at least")

    def reached_ratio(self, ranks: int) -> float:
        """Share of the bandwidth that ``ranks`` ranks of a mesh reach among one another."""
        return min(1.0, max(ranks - 1, 1) / (self.mesh_ranks - 1)) if self.mesh_ranks else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The three levels of links of a system, see :class:`Topology`."""

    host: Link
    domain: Link
    network: Link


FITTED_KINDS: Final = ("lookup", "collective", "dense", "host")
"""Kinds of time that ``shardplan fit`` corrects, in the order of :class:`FittedFactors`."""
_Spread = Annotated[float, Range(-50.0, 50.0)]
"""Factors would differ by e^50 then; intervals of larger spreads have no finite ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedFactors:
    """What ``shardplan fit`` has learnt of a system from runs: a factor on each kind of time.

    Attributes:
        lookup_ratio: on lookups, forward and backward, without the latency of their kernels.
        collective_ratio: on collectives, or on exchanges with the copies around them.
        dense_ratio: on matrix products and what else the dense part computes.
        host_ratio: on the host's kernel launches.
        spread_ratio: how uncertain the factors still are, as the rows of a lower triangular matrix
            in the order of the factors: ``ln`` of the true factors differs from that of these by
            the matrix times four independent standard normal draws. Empty for the system's own
            uncertainty.
    """

    lookup_ratio: Positive = 1.0
    collective_ratio: Positive = 1.0
    dense_ratio: Positive = 1.0
    host_ratio: Positive = 1.0
    spread_ratio: tuple[tuple[_Spread, ...], ...] = ()

    def __post_init__(self) -> None:
        """Check that times stay positive, and the shape of the spread."""
        settle(self, "fitted factors: ")
        rows, wanted = [len(row) for row in self.spread_ratio], "rows of 1, 2, 3 and 4 numbers"
        is_triangle = rows in ([], list(range(1, len(FITTED_KINDS) + 1)))
        spread = "the spread of fitted factors must be a lower triangle with"
        require(is_triangle, f"{spread} {wanted}, got rows of {rows}")

    @property
    def ratios(self) -> tuple[float, ...]:
        """The factors in the order of ``FITTED_KINDS``."""
        return self.lookup_ratio, self.collective_ratio, self.dense_ratio, self.host_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What the files that a system names hold, read when the system is read.

    Attributes:
        curves: of collectives.
        curve_links: the links on which the curves were measured; None for those of the system.
        cpu: constants of ranks that are CPU cores; None if the system names no calibration.
    """

    curves: tuple[CollectiveCurve, ...] = ()
    curve_links: Links | None = None
    cpu: CpuConstants | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The ranks of a job: ``num_hosts`` hosts with ``local_world_size`` ranks each, host by host.

    Attributes:
        name: of the system.
        device: of every rank.
        host: every host.
        num_hosts: number of hosts.
        local_world_size: ranks per host.
        domain_size: ranks of a scale-up domain, such as one NVLink domain; a multiple of
            ``local_world_size``.
        host_link: joins ranks of one host.
        domain_link: joins ranks of different hosts inside one domain.
        network_link: joins all other ranks.
        price_per_device_usd_per_hour: None if not known.
        hbm_capacity_by_rank_bytes: device memory of each rank; empty if all are as the device says.
        speed_by_rank_ratio: compute speed of each rank relative to the device; empty if all are 1.
        provenance: where the numbers of the system come from.
        collective_curves: names of sets of measured curves, the best first; their curves are in
            ``measurements``, and without names none of them are used.
        calibration: file of constants of a system whose ranks are CPU cores; empty for others.
        ddr_capacity_by_host_bytes: memory of each host; empty if all are as the host says.
        lookup_constants: of FBGEMM's kernels, if a calibration of this system found them; None for
            the shipped ones.
        fitted: factors from ``shardplan fit``; the one on host time is already in the launch
            latency of the device.
        whole: with 2D parallelism, the system of all ranks, of which these are one group with a
            copy of the tables of its own. All ranks of ``whole`` train the dense part together.
        measurements: what ``collective_curves`` and ``calibration`` name, and learned factors. Two
            systems are equal if they name the same.

    Raises:
        InvalidValueError: the levels do not nest, or a list has another length.
    """

    name: str
    device: Device
    host: Host
    num_hosts: Several
    local_world_size: Several
    domain_size: Several
    host_link: Link
    domain_link: Link
    network_link: Link
    price_per_device_usd_per_hour: float | None = None
    hbm_capacity_by_rank_bytes: tuple[Positive, ...] = ()
    speed_by_rank_ratio: tuple[Positive, ...] = ()
    provenance: tuple[Provenance, ...] = ()
    collective_curves: tuple[str, ...] = ()
    calibration: str = ""
    ddr_capacity_by_host_bytes: tuple[Amount, ...] = ()
    lookup_constants: FbgemmConstants | None = None
    fitted: FittedFactors | None = None
    whole: Topology | None = None
    measurements: Measurements = field(default=Measurements(), compare=False, repr=False)

    def __post_init__(self) -> None:
        """Check that the levels nest."""
        settle(self)
        local, domain = self.local_world_size, self.domain_size
        fits = domain % local == 0
        require(fits, f"domain_size {domain} must be a multiple of gpus_per_host {local}")
        for each, count, values in (
            ("rank", self.world_size, self.hbm_capacity_by_rank_bytes),
            ("rank", self.world_size, self.speed_by_rank_ratio),
            ("host", self.num_hosts, self.ddr_capacity_by_host_bytes),
        ):
            counted = f"per-{each} values need {count} entries, got {len(values)}"
            require(len(values) in (0, count), counted)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.num_hosts * self.local_world_size

    @property
    def trainers(self) -> Topology:
        """The ranks that train the dense part together: these, or those of all groups."""
        return self if self.whole is None else self.whole

    @property
    def compute_device(self) -> str:
        """The device type of TorchRec: ``cpu`` where ranks are CPU cores, ``cuda`` otherwise.

        Ranks are CPU cores if the system is calibrated, or if its device is named ``cpu``.
        """
        return "cpu" if self.calibration or self.device.name == "cpu" else "cuda"

    @property
    def links(self) -> Links:
        """All link levels."""
        return Links(host=self.host_link, domain=self.domain_link, network=self.network_link)

    def hbm_capacities(self) -> FloatArray:
        """Device memory per rank in bytes, shape ``[world_size]``."""
        each = self.hbm_capacity_by_rank_bytes
        return np.array(each or (self.device.hbm_capacity_bytes,) * self.world_size)

    def ddr_capacities(self) -> FloatArray:
        """Host memory per host in bytes, shape ``[num_hosts]``."""
        each = self.ddr_capacity_by_host_bytes
        return np.array(each or (self.host.ddr_capacity_bytes,) * self.num_hosts)

    def speeds(self) -> FloatArray:
        """Compute speed of each rank relative to the device, shape ``[world_size]``."""
        return np.array(self.speed_by_rank_ratio or (1.0,) * self.world_size)

    def resized(self, num_hosts: int, local_world_size: int) -> Topology:
        """The same system with another number of ranks; the domain keeps its size if that fits."""
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

    def weakest_source(self, prefixes: tuple[str, ...] = ("",)) -> Source:
        """The weakest source among the numbers of the system with these prefixes."""
        sources = [p.source for p in self.provenance if p.name.startswith(prefixes)]
        return max(sources, key=list(Source).index, default=Source.USER)


def with_host_factor(topology: Topology, host_ratio: float) -> Topology:
    """The system with ``host_ratio`` times the seconds of all calls of its host."""
    host = topology.host
    pass_s = None if host.eager_pass_s is None else host.eager_pass_s * host_ratio
    calls = replace(host, eager_call_s=host.eager_call_s * host_ratio, eager_pass_s=pass_s)
    return replace(topology, host=calls)


# -- 2D parallelism: each group of ranks has a copy of all tables, laid out as by DMPCollection. By
# default it interleaves groups: with c copies, group i has ranks i, i + c, i + 2 c and so on, so
# that the copies of a shard lie side by side. With use_inter_host_allreduce a group is a block of
# consecutive ranks instead.


def members(topology: Topology, group_size: int, *, between_hosts: bool = False) -> IntArray:
    """``[copies, group_size]`` the ranks of each group; column r has the copies of one shard.

    Args:
        topology: all ranks of the job.
        group_size: ranks that share one copy of the tables; it divides the number of ranks.
        between_hosts: whether groups are blocks of consecutive ranks instead of interleaved ones.
    """
    copies = topology.world_size // group_size
    ranks = np.arange(topology.world_size)
    if between_hosts:
        return ranks.reshape(copies, group_size)
    return ranks.reshape(group_size, copies).T


def group_topology(
    topology: Topology, group_size: int, *, between_hosts: bool = False
) -> Topology | None:
    """The system as one group sees it; None if a group has unequal numbers of ranks on its hosts.

    Groups with ranks on one host share its memory in proportion to those ranks. One plan serves all
    groups, so if ranks or hosts differ, each place of a group counts as the weakest that any group
    has at this place. All ranks train the dense part, whose gradients are reduced over all of them.
    """
    if group_size == topology.world_size:
        return topology
    return part_of(topology, members(topology, group_size, between_hosts=between_hosts))


def part_of(topology: Topology, groups: IntArray) -> Topology | None:
    """The system of one group: hosts as in the first group, places as weak as in any group.

    None if a group has unequal numbers of ranks on its hosts.

    Args:
        topology: all ranks of the job.
        groups: ``[groups, ranks of each]`` in rising order within a group.
    """
    hosts = groups // topology.local_world_size
    size, local = groups.shape[1], ranks_on_first_host(groups, topology)
    if size % local:
        return None
    by_host = hosts.reshape(len(groups), -1, local)
    if (by_host != by_host[..., :1]).any():
        return None
    domains = groups[0] // topology.domain_size
    domain = int((domains == domains[0]).sum())
    share = local / topology.local_world_size
    sized = topology.resized(size // local, local)
    return replace(
        sized,
        whole=topology.trainers,
        domain_size=max(local, domain - domain % local),
        hbm_capacity_by_rank_bytes=_weakest(topology.hbm_capacity_by_rank_bytes, groups),
        speed_by_rank_ratio=_weakest(topology.speed_by_rank_ratio, groups),
        ddr_capacity_by_host_bytes=tuple(
            (topology.ddr_capacities()[by_host[..., 0]].min(axis=0) * share).tolist()
        ),
    )


def _weakest(values: tuple[float, ...], places: IntArray) -> tuple[float, ...]:
    return tuple(np.array(values)[places].min(axis=0).tolist()) if values else ()


def ranks_on_first_host(groups: IntArray, topology: Topology) -> int:
    """How many ranks of the first group are on its first host."""
    hosts = groups[0] // topology.local_world_size
    return int((hosts == hosts[0]).sum())


# ------------------ batch shares
#
# Unequal batches: each rank's share of the global batch.
#
# ``Workload.batch_share_ratio`` holds one share per rank in any unit, or ``proportional`` to how
# fast the ranks are; empty means equal shares. ``Workload.batch_size_per_rank`` is the mean over
# the ranks.

PROPORTIONAL: Final = "proportional"


def batch_ratios(workload: Workload, topology: Topology) -> FloatArray | None:
    """Samples of each rank over the mean, ``[world_size]``; None where all are equal.

    Raises:
        InvalidValueError: a share is not above 0 or leaves a rank no sample, there is not one per
            rank, or something cannot be run or is not priced with unequal batches.
    """
    shares = workload.batch_share_ratio
    if not shares:
        return None
    given = topology.speeds() if shares == PROPORTIONAL else np.array(shares, dtype=float)
    require(
        len(given) == topology.world_size,
        f"batch_shares: {len(given)} shares for {topology.world_size} ranks; give one for each "
        f"rank, or {PROPORTIONAL}",
    )
    good = all(math.isfinite(s) and s > 0 for s in given)
    require(good, f"batch_shares must be above 0, got {given.tolist()}")
    refuse_contradictions(workload)
    there = topology.device.single_stream
    require(not there, "batch_shares contradict ranks that are CPU cores; remove one of them")
    fewest = workload.batch_size_per_rank * given.min() / given.mean()
    require(
        round(fewest) >= 1,
        f"batch_shares: rank {given.argmin()} would have {fewest:.2g} samples of a mean of "
        f"{workload.batch_size_per_rank}; give it a larger share, or all a larger batch",
    )
    return None if given.min() == given.max() else given / given.mean()


def refuse_contradictions(workload: Workload) -> None:
    """Refuse shares beside what cannot be run, or is not priced, with unequal batches.

    Raises:
        InvalidValueError: names the first such setting.
    """
    if not workload.batch_share_ratio:
        return
    conflicts = {
        "pipeline hugectr, which cuts a batch evenly": workload.pipeline is Pipeline.HUGECTR,
        "tensor_parallel, whose ranks share their samples": workload.tensor_parallel > 1,
        "gradient_accumulation": workload.gradient_accumulation > 1,
        "operators of the dense part, which are for one batch": workload.dense.operators
        is not None,
        "deduplicate_indices": any(t.deduplicates_indices for t in workload.tables),
        "communication": any(t.communication is not None for t in workload.tables),
    }
    for what, there in conflicts.items():
        require(not there, f"batch_shares contradict {what}; remove one of them")


def shares_remark(workload: Workload, topology: Topology) -> str:
    """What people should know who train with these shares."""
    ratios = batch_ratios(workload, topology)
    if ratios is None:
        return "batch_shares: the shares of all ranks are equal, so that nothing changes"
    least, most = (round(workload.batch_size_per_rank * r) for r in (ratios.min(), ratios.max()))
    return (
        f"batch_shares: ranks have {least:,} to {most:,} samples; DistributedDataParallel weights "
        "all ranks alike, so multiply each rank's loss by its samples over the mean"
    )


def with_batch(workload: Workload, ratio: float) -> Workload:
    """The workload as a rank of so many times the mean batch sees it."""
    return replace(workload, batch_size_per_rank=round(workload.batch_size_per_rank * ratio))
