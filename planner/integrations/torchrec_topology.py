"""Converts TorchRec's topology from and to ours, and finds the system that a job runs on.

Only here are rates in bytes per *millisecond*.
"""

import math
import os
from dataclasses import replace
from typing import Any, Final

import torch
import torch.distributed as dist
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.planner import constants
from torchrec.distributed.planner import types as torchrec_types
from torchrec.distributed.utils import get_device_type

from costmodels.estimates import Provenance, Source
from costmodels.topology import Topology
from costmodels.torchrec_estimates import TorchrecMachine
from planner import io
from planner.errors import InfeasibleError, refuse
from planner.integrations.translate.private_names import topology_setting
from planner.integrations.translate.settings import said

_MS_PER_S: Final = 1000.0
_RATES: Final = {
    "hbm_mem_bw": ("hbm_bandwidth", "device", "hbm_bandwidth_bytes_per_s"),
    "ddr_mem_bw": ("ddr_bandwidth", "host", "ddr_bandwidth_bytes_per_s"),
    "hbm_to_ddr_mem_bw": ("device_link_bandwidth", "host", "device_link_bandwidth_bytes_per_s"),
    "intra_host_bw": ("host_link_bandwidth", "host_link", "bandwidth_bytes_per_s"),
    "inter_host_bw": ("network_link_bandwidth", "network_link", "bandwidth_bytes_per_s"),
}
"""For each of TorchRec's bandwidths: our name, and the part and field of a system that has it."""


def topology_from_torchrec(
    topology: torchrec_types.Topology, base: Topology | str | None, *, rates_from_base: bool
) -> Topology:
    """Our topology with the ranks and memories of TorchRec's.

    A host of the result is TorchRec's intra-node group (``pod_size`` hosts), because TorchRec's
    runtime places table_row_wise and grid_shard tables on these groups. If the ranks do not fill
    whole groups, a host is the largest part into which all groups can be cut (:func:`host_size`).
    The device memory of a cpu rank is its share of DDR.

    Args:
        topology: TorchRec's; capacities in bytes, bandwidths in bytes per ms.
        base: the system (or its name, or None for the default of the device) that has what TorchRec
            does not know: caches, latencies, FLOP rates.
        rates_from_base: whether to take the bandwidths from ``base`` too.

    Raises:
        InfeasibleError: a rank has no memory left after the reservation.
    """
    group, world = host_size(topology), topology.world_size
    ddr = [float(d.storage.ddr) for d in topology.devices]
    on_cpu = topology.compute_device == "cpu"
    caps = ddr if on_cpu else [float(d.storage.hbm) for d in topology.devices]
    if (least := min(caps)) <= 0:
        message = said("no memory", rank=caps.index(least), least=least)
        raise InfeasibleError(message, shortfall_bytes=-least)
    hosts = [sum(ddr[first : first + group]) for first in range(0, world, group)]
    sized = base_system(base, topology)
    sized = replace(
        sized,
        device=replace(sized.device, hbm_capacity_bytes=max(caps)),
        host=replace(sized.host, ddr_capacity_bytes=max(hosts)),
        hbm_capacity_by_rank_bytes=() if len(set(caps)) == 1 else tuple(caps),
        ddr_capacity_by_host_bytes=() if len(set(hosts)) == 1 else tuple(hosts),
    )
    return sized if rates_from_base else _with_rates(sized, topology)


def host_size(topology: torchrec_types.Topology) -> int:
    """Ranks per host of the result: the greatest common divisor of group size and world size.

    With 12 ranks on hosts of 8 this is 4, so that no host of the result is on two real hosts.
    """
    return math.gcd(topology.intra_group_size, topology.world_size)


def torchrec_machine(topology: torchrec_types.Topology, base: Topology) -> TorchrecMachine:
    """The values that TorchRec's estimators read from its topology, with the memories of ``base``.

    If the ranks do not fill whole groups, no table is cut inside a group, so that the group size
    given here has no effect.

    Args:
        topology: TorchRec's topology.
        base: any system of its size, from :func:`base_system`.
    """
    rated = _with_rates(base, topology)
    on_cpu, machine = topology.compute_device == "cpu", TorchrecMachine.of(rated)
    near = rated.host.ddr_bandwidth_bytes_per_s if on_cpu else machine.hbm_bandwidth_bytes_per_s
    return replace(
        machine,
        local_world_size=topology.local_world_size,
        hbm_bandwidth_bytes_per_s=near,
        backward_ratio=float(topology.bwd_compute_multiplier),
        weighted_ratio=float(topology.weighted_feature_bwd_compute_multiplier),
    )


def topology_to_torchrec(
    topology: Topology, compute_device: str, *, pod_size: int | None = None
) -> torchrec_types.Topology:
    """TorchRec's topology for one of our systems, with its bandwidths.

    Args:
        topology: one of our systems.
        compute_device: ``cuda`` or ``cpu``; on cpu the device memory is given as DDR.
        pod_size: hosts that TorchRec's runtime treats as one node; None for one.
    """
    caps = [int(c) for c in topology.hbm_capacities()]
    local = topology.local_world_size
    ddr = [int(c / local) for c in topology.ddr_capacities() for _ in range(local)]
    per_rank = {"ddr_cap": caps} if compute_device == "cpu" else {"ddr_cap": ddr, "hbm_cap": caps}
    is_uneven = any(len(set(values)) > 1 for values in per_rank.values())
    custom = torchrec_types.CustomTopologyData(data=per_rank, world_size=topology.world_size)
    hardware = torchrec_types.HardwareConfig(
        **{f"{name}_bytes": max(values) for name, values in per_rank.items()},
        **{n: getattr(getattr(topology, p), f) / _MS_PER_S for n, (_, p, f) in _RATES.items()},
    )
    trainer = torchrec_types.TrainerConfig(
        world_size=topology.world_size,
        local_world_size=topology.local_world_size,
        pod_size=pod_size,
        additional_params={"custom_topology_data": custom} if is_uneven else {},
    )
    kernel = torchrec_types.KernelConfig(
        compute_device=compute_device, use_hardware_based_bandwidth=True
    )
    return torchrec_types.TopologyFactory.create_topology(
        trainer_config=trainer, hardware_config=hardware, kernel_config=kernel
    )


def with_memory(topology: Topology, *, ratio: float = 1.0, more_bytes: float = 0.0) -> Topology:
    """The topology with a share of the memory of its devices, and so many bytes more on each."""
    capacity = topology.device.hbm_capacity_bytes * ratio + more_bytes
    by_rank = tuple(c * ratio + more_bytes for c in topology.hbm_capacity_by_rank_bytes)
    return replace(
        topology,
        device=replace(topology.device, hbm_capacity_bytes=capacity),
        hbm_capacity_by_rank_bytes=by_rank,
    )


def _with_rates(sized: Topology, topology: torchrec_types.Topology) -> Topology:
    """Take TorchRec's bandwidths, whose two link levels become three, with two of them equal."""
    parts: dict[str, Any] = {}
    names = tuple(name for name, _, _ in _RATES.values())
    known = [p for p in sized.provenance if not p.name.endswith(names)]
    for theirs, (name, part, field) in _RATES.items():
        rate = float(getattr(topology, theirs)) * _MS_PER_S
        parts[part] = replace(parts.get(part, getattr(sized, part)), **{field: rate})
        told = {"value": f"{rate:.4g} B/s", "reference": "TorchRec topology"}
        known.append(Provenance(name=name, source=Source.USER, **told))
    near = replace(
        sized.domain_link, bandwidth_bytes_per_s=parts["host_link"].bandwidth_bytes_per_s
    )
    own = {"domain_size": sized.local_world_size, "domain_link": near, **parts}
    return replace(sized, provenance=tuple(known), **own)


POD_SIZE_VARIABLE: Final = "TORCHREC_RESOLVED_POD_SIZE"


def base_system(system: Topology | str | None, topology: torchrec_types.Topology) -> Topology:
    """The system whose figures are used, at the size of a TorchRec topology.

    Raises:
        InvalidInputError: as for :func:`sized_system`.
    """
    return sized_system(system, topology.compute_device, topology.world_size, host_size(topology))


def sized_system(
    system: Topology | str | None, compute_device: str, ranks: int, per_host: int
) -> Topology:
    """A system at the size of a job; the default of the device if none is given.

    Raises:
        InvalidInputError: the name is unknown, there is no default for the device, or the system
            says of single ranks or hosts what cannot be told of those of another size.
    """
    if not isinstance(system, Topology):
        if system is None and compute_device not in ("cuda", "cpu", "mtia"):
            refuse(f"compute device {compute_device!r} is not supported; use cuda, cpu or mtia")
        usual = "cpu_gloo" if compute_device == "cpu" else "torchrec_defaults"
        name = usual if system is None else system
        return io.load_system(name, gpus=ranks, gpus_per_host=per_host)
    if (system.world_size, system.local_world_size) == (ranks, per_host):
        return system
    by_rank = system.speed_by_rank_ratio or system.hbm_capacity_by_rank_bytes
    if by_rank or system.ddr_capacity_by_host_bytes:
        own = {"ranks": system.world_size, "per_host": system.local_world_size}
        own |= {"asked": ranks, "asked_per_host": per_host}
        refuse(said("unequal system", system=system.name, **own))
    return system.resized(ranks // per_host, per_host)


def default_topology(system: Topology | str | None) -> torchrec_types.Topology:
    """TorchRec's topology of the running job, on one of our systems.

    The number of ranks comes from the process group and LOCAL_WORLD_SIZE. Without a system, the
    device memory is that of the first visible GPU, because TorchRec's own default is 32 GiB for any
    device.

    Raises:
        InvalidInputError: there is no process group.
    """
    if not dist.is_initialized():
        refuse(said("number of ranks"))
    device = get_device_type()
    world = dist.get_world_size()
    local = get_local_size(world)
    base = sized_system(system, device, world, local)
    if system is None and device == "cuda":
        memory = torch.cuda.get_device_properties(0).total_memory
        base = replace(base, device=replace(base.device, hbm_capacity_bytes=float(memory)))
    return topology_to_torchrec(base, device, pod_size=runtime_pod_size())


def runtime_pod_size() -> int | None:
    """Hosts that TorchRec's runtime treats as one node for table_row_wise and grid_shard tables.

    Raises:
        InvalidInputError: the environment variable that says this is not a number of hosts.
    """
    text = os.environ.get(POD_SIZE_VARIABLE)
    if text is not None and (not text.isdecimal() or int(text) < 1):
        refuse(f"{POD_SIZE_VARIABLE} must be a number of hosts, 1 or more, got {text!r}")
    return None if text is None else int(text)


def pod_size_mismatch(topology: torchrec_types.Topology) -> list[str]:
    """A warning if TorchRec's runtime would group ranks in another way than its topology says.

    The runtime reads the number of hosts per pod from an environment variable, and groups ranks by
    host if that is missing; table_row_wise and grid_shard tables would then be on wrong ranks.
    """
    pod_size = topology.intra_group_size // topology.local_world_size
    seen = os.environ.get(POD_SIZE_VARIABLE, "1")
    line = said("pods", pod_size=pod_size, variable=POD_SIZE_VARIABLE, seen=seen)
    return [line] if seen != str(pod_size) else []


MULTIPLIERS: Final = {
    "bwd_compute_multiplier": constants.BWD_COMPUTE_MULTIPLIER,
    "weighted_feature_bwd_compute_multiplier": constants.WEIGHTED_FEATURE_BWD_COMPUTE_MULTIPLIER,
    "uneven_sharding_perf_multiplier": 1.0,
    "ssd_mem_bw": constants.SSD_MEM_BW,
}
"""Settings of a ``Topology`` that only TorchRec's estimates read, with TorchRec's defaults."""


def topology_warnings(topology: torchrec_types.Topology, *, rates_from_base: bool) -> list[str]:
    """Settings of TorchRec's topology that do not change our prices.

    Args:
        topology: TorchRec's topology.
        rates_from_base: whether bandwidths come from one of our systems, so that those of the
            topology are not used.
    """
    found = {name: topology_setting(topology, name, usual) for name, usual in MULTIPLIERS.items()}
    changed = [f"{name}={value}" for name, value in found.items() if value != MULTIPLIERS[name]]
    bandwidths = type(topology.comms_bandwidths).__name__
    world_size, group = topology.world_size, topology.intra_group_size
    kind = "ddr" if topology.compute_device == "cpu" else "hbm"
    applies = {
        "factors of a topology": changed,
        "bandwidths": bandwidths != "BasicCommsBandwidths" and not rates_from_base,
        "memories": len({getattr(d.storage, kind) for d in topology.devices}) > 1,
        "hosts": world_size % group,
        "mtia": topology.compute_device == "mtia",
    }
    sizes = {"ranks": world_size, "group": group, "size": host_size(topology)}
    values = {"factors": ", ".join(changed), "bandwidths": bandwidths, **sizes}
    return [said(name, **values) for name, is_so in applies.items() if is_so]
