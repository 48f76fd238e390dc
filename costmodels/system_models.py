"""The models that price plans on a system, from what was measured on it.

A system with measured curves of collectives is priced by them, any other by its link rates.
"""

from __future__ import annotations

from dataclasses import replace

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import AbstractCollectiveModel
from costmodels.collective.measured import Measured
from costmodels.collective.ramp import Ramp
from costmodels.cpu.dense import CpuDense
from costmodels.cpu.exchange import CpuExchange
from costmodels.cpu.gloo import Gloo
from costmodels.cpu.lookup import CpuLookup
from costmodels.errors import require
from costmodels.fitted import scaled
from costmodels.lookup.residual import Corrected
from costmodels.measured.cpu_constants import CpuConstants
from costmodels.stages.models import CostModels
from costmodels.topology import Topology


def default_models(topology: Topology) -> CostModels:
    """The models of a system, unless others are chosen.

    Raises:
        InvalidValueError: the system names a calibration or curves that nobody has read.
    """
    measured = topology.measurements
    if topology.calibration:
        models = cpu_models(_constants(topology))
    else:
        models = CostModels(collective=collective_model(topology))
    if measured.residual is not None:
        models = replace(models, lookup=Corrected(inner=models.lookup, residual=measured.residual))
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


def _constants(topology: Topology) -> CpuConstants:
    constants = topology.measurements.cpu
    require(constants is not None, _unread(topology, topology.calibration))
    assert constants is not None
    return constants


def _unread(topology: Topology, what: str) -> str:
    return (
        f"system {topology.name!r} names {what}, which was not read: planner.load_system reads a "
        "system with what it names"
    )
