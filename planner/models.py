"""The cost models that fit a system: measured curves where it names some, link rates otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from costmodels import collective, dense, discovery, lookup
from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import AbstractCollectiveModel
from costmodels.collective.measured import Measured
from costmodels.collective.ramp import Ramp
from costmodels.cpu.constants import CpuConstants
from costmodels.cpu.dense import CpuDense
from costmodels.cpu.exchange import CpuExchange
from costmodels.cpu.gloo import Gloo
from costmodels.cpu.lookup import CpuLookup
from costmodels.dense.base import AbstractDenseModel
from costmodels.errors import UnknownNameError
from costmodels.fitted import scaled
from costmodels.lookup.base import AbstractLookupModel
from costmodels.lookup.residual import Corrected
from costmodels.pipeline import CostPipeline
from costmodels.stages.models import CostModels
from costmodels.topology import Topology
from planner.errors import InvalidInputError
from planner.io.system.calibration_file import load_constants, read_calibration
from planner.io.system.collective_curves import load_curves, shipped_curves
from planner.io.system.measured_links import links_measured
from planner.io.system.residual_file import load_residual, residual_path
from planner.problem import PlanningProblem

FAMILIES: Final[dict[str, tuple[ModuleType, Callable[..., object]]]] = {
    "lookup": (lookup, AbstractLookupModel),
    "collective": (collective, AbstractCollectiveModel),
    "dense": (dense, AbstractDenseModel),
}
"""Folders of models that can be chosen by name, with what their classes derive from."""


def default_models(topology: Topology) -> CostModels:
    """The models of a system, for every command.

    Raises:
        InvalidInputError: the system names curves that are not there.
    """
    if topology.calibration:
        models = cpu_models(load_constants(topology.calibration))
    else:
        models = CostModels(collective=collective_model(topology))
    residual = load_residual(residual_path(topology))
    if residual is not None:
        models = replace(models, lookup=Corrected(inner=models.lookup, residual=residual))
    return scaled(models, topology.fitted)


def models_of(problem: PlanningProblem) -> CostModels:
    """The models that price plans of a problem: its own, or those of the system."""
    return problem.models or default_models(problem.topology)


def pipeline_of(problem: PlanningProblem) -> CostPipeline:
    """What prices plans of a problem."""
    return CostPipeline(problem.workload, problem.topology, models_of(problem))


def chosen_models(topology: Topology, choices: Mapping[str, str]) -> CostModels:
    """The models of a system, with some replaced by name or by file.

    Args:
        topology: says what the other models are.
        choices: name of a model, or path of a Python file that defines one, by family: ``lookup``,
            ``collective`` or ``dense``.

    Raises:
        InvalidInputError: a family or model that does not exist, a file that cannot be run, or a
            model that cannot be made without arguments.
    """
    models = default_models(topology)
    for family, name in choices.items():
        if family not in FAMILIES:
            msg = f"--model {family}={name}: {family!r} is not one of {', '.join(FAMILIES)}"
            raise InvalidInputError(msg)
        made: dict[str, Any] = {family: _made(family, name, getattr(models, family))}
        models = replace(models, **made)
    return models


def _made(family: str, name: str, own: object) -> object:
    """A model without arguments; the system's own where that is of the same class."""
    package, base = FAMILIES[family]
    try:
        kind = (
            discovery.load_file(Path(name), base)
            if name.endswith(".py")
            else discovery.load(package, name, base)
        )
    except UnknownNameError as error:
        msg = f"--model {family}={name}: {error}"
        raise InvalidInputError(msg) from error
    if type(own) is kind:
        return own
    try:
        return kind()
    except TypeError as error:
        msg = (
            f"--model {family}={name}: {error}; a model that is named has to work without "
            "arguments, so give its fields defaults, or pass an instance as models="
        )
        raise InvalidInputError(msg) from error


def cpu_models(constants: CpuConstants) -> CostModels:
    """The models of a machine whose ranks are CPU cores, calibrated as a whole."""
    return CostModels(
        lookup=CpuLookup(constants=constants),
        collective=Gloo(constants=constants),
        dense=CpuDense(constants=constants),
        exchange=CpuExchange(constants=constants),
        sigmas_ratio=constants.sigmas_ratio,
    )


def collective_model(topology: Topology) -> AbstractCollectiveModel:
    """Curves that the system names; without any, the law of its kind of network, or alpha-beta."""
    curves = load_curves(topology)
    if not curves:
        return Ramp() if topology.network_link.fabric else AlphaBeta()
    return Measured(curves=curves, measured_on=links_measured(topology))


def collective_model_of_device(topology: Topology) -> AbstractCollectiveModel:
    """As :func:`collective_model`, but a system without curves gets those of its own name.

    Such a set was measured on this device in a box that need not be typical, so that plans do not
    rest on it; one operation at a time, it is the best there is.
    """
    if topology.calibration:
        return default_models(topology).collective
    if topology.fitted is not None:
        return default_models(topology).collective
    if not topology.collective_curves and any(
        r.set_name == topology.name for r in shipped_curves()
    ):
        topology = replace(topology, collective_curves=(topology.name,))
    return collective_model(topology)


def calibrated_spread_ratio(topology: Topology, name: str) -> float | None:
    """90 % spread of one fit of a calibrated machine, from points held out; None if not fitted."""
    for error in read_calibration(topology.calibration).errors:
        if error.name == name and error.num_points > 0:
            return error.p90_ratio
    return None
