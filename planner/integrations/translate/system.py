"""Finds the system that a TorchRec job runs on, if the user does not name it in full."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

import torch
import torch.distributed as dist
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.planner.types import Topology as TorchrecTopology
from torchrec.distributed.utils import get_device_type

from costmodels.topology import Topology
from planner import io
from planner.errors import InvalidInputError
from planner.integrations.torchrec_topology import host_size, topology_to_torchrec

POD_SIZE_VARIABLE: Final = "TORCHREC_RESOLVED_POD_SIZE"

DEFAULT_SYSTEMS: Final = {
    "cuda": "torchrec_defaults",
    "cpu": "cpu_gloo",
    "mtia": "torchrec_defaults",
}


def base_system(system: Topology | str | None, topology: TorchrecTopology) -> Topology:
    """The system whose figures are used, at the size of a TorchRec topology.

    Raises:
        InvalidInputError: as for :func:`sized_system`.
    """
    size = topology.world_size, host_size(topology)
    return sized_system(system, topology.compute_device, *size)


def sized_system(
    system: Topology | str | None, compute_device: str, ranks: int, per_host: int
) -> Topology:
    """A system at the size of a job; the default of the device if none is given.

    Raises:
        InvalidInputError: the name is unknown, there is no default for the device, or the system
            says of single ranks or hosts what cannot be told of those of another size.
    """
    if not isinstance(system, Topology):
        if system is None and compute_device not in DEFAULT_SYSTEMS:
            message = f"compute device {compute_device!r} is not supported; use cuda, cpu or mtia"
            raise InvalidInputError(message)
        name = DEFAULT_SYSTEMS[compute_device] if system is None else system
        return io.load_system(name, gpus=ranks, gpus_per_host=per_host)
    if (system.world_size, system.local_world_size) == (ranks, per_host):
        return system
    if (
        system.speed_by_rank_ratio
        or system.hbm_capacity_by_rank_bytes
        or system.ddr_capacity_by_host_bytes
    ):
        message = (
            f"system {system.name!r} has ranks or hosts that differ, and {system.world_size} ranks "
            f"with {system.local_world_size} on a host; the job has {ranks} with {per_host} on a "
            "host: give the system at this size"
        )
        raise InvalidInputError(message)
    return system.resized(ranks // per_host, per_host)


def default_topology(system: Topology | str | None) -> TorchrecTopology:
    """TorchRec's topology of the running job, on one of our systems.

    The number of ranks comes from the process group and LOCAL_WORLD_SIZE. Without a system, the
    device memory is that of the first visible GPU, because TorchRec's own default is 32 GiB for any
    device.

    Raises:
        InvalidInputError: there is no process group.
    """
    if not dist.is_initialized():
        message = (
            "the number of ranks is not known without a process group; pass topology=, or call "
            "init_process_group first"
        )
        raise InvalidInputError(message)
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
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        message = f"{POD_SIZE_VARIABLE} must be a number of hosts, 1 or more, got {text!r}"
        raise InvalidInputError(message)
    return int(text)


def pod_size_mismatch(topology: TorchrecTopology) -> str | None:
    """A warning if TorchRec's runtime would group ranks in another way than its topology says.

    The runtime reads the number of hosts per pod from an environment variable, and groups ranks by
    host if that is missing; table_row_wise and grid_shard tables would then be on wrong ranks.
    """
    pod_size = topology.intra_group_size // topology.local_world_size
    seen = os.environ.get(POD_SIZE_VARIABLE, "1")
    if seen == str(pod_size):
        return None
    return (
        f"the topology has {pod_size} hosts per pod but {POD_SIZE_VARIABLE} is {seen}; set it to "
        f"{pod_size} on every rank before training"
    )
