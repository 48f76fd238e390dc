"""Imports a TorchRec model, built by the user's own code, as a workload."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from costmodels.workload import DenseArch, Workload
from planner.errors import InvalidInputError
from planner.integrations.dense.trace import DenseTrace, trace_dense
from planner.integrations.torchrec_workload import WorkloadHints, describe_model
from planner.integrations.translate.pricing import refuse_key_values
from planner.io.importers.base import Imported, assume
from planner.problem import NO_CONSTRAINTS

_ASSUMED: Final = (
    "uniform indices, and 1 index per feature where no constraint gives a pooling factor; a model "
    "does not say them"
)
_NO_TABLES: Final = (
    "the model has no table that TorchRec's sharders would shard; to price its dense part alone, "
    "name a function that gives its inputs with --inputs"
)
_PRECISIONS: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


def import_module(
    factory: str,
    *,
    batch_size: int,
    device: str = "cuda",
    inputs: str | None = None,
    autocast: str | None = None,
) -> Imported:
    """The workload of the model that a function builds.

    With ``inputs``, any dense part is traced on fake tensors, and the model need not have tables.
    Without ``inputs``, the dense part is known only if it is TorchRec's DLRM.

    Args:
        factory: ``package.module:function``; it is called without arguments, on the meta device.
            It returns the model, or the model and TorchRec's constraints by table name.
        batch_size: samples per rank.
        device: ``cuda`` or ``cpu``.
        inputs: ``package.module:function``; it is called with the batch size, and returns the
            arguments of the model's ``forward``, on the CPU.
        autocast: ``bf16`` or ``fp16`` if the model trains under ``torch.autocast``.

    Raises:
        InvalidInputError: a function does not exist, fails, or returns something else; the model
            has no tables, and no inputs are given; a table cannot be planned; or the dense part
            cannot be traced.
    """
    model, constraints = built_model(factory)
    name = factory.rpartition(":")[2].rpartition(".")[2]
    trace = _traced(model, inputs, batch_size, autocast)
    dense = None if trace is None else DenseArch(operators=trace.operators)
    described = describe_model(
        model,
        batch_size=batch_size,
        compute_device=device,
        constraints=constraints,
        hints=WorkloadHints(name=name, dense=dense),
    )
    source, assumed = f"the model that {factory} builds", dict[str, str]()
    if described is not None:
        refuse_key_values(described.key_values, "a workload file")
        workload = described.workload
        assumed["tables"] = _ASSUMED
        assumed["training.batch_size_per_rank"] = f"{batch_size}; a model does not say it"
        for warning in described.warnings:
            assume(assumed, "model", warning)
    elif dense is not None:
        workload = Workload(name=name, tables=(), batch_size_per_rank=batch_size, dense=dense)
    else:
        message = f"{factory}: {_NO_TABLES}"
        raise InvalidInputError(message)
    if workload.dense.is_given:
        update = f"{workload.dense_optimizer.value}; a model does not say how its dense part is"
        assumed["training.dense_optimizer"] = f"{update} updated"
    if trace is not None:
        words = (
            "traced on fake tensors at this batch size; inputs of floating type are taken to need "
            "gradients, as vectors from tables do"
        )
        assumed["dense"] = "; ".join([words, *trace.remarks])
    return Imported(
        workload=workload,
        constraints=described.constraints if described else NO_CONSTRAINTS,
        source=source,
        assumed=assumed,
        law_is_known=described is None,
    )


def _traced(
    model: nn.Module, inputs: str | None, batch_size: int, autocast: str | None
) -> DenseTrace | None:
    """The trace of the dense part; None without inputs."""
    if inputs is not None:
        dtype = None if autocast is None else _PRECISIONS[autocast]
        given = _called(inputs, batch_size)
        return trace_dense(model, given, batch_size=batch_size, autocast=dtype)
    if autocast is None:
        return None
    message = "--autocast is about the traced dense part; name its inputs with --inputs too"
    raise InvalidInputError(message)


def built_model(factory: str) -> tuple[nn.Module, Mapping[str, Any] | None]:
    """The model that a function builds on the meta device, and its constraints if it gives any.

    Args:
        factory: as in :func:`import_module`.

    Raises:
        InvalidInputError: the function does not exist, fails, or returns something else.
    """
    made = _called(factory, device="meta")
    model, constraints = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module) or not isinstance(constraints, Mapping | None):
        message = (
            f"{factory}: returned {type(made).__name__}; return the model, or the model and its "
            "ParameterConstraints by table name"
        )
        raise InvalidInputError(message)
    return model, constraints


def _called(factory: str, *arguments: object, device: str = "cpu") -> Any:
    """What a function returns, called where new tensors are on a device.

    Raises:
        InvalidInputError: there is no such function, or it fails.
    """
    function = _function(factory)
    try:
        with torch.device(device):
            return function(*arguments)
    except (Exception, SystemExit) as error:
        message = f"{factory}: failed: {type(error).__name__}: {error}"
        raise InvalidInputError(message) from error


def _function(factory: str) -> Any:
    """The function with a name; modules are also searched in the working directory.

    Raises:
        InvalidInputError: there is no such function.
    """
    package, _, path = factory.partition(":")
    if not package or not path:
        message = f"{factory!r} is not PKG:FUNC, such as my_package.my_model:build"
        raise InvalidInputError(message)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = pkgutil.resolve_name(factory)
    except (Exception, SystemExit) as error:
        message = f"{factory}: cannot be imported: {type(error).__name__}: {error}"
        raise InvalidInputError(message) from error
    if not callable(found):
        message = f"{factory}: is no function but {type(found).__name__}"
        raise InvalidInputError(message)
    return found
