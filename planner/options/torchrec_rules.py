"""What TorchRec 1.8 can run: the legal options of a table, and the rules on the shards of a plan.

TorchRec checks little of a plan that it is given. A wrong plan passes its checks and then fails
deep inside the sharded module, lets a collective hang, or trains on the wrong rows. The rules here
are those of its runtime (``torchrec/distributed/sharding/*.py``), which is not imported.

FBGEMM's fused kernels do not take tables whose columns are no multiple of 4. It asserts it when it
makes the state of its tables (``construct_split_state``: "embedding_dim must be a multiple of 4").
TorchRec can then only copy such a table to every rank, with the dense kernel (torchrec#1495,
torchrec#1612). HugeCTR has no such rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from costmodels.sharding import (
    BY_ROWS,
    SPREAD,
    ComputeKernel,
    Plan,
    ShardingOption,
    ShardingType,
    Spread,
    TablePlacement,
    place,
)
from costmodels.topology import Topology
from costmodels.units import format_bytes, format_time
from costmodels.workload import Pipeline, Pooling, Table, Workload
from planner.errors import InvalidInputError
from planner.support.text import counted

COLUMN_MULTIPLE: Final = 4
"""The columns of a fused shard are a multiple of this (FBGEMM, ``construct_split_state``)."""

SUMS_ROWS: Final = BY_ROWS
"""Types whose partial sums of pooled vectors are added up by a reduce-scatter. FBGEMM's codecs that
scale rows (int8, fp8 with rows, mx4) cannot be added up, and TorchRec fails with them
(``comm_ops.py`` gives them no context there)."""

KERNELS_BY_DEVICE: Final[dict[str, tuple[ComputeKernel, ...]]] = {
    "cuda": (ComputeKernel.FUSED, ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING),
    "cpu": (ComputeKernel.FUSED,),
}
"""Kernels of sharded tables. On cpu TorchRec accepts UVM kernels too, and runs them as fused."""

SEQUENCE_TYPES: Final[dict[str, tuple[ShardingType, ...]]] = {
    "cuda": (
        ShardingType.DATA_PARALLEL,
        ShardingType.TABLE_WISE,
        ShardingType.COLUMN_WISE,
        ShardingType.ROW_WISE,
    ),
    "cpu": (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE),
}
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
    problems = _table_problems(plan, workload)
    tables = {t.name: t for t in workload.tables}
    group_size = _group_size(plan, topology)
    for placement in plan.placements:
        table = tables.get(placement.table)
        if table is not None:
            problems += _placement_problems(placement, table, topology, group_size, device)
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
        known = ", ".join(KERNELS_BY_DEVICE)
        msg = f"device {device!r} is not supported; use one of {known}"
        raise InvalidInputError(msg)
    return KERNELS_BY_DEVICE[device]


def _table_problems(plan: Plan, workload: Workload) -> list[str]:
    planned = Counter(p.table for p in plan.placements)
    expected = [t.name for t in workload.tables]
    known = set(expected)
    missing = [
        f"table {name!r}: the plan does not place it; add it, for TorchRec does not report a table "
        "that a plan leaves out"
        for name in expected
        if name not in planned
    ]
    unknown = [
        f"table {name!r}: the workload {workload.name!r} has no such table; remove it from the plan"
        for name in planned
        if name not in known
    ]
    twice = [
        f"table {name!r}: placed {count} times; keep one placement"
        for name, count in planned.items()
        if count > 1
    ]
    return missing + unknown + twice


def _group_size(plan: Plan, topology: Topology) -> int:
    """The number of ranks that TorchRec treats as one node: a host, or a domain of several hosts.

    It is the domain if the plan is cut for domains, which TorchRec runs when the environment
    variable ``TORCHREC_RESOLVED_POD_SIZE`` is set. All tables of a plan use the same one.
    """
    for placement in plan.placements:
        first = [s for s in placement.shards if s.col_offset == 0]
        if (
            SPREAD[placement.sharding_type] is Spread.HOSTS
            and len(first) == topology.domain_size <= topology.world_size
        ):
            return topology.domain_size
    return topology.local_world_size


def _placement_problems(
    placement: TablePlacement, table: Table, topology: Topology, group_size: int, device: str
) -> list[str]:
    name = f"table {table.name!r}: {placement.sharding_type}"
    problems = [f"{name} {p}" for p in _option_problems(placement, table, device)]
    world = topology.world_size
    outside = sorted({s.rank for s in placement.shards if not 0 <= s.rank < world})
    if outside:
        problems.append(f"{name} uses ranks {outside[:5]} outside 0..{world - 1}; move the shards")
    if not placement.shards:
        return [*problems, f"{name} has no shards; list at least one"]
    return problems + [f"{name} {p}" for p in _layout(placement, table, world, group_size)]


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

_BLOCKS: Final = (
    "in blocks of ceil({rows} / {parts}) = {block} rows (training assigns ids by that block size "
    "whatever the plan says)"
)
_ON_A_HOST: Final = "all {group} ranks of one host in order, {first}..{last}"
_COLUMNS: Final = (
    "all {rows} rows in every shard, and shards that follow each other left to right without hole "
    "or overlap from column 0 to {columns}"
)
_LAYOUTS: Final = {
    ShardingType.DATA_PARALLEL: "one copy on every rank, in order 0..{end}, each the whole table "
    "of {rows} x {columns}",
    ShardingType.TABLE_WISE: "one shard with the whole table of {rows} x {columns}; merge them, or "
    "use column_wise or row_wise",
    ShardingType.COLUMN_WISE: f"{_COLUMNS}; cut columns only, or use grid_shard",
    ShardingType.TABLE_COLUMN_WISE: f"all shards on one host of {{group}} ranks, {_COLUMNS}; keep "
    "to one host, or use column_wise",
    ShardingType.ROW_WISE: "exactly one shard per rank in order 0..{end} (with 0 rows where rows "
    f"run out), with all {{columns}} columns, {_BLOCKS}; cut evenly, or use grid_shard",
    ShardingType.TABLE_ROW_WISE: f"{_ON_A_HOST}, with all {{columns}} columns, {_BLOCKS}; cut "
    "evenly, or use grid_shard",
    ShardingType.GRID_SHARD: f"{{group}} shards per column block, on {_ON_A_HOST} for the first, "
    f"{_BLOCKS}, and covers {{covered}} of {{columns}} columns; cut columns first, then rows",
}
"""What the shards of each type need to be."""


def _layout(p: TablePlacement, table: Table, world: int, group: int) -> list[str]:
    """How shards differ from the layout that TorchRec's runtime gives a table of their type."""
    kind, cells = p.sharding_type, p.cells
    on_hosts = SPREAD[kind] is Spread.HOSTS
    step = group if on_hosts else 1
    where = tuple((cells.rank[::step] // step).tolist())
    widths = tuple(cells.num_cols[::step].tolist())
    if SPREAD[kind] is Spread.UNIFORM or kind in _ALONE:
        widths, where = (table.embedding_dim,), where[:1] if kind in _ALONE else ()
    where = where[: len(widths)]
    option = ShardingOption(
        table=table.name,
        sharding_type=kind,
        kernel=p.kernel,
        column_widths=tuple(max(w, 1) for w in widths),
        cache_load_factor_ratio=p.cache_load_factor_ratio,
    )
    rows, columns = table.num_embeddings, table.embedding_dim
    expected = place(option, rows, where, world_size=world, local_world_size=group).cells
    one_host = kind is not ShardingType.TABLE_COLUMN_WISE or len(set(cells.rank // group)) == 1
    problems = _unequal_problems(p)
    if expected != cells or sum(widths) != columns or not one_host:
        parts = world if kind is ShardingType.ROW_WISE else group
        first = int(cells.rank[0]) // group * group
        needed = _LAYOUTS[kind].format(
            rows=rows,
            columns=columns,
            group=group,
            first=first,
            last=first + group - 1,
            end=world - 1,
            parts=parts,
            block=-(-rows // parts),
            covered=sum(widths),
        )
        shown = ", ".join(
            f"rows {s.row_offset}+{s.num_rows} cols {s.col_offset}+{s.num_cols}" for s in cells[:3]
        )
        ranks = ", ".join(map(str, p.ranks[:8]))
        problems.append(
            f"needs {needed}; got {counted(len(cells), 'shard')} [{shown}, ...] on ranks [{ranks}"
            + (", ...]" if len(cells) > 8 else "]")
        )
    return problems


def _unequal_problems(p: TablePlacement) -> list[str]:
    """Unequal pieces on one rank, where TorchRec joins them (``TableBatchedEmbeddingSlice``)."""
    widths: dict[int, set[int]] = {}
    for rank, width in zip(p.ranks, p.cells.num_cols.tolist(), strict=True):
        widths.setdefault(rank, set()).add(width)
    return [
        f"needs pieces of one width where several lie on one rank, got {sorted(found)} columns on "
        f"rank {rank}; move them apart, or cut evenly"
        for rank, found in sorted(widths.items())
        if len(found) > 1
    ]


_NAMED: Final = 5


def odd_tables(workload: Workload) -> tuple[Table, ...]:
    """The tables that can only be copied because of their columns."""
    multiple = column_multiple(workload)
    return tuple(t for t in workload.tables if t.embedding_dim % multiple)


def widened(workload: Workload) -> Workload:
    """The workload with the columns of such tables rounded up to the next multiple."""
    odd = {t.name for t in odd_tables(workload)}
    return replace(
        workload,
        tables=tuple(
            replace(t, embedding_dim=_next(t, workload)) if t.name in odd else t
            for t in workload.tables
        ),
    )


def width_remarks(workload: Workload) -> tuple[str, ...]:
    """What FBGEMM's rule does to the tables, with their names and the next widths; often empty."""
    odd = odd_tables(workload)
    if not odd:
        return ()
    pairs = {t.embedding_dim: _next(t, workload) for t in odd}
    named = _listed(f"{t.name!r} ({t.embedding_dim})" for t in odd)
    more_bytes = sum(t.weight_bytes * (_next(t, workload) / t.embedding_dim - 1) for t in odd)
    next_widths = _listed(f"{wide} for {width}" for width, wide in sorted(pairs.items()))
    have = "has" if len(odd) == 1 else "have"
    return (
        f"{counted(len(odd), 'table')} {have} columns that are no multiple of "
        f"{column_multiple(workload)}, which FBGEMM's fused kernels refuse: {named}; TorchRec can "
        f"only copy them to every rank (data_parallel), or fails; embedding_dim {next_widths} "
        f"would allow every sharding type, for {format_bytes(more_bytes)} more weights; HugeCTR "
        "(training.pipeline: hugectr) has no such rule",
    )


def priced_remark(workload: Workload, time_s: float, widened_s: float) -> str:
    """What the step takes with the widened tables, beside the time of the plan."""
    sizes = _listed(f"{_next(t, workload)} for {t.name!r}" for t in odd_tables(workload))
    return (
        f"with embedding_dim {sizes}, a short search finds a step of {format_time(widened_s)} "
        f"instead of {format_time(time_s)}; the bound of this plan holds for the widths as they are"
    )


def _next(table: Table, workload: Workload) -> int:
    return table.embedding_dim + -table.embedding_dim % column_multiple(workload)


def _listed(parts: Iterable[str]) -> str:
    shown = list(parts)
    rest = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
    return ", ".join(shown[:_NAMED]) + rest
