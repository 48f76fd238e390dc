"""What TorchRec 1.8 can run: the legal options of a table, and the rules on the shards of a plan.

TorchRec checks little of a plan that it is given. A wrong plan passes its checks and then fails
deep inside the sharded module, lets a collective hang, or trains on the wrong rows. The rules here
are those of its runtime (``torchrec/distributed/sharding/*.py``), which is not imported.

FBGEMM's fused kernels do not take tables whose columns are no multiple of 4. It asserts it when it
makes the state of its tables (``construct_split_state``: "embedding_dim must be a multiple of 4").
TorchRec can then only copy such a table to every rank, with the dense kernel (torchrec#1495,
torchrec#1612). HugeCTR has no such rule.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from costmodels import sharding
from costmodels.errors import InvalidValueError
from costmodels.sharding import ComputeKernel, Plan, ShardingType, TablePlacement
from costmodels.topology import Topology
from costmodels.units import format_bytes, format_time
from costmodels.workload import DataType, Pipeline, Pooling, Table, Workload
from planner.errors import refuse
from planner.support.text import counted

COLUMN_MULTIPLE: Final = 4
"""The columns of a fused shard are a multiple of this (FBGEMM, ``construct_split_state``)."""

SUMS_ROWS: Final = sharding.BY_ROWS
"""Types whose partial sums of pooled vectors are added up by a reduce-scatter. FBGEMM's codecs that
scale rows (int8, fp8 with rows, mx4) cannot be added up, and TorchRec fails with them
(``comm_ops.py`` gives them no context there)."""

KERNELS_BY_DEVICE: Final[dict[str, tuple[ComputeKernel, ...]]] = {
    "cuda": (ComputeKernel.FUSED, ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING),
    "cpu": (ComputeKernel.FUSED,),
}
"""Kernels of sharded tables. On cpu TorchRec accepts UVM kernels too, and runs them as fused."""

_SHARDED: Final = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE)
SEQUENCE_TYPES: Final = {"cuda": (ShardingType.DATA_PARALLEL, *_SHARDED), "cpu": _SHARDED}
"""Sharding types of unpooled tables (``EmbeddingCollectionSharder.sharding_types``). FBGEMM's dense
kernel always pools on cpu, so that replicated unpooled tables fail there in the forward pass."""


def column_multiple(workload: Workload) -> int:
    """What the columns of sharded tables are a multiple of: FBGEMM's rule, or 1 in HugeCTR."""
    return 1 if workload.pipeline is Pipeline.HUGECTR else COLUMN_MULTIPLE


def legal_types_and_kernels(
    table: Table, device: str = "cuda", *, multiple: int = COLUMN_MULTIPLE
) -> dict[ShardingType, tuple[ComputeKernel, ...]]:
    """Sharding types that TorchRec trains for a table, each with its kernels.

    Args:
        table: unpooled tables have fewer types; a table whose dimension is no such multiple has
            no fused kernel and can only be replicated; partial sums of row blocks cannot travel in
            codecs such as int8.
        device: ``cuda`` or ``cpu``.
        multiple: what the columns have to be a multiple of, see :func:`column_multiple`.

    Returns:
        Kernels of each type; empty if TorchRec cannot train the table on that device.

    Raises:
        InvalidInputError: the device is neither of the two.
    """
    fused = _fused_kernels(device)
    types = SEQUENCE_TYPES[device] if table.pooling is Pooling.NONE else tuple(ShardingType)
    can_fuse = table.embedding_dim % multiple == 0
    if _cannot_sum(table):
        types = tuple(t for t in types if t not in SUMS_ROWS)
    return {
        t: (ComputeKernel.DENSE,) if t is ShardingType.DATA_PARALLEL else fused
        for t in types
        if can_fuse or t is ShardingType.DATA_PARALLEL
    }


def block_rows(kind: ShardingType, num_embeddings: int, ranks: int, on_host: int) -> list[int]:
    """Rows of each shard of one piece of columns, in TorchRec's order.

    Args:
        kind: the sharding type.
        num_embeddings: rows of the table.
        ranks: number of ranks.
        on_host: ranks of one host.
    """
    parts = {sharding.Spread.UNIFORM: ranks, sharding.Spread.HOSTS: on_host}.get(
        sharding.SPREAD[kind], 1
    )
    sizes: list[int] = sharding.row_block_columns(num_embeddings, parts)[1].tolist()
    return [num_embeddings] * parts if kind is ShardingType.DATA_PARALLEL else sizes


def layout_problems(
    plan: Plan, workload: Workload, topology: Topology, *, device: str = "cuda"
) -> list[str]:
    """One line for each rule that keeps TorchRec from running a plan.

    Args:
        plan: the plan to check.
        workload: the tables that it should place.
        topology: ranks and how they are grouped into hosts and domains.
        device: ``cuda`` or ``cpu``.

    Returns:
        Messages that name the table, the rule, the values, and what to change; empty for a plan
        that TorchRec runs.

    Raises:
        InvalidInputError: the device is neither ``cuda`` nor ``cpu``.
    """
    _fused_kernels(device)
    try:
        sharding.check_plan(plan, workload, topology.world_size)
    except InvalidValueError as error:
        return [str(error)]
    world, group, problems = topology.world_size, _group_size(plan, topology), []
    for table in workload.tables:
        placement = plan.placement(table.name)
        found = _option_problems(placement, table, device)
        if not _is_laid_out(placement, table, world, group):
            needed = _LAYOUTS[placement.sharding_type].format(group=group)
            found.append(f"needs {needed}; got {_shards_words(placement.cells)}")
        problems += [f"table {table.name!r}: {placement.sharding_type} {line}" for line in found]
    return problems


def _cannot_sum(table: Table) -> bool:
    return table.pooling is not Pooling.NONE and not table.codecs.sums_rows


def unsummed_words(table: Table) -> str:
    """Why a table cannot be cut by rows, if its codecs are the reason; otherwise empty."""
    codecs = table.codecs.reduce_scatter
    if codecs is None or not _cannot_sum(table):
        return ""
    used = f"{codecs.forward.precision} and {codecs.backward.precision}"
    return (
        f"the codecs of its reduce-scatter ({used}) include one that scales rows, which has no "
        "sum; give reduce_scatter fp16 or bf16"
    )


def _fused_kernels(device: str) -> tuple[ComputeKernel, ...]:
    if device not in KERNELS_BY_DEVICE:
        refuse(f"device {device!r} is not supported; use one of {', '.join(KERNELS_BY_DEVICE)}")
    return KERNELS_BY_DEVICE[device]


def _group_size(plan: Plan, topology: Topology) -> int:
    """The number of ranks that TorchRec treats as one node: a host, or a domain of several hosts.

    It is the domain if the plan is cut for domains, which TorchRec runs when the environment
    variable ``TORCHREC_RESOLVED_POD_SIZE`` is set. All tables of a plan use the same one.
    """
    first = (
        len([s for s in placement.shards if s.col_offset == 0])
        for placement in plan.placements
        if sharding.SPREAD[placement.sharding_type] is sharding.Spread.HOSTS
    )
    is_domain = topology.domain_size <= topology.world_size and topology.domain_size in first
    return topology.domain_size if is_domain else topology.local_world_size


def _option_problems(placement: TablePlacement, table: Table, device: str) -> list[str]:
    """Rules on type, kernel and widths; dense with data_parallel is checked by the placement."""
    problems = []
    kernel = placement.kernel
    replicated = placement.sharding_type is ShardingType.DATA_PARALLEL
    if not replicated and kernel not in _fused_kernels(device):
        shown = ", ".join(_fused_kernels(device))
        problems.append(f"with kernel {kernel}: not on device {device}; use {shown}")
    if table.pooling is Pooling.NONE and placement.sharding_type not in SEQUENCE_TYPES[device]:
        shown = ", ".join(SEQUENCE_TYPES[device])
        problems.append(
            f"does not exist for unpooled tables (EmbeddingCollection) on {device}; use {shown}"
        )
    if placement.sharding_type in SUMS_ROWS and _cannot_sum(table):
        problems.append(f"adds partial sums of row blocks, but {unsummed_words(table)}")
    odd = sorted({s.num_cols for s in placement.shards if s.num_cols % COLUMN_MULTIPLE})
    if odd and not replicated:
        problems.append(
            f"has column pieces of width {odd}: fused kernels need a multiple of "
            f"{COLUMN_MULTIPLE}; choose other widths, or data_parallel"
        )
    return problems


# ------------------------------------------------------------------ layouts by sharding type


_ALONE: Final = (ShardingType.TABLE_WISE, ShardingType.TABLE_ROW_WISE)
"""Types of one piece."""

_COLUMNS: Final = (
    "all rows in every shard, columns from left to right, and on each rank pieces of one width"
)
_BLOCKS: Final = "all {group} ranks of one host in order, in equal blocks of rows"
_LAYOUTS: Final = {
    ShardingType.DATA_PARALLEL: "one copy on every rank, in order",
    ShardingType.TABLE_WISE: "one shard with the whole table",
    ShardingType.COLUMN_WISE: _COLUMNS,
    ShardingType.TABLE_COLUMN_WISE: f"all shards on one host of {{group}} ranks, {_COLUMNS}",
    ShardingType.ROW_WISE: "exactly one shard per rank in order, in equal blocks of rows",
    ShardingType.TABLE_ROW_WISE: _BLOCKS,
    ShardingType.GRID_SHARD: f"blocks of columns, each on {_BLOCKS}",
}
"""What the shards of each type need to be: TorchRec's training lays tables out so, whatever a plan
says, and joins the pieces of a rank (``TableBatchedEmbeddingSlice``)."""


def _is_laid_out(placement: TablePlacement, table: Table, world: int, group: int) -> bool:
    """Whether shards that tile a table lie as TorchRec's runtime has them for their type."""
    option = sharding.option_of(placement, table, world_size=world, local_world_size=group)
    if option is None or (placement.sharding_type in _ALONE and len(option.column_widths) > 1):
        return False
    return option.may_be_at(option.places_of(placement.ranks, group), group)


def _shards_words(shards: sharding.Shards) -> str:
    """How many shards there are, with the first three of them."""
    first = ", ".join(
        f"rows {s.row_offset}+{s.num_rows} cols {s.col_offset}+{s.num_cols} on rank {s.rank}"
        for s in shards[:3]
    )
    return f"{counted(len(shards), 'shard')} [{first}{', ...' if len(shards) > 3 else ''}]"


_NAMED: Final = 5


def odd_tables(workload: Workload) -> tuple[Table, ...]:
    """The tables that can only be copied because of their columns."""
    return tuple(t for t in workload.tables if t.embedding_dim % column_multiple(workload))


def widened(workload: Workload) -> Workload:
    """The workload with the columns of such tables rounded up to the next multiple."""
    tables = (replace(t, embedding_dim=_next(t, workload)) for t in workload.tables)
    return replace(workload, tables=tuple(tables))


def _next(table: Table, workload: Workload) -> int:
    return table.embedding_dim + -table.embedding_dim % column_multiple(workload)


def width_remarks(workload: Workload) -> tuple[str, ...]:
    """What FBGEMM's rule does to the tables, with their names and the next widths; often empty."""
    odd = odd_tables(workload)
    if not odd:
        return ()
    named = _listed(f"{t.name!r} ({t.embedding_dim})" for t in odd)
    pairs = {t.embedding_dim: _next(t, workload) for t in odd}
    next_widths = _listed(f"{dim} for {width}" for width, dim in sorted(pairs.items()))
    more_bytes = format_bytes(widened(workload).weight_bytes - workload.weight_bytes)
    return (
        f"columns of {counted(len(odd), 'table')} are no multiple of "
        f"{column_multiple(workload)}, which FBGEMM's fused kernels refuse: {named}; TorchRec can "
        f"only copy them to every rank (data_parallel), or fails; embedding_dim {next_widths} "
        f"would allow every sharding type, for {more_bytes} more weights; HugeCTR "
        "(training.pipeline: hugectr) has no such rule",
    )


def priced_remark(workload: Workload, time_s: float, widened_s: float) -> str:
    """What the step takes with the widened tables, beside the time of the plan."""
    sizes = (f"{_next(t, workload)} for {t.name!r}" for t in odd_tables(workload))
    return (
        f"with embedding_dim {_listed(sizes)}, a short search finds a step of "
        f"{format_time(widened_s)} instead of {format_time(time_s)}; the bound of this plan holds "
        "for the widths as they are"
    )


def _listed(parts: Iterable[str]) -> str:
    shown = list(parts)
    rest = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
    return ", ".join(shown[:_NAMED]) + rest


# ------------------ runtime warnings
#
# Plans that TorchRec cannot run, or under which it computes another model.
#
# **Means.** Row-wise shards of a mean-pooled table send sums. TorchRec then divides the whole
# output of the module by the lengths of its bags. This goes wrong in several ways:
#
# - The columns of mean-pooled tables that are not cut by rows are divided too, a second time.
# - Those of sum-pooled tables that are not cut by rows are divided although they are sums.
# - The sums of ``grid_shard`` are not divided unless another table of the module is.
# - With weights, a row-wise mean is divided by the sum of the weights, and every other mean by the
#   number of indices.
# - TorchRec decides by feature what is divided. A feature that a sum-pooled table shares with
#   another
#   table is divided in the wrong places.
#
# (TorchRec 1.8, ``_create_mean_pooling_divisor`` of ``embeddingbag.py``; seen in runs.)
#
# **Unequal pieces** train, but cannot load a checkpoint. When TorchRec loads a state, it takes the
# width of a table's first piece for the width of all its pieces (1.8, ``_pre_load_state_dict_hook``
# of ``embeddingbag.py`` and ``embedding.py``; seen in runs). On ranks with a piece of another width
# the job then ends with an error about shapes. TorchRec's own planner cuts columns only into equal
# pieces.
#
# **Widths of unpooled tables.** The ``column_wise`` tables of one ``EmbeddingCollection`` share one
# exchange, and on each rank one fused lookup. In the exchange, TorchRec takes the width of a rank's
# vectors for the width on all ranks (``comm_ops.py``, ``alltoall_sequence``); FBGEMM's unpooled
# lookup has only one width. With pieces of two widths the job therefore fails when the model is
# sharded, or in its first forward pass. (TorchRec 1.8; seen in runs.)

_DIVIDED: Final = (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE)
"""The sharding types for which TorchRec divides sums to make means of them."""

NOT_DIVIDED: Final = tuple(t for t in ShardingType if t not in _DIVIDED)
"""The other sharding types. Their shards send means, except those of ``grid_shard``, which send
sums."""


def pooling_problems(plan: Plan, workload: Workload) -> list[str]:
    """One line for each module that computes something else under a plan."""
    types, found = {p.table: p.sharding_type for p in plan.placements}, []
    for tables in tables_by_module(workload).values():
        chosen = [t for t in tables if t.name in types]
        means = [t.name for t in chosen if t.pooling is Pooling.MEAN]
        cut = [name for name in means if types[name] in SUMS_ROWS]
        others = [t.name for t in chosen if types[t.name] not in _DIVIDED]
        reason = rows_change(chosen)
        if others:
            reason = (
                f"and tables {others[:5]} of the same module are not: TorchRec then divides by the "
                "number of indices too often"
            )
        if cut and reason:
            found.append(f"mean-pooled tables {cut[:5]} are cut by rows, {reason}")
    return found


def rows_change(tables: Iterable[Table]) -> str:
    """Why a module computes other numbers even if all its tables are cut by rows; else empty.

    Args:
        tables: the tables of the module.
    """
    chosen = list(tables)
    means = [t for t in chosen if t.pooling is Pooling.MEAN]
    if not means:
        return ""
    if any(t.is_weighted for t in means):
        return "and have weights: TorchRec then divides by the sum of the weights"
    if any(t.dtype is DataType.INT8 for t in means):
        return "and quantized: TorchRec then adds the means of the blocks"
    readers = Counter(feature.name for table in chosen for feature in table.features)
    summed = {f.name for t in chosen if t.pooling is Pooling.SUM for f in t.features}
    if shared := [name for name, count in readers.items() if count > 1 and name in summed]:
        return (
            f"and sum-pooled tables of the same module share features {shared[:5]} with others: "
            "TorchRec then divides these sums as well, or does not divide these means"
        )
    return ""


def tables_by_module(workload: Workload) -> dict[str, list[Table]]:
    """Pooled tables of each module, in the workload's order."""
    found: dict[str, list[Table]] = {}
    for table in workload.tables:
        if table.pooling is not Pooling.NONE:
            found.setdefault(table.module, []).append(table)
    return found


def width_problems(plan: Plan, workload: Workload) -> dict[str, str]:
    """From the path of each module whose pieces have several widths to a line about it.

    Args:
        plan: a plan of the workload.
        workload: the tables, with the module of each.
    """
    return {
        module: f"unpooled tables of module {module!r} are cut by columns into pieces of widths "
        f"{sorted(widths)}, which TorchRec can neither look up nor exchange together; cut all of "
        "them into pieces of one width, or allow table_wise or row_wise alone"
        for module, widths in piece_widths(plan, workload).items()
        if len(widths) > 1
    }


def piece_widths(plan: Plan, workload: Workload) -> dict[str, tuple[int, ...]]:
    """The columns of the ``column_wise`` pieces of each module's unpooled tables.

    Args:
        plan: a plan of the workload.
        workload: the tables, with the module of each.

    Returns:
        From the path of each module to the different widths, those of most pieces first.
    """
    unpooled = {t.name: t.module for t in workload.tables if t.pooling is Pooling.NONE}
    counted: dict[str, Counter[int]] = {}
    for placed in plan.placements:
        if placed.sharding_type is ShardingType.COLUMN_WISE and placed.table in unpooled:
            found = counted.setdefault(unpooled[placed.table], Counter())
            found.update(s.num_cols for s in placed.shards)
    return {
        module: tuple(width for width, _ in widths.most_common())
        for module, widths in counted.items()
    }


def runtime_warnings(plan: Plan, workload: Workload) -> tuple[str, ...]:
    """One line for each module that a plan breaks, and one if checkpoints cannot be loaded.

    There are no lines under HugeCTR's pipeline, because these are limits of TorchRec.

    Args:
        plan: a plan of the workload.
        workload: the tables, with the module of each.
    """
    if workload.pipeline is Pipeline.HUGECTR:
        return ()
    unequal = [
        p.table
        for p in plan.placements
        if p.sharding_type is not ShardingType.DATA_PARALLEL and len(set(p.cells.num_cols)) > 1
    ]
    unloaded = (
        f"{len(unequal)} tables are cut into columns of unequal widths ({_listed(unequal)}): "
        "TorchRec trains them, but fails when it loads a checkpoint; cut them into equal widths"
    )
    fails = [f"training will fail: {line}" for line in width_problems(plan, workload).values()]
    others = [
        f"under this plan TorchRec computes another model: {problem}; cut all tables of the module "
        "by rows (row_wise, table_row_wise) or no mean-pooled one"
        for problem in pooling_problems(plan, workload)
    ]
    return (*fails, *others, *([unloaded] if unequal else ()))
