"""The models that price plans on a system, from what was measured on it.

A system with measured curves of collectives is priced by them, any other by its link rates.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import AbstractCollectiveModel
from costmodels.collective.measured import Measured
from costmodels.collective.ramp import Ramp
from costmodels.cpu.dense import CpuDense
from costmodels.cpu.exchange import CpuExchange, Gloo
from costmodels.cpu.lookup import CpuLookup
from costmodels.datatypes import FloatArray, IntArray
from costmodels.errors import require
from costmodels.estimates import MemoryLedger
from costmodels.fitted import scaled
from costmodels.measured.cpu_constants import CpuConstants
from costmodels.stages.models import CostModels
from costmodels.topology import Topology, members, part_of


def default_models(topology: Topology) -> CostModels:
    """The models of a system, unless others are chosen.

    Raises:
        InvalidValueError: the system names a calibration or curves that nobody has read.
    """
    measured = topology.measurements
    if topology.calibration:
        require(measured.cpu is not None, _unread(topology, topology.calibration))
        assert measured.cpu is not None
        models = cpu_models(measured.cpu)
    else:
        models = CostModels(collective=collective_model(topology))
    return scaled(models, topology.fitted)


def cpu_models(constants: CpuConstants) -> CostModels:
    """The models of a machine whose ranks are CPU cores, with calibrated constants."""
    return CostModels(
        lookup=CpuLookup(constants=constants),
        collective=Gloo(constants=constants),
        dense=CpuDense(constants=constants),
        exchange=CpuExchange(constants=constants),
        sigmas_ratio=constants.sigmas_ratio,
    )


def collective_model(topology: Topology) -> AbstractCollectiveModel:
    """Measured curves if the system names some; otherwise a law of its links.

    The law is that of the kind of network if the system names one, else alpha-beta.
    """
    if not topology.collective_curves:
        return Ramp() if topology.network_link.fabric else AlphaBeta()
    measured = topology.measurements
    require(bool(measured.curves), _unread(topology, ", ".join(topology.collective_curves)))
    return Measured(curves=measured.curves, measured_on=measured.curve_links)


def sync_time_s(
    topology: Topology,
    group_size: int,
    memory: MemoryLedger,
    *,
    between_hosts: bool = False,
    models: CostModels | None = None,
) -> float:
    """Seconds to average weights and optimizer state over the copies of every shard, once.

    Each rank takes part in one all-reduce over its copies; all of these run at the same time, and
    the rank with the most bytes decides how long they take. Tables in host memory are averaged too;
    their bytes also cross the link between device and host, once in each direction.

    Args:
        topology: all ranks of the job.
        group_size: ranks that share one copy of the tables.
        memory: the memory of the plan of one group.
        between_hosts: as in :func:`members`.
        models: price the all-reduce; None for the models that the system names.
    """
    held = np.array([r.weights_bytes + r.optimizer_bytes + r.host_bytes for r in memory.ranks])
    on_host = np.array([r.host_bytes for r in memory.ranks])
    peers = members(topology, group_size, between_hosts=between_hosts)
    return _slowest_s(topology, peers, held, on_host, models)


def least_sync_s(
    topology: Topology, group_size: int, weight_bytes: float, models: CostModels | None = None
) -> float:
    """Seconds that :func:`sync_time_s` is at least, under any plan.

    Under every plan some rank holds at least the mean of all weights. More bytes never take less
    time, so that the time of the mean is a bound.
    """
    peers, held = members(topology, group_size), np.array([weight_bytes / group_size])
    return _slowest_s(topology, peers, held, np.zeros(1), models)


def _slowest_s(
    topology: Topology,
    groups: IntArray,
    held: FloatArray,
    on_host: FloatArray,
    models: CostModels | None,
) -> float:
    """Seconds of the slowest rank of the copies of one shard.

    Args:
        topology: all ranks of the job.
        groups: as :func:`members` gives them.
        held: bytes that ranks hold.
        on_host: those of them on hosts.
        models: price the all-reduce.
    """
    alone = replace(topology.resized(len(groups), 1), domain_size=1)
    peers = part_of(topology, groups.T) or alone
    if peers.world_size == 1:
        return 0.0
    model = (models or default_models(peers)).collective
    seconds = model.all_reduce_s(held, peers, within_host=peers.num_hosts == 1) * (held > 0)
    copied = 2.0 * on_host / topology.host.device_link_bandwidth_bytes_per_s
    return float((seconds + copied).max())


def _unread(topology: Topology, what: str) -> str:
    return (
        f"system {topology.name!r} names {what}, which was not read: planner.load_system reads a "
        "system with what it names"
    )
