"""Makes a workload of a TorchRec model, whose tables are found as by TorchRec's own planner."""

import pkgutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder
from torchrec.modules.embedding_configs import PoolingType

from costmodels.distribution.uniform import Uniform
from costmodels.workload import DataType, DenseArch, Optimizer, Pooling, Table, Workload
from planner.errors import InvalidInputError, refuse, refuse_any
from planner.integrations.dense.trace import trace_dense
from planner.integrations.translate import constraints as rules
from planner.integrations.translate import pricing, reading, settings
from planner.integrations.translate.reading import ModelDescription as ModelDescription
from planner.integrations.translate.reading import ShardableTable, TableSource
from planner.integrations.translate.settings import NO_HINTS as NO_HINTS
from planner.integrations.translate.settings import WorkloadHints as WorkloadHints
from planner.io.importers.base import Imported, assume
from planner.problem import NO_CONSTRAINTS


def describe_model(
    module: nn.Module,
    sharders: Sequence[ModuleSharder[nn.Module]] | None = None,
    *,
    batch_size: int,
    compute_device: str = "cuda",
    constraints: Mapping[str, ParameterConstraints] | None = None,
    hints: WorkloadHints = NO_HINTS,
    world_size: int = 1,
) -> ModelDescription | None:
    """Tables, optimizer, dense part and limits of a model; None without a table to shard.

    Args:
        module: the model; modules with tables can be at any depth, and on the meta device.
        sharders: which modules are sharded, and how they may be; TorchRec's default if None.
        batch_size: samples per rank.
        compute_device: ``cuda``, ``cpu`` or ``mtia``; tables of other device groups are left out.
        constraints: TorchRec's constraints by table name.
        hints: what the model does not say.
        world_size: number of ranks, each of which has its own cache for a virtual table.

    Raises:
        InvalidInputError: tables or constraints cannot be planned; the message names all of them.
    """
    chosen = get_default_sharders() if sharders is None else list(sharders)
    given = settings.require_constraints(constraints)
    found, problems = list[ShardableTable](), list[str]()
    for source in reading.sources_of(module, chosen, given):
        if isinstance(source, str):
            problems.append(source)
        elif not rules.in_other_group(source.limit, compute_device):
            try:
                table = read_table(source, batch_size, hints)
                kept = pricing.key_value_table(source, compute_device)
                found.append(replace(table, key_value=kept))
            except (InvalidInputError, ValueError) as error:
                where = f"table {source.parameter_name!r} of module {source.path!r}"
                problems.append(f"{where}: {error}")
    problems += [line for f in found for line in reading.bucket_problems(f, world_size)]
    refuse_any(problems)
    if not found:
        return None
    found = with_unique_names(found)
    warnings = rules.table_warnings(found, given, hints, batch_size, compute_device)
    dense, unseen_bytes = _dense_of(module, hints, batch_size), 0.0
    workload, unknown = workload_of(found, hints, batch_size)
    if dense is None:
        unseen_bytes = reading.dense_reserve_bytes(module, [f.parameter for f in found])
        warnings += [settings.said("unseen dense")] if unseen_bytes else []
    if unknown:
        told = {"names": unknown, "optimizer": reading.UNKNOWN_AS, "least": Optimizer.SGD}
        warnings.append(settings.said("unknown optimizers", **told))
    reserved_bytes = hints.reserved_bytes + unseen_bytes
    return ModelDescription(
        workload=replace(workload, dense=dense or DenseArch(), reserved_bytes=reserved_bytes),
        constraints=rules.table_constraints(found, compute_device, world_size, batch_size),
        tables=tuple(found),
        warnings=tuple(warnings),
        knows_optimizer=not unknown,
    )


def _dense_of(module: nn.Module, hints: WorkloadHints, batch_size: int) -> DenseArch | None:
    """The dense part, as given, traced with the given inputs, or read from a DLRM."""
    if hints.dense is None and hints.inputs is not None:
        trace = trace_dense(module, hints.inputs(batch_size), batch_size=batch_size)
        return DenseArch(operators=trace.operators)
    return hints.dense or reading.dense_arch(module)


def workload_of(
    found: Sequence[ShardableTable], hints: WorkloadHints, batch_size: int
) -> tuple[Workload, list[str]]:
    """The workload of some tables, and the names of optimizers that are not known.

    All tables have the widest of their output types. If it is narrow, they have codecs, because
    TorchRec's exchanges need one for that.

    Args:
        found: the tables.
        hints: what the tables do not say.
        batch_size: samples per rank.
    """
    names = {f.table.name: reading.optimizer_name(f) for f in found}
    unknown = sorted({n for n in names.values() if reading.optimizer_kind(n) is None})
    own = {t: reading.optimizer_kind(n) or reading.UNKNOWN_AS for t, n in names.items()}
    used = Counter(own.values())
    most = max(used, key=lambda o: (used[o], o.state_bytes_per_row(128), o.value))
    types = {f.output_dtype for f in found}
    output_dtype = hints.output_dtype or max(types, key=lambda t: (t.num_bytes, t.value))
    tables = [f.table for f in found]
    if output_dtype is not DataType.FP32:
        tables = [replace(t, communication=t.codecs) for t in tables]
    workload = Workload(
        name=hints.name,
        tables=tuple(
            t if own[t.name] is most else replace(t, optimizer=own[t.name]) for t in tables
        ),
        batch_size_per_rank=batch_size,
        dense=hints.dense or DenseArch(),
        optimizer=most,
        output_dtype=output_dtype,
        pipeline=hints.pipeline,
        reserved_bytes=hints.reserved_bytes,
    )
    return workload, unknown


# ------------------------------------------------------------------ tables


def read_table(source: TableSource, batch_size: int, hints: WorkloadHints) -> ShardableTable:
    """One table of a module, without saying how a key-value table is run.

    A quantized table is planned as it is stored: its rows, and its plans, count bytes as columns.

    Args:
        source: the table in the model.
        batch_size: samples per rank.
        hints: what the model does not say.

    Raises:
        InvalidInputError: the data type cannot be planned.
    """
    name, limit = source.parameter_name, source.limit
    config, sharder = source.config, source.sharder
    rows, law = config.num_embeddings, hints.distributions.get(name)
    if getattr(config, "use_virtual_table", False):
        rows = min(rows, pricing.MOST_ROWS) if law is None else law.num_embeddings
    make = hints.default_distribution or (lambda n: Uniform(num_embeddings=n))
    pooling = getattr(config, "pooling", None)
    columns, what = int(source.parameter.shape[-1]), "the data type"
    is_quantized = columns != config.embedding_dim or source.parameter.dtype in _QUANTIZED
    table = Table(
        name=name,
        num_embeddings=rows,
        embedding_dim=columns,
        features=reading.features_of(config.feature_names, limit, batch_size),
        distribution=law or make(rows),
        dtype=DataType.INT8 if is_quantized else settings.data_type_of(config.data_type, what),
        pooling=_POOLINGS.get(pooling, Pooling.SUM),
        is_weighted=reading.is_weighted(source.module) or bool(limit.is_weighted),
        module=source.path,
        communication=None if sharder is None else reading.communication_of(sharder),
        deduplicates_indices=pooling is None
        and sharder is not None
        and reading.uses_index_dedup(sharder),
    )
    return ShardableTable(**vars(source), table=table)


_QUANTIZED: Final = (torch.uint8, torch.int8)
_POOLINGS: Final = {None: Pooling.NONE, PoolingType.MEAN: Pooling.MEAN}


def unique_names(keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Our name of each table, by the path of its module and its parameter name.

    It is the parameter name, with the path before it if several modules use that name; names have
    no dots otherwise.
    """
    distinct = list(dict.fromkeys(keys))
    counts = Counter(name for _, name in distinct)
    return {(p, name): name if counts[name] == 1 else f"{p}.{name}" for p, name in distinct}


def with_unique_names(found: Sequence[ShardableTable]) -> list[ShardableTable]:
    """The tables under the names that :func:`unique_names` gives them."""
    names = unique_names((f.path, f.parameter_name) for f in found)
    named = ((f, names[f.path, f.parameter_name]) for f in found)
    return [replace(f, table=replace(f.table, name=name)) for f, name in named]


# ------------------ models that a function of the user builds

_PRECISIONS: Final = {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}


def import_module(
    factory: str,
    *,
    batch_size: int,
    device: str = "cuda",
    inputs: str | None = None,
    autocast: str | None = None,
) -> Imported:
    """The workload of the model that a function builds.

    ``inputs`` let any dense part be traced, of models without tables too; else a DLRM's is known.

    Args:
        factory: ``package.module:function``, as in :func:`built_model`.
        batch_size: samples per rank.
        device: ``cuda`` or ``cpu``.
        inputs: the same; from the batch size it makes the arguments of ``forward``, on the CPU.
        autocast: ``bf16`` or ``fp16`` if the model trains under ``torch.autocast``.

    Raises:
        InvalidInputError: a function fails or returns something else; a part cannot be planned.
    """
    model, constraints = built_model(factory)
    name, trace, dense = factory.rpartition(":")[2].rpartition(".")[2], None, None
    if inputs is not None:
        given, dtype = _called(inputs, batch_size), _PRECISIONS[autocast]
        trace = trace_dense(model, given, batch_size=batch_size, autocast=dtype)
        dense = DenseArch(operators=trace.operators)
    elif autocast is not None:
        refuse("--autocast is about the traced dense part; name its inputs with --inputs too")
    described = describe_model(
        model,
        batch_size=batch_size,
        compute_device=device,
        constraints=constraints,
        hints=WorkloadHints(name=name, dense=dense),
    )
    assumed = dict[str, str]()
    if described is not None:
        pricing.refuse_key_values(described.key_values, "a workload file")
        workload = described.workload
        unsaid = f"{batch_size}; a model does not say it"
        assumed |= {"tables": settings.said("assumed"), "training.batch_size_per_rank": unsaid}
        for warning in described.warnings:
            assume(assumed, "model", warning)
    elif dense is not None:
        workload = Workload(name=name, tables=(), batch_size_per_rank=batch_size, dense=dense)
    else:
        refuse(f"{factory}: {settings.said('no tables')}")
    if workload.dense.is_given:
        assumed["training.dense_optimizer"] = settings.said("updated", workload=workload)
    if trace is not None:
        assumed["dense"] = "; ".join([settings.said("traced"), *trace.remarks])
    return Imported(
        workload=workload,
        constraints=described.constraints if described else NO_CONSTRAINTS,
        source=f"the model that {factory} builds",
        assumed=assumed,
        law_is_known=described is None,
    )


def built_model(factory: str) -> tuple[nn.Module, Mapping[str, Any] | None]:
    """The model that a function builds on the meta device, and its constraints if it gives any.

    Args:
        factory: ``package.module:function``; it is called without arguments, and returns the model,
            or the model and TorchRec's constraints by table name.

    Raises:
        InvalidInputError: the function does not exist, fails, or returns something else.
    """
    made = _called(factory, device="meta")
    model, constraints = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module) or not isinstance(constraints, Mapping | None):
        refuse(settings.said("built", factory=factory, kind=type(made).__name__))
    return model, constraints


def _called(factory: str, *arguments: object, device: str = "cpu") -> Any:
    """What a function returns, called where new tensors are on a device.

    Modules are also searched in the working directory.

    Raises:
        InvalidInputError: there is no such function, or it fails.
    """
    package, _, path = factory.partition(":")
    if not package or not path:
        refuse(f"{factory!r} is not PKG:FUNC, such as my_package.my_model:build")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    did = "cannot be imported"
    try:
        function, did = pkgutil.resolve_name(factory), "failed"
        if callable(function):
            with torch.device(device):
                return function(*arguments)
    except (Exception, SystemExit) as error:
        refuse(f"{factory}: {did}: {type(error).__name__}: {error}")
    message = f"{factory}: is no function but {type(function).__name__}"
    raise InvalidInputError(message)
