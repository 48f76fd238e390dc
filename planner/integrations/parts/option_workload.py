"""Makes workloads and plans from TorchRec's sharding options.

A part of TorchRec's planner gets only options, and not the model. Each option has its module, its
parameter and its batch size, which is enough to make a workload.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.planner.types import Shard as TorchrecShard
from torchrec.distributed.planner.types import ShardingOption as TorchrecOption
from torchrec.distributed.planner.utils import sharder_name

from costmodels.sharding import (
    ComputeKernel,
    Plan,
    Shard,
    ShardingOption,
    ShardingType,
    TablePlacement,
)
from costmodels.workload import DenseArch, Table, Workload
from planner.errors import InvalidInputError
from planner.integrations.torchrec_plan import DEFAULT_LOAD_FACTOR, our_kernel
from planner.integrations.torchrec_workload import TableOwner, WorkloadHints, make_table
from planner.integrations.translate.modules import table_configs
from planner.integrations.translate.optimizer import optimizer_name, planned_optimizers

Key = tuple[str, str]
"""Module path and parameter name, which identify a table in TorchRec."""

_COLUMN_CUTS: Final = (ShardingType.COLUMN_WISE, ShardingType.TABLE_COLUMN_WISE)


def key_of(option: TorchrecOption) -> Key:
    """The module path and parameter name of an option."""
    return option.path, option.name


def names_of(options: Sequence[TorchrecOption]) -> dict[Key, str]:
    """Our name of each table: the parameter name, with the path if several modules use it."""
    keys = list(dict.fromkeys(key_of(o) for o in options))
    counts = Counter(name for _, name in keys)
    return {(path, name): name if counts[name] == 1 else f"{path}.{name}" for path, name in keys}


def workload_of(
    options: Sequence[TorchrecOption],
    sharders: Mapping[str, Any],
    constraints: Mapping[str, ParameterConstraints] | None,
    hints: WorkloadHints,
) -> Workload:
    """The workload to which options belong, with tables in the order of their first options.

    Args:
        options: TorchRec's options, at least one for each table.
        sharders: anything with ``fused_params``, by name of the module type.
        constraints: TorchRec's constraints by table name.
        hints: what options do not say.

    Raises:
        InvalidInputError: a table cannot be priced.
    """
    given = dict(constraints or {})
    names = names_of(options)
    first = {key_of(o): o for o in reversed(options)}
    tables: list[Table] = []
    names_of_optimizers: dict[str, str] = {}
    for key, name in names.items():
        option = first[key]
        owner = option.module[1]
        configs = table_configs(owner)
        if configs is None or option.name not in configs:
            message = f"table {name!r} of a {type(owner).__name__} cannot be priced"
            raise InvalidInputError(message)
        if getattr(configs[option.name], "use_virtual_table", False):
            message = f"table {name!r} is virtual and cannot be priced here; see ShardPlanner"
            raise InvalidInputError(message)
        limit = given.get(option.name) or ParameterConstraints(pooling_factors=option.input_lengths)
        sharder = sharders.get(sharder_name(type(owner)))
        home = TableOwner(path=key[0], module=owner, sharder=sharder)
        tables.append(make_table(name, configs[option.name], home, limit, option.batch_size, hints))
        names_of_optimizers[name] = optimizer_name(option.tensor, sharder, owner)
    optimizers = planned_optimizers(names_of_optimizers)
    return Workload(
        name=hints.name,
        tables=optimizers.set_in(tables),
        local_batch_size=options[0].batch_size,
        dense=hints.dense or DenseArch(),
        optimizer=optimizers.most,
        pipeline=hints.pipeline,
        reserved_bytes=hints.reserved_bytes,
    )


def option_of(option: TorchrecOption, name: str) -> ShardingOption:
    """TorchRec's option as one of ours, which has no ranks.

    Raises:
        InvalidInputError: there is no cost model for the kernel or type.
    """
    kind, kernel = _kind(option, name), _kernel(option, name)
    shards = option.shards
    widths: tuple[int, ...] = (shards[0].size[1],)
    if kind in _COLUMN_CUTS:
        widths = tuple(s.size[1] for s in shards)
    elif kind is ShardingType.GRID_SHARD:
        widths = tuple(dict((s.offset[1], s.size[1]) for s in shards).values())
    return ShardingOption(
        table=name,
        sharding_type=kind,
        kernel=kernel,
        column_widths=widths,
        cache_load_factor_ratio=_load_factor(option, kernel),
    )


def plan_of(options: Sequence[TorchrecOption]) -> Plan:
    """Options with ranks as one of our plans.

    Raises:
        InvalidInputError: a shard has no rank, or there is no cost model for a kernel.
    """
    names = names_of(options)
    return Plan(placements=tuple(_placement(o, names[key_of(o)]) for o in options))


def _placement(option: TorchrecOption, name: str) -> TablePlacement:
    kernel = _kernel(option, name)
    return TablePlacement(
        table=name,
        sharding_type=_kind(option, name),
        kernel=kernel,
        shards=tuple(_shard(s, name) for s in option.shards),
        cache_load_factor_ratio=_load_factor(option, kernel),
    )


def _shard(shard: TorchrecShard, name: str) -> Shard:
    if shard.rank is None:
        message = f"table {name!r}: a shard has no rank yet; place the options first"
        raise InvalidInputError(message)
    return Shard(
        rank=shard.rank,
        row_offset=shard.offset[0],
        num_rows=shard.size[0],
        col_offset=shard.offset[1],
        num_cols=shard.size[1],
    )


def _kind(option: TorchrecOption, name: str) -> ShardingType:
    try:
        return ShardingType(option.sharding_type)
    except ValueError as error:
        message = f"table {name!r}: sharding type {option.sharding_type!r} cannot be priced"
        raise InvalidInputError(message) from error


def _kernel(option: TorchrecOption, name: str) -> ComputeKernel:
    try:
        return our_kernel(option.compute_kernel)
    except ValueError as error:
        known = ", ".join(ComputeKernel)
        message = (
            f"table {name!r}: kernel {option.compute_kernel!r} has no cost model; constrain its "
            f"compute_kernels to some of {known}"
        )
        raise InvalidInputError(message) from error


def _load_factor(option: TorchrecOption, kernel: ComputeKernel) -> float | None:
    if kernel is not ComputeKernel.FUSED_UVM_CACHING:
        return None
    given = option.cache_load_factor
    return DEFAULT_LOAD_FACTOR if given is None else float(given)
