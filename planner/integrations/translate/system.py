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
from planner.integrations.torchrec_topology import topology_to_torchrec

POD_SIZE_VARIABLE: Final = "TORCHREC_RESOLVED_POD_SIZE"

DEFAULT_SYSTEMS: Final = {
    "cuda": "torchrec_defaults",
    "cpu": "cpu_gloo",
    "mtia": "torchrec_defaults",
}


def base_system(system: Topology | str | None, compute_device: str) -> Topology:
    """The system whose figures are used: the given one, or the default of the device.

    Raises:
        InvalidInputError: the name is unknown, or there is no default for the device.
    """
    if isinstance(system, Topology):
        return system
    if system is None and compute_device not in DEFAULT_SYSTEMS:
        message = f"compute device {compute_device!r} is not supported; use cuda, cpu or mtia"
        raise InvalidInputError(message)
    return io.load_system(DEFAULT_SYSTEMS[compute_device] if system is None else system)


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
    base = base_system(system, device)
    if system is None and device == "cuda":
        memory = torch.cuda.get_device_properties(0).total_memory
        base = replace(base, device=replace(base.device, hbm_capacity_bytes=float(memory)))
    world = dist.get_world_size()
    local = get_local_size(world)
    same_size = (base.world_size, base.local_world_size) == (world, local)
    sized = base if same_size else base.resized(world // local, local)
    return topology_to_torchrec(sized, device, pod_size=runtime_pod_size())


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
