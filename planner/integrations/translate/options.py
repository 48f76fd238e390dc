"""Makes TorchRec's list of sharding options from our plan, for its callbacks and statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import nn
from torchrec.distributed.planner.constants import DEFAULT_PERF_ESTIMATOR
from torchrec.distributed.planner.enumerators import get_partition_by_type
from torchrec.distributed.planner.shard_estimators import (
    EmbeddingPerfEstimatorFactory,
    EmbeddingStorageEstimator,
)
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    PlannerErrorType,
    Shard,
    ShardingOption,
)
from torchrec.distributed.planner.types import Topology as TorchrecTopology
from torchrec.distributed.planner.utils import build_sharder_data_map, sharder_name
from torchrec.distributed.sharding_plan import calculate_shard_sizes_and_offsets
from torchrec.distributed.types import ModuleSharder

from costmodels.sharding import Plan
from costmodels.units import format_bytes
from planner.integrations.torchrec_plan import (
    cache_params,
    is_priced_as_another,
    kernel_name,
    our_kernel,
)
from planner.integrations.torchrec_workload import ShardableTable
from planner.integrations.translate.constraints import kernel_names
from planner.integrations.translate.errors import ShardPlannerError
from planner.integrations.translate.modules import table_configs


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
    options = [
        _option(
            plan,
            table,
            given.get(table.parameter_name) or ParameterConstraints(),
            batch_size,
            topology.compute_device,
        )
        for table in tables
    ]
    for option, table in zip(options, tables, strict=True):
        if table.key_value is not None:
            _run_as_key_value(option, table, given.get(table.parameter_name), topology)
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
        shards=[
            Shard(size=[s.num_rows, s.num_cols], offset=[s.row_offset, s.col_offset], rank=s.rank)
            for s in placed.shards
        ],
        cache_params=cache_params(placed, given),
        enforce_hbm=given.enforce_hbm,
        stochastic_rounding=given.stochastic_rounding,
        bounds_check_mode=given.bounds_check_mode,
        dependency=table.tower,
        feature_names=[f.name for f in table.table.features],
        output_dtype=given.output_dtype,
        key_value_params=given.key_value_params,
    )
    if stashed:
        option.stash_weights = True
    return option


def _run_as_key_value(
    option: ShardingOption,
    table: ShardableTable,
    given: ParameterConstraints | None,
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
    option.cache_params = given.cache_params if given else None
    if kept.is_virtual:
        blocks = virtual_blocks(table, topology.world_size)
        option.shards = [Shard(size=s, offset=o, rank=r) for r, (s, o) in enumerate(blocks)]


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
