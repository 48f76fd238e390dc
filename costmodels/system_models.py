"""The models that price plans on a system, from what was measured on it.

A system with measured curves of collectives is priced by them, any other by its link rates.
"""

from collections.abc import Callable
from dataclasses import make_dataclass, replace
from typing import Any, Final

import numpy as np

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import AbstractCollectiveModel
from costmodels.collective.measured import Measured
from costmodels.collective.ramp import Ramp
from costmodels.cpu.dense import CpuDense
from costmodels.cpu.exchange import CpuExchange, Gloo
from costmodels.cpu.lookup import CpuLookup
from costmodels.dense.base import AbstractDenseModel, DenseTimes
from costmodels.discovery import asking
from costmodels.errors import require
from costmodels.estimates import MemoryLedger
from costmodels.lookup.base import AbstractLookupModel
from costmodels.measured.cpu_constants import CpuConstants
from costmodels.measured.curves import Collective
from costmodels.stages.models import CostModels
from costmodels.topology import FittedFactors, Topology, members, part_of

# ------------------ fitted factors
#
# Cost models whose times are multiplied by factors that were fitted to the user's own runs.
#
# A constant factor changes no property that searches and bounds need: a convex function stays
# convex, a homogeneous one homogeneous, and a subadditive collective model subadditive.


def scaled(models: CostModels, fitted: FittedFactors | None) -> CostModels:
    """The models with their times multiplied by the factors, and with the spread that is left.

    The factor of the host is not applied here, because it acts on the launch latency of the system.

    Args:
        models: the models of a system.
        fitted: the factors; None if there are none.
    """
    if fitted is None:
        return models
    moved, exchange = fitted.collective_ratio, models.exchange
    return replace(
        models,
        lookup=ScaledLookup(inner=models.lookup, factor_ratio=fitted.lookup_ratio),
        collective=ScaledCollective(inner=models.collective, factor_ratio=moved),
        dense=ScaledDense(inner=models.dense, factor_ratio=fitted.dense_ratio),
        exchange=exchange and replace(exchange, factor_ratio=exchange.factor_ratio * moved),
        spread_ratio=fitted.spread_ratio,
    )


def _multiplied(model: Any, seconds: Any) -> Any:
    """Seconds times the factor of a model: a number, an array, or those of a dense part."""
    factor = model.factor_ratio
    is_dense = isinstance(seconds, DenseTimes)
    return DenseTimes(*(s * factor for s in seconds)) if is_dense else seconds * factor


_CHANGES: Final[dict[str, Callable[[Any, Any], Any]]] = {
    **dict.fromkeys(("forward_time", "backward_time", "times", "fixed_s"), _multiplied),
    **dict.fromkeys(("all_to_all", "all_to_all_s", "reduce_scatter"), _multiplied),
    **dict.fromkeys(("all_reduce", "buffer_s"), _multiplied),
    **dict.fromkeys(("for_calls", "subadditive"), lambda model, other: replace(model, inner=other)),
}
"""What gives times, which are multiplied, and what gives another model, whose times are multiplied
too. All else, such as the fixed times of kernels, is as the model that is scaled says."""


def _scaled_family(name: str, family: type, **own: object) -> Any:
    """The class of the models of a family whose times are multiplied by ``factor_ratio``.

    Args:
        name: of the class, which is a frozen dataclass of ``inner`` and ``factor_ratio``.
        family: the interface of the models.
        own: methods that do more than to ask ``inner`` and to multiply times.
    """
    asked = {
        kind: asking(kind, _CHANGES.get(kind), is_property=isinstance(member, property))
        for kind, member in vars(family).items()
        if not kind.startswith("_") and not getattr(member, "__final__", False)
    }
    wanted = [("inner", family), ("factor_ratio", float)]
    known = {**asked, "__module__": __name__, **own}
    return make_dataclass(name, wanted, bases=(family,), namespace=known, frozen=True, kw_only=True)


def _beside(self: Any, lookup_s: Callable[[], float]) -> Any:
    """As ``inner``, with the seconds of lookups divided by the factor.

    ``inner`` compares them with its own times, which are not multiplied by the factor yet.
    """
    return replace(self, inner=self.inner.beside(lambda: lookup_s() / self.factor_ratio))


ScaledLookup: Final = _scaled_family("ScaledLookup", AbstractLookupModel)
ScaledCollective: Final = _scaled_family("ScaledCollective", AbstractCollectiveModel)
ScaledDense: Final = _scaled_family("ScaledDense", AbstractDenseModel, beside=_beside)


# ------------------ models of a system


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
    memory: MemoryLedger | float,
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
        memory: the memory of the plan of one group; or the bytes of all weights, for the least time
            under any plan. Under every plan some rank holds at least the mean of all weights, and
            more bytes never take less time, so that the time of the mean is a bound.
        between_hosts: as in :func:`members`.
        models: price the all-reduce; None for the models that the system names.
    """
    groups = members(topology, group_size, between_hosts=between_hosts)
    alone = replace(topology.resized(len(groups), 1), domain_size=1)
    peers = part_of(topology, groups.T) or alone
    if peers.world_size == 1:
        return 0.0
    if isinstance(memory, MemoryLedger):
        on_host = np.array([r.host_bytes for r in memory.ranks])
        held = np.array([r.weights_bytes + r.optimizer_bytes for r in memory.ranks]) + on_host
    else:
        on_host, held = np.zeros(1), np.array([memory / group_size])
    model, inside = (models or default_models(peers)).collective, peers.num_hosts == 1
    seconds = model.buffer_s(Collective.ALL_REDUCE, held, peers, within_host=inside) * (held > 0)
    copied = 2.0 * on_host / topology.host.device_link_bandwidth_bytes_per_s
    return float((seconds + copied).max())


def _unread(topology: Topology, what: str) -> str:
    return (
        f"system {topology.name!r} names {what}, which was not read: planner.load_system reads a "
        "system with what it names"
    )
