"""A TorchRec model from the user's own code, as a workload."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from planner.errors import InvalidInputError
from planner.integrations.torchrec_key_value import refuse_key_values
from planner.integrations.torchrec_workload import WorkloadHints, describe_model
from planner.io.importers.base import Imported, assume

_ASSUMED: Final = {
    "tables": "uniform indices, and 1 index per feature where no constraint gives a pooling "
    "factor; a model does not say them",
}


def import_module(factory: str, *, batch_size: int, device: str = "cuda") -> Imported:
    """The workload of the model that a function builds.

    Args:
        factory: ``package.module:function``; called without arguments, on the meta device. It
            returns the model, or the model and TorchRec's constraints by table name.
        batch_size: samples per rank.
        device: ``cuda`` or ``cpu``.

    Raises:
        InvalidInputError: the function is not there, fails, or gives something else; a model
            without tables; a table that cannot be planned.
    """
    model, constraints = _built(factory)
    name = factory.rpartition(":")[2].rpartition(".")[2]
    described = describe_model(
        model,
        batch_size=batch_size,
        compute_device=device,
        constraints=constraints,
        hints=WorkloadHints(name=name),
    )
    if described is None:
        message = f"{factory}: the model has no table that TorchRec's sharders would shard"
        raise InvalidInputError(message)
    refuse_key_values(described.key_values, "a workload file")
    assumed = dict(_ASSUMED)
    assumed["training.batch_size_per_rank"] = f"{batch_size}; a model does not say it"
    for warning in described.warnings:
        assume(assumed, "model", warning)
    return Imported(
        workload=described.workload,
        constraints=described.constraints,
        source=f"the model that {factory} builds",
        assumed=assumed,
        law_is_known=False,
    )


def _built(factory: str) -> tuple[nn.Module, Mapping[str, Any] | None]:
    function = _function(factory)
    try:
        with torch.device("meta"):
            made = function()
    except (Exception, SystemExit) as error:
        message = f"{factory}: failed: {type(error).__name__}: {error}"
        raise InvalidInputError(message) from error
    model, constraints = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module) or not isinstance(constraints, Mapping | None):
        message = (
            f"{factory}: returned {type(made).__name__}; return the model, or the model and its "
            "ParameterConstraints by table name"
        )
        raise InvalidInputError(message)
    return model, constraints


def _function(factory: str) -> Any:
    """The function of a name; modules are also looked for in the working folder.

    Raises:
        InvalidInputError: there is none.
    """
    package, separator, path = factory.partition(":")
    if not separator or not package or not path:
        message = f"{factory!r} is not PKG:FUNC, such as my_package.my_model:build"
        raise InvalidInputError(message)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(package)
        for part in path.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        message = f"{factory}: cannot be imported: {type(error).__name__}: {error}"
        raise InvalidInputError(message) from error
    if not callable(found):
        message = f"{factory}: is no function but {type(found).__name__}"
        raise InvalidInputError(message)
    return found
