"""Converts our plan to TorchRec's ``ShardingPlan`` and options, and back."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torchrec.distributed import types
from torchrec.distributed.planner import shard_estimators
from torchrec.distributed.planner import types as torchrec_types
from torchrec.distributed.planner.constants import DEFAULT_PERF_ESTIMATOR
from torchrec.distributed.planner.enumerators import get_partition_by_type
from torchrec.distributed.planner.types import ParameterConstraints, ShardingOption
from torchrec.distributed.planner.utils import build_sharder_data_map, sharder_name
from torchrec.distributed.sharding_plan import calculate_shard_sizes_and_offsets
from torchrec.distributed.types import ParameterSharding, ShardingPlan

from costmodels.sharding import ComputeKernel, Plan, Shard, ShardingType, TablePlacement
from costmodels.units import format_bytes
from costmodels.workload import Workload
from planner.errors import refuse
from planner.integrations.torchrec_workload import unique_names
from planner.integrations.translate import settings
from planner.integrations.translate.constraints import allowed_pairs
from planner.integrations.translate.reading import ModelDescription, ShardableTable
from planner.io.plan.plan_file import DEFAULT_LOAD_FACTOR, plan_to_json


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
    given, modules = constraints or {}, dict[str, types.ModuleShardingPlan]()
    for module, tables in plan_to_json(plan, workload, local_world_size).items():
        found = {n: sharding_of(e, compute_device, given.get(n)) for n, e in tables.items()}
        modules[module] = types.EmbeddingModuleShardingPlan(found)
    return ShardingPlan(modules)


def sharding_of(
    entry: Mapping[str, Any], compute_device: str, given: ParameterConstraints | None = None
) -> ParameterSharding:
    """How TorchRec shards a table, from its entry in one of our plan files.

    Args:
        entry: the values of the file, in which all devices are GPUs.
        compute_device: ``cuda``, ``cpu`` or ``mtia``; a CPU has no number.
        given: the constraint of the table.
    """
    limit, shards = given or settings.NO_LIMIT, []
    for shard in entry["shards"]:
        rank, _, device = shard["placement"].partition("/cuda")
        place = f"{rank}/{compute_device}" + (device if compute_device != "cpu" else "")
        cut = {name: shard[name] for name in ("shard_offsets", "shard_sizes")}
        shards.append(ShardMetadata(**cut, placement=place))
    is_copied = entry["sharding_type"] == ShardingType.DATA_PARALLEL
    kernel = ComputeKernel(entry["compute_kernel"])
    return ParameterSharding(
        sharding_type=entry["sharding_type"],
        compute_kernel=settings.kernel_name(kernel, map(str, limit.compute_kernels or ())),
        ranks=entry["ranks"],
        sharding_spec=None if is_copied else EnumerableShardingSpec(shards),
        **_settings(entry.get("cache_load_factor"), limit),
    )


def _settings(load_factor: float | None, given: ParameterConstraints) -> dict[str, Any]:
    """What a constraint passes on to the kernel; its cache gets the load factor of the plan."""
    names = ("cache_params", "enforce_hbm", "stochastic_rounding", "bounds_check_mode")
    passed = {name: getattr(given, name) for name in (*names, "output_dtype")}
    if load_factor is not None:
        own = given.cache_params or types.CacheParams()
        passed["cache_params"] = replace(own, load_factor=load_factor)
    return passed


def plan_of(
    options: Sequence[ShardingOption], load_factors: Mapping[str, float] = MappingProxyType({})
) -> Plan:
    """TorchRec's options with ranks as one of our plans.

    Args:
        options: one for each table.
        load_factors: cache load factors of tables, by our name, if their sharder sets them and the
            options do not name them.

    Raises:
        InvalidInputError: a shard has no rank, or there is no cost model for a kernel.
    """
    names, placements = unique_names(map(key_of, options)), []
    for option in options:
        name = names[key_of(option)]
        if any(shard.rank is None for shard in option.shards):
            refuse(f"table {name!r}: a shard has no rank yet; place the options first")
        cells = [(s.rank, s.offset[0], s.size[0], s.offset[1], s.size[1]) for s in option.shards]
        terms = terms_of(option, name, load_factors.get(name, DEFAULT_LOAD_FACTOR))
        placements.append(TablePlacement(**terms, shards=[Shard(*c) for c in cells]))
    return Plan(placements=tuple(placements))


def key_of(option: ShardingOption) -> tuple[str, str]:
    """The module path and parameter name of an option, which identify its table in TorchRec."""
    return option.path, option.name


def terms_of(
    option: ShardingOption, table: str, default_factor: float = DEFAULT_LOAD_FACTOR
) -> dict[str, Any]:
    """Table, sharding type, kernel and cache load factor of an option, in our terms.

    Raises:
        InvalidInputError: there is no cost model for the kernel or type.
    """
    try:
        kernel = settings.our_kernel(option.compute_kernel)
        kind = ShardingType(option.sharding_type)
    except ValueError:
        kernels = ", ".join(ComputeKernel)
        refuse(settings.said("no cost model", table=table, option=option, kernels=kernels))
    ratio = None
    if kernel is ComputeKernel.FUSED_UVM_CACHING:
        given = option.cache_params.load_factor if option.cache_params else None
        ratio = min(default_factor if given is None else float(given), settings.WHOLE_CACHE)
    return dict(table=table, sharding_type=kind, kernel=kernel, cache_load_factor_ratio=ratio)


def to_sharding_options(
    plan: Plan, model: ModelDescription, topology: torchrec_types.Topology
) -> list[ShardingOption]:
    """TorchRec's options of a plan, in table order, with their ranks and TorchRec's estimates.

    Kernels that TorchRec's estimators may not know are estimated as their nearest ones.

    Args:
        plan: a plan of exactly the tables of the model.
        model: the tables, with their places, sharders and constraints.
        topology: TorchRec's topology; its estimators price the shards on it.

    Raises:
        ShardPlannerError: key-value tables do not fit on the SSDs of a rank.
        InvalidInputError: they have fewer buckets than ranks.
    """
    given = [table for table in model.tables if table.limit is not settings.NO_LIMIT]
    told = {"topology": topology, "constraints": {t.parameter_name: t.limit for t in given}}
    options = [_option(plan, table, model, topology) for table in model.tables]
    kernels = [option.compute_kernel for option in options]
    for option, kernel in zip(options, kernels, strict=True):
        if settings.is_priced_as_another(kernel):
            option.compute_kernel = str(settings.our_kernel(kernel))
    by_type = build_sharder_data_map(
        {sharder_name(t.sharder.module_type): t.sharder for t in model.tables}
    )
    times = shard_estimators.EmbeddingPerfEstimatorFactory.create(DEFAULT_PERF_ESTIMATOR, **told)
    for estimator in (times, shard_estimators.EmbeddingStorageEstimator(**told)):
        estimator.estimate(options, sharder_data_map=by_type)
    for option, kernel in zip(options, kernels, strict=True):
        option.compute_kernel = kernel
    _require_ssd(options, topology)
    return options


def _option(
    plan: Plan, table: ShardableTable, model: ModelDescription, topology: torchrec_types.Topology
) -> ShardingOption:
    """The option of a table; a key-value table has its own kernel, and whole buckets on a rank."""
    placed, given = plan.placement(table.table.name), table.limit
    kind, kept = str(placed.sharding_type), table.key_value
    allowed = allowed_pairs(table.sharder, given, topology.compute_device)
    cells = [
        ([s.num_rows, s.num_cols], [s.row_offset, s.col_offset], s.rank) for s in placed.shards
    ]
    if kept is not None and kept.is_virtual:  # its rows are cut between buckets
        try:
            sizes, offsets = calculate_shard_sizes_and_offsets(
                tensor=table.parameter,
                world_size=topology.world_size,
                local_world_size=1,
                sharding_type="row_wise",
                num_buckets=kept.num_buckets,
            )
        except ValueError as error:
            refuse(f"table {table.table.name!r}: {error}")
        cells = list(zip(sizes, offsets, range(len(sizes)), strict=True))
    option = ShardingOption(
        name=table.parameter_name,
        tensor=table.parameter,
        module=(table.path, table.module),
        input_lengths=given.pooling_factors,
        batch_size=int(model.workload.batch_size_per_rank),
        sharding_type=kind,
        partition_by=get_partition_by_type(kind),
        compute_kernel=settings.kernel_name(placed.kernel, [k for t, k in allowed if t == kind]),
        shards=[torchrec_types.Shard(size=s, offset=o, rank=r) for s, o, r in cells],
        dependency=table.tower,
        feature_names=[f.name for f in table.table.features],
        key_value_params=given.key_value_params,
        **_settings(placed.cache_load_factor_ratio, given),
    )
    if getattr(table.config, "stash_weights", False):  # options of torchrec 1.9 have it
        option.stash_weights = True
    if kept is not None:
        option.compute_kernel = kept.kernel
        option.cache_params = given.cache_params
    return option


def _require_ssd(options: Sequence[ShardingOption], topology: torchrec_types.Topology) -> None:
    """Refuse key-value tables that do not fit on the SSDs of a rank.

    Raises:
        ShardPlannerError: there is such a rank; the message names the first one.
    """
    needed = Counter[int | None]()
    for shard in (shard for option in options for shard in option.shards):
        needed[shard.rank] += shard.storage.ssd if shard.storage else 0
    for rank, device in enumerate(topology.devices):
        if needed[rank] > device.storage.ssd:
            needs, given = format_bytes(needed[rank]), format_bytes(device.storage.ssd)
            message = settings.said("full ssd", rank=rank, needed=needs, given=given)
            kind = torchrec_types.PlannerErrorType.INSUFFICIENT_STORAGE
            raise settings.ShardPlannerError(message, kind)
