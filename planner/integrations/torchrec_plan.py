"""Converts our plan to TorchRec's ``ShardingPlan`` and options, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torchrec.distributed.planner.constants import DEFAULT_PERF_ESTIMATOR
from torchrec.distributed.planner.enumerators import get_partition_by_type
from torchrec.distributed.planner.shard_estimators import (
    EmbeddingPerfEstimatorFactory,
    EmbeddingStorageEstimator,
)
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    PlannerErrorType,
    ShardingOption,
)
from torchrec.distributed.planner.types import Shard as TorchrecShard
from torchrec.distributed.planner.types import Topology as TorchrecTopology
from torchrec.distributed.planner.utils import build_sharder_data_map, sharder_name
from torchrec.distributed.sharding_plan import calculate_shard_sizes_and_offsets
from torchrec.distributed.sharding_plan import placement as placement_string
from torchrec.distributed.types import (
    CacheParams,
    EmbeddingModuleShardingPlan,
    ModuleSharder,
    ParameterSharding,
    ShardingPlan,
)

from costmodels.sharding import ComputeKernel, Plan, Shard, ShardingType, TablePlacement
from costmodels.units import format_bytes
from costmodels.workload import Table, Workload
from planner.errors import InvalidInputError
from planner.integrations.translate.constraints import kernel_names
from planner.integrations.translate.reading import table_configs
from planner.integrations.translate.settings import (
    WHOLE_CACHE,
    ShardPlannerError,
    is_priced_as_another,
    kernel_name,
    our_kernel,
)
from planner.io.plan.plan_file import DEFAULT_LOAD_FACTOR, parameter_name

if TYPE_CHECKING:
    from planner.integrations.torchrec_workload import ShardableTable


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
            key_value_params=None,
            **_settings(placed, given),
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
            terms = terms_of(planned[key], table.name, default)
            placements.append(TablePlacement(**terms, shards=_shards(planned[key], table)))
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
    return spec_of(
        ([s.row_offset, s.col_offset], [s.num_rows, s.num_cols], place)
        for s in placed.shards
        for place in [placement_string(compute_device, s.rank, local_world_size)]
    )


def spec_of(shards: Iterable[tuple[list[int], list[int], str]]) -> EnumerableShardingSpec:
    """TorchRec's specification of shards: offsets, sizes and placement string of each."""
    return EnumerableShardingSpec(
        [
            ShardMetadata(shard_offsets=offsets, shard_sizes=sizes, placement=place)
            for offsets, sizes, place in shards
        ]
    )


def _settings(placed: TablePlacement, given: ParameterConstraints) -> dict[str, Any]:
    """What a constraint passes on to the kernel; its cache gets the load factor of the plan."""
    names = ("cache_params", "enforce_hbm", "stochastic_rounding", "bounds_check_mode")
    settings = {name: getattr(given, name) for name in (*names, "output_dtype")}
    if placed.cache_load_factor_ratio is not None:
        own = given.cache_params or CacheParams()
        settings["cache_params"] = replace(own, load_factor=placed.cache_load_factor_ratio)
    return settings


def terms_of(
    entry: ParameterSharding | ShardingOption,
    table: str,
    default_factor: float = DEFAULT_LOAD_FACTOR,
) -> dict[str, Any]:
    """Table, sharding type, kernel and cache load factor of an entry of TorchRec, in our terms.

    Raises:
        ValueError: there is no such type, or no cost model for the kernel.
    """
    kernel, ratio = our_kernel(entry.compute_kernel), None
    if kernel is ComputeKernel.FUSED_UVM_CACHING:
        given = entry.cache_params.load_factor if entry.cache_params else None
        ratio = min(default_factor if given is None else float(given), WHOLE_CACHE)
    return {
        "table": table,
        "sharding_type": ShardingType(entry.sharding_type),
        "kernel": kernel,
        "cache_load_factor_ratio": ratio,
    }


def our_shard(rank: int, offset: Sequence[int], size: Sequence[int]) -> Shard:
    """A shard from offset and size, which are rows and columns in TorchRec."""
    (row, column), (rows, columns) = offset, size
    return Shard(rank=rank, row_offset=row, num_rows=rows, col_offset=column, num_cols=columns)


def _shards(sharding: ParameterSharding, table: Table) -> tuple[Shard, ...]:
    ranks = list(sharding.ranks or [])
    if sharding.sharding_spec is None:
        if sharding.sharding_type != ShardingType.DATA_PARALLEL:
            message = f"{sharding.sharding_type} needs a sharding_spec, got None"
            raise InvalidInputError(message)
        whole = table.num_embeddings, table.embedding_dim
        return tuple(our_shard(rank, (0, 0), whole) for rank in ranks)
    shards = tuple(
        our_shard(m.placement.rank(), m.shard_offsets, m.shard_sizes)
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


def to_sharding_options(
    plan: Plan,
    tables: Sequence[ShardableTable],
    sharders: Sequence[ModuleSharder[nn.Module]],
    topology: TorchrecTopology,
    *,
    batch_size: int,
    constraints: Mapping[str, ParameterConstraints] | None = None,
) -> list[ShardingOption]:
    """TorchRec's options of a plan, in table order, with their ranks and TorchRec's estimates.

    Args:
        plan: a plan of exactly these tables.
        tables: the tables, with their places in the model.
        sharders: sharders of the model; TorchRec's estimators read their settings.
        topology: TorchRec's topology; its estimators price the shards on it.
        batch_size: samples per rank.
        constraints: TorchRec's constraints by table name.
    """
    given = dict(constraints or {})
    options = []
    for table in tables:
        limit = given.get(table.parameter_name) or ParameterConstraints()
        option = _option(plan, table, limit, batch_size, topology.compute_device)
        _run_as_key_value(option, table, limit, topology)
        options.append(option)
    by_type = build_sharder_data_map({sharder_name(s.module_type): s for s in sharders})
    estimators = (
        EmbeddingPerfEstimatorFactory.create(
            DEFAULT_PERF_ESTIMATOR, topology=topology, constraints=constraints
        ),
        EmbeddingStorageEstimator(topology=topology, constraints=constraints),
    )
    with _priced_kernels(options):
        for estimator in estimators:
            estimator.estimate(options, sharder_data_map=by_type)
    _require_ssd(options, topology)
    return options


@contextmanager
def _priced_kernels(options: Sequence[ShardingOption]) -> Iterator[None]:
    """A context in which kernels that TorchRec's estimators may not know are their nearest ones."""
    names = [option.compute_kernel for option in options]
    for option in options:
        if is_priced_as_another(option.compute_kernel):
            option.compute_kernel = str(our_kernel(option.compute_kernel))
    try:
        yield
    finally:
        for option, name in zip(options, names, strict=True):
            option.compute_kernel = name


def _option(
    plan: Plan, table: ShardableTable, given: ParameterConstraints, batch_size: int, device: str
) -> ShardingOption:
    placed = plan.placement(table.table.name)
    config = (table_configs(table.module) or {}).get(table.parameter_name)
    # Only options of torchrec 1.9 have it.
    stashed = bool(getattr(config, "stash_weights", False))
    names = kernel_names(table.sharder, given, str(placed.sharding_type), device)
    option = ShardingOption(
        name=table.parameter_name,
        tensor=table.parameter,
        module=(table.path, table.module),
        input_lengths=given.pooling_factors,
        batch_size=batch_size,
        sharding_type=str(placed.sharding_type),
        partition_by=get_partition_by_type(str(placed.sharding_type)),
        compute_kernel=kernel_name(placed.kernel, names),
        shards=torchrec_shards(placed),
        dependency=table.tower,
        feature_names=[f.name for f in table.table.features],
        key_value_params=given.key_value_params,
        **_settings(placed, given),
    )
    if stashed:
        option.stash_weights = True
    return option


def torchrec_shards(placed: TablePlacement) -> list[TorchrecShard]:
    """The shards of a placement in TorchRec's form, with their ranks."""
    return [
        TorchrecShard(
            size=[s.num_rows, s.num_cols], offset=[s.row_offset, s.col_offset], rank=s.rank
        )
        for s in placed.shards
    ]


def _run_as_key_value(
    option: ShardingOption,
    table: ShardableTable,
    given: ParameterConstraints,
    topology: TorchrecTopology,
) -> None:
    """Give a key-value table its own kernel; the rows of a virtual one are cut between buckets.

    Raises:
        ShardPlannerError: there are fewer buckets than ranks.
    """
    kept = table.key_value
    if kept is None:
        return
    option.compute_kernel = kept.kernel
    option.cache_params = given.cache_params
    if kept.is_virtual:
        blocks = virtual_blocks(table, topology.world_size)
        option.shards = [TorchrecShard(size=s, offset=o, rank=r) for r, (s, o) in enumerate(blocks)]


def virtual_blocks(table: ShardableTable, world_size: int) -> list[tuple[list[int], list[int]]]:
    """Size and offset ``[row, column]`` of a virtual table's shard on each rank.

    Raises:
        ShardPlannerError: there are fewer buckets than ranks.
    """
    try:
        sizes, offsets = calculate_shard_sizes_and_offsets(
            tensor=table.parameter,
            world_size=world_size,
            local_world_size=1,
            sharding_type="row_wise",
            num_buckets=table.key_value.num_buckets if table.key_value else None,
        )
    except ValueError as error:
        message = f"table {table.table.name!r}: {error}"
        raise ShardPlannerError(message, PlannerErrorType.STRICT_CONSTRAINTS) from error
    return list(zip(sizes, offsets, strict=True))


def _require_ssd(options: Sequence[ShardingOption], topology: TorchrecTopology) -> None:
    """Refuse key-value tables that do not fit on the SSDs of a rank.

    Raises:
        ShardPlannerError: there is such a rank; the message names the first one.
    """
    needed = [0.0] * topology.world_size
    for option in options:
        for shard in option.shards:
            if shard.rank is not None and shard.storage is not None:
                needed[shard.rank] += shard.storage.ssd
    for rank, device in enumerate(topology.devices):
        if needed[rank] > device.storage.ssd:
            message = (
                f"rank {rank} needs {format_bytes(needed[rank])} of SSD for its key_value tables "
                f"and the topology gives it {format_bytes(device.storage.ssd)}; pass a Topology "
                "with a larger ssd_cap, or allow other kernels"
            )
            raise ShardPlannerError(message, PlannerErrorType.INSUFFICIENT_STORAGE)
