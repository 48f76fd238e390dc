"""How cost models are chosen by name, in place of those of the system."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from costmodels import collective, dense, discovery, lookup
from costmodels.collective.base import AbstractCollectiveModel
from costmodels.dense.base import AbstractDenseModel
from costmodels.errors import UnknownNameError
from costmodels.lookup.base import AbstractLookupModel
from costmodels.pipeline import CostPipeline
from costmodels.stages.models import CostModels
from costmodels.system_models import collective_model, default_models
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.errors import refuse, refusing
from planner.io.system.collective_curves import shipped_curves
from planner.io.system.system_file import read_calibration, with_measurements
from planner.problem import PlanningProblem

FAMILIES: Final[dict[str, tuple[ModuleType, Callable[..., object]]]] = {
    "lookup": (lookup, AbstractLookupModel),
    "collective": (collective, AbstractCollectiveModel),
    "dense": (dense, AbstractDenseModel),
}
"""The families of models that can be chosen by name: their package, and the base of their
classes."""


_LAST: Final[list[tuple[CostPipeline, tuple[object, ...]]]] = []
"""The last ``CostPipeline`` that was made, and what it was made of."""


def models_of(problem: PlanningProblem) -> CostModels:
    """The models that price plans of a problem: its own ones, or those of its system."""
    return problem.models or default_models(problem.topology)


def pipeline_of(
    problem: PlanningProblem,
    make_pipeline: Callable[[Workload, Topology, CostModels], CostPipeline] = CostPipeline,
) -> CostPipeline:
    """The pipeline that prices plans of a problem, without its scenarios.

    The last one is kept: the search, the report and the traces price plans of one problem.

    Raises:
        InvalidInputError: workload and system contradict each other.
    """
    asked = problem.workload, problem.topology, problem.models, make_pipeline
    if _LAST and all(a is b for a, b in zip(asked, _LAST[0][1], strict=True)):
        return _LAST[0][0]
    with refusing():
        made = make_pipeline(*asked[:2], models_of(problem))
    if make_pipeline is CostPipeline:
        _LAST[:] = [(made, asked)]
    return made


def chosen_models(topology: Topology, choices: Mapping[str, str]) -> CostModels:
    """The models of a system, with some replaced by name or by file.

    Args:
        topology: the system; it gives the models of the other families.
        choices: from a family (``lookup``, ``collective`` or ``dense``) to the name of a model, or
            to the path of a Python file that defines one.

    Raises:
        InvalidInputError: there is no such family or model, a file cannot be run, or a model
            cannot be made without arguments.
    """
    models = default_models(topology)
    for family, name in choices.items():
        if family not in FAMILIES:
            refuse(f"--model {family}={name}: {family!r} is not one of {', '.join(FAMILIES)}")
        made: dict[str, Any] = {family: _made(family, name, getattr(models, family))}
        models = replace(models, **made)
    return models


def _made(family: str, name: str, own: object) -> object:
    """The model of that name; the system's own instance if it is of the same class."""
    package, base = FAMILIES[family]
    try:
        kind = (
            discovery.load_file(Path(name), base)
            if name.endswith(".py")
            else discovery.load(package, name, base)
        )
    except UnknownNameError as error:
        refuse(f"--model {family}={name}: {error}")
    if type(own) is kind:
        return own
    try:
        return kind()
    except (Exception, SystemExit) as error:
        raised = "" if isinstance(error, TypeError) else f"{type(error).__name__}: "
        refuse(
            f"--model {family}={name}: {raised}{error}; a model that is named works without "
            "arguments: give its fields defaults, or pass an instance as models="
        )


def collective_model_of_device(topology: Topology) -> AbstractCollectiveModel:
    """The model with which ``shardplan predict collective`` predicts single operations.

    It is that of :func:`collective_model`, except that a system without curves gets the shipped set
    of its own name, if there is one. Such a set was measured on this device, but in a machine that
    need not be typical. Plans therefore do not use it; for single operations nothing better exists.
    """
    if topology.calibration or topology.fitted is not None:
        return default_models(topology).collective
    has_set = topology.name in {r.set_name for r in shipped_curves()}
    if has_set and not topology.collective_curves:
        topology = with_measurements(replace(topology, collective_curves=(topology.name,)))
    return collective_model(topology)


def calibrated_spread_ratio(topology: Topology, name: str) -> float | None:
    """The 90 % error of one fit of a calibration on points held out; None if it was not fitted."""
    errors = read_calibration(topology.calibration).errors
    return next((e.p90_ratio for e in errors if e.name == name and e.num_points > 0), None)
