"""What a planning says: what it assumes, settings that it does not price, and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner import constants
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.types import ParameterConstraints, ShardingOption
from torchrec.distributed.planner.types import Topology as TorchrecTopology
from torchrec.distributed.types import ShardingType

from costmodels.sharding import Plan
from costmodels.units import format_bytes, format_time
from costmodels.workload import DataType
from planner.integrations.torchrec_topology import host_size
from planner.integrations.translate import reading, settings
from planner.integrations.translate.constraints import allowed_pairs
from planner.integrations.translate.private_names import optimizer_classes, topology_setting
from planner.options.torchrec_rules import unsummed_words
from planner.result import PlanningResult
from planner.support.text import significant

if TYPE_CHECKING:
    from planner.integrations.drop_in.search import Rival
    from planner.integrations.torchrec_workload import ShardableTable, WorkloadHints

RIVAL: Final = "torchrec"
"""The name of TorchRec's own plan among the baselines of a result."""

MULTIPLIERS: Final = {
    "bwd_compute_multiplier": constants.BWD_COMPUTE_MULTIPLIER,
    "weighted_feature_bwd_compute_multiplier": constants.WEIGHTED_FEATURE_BWD_COMPUTE_MULTIPLIER,
    "uneven_sharding_perf_multiplier": 1.0,
    "ssd_mem_bw": constants.SSD_MEM_BW,
}
"""Settings of a ``Topology`` that only TorchRec's estimates read, with TorchRec's defaults."""

_SHOWN: Final = 5
_NAMES: Final = {str(k.value) for k in (*ShardingType, *EmbeddingComputeKernel)}

Given = Mapping[str, ParameterConstraints]


def table_warnings(
    found: Sequence[ShardableTable],
    constraints: Given,
    hints: WorkloadHints,
    batch_size: int,
    compute_device: str,
) -> list[str]:
    """One line for each thing that is assumed, or that is set but not priced.

    Args:
        found: the tables that are planned.
        constraints: TorchRec's constraints by table name.
        hints: what the model does not say.
        batch_size: samples per rank.
        compute_device: TorchRec's device.
    """
    known = {f.parameter_name for f in found}
    known |= {name for name, given in constraints.items() if given.device_group}
    types = sorted({f.output_dtype for f in found}, key=lambda t: (t.num_bytes, t.value))
    own = (f.sharder for f in found if not settings.is_of_torchrec(f.sharder.storage_usage))
    named = {str(t) for c in constraints.values() for t in c.sharding_types or ()}
    named |= {str(k) for c in constraints.values() for k in c.compute_kernels or ()}
    of_call: dict[str, Callable[[ShardableTable], object]] = {
        "{count} tables have no index distribution (hints); uniform assumed": lambda f: (
            not hints.default_distribution and f.parameter_name not in hints.distributions
        ),
        "{count} tables have codecs that scale rows of elements, which a batch of "
        f"{batch_size} times their columns does not fill: they are not cut by columns, and "
        "training fails in the exchange of a rank whose rows do not come out": lambda f: (
            reading.row_to_fill(f.table, batch_size)
        ),
    }
    about: dict[str, Iterable[str]] = {
        "constraints name tables that the model does not have": set(constraints) - known,
        "hints name tables that the model does not have": set(hints.distributions) - known,
        **{
            words: [f.table.name for f in found if applies(f)]
            for words, applies in (_REMARKS | of_call).items()
        },
        f"tables have outputs of several types, all are priced as {types[-1]}": (
            [t.value for t in types] if hints.output_dtype is None and types[1:] else ()
        ),
        "qcomm_codecs_registry has codecs of element types that cannot be priced, priced as fp32": (
            {word for f in found for word in reading.unknown_codecs(f.sharder)}
        ),
        "storage_usage of sharders is not read, as the search has a memory ledger of its own": (
            {type(sharder).__name__ for sharder in own}
        ),
        "constraints name sharding types or kernels that do not exist": named - _NAMES,
    }
    priced_as: dict[str, list[str]] = {}
    for entry in found:
        left = {k for _, k in allowed_pairs(entry.sharder, entry.limit, compute_device)}
        for name in sorted(filter(settings.is_priced_as_another, left)):
            words = f"kernel {name} has no cost model: {{count}} tables that run it are priced as"
            if (nearest := str(settings.our_kernel(name))) not in left:
                priced_as.setdefault(f"{words} {nearest}", []).append(entry.table.name)
    about |= priced_as
    return [line for words, names in about.items() for line in _about(names, words)]


def _about(names: Iterable[str], words: str) -> list[str]:
    """A line with the number of names and the first ones; none if there are none."""
    listed = sorted(names) if isinstance(names, set) else list(names)
    return [f"{words.format(count=len(listed))}: {listed[:_SHOWN]}"] if listed else []


def _lacks_load_factor(entry: ShardableTable) -> bool:
    cache = entry.limit.cache_params
    if entry.key_value is not None or cache is None or cache.load_factor is not None:
        return False
    return settings.fused_setting(entry.sharder, "cache_load_factor") is None


def _keeps_scales(entry: ShardableTable) -> bool:
    """Whether stored rows have scales beside their columns; quantized rows already count them."""
    is_quantized = str(entry.parameter.dtype) in ("torch.uint8", "torch.int8")
    return entry.table.dtype is DataType.INT8 and not is_quantized


_REMARKS: Final[dict[str, Callable[[ShardableTable], object]]] = {
    "{count} tables have no pooling factor (constraints); 1 index per feature assumed": (
        lambda f: f.limit is settings.NO_LIMIT
    ),
    "{count} key-value tables have no cost model of their own: priced as tables in host memory "
    "behind their cache, and rows on an SSD at the rate that TorchRec assumes; host and SSD bytes "
    "not counted; no other table goes to fused_uvm_caching unless its constraint names that "
    "kernel": lambda f: f.key_value is not None,
    "{count} tables have cache_params without a load_factor; the search chooses it if it caches "
    "them": _lacks_load_factor,
    "cache_params.stats of {count} tables reach the plan but are not priced; say how their indices "
    "fall with hints=WorkloadHints(distributions=...)": (
        lambda f: f.limit.cache_params and f.limit.cache_params.stats
    ),
    "feature_names of constraints differ from those of the model, whose names are used": lambda f: (
        f.limit.feature_names and list(f.limit.feature_names) != [x.name for x in f.table.features]
    ),
    "pooling_factors of constraints are not one for each feature; their sum is spread evenly": (
        lambda f: f.limit is not settings.NO_LIMIT and reading.is_spread(f.table.features, f.limit)
    ),
    "is_weighted is set for tables of modules without weights: priced with weights": (
        lambda f: f.limit.is_weighted and not reading.is_weighted(f.module)
    ),
    "use_virtual_table is set for tables whose configuration says otherwise; they are planned as "
    "ordinary ones": (
        lambda f: f.limit.use_virtual_table and not (f.key_value and f.key_value.is_virtual)
    ),
    "{count} tables are trained in INT8: FBGEMM keeps a scale and an offset of 8 bytes in all with "
    "each row, which are not counted; keep room for them with "
    "hints=WorkloadHints(reserved_bytes=...)": _keeps_scales,
    "qcomm_codecs_registry has codecs for reduce-scatter that scale rows, which FBGEMM cannot sum: "
    "{count} tables are not cut by rows, for they would fail in training; give "
    "POOLED_EMBEDDINGS_REDUCE_SCATTER fp16 or bf16": lambda f: unsummed_words(f.table),
}
"""Remarks, which names of tables follow, and which tables each is about."""


def copied_by_another_optimizer(plan: Plan, found: Sequence[ShardableTable]) -> list[str]:
    """A line if tables that the plan copies have an optimizer that only fused kernels run.

    The kernel of a replicated table is not fused: its sharder's ``fused_params`` are not read, and
    the optimizer of the dense part, which the training loop makes, updates it.
    """
    copied = [
        f.table.name
        for f in found
        if plan.placement(f.table.name).sharding_type == ShardingType.DATA_PARALLEL.value
        and settings.fused_setting(f.sharder, "optimizer") is not None
        and not optimizer_classes(f.parameter)
    ]
    return _about(
        copied,
        "{count} replicated tables train with the optimizer of the dense part, not with that of "
        "fused_params, of which their price and memory are: pass their parameters to it, or leave "
        "data_parallel out of their sharding_types",
    )


# ------------------------------------------------------------------ topology


def topology_warnings(topology: TorchrecTopology, *, rates_from_base: bool) -> list[str]:
    """Settings of TorchRec's topology that do not change our prices.

    Args:
        topology: TorchRec's topology.
        rates_from_base: whether bandwidths come from one of our systems, so that those of the
            topology are not used.
    """
    changed = [
        f"{name}={topology_setting(topology, name, default)}"
        for name, default in MULTIPLIERS.items()
        if topology_setting(topology, name, default) != default
    ]
    bandwidths = type(topology.comms_bandwidths).__name__
    world_size, group = topology.world_size, topology.intra_group_size
    on_cpu = topology.compute_device == "cpu"
    memories = {d.storage.ddr if on_cpu else d.storage.hbm for d in topology.devices}
    said = {
        f"settings of the topology that only TorchRec's estimates read: {', '.join(changed)}; our "
        "predicted times do not change with them": changed,
        f"of {bandwidths} only intra_host_bw and inter_host_bw are used; pass system= for links "
        "with latencies and measured curves": (
            bandwidths != "BasicCommsBandwidths" and not rates_from_base
        ),
        "memories of the topology differ from rank to rank: row_wise tables are cut into equal "
        "blocks all the same, where TorchRec's planner cuts them in proportion to the memories": (
            len(memories) > 1
        ),
        f"{world_size} ranks do not fill hosts of {group}: planned and priced as hosts of "
        f"{host_size(topology)}, without table_row_wise and grid_shard": world_size % group,
        "mtia has no cost model of its own: priced like a GPU with the topology's memories and "
        "bandwidths": topology.compute_device == "mtia",
    }
    return [line for line, applies in said.items() if applies]


# ------------------------------------------------------------------ the log

_TIMES: Final = ("iteration", "phases")
"""Objectives whose values are predicted seconds."""


def planning_block(
    result: PlanningResult,
    rival: Rival,
    options: Sequence[ShardingOption],
    topology: TorchrecTopology,
    seconds: float,
) -> str:
    """One block for the log: prediction, proof, comparison with TorchRec's plan, memory, seconds.

    Args:
        result: the result of the search.
        rival: TorchRec's own plan for the same arguments, or why there is none.
        options: the plan as TorchRec's options, with TorchRec's estimates.
        topology: TorchRec's topology.
        seconds: seconds of the whole planning.
    """
    time = result.estimate.time
    rank = result.best.memory.fullest
    ours_ms, taken = float(NoopPerfModel(topology).rate(list(options))), "ours"
    if any(c.name == RIVAL and c.plan == result.plan for c in result.baselines):
        taken = "TorchRec's plan: none was found that is predicted to be faster"
    lines = [
        "ShardPlanner",
        f"  predicted step   {format_time(time.time_s)}, 90 % between {format_time(time.low_s)} "
        f"and {format_time(time.high_s)}",
        f"  proven bound     {_bound(result)}",
        f"  ended            {result.solver.status}, objective {result.solver.objective}, "
        f"{result.solver.evaluations:,} plans priced",
        f"  TorchRec's plan  {_theirs(result, rival)}",
        f"  by its rating    ours {_ms(ours_ms)}, TorchRec's {_ms(rival.rating_ms)}",
        f"  taken            {taken}",
        f"  fullest rank     {rank.rank}: {format_bytes(rank.used_bytes)} of "
        f"{format_bytes(rank.capacity_bytes)}",
        f"  planning took    {seconds:.1f} s",
    ]
    return "\n".join(lines)


def _bound(result: PlanningResult) -> str:
    if result.bound is None:
        return "none"
    if result.solver.objective not in _TIMES:
        gap = result.gap_ratio
        shown = "unknown" if gap is None else f"{gap:.1%}"
        return f"{significant(result.bound, 4)} by objective {result.solver.objective}, gap {shown}"
    value = result.estimate.time.time_s
    gap_ratio = max(0.0, (value - result.bound) / value) if value > 0 else 0.0
    return f"{format_time(result.bound)}, gap {gap_ratio:.1%}"


def _theirs(result: PlanningResult, rival: Rival) -> str:
    priced = [c for c in result.baselines if c.name == RIVAL]
    if priced:
        return f"predicted {format_time(priced[0].estimate.time.time_s)}"
    if RIVAL in result.unfit_baselines:
        return "does not fit by our count of memory"
    return rival.reason or "cannot be priced"


def _ms(value: float | None) -> str:
    return "not known" if value is None else format_time(value * 1e-3)
