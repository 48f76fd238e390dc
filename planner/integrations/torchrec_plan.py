"""Converts our plan to TorchRec's ``ShardingPlan``, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import placement as placement_string
from torchrec.distributed.types import (
    CacheParams,
    EmbeddingModuleShardingPlan,
    ParameterSharding,
    ShardingPlan,
)

from costmodels.sharding import ComputeKernel, Plan, Shard, ShardingType, TablePlacement
from costmodels.workload import Table, Workload
from planner.errors import InvalidInputError

DEFAULT_LOAD_FACTOR: Final = 0.2
WHOLE_CACHE: Final = 1.0 - 2.0**-20
"""The load factor for a cache of all rows, because TorchRec's validators want less than 1."""

"""Cache load factor of a caching table that names none (TorchRec 1.8, ``UVM_CACHING_RATIO``)."""


QUANTIZED: Final = {
    ComputeKernel.FUSED: "quant",
    ComputeKernel.FUSED_UVM: "quant_uvm",
    ComputeKernel.FUSED_UVM_CACHING: "quant_uvm_caching",
}
"""Kernels of quantized modules, with the kernels that keep weights in the same memory."""

KEY_VALUE_KERNELS: Final = (
    "key_value",
    "dram_virtual_table",
    "ssd_virtual_table",
    "dram_ssd_virtual_table",
)
"""Kernels of key-value tables (:mod:`planner.integrations.translate.key_value`)."""

_FARTHEST_FIRST: Final = (ComputeKernel.FUSED_UVM_CACHING, ComputeKernel.FUSED_UVM)

_TRAINED: Final = {name: kernel for kernel, name in QUANTIZED.items()}


def our_kernel(name: str) -> ComputeKernel:
    """The kernel as which a TorchRec kernel is planned.

    One without a cost model, such as ``fused_triton`` or ``customized_kernel``, is planned as the
    nearest kernel that has one: that with rows in the same memory, by its name.

    Raises:
        ValueError: it is the kernel of a key-value table, which is planned in another way.
    """
    if name in KEY_VALUE_KERNELS:
        message = f"{name!r} is not a valid kernel of ordinary tables, but one of key-value tables"
        raise ValueError(message)
    known = _TRAINED.get(name) or next((k for k in ComputeKernel if k == name), None)
    farther = (k for k in _FARTHEST_FIRST if str(k).removeprefix("fused_") in name)
    return known or next(farther, ComputeKernel.FUSED)


def is_priced_as_another(name: str) -> bool:
    """Whether a kernel has no cost model of its own."""
    return name not in (*KEY_VALUE_KERNELS, *_TRAINED, *ComputeKernel)


def kernel_name(kernel: ComputeKernel, allowed: Iterable[str]) -> str:
    """TorchRec's name of a kernel: its own if that is allowed, or one that is planned as it."""
    names = list(allowed)
    if str(kernel) in names:
        return str(kernel)
    usable = (name for name in names if name not in KEY_VALUE_KERNELS)
    return next((name for name in usable if our_kernel(name) is kernel), str(kernel))


def parameter_name(table: Table) -> str:
    """The name of a table inside its module: without the path that tells equal names apart."""
    return table.name.removeprefix(f"{table.module}.") if table.module else table.name


def to_sharding_plan(
    plan: Plan,
    workload: Workload,
    *,
    compute_device: str,
    local_world_size: int,
    constraints: Mapping[str, ParameterConstraints] | None = None,
) -> ShardingPlan:
    """The plan in TorchRec's form, exactly as TorchRec's own planner writes it.

    Args:
        plan: a plan of every table of the workload.
        workload: says which module owns each table.
        compute_device: ``cuda`` or ``cpu``; part of the placement strings.
        local_world_size: ranks per host; the device index of rank r is r modulo this number.
        constraints: settings that are passed on to the kernels: cache parameters, enforce_hbm,
            rounding, bounds check, output type.

    Raises:
        InvalidValueError: the plan names a table that the workload does not have.
    """
    modules: dict[str, Any] = {}
    for placed in plan.placements:
        table = workload.table(placed.table)
        name = parameter_name(table)
        given = (constraints or {}).get(name) or ParameterConstraints()
        module_plan = modules.setdefault(table.module, EmbeddingModuleShardingPlan())
        module_plan[name] = ParameterSharding(
            sharding_type=str(placed.sharding_type),
            compute_kernel=kernel_name(placed.kernel, map(str, given.compute_kernels or ())),
            ranks=list(placed.ranks),
            sharding_spec=_spec(placed, compute_device, local_world_size),
            cache_params=cache_params(placed, given),
            enforce_hbm=given.enforce_hbm,
            stochastic_rounding=given.stochastic_rounding,
            bounds_check_mode=given.bounds_check_mode,
            output_dtype=given.output_dtype,
            key_value_params=None,
        )
    return ShardingPlan(modules)


def from_sharding_plan(
    sharding_plan: ShardingPlan,
    workload: Workload,
    load_factors: Mapping[str, float] = MappingProxyType({}),
) -> Plan:
    """TorchRec's plan in our form.

    Args:
        sharding_plan: any plan of the workload's modules.
        workload: the shapes of the tables, and the module of each.
        load_factors: cache load factors of tables, by our name, if their sharder sets them and the
            plan does not name them.

    Raises:
        InvalidInputError: tables are missing or unknown, have ranks that contradict their
            placements, or use an unknown kernel or type; the message names each of them.
    """
    planned = {
        (path, name): sharding
        for path, module_plan in sharding_plan.plan.items()
        for name, sharding in module_plan.items()
    }
    expected = {(t.module, parameter_name(t)): t for t in workload.tables}
    problems = [
        f"table {name!r} of module {path!r} is planned but not in the workload"
        for path, name in planned
        if (path, name) not in expected
    ]
    placements = []
    for key, table in expected.items():
        if key not in planned:
            problems.append(f"table {key[1]!r} of module {key[0]!r} is not in the sharding plan")
            continue
        try:
            default = load_factors.get(table.name, DEFAULT_LOAD_FACTOR)
            placements.append(_placement(planned[key], table, default))
        except ValueError as error:
            where = f"table {table.name!r}: "
            problems.append(where + str(error).removeprefix(where))
    if problems:
        raise InvalidInputError(problems)
    return Plan(placements=tuple(placements))


def _spec(
    placed: TablePlacement, compute_device: str, local_world_size: int
) -> EnumerableShardingSpec | None:
    if placed.sharding_type is ShardingType.DATA_PARALLEL:
        return None
    return EnumerableShardingSpec(
        [
            ShardMetadata(
                shard_offsets=[s.row_offset, s.col_offset],
                shard_sizes=[s.num_rows, s.num_cols],
                placement=placement_string(compute_device, s.rank, local_world_size),
            )
            for s in placed.shards
        ]
    )


def cache_params(placed: TablePlacement, given: ParameterConstraints) -> CacheParams | None:
    """The user's cache parameters with the load factor of the plan."""
    if placed.cache_load_factor_ratio is None:
        return given.cache_params
    own = given.cache_params or CacheParams()
    return replace(own, load_factor=placed.cache_load_factor_ratio)


def _placement(sharding: ParameterSharding, table: Table, default_factor: float) -> TablePlacement:
    kernel = our_kernel(sharding.compute_kernel)
    ratio = None
    if kernel is ComputeKernel.FUSED_UVM_CACHING:
        given = sharding.cache_params.load_factor if sharding.cache_params else None
        ratio = min(default_factor if given is None else given, WHOLE_CACHE)
    return TablePlacement(
        table=table.name,
        sharding_type=ShardingType(sharding.sharding_type),
        kernel=kernel,
        shards=_shards(sharding, table),
        cache_load_factor_ratio=ratio,
    )


def _shards(sharding: ParameterSharding, table: Table) -> tuple[Shard, ...]:
    ranks = list(sharding.ranks or [])
    if sharding.sharding_spec is None:
        if sharding.sharding_type != ShardingType.DATA_PARALLEL:
            message = f"{sharding.sharding_type} needs a sharding_spec, got None"
            raise InvalidInputError(message)
        rows, columns = table.num_embeddings, table.embedding_dim
        return tuple(
            Shard(rank=r, row_offset=0, num_rows=rows, col_offset=0, num_cols=columns)
            for r in ranks
        )
    shards = tuple(
        Shard(
            rank=m.placement.rank(),
            row_offset=m.shard_offsets[0],
            num_rows=m.shard_sizes[0],
            col_offset=m.shard_offsets[1],
            num_cols=m.shard_sizes[1],
        )
        for m in sharding.sharding_spec.shards
    )
    placed = [s.rank for s in shards]
    if placed != ranks:
        message = (
            f"{sharding.sharding_type} lists ranks {ranks} but its shards are placed on {placed}; "
            "make them agree, for TorchRec reads some from one and some from the other"
        )
        raise InvalidInputError(message)
    return shards
