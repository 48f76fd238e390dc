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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from costmodels.errors import InvalidValueError
from costmodels.sharding import (
    BY_ROWS,
    SPREAD,
    ComputeKernel,
    Plan,
    Shard,
    ShardingType,
    Spread,
    TablePlacement,
    check_tiling,
    row_blocks,
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
    layout = _LAYOUTS[placement.sharding_type](placement, table, world, group_size)
    problems += [f"{name} {p}" for p in layout]
    if not layout:
        problems += _tiling_problems(placement, table)
    return problems


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


def _tiling_problems(placement: TablePlacement, table: Table) -> list[str]:
    try:
        check_tiling(placement, table.num_embeddings, table.embedding_dim)
    except InvalidValueError as error:
        return [str(error)]
    return []


# ------------------------------------------------------------------ layouts by sharding type


def _whole(shard: Shard, table: Table) -> bool:
    rows = (shard.row_offset, shard.num_rows) == (0, table.num_embeddings)
    return rows and (shard.col_offset, shard.num_cols) == (0, table.embedding_dim)


def _data_parallel(p: TablePlacement, table: Table, world: int, group: int) -> list[str]:
    del group
    problems = []
    if list(p.ranks) != list(range(world)):
        problems.append(
            f"needs one copy on every rank, in order 0..{world - 1}, got ranks {_short(p.ranks)}"
        )
    if not all(_whole(s, table) for s in p.shards):
        problems.append(
            f"needs the whole table of {table.num_embeddings} x {table.embedding_dim} on every "
            "rank; give every rank a full copy"
        )
    return problems


def _table_wise(p: TablePlacement, table: Table, world: int, group: int) -> list[str]:
    del world, group
    if len(p.shards) == 1 and _whole(p.shards[0], table):
        return []
    return [
        f"needs one shard with the whole table of {table.num_embeddings} x {table.embedding_dim}, "
        f"got {len(p.shards)} shards {_cells(p.shards)}; merge them, or use column_wise or row_wise"
    ]


def _column_wise(p: TablePlacement, table: Table, world: int, group: int) -> list[str]:
    del world, group
    problems = []
    if any((s.row_offset, s.num_rows) != (0, table.num_embeddings) for s in p.shards):
        problems.append(
            f"needs all {table.num_embeddings} rows in every shard, got {_cells(p.shards)}; cut "
            "columns only, or use grid_shard"
        )
    widths = [s.num_cols for s in p.shards]
    offsets = [sum(widths[:i]) for i in range(len(widths))]
    if [s.col_offset for s in p.shards] != offsets or sum(widths) != table.embedding_dim:
        problems.append(
            f"needs shards that follow each other from column 0 to {table.embedding_dim}, got "
            f"offsets {_short(s.col_offset for s in p.shards)} with widths {_short(widths)}; order "
            "them left to right without hole or overlap"
        )
    return problems + _unequal_problems(p)


def _unequal_problems(p: TablePlacement) -> list[str]:
    """Unequal pieces on one rank, where TorchRec joins them (``TableBatchedEmbeddingSlice``)."""
    widths: dict[int, set[int]] = {}
    for shard in p.shards:
        widths.setdefault(shard.rank, set()).add(shard.num_cols)
    return [
        f"needs pieces of one width where several lie on one rank, got {sorted(found)} columns on "
        f"rank {rank}; move them apart, or cut evenly"
        for rank, found in sorted(widths.items())
        if len(found) > 1
    ]


def _table_column_wise(p: TablePlacement, table: Table, world: int, group: int) -> list[str]:
    problems = _column_wise(p, table, world, group)
    nodes = sorted({r // group for r in p.ranks})
    if len(nodes) > 1:
        problems.append(
            f"needs all shards on one host of {group} ranks, got ranks {_short(p.ranks)} on hosts "
            f"{_short(nodes)}; keep to one host, or use column_wise"
        )
    return problems


def _row_wise(p: TablePlacement, table: Table, world: int, group: int) -> list[str]:
    del group
    if len(p.shards) != world or list(p.ranks) != list(range(world)):
        return [
            f"needs exactly one shard per rank in order 0..{world - 1}, got {len(p.shards)} shards "
            f"on ranks {_short(p.ranks)}; list every rank once, with 0 rows where rows run out"
        ]
    return _row_blocks_problems(p.shards, table, world, "ranks")


def _table_row_wise(p: TablePlacement, table: Table, world: int, group: int) -> list[str]:
    del world
    return _group_problems(p.ranks, group) or _row_blocks_problems(
        p.shards, table, group, "ranks of the host"
    )


def _grid_shard(p: TablePlacement, table: Table, world: int, group: int) -> list[str]:
    del world
    if len(p.shards) % group:
        return [
            f"needs {group} shards per column block, one for each rank of a host, got "
            f"{len(p.shards)} shards; fill every host"
        ]
    problems = []
    column = 0
    for start in range(0, len(p.shards), group):
        block = p.shards[start : start + group]
        width = block[0].num_cols
        if any((s.col_offset, s.num_cols) != (column, width) for s in block):
            problems.append(
                f"needs the same columns in the {group} shards of a block, next to the block "
                f"before (from column {column}), got {_cells(block)}; cut columns first, then rows"
            )
        problems += _group_problems([s.rank for s in block], group)
        problems += _row_blocks_problems(block, table, group, "ranks of the host", columns=False)
        column += width
    problems += _unequal_problems(p)
    if not problems and column != table.embedding_dim:
        problems.append(f"covers {column} of {table.embedding_dim} columns; add the missing blocks")
    return problems


def _group_problems(ranks: tuple[int, ...] | list[int], group: int) -> list[str]:
    first = ranks[0] - ranks[0] % group
    if list(ranks) == list(range(first, first + group)):
        return []
    return [
        f"needs all {group} ranks of one host in order, {first}..{first + group - 1} for its first "
        f"rank {ranks[0]}, got ranks {_short(ranks)}; use the whole host"
    ]


def _row_blocks_problems(
    shards: Sequence[Shard], table: Table, parts: int, over: str, *, columns: bool = True
) -> list[str]:
    problems = []
    expected = row_blocks(table.num_embeddings, parts)
    got = [(s.row_offset, s.num_rows) for s in shards]
    if got != expected:
        at = next(i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b)
        problems.append(
            f"needs blocks of ceil({table.num_embeddings} / {parts}) = {expected[0][1]} rows over "
            f"the {over}, got {got[at][1]} rows at offset {got[at][0]} where {expected[at][1]} at "
            f"{expected[at][0]} belong; training assigns ids by that block size whatever the plan "
            "says, so cut evenly"
        )
    whole = all((s.col_offset, s.num_cols) == (0, table.embedding_dim) for s in shards)
    if columns and not whole:
        problems.append(
            f"needs all {table.embedding_dim} columns in every shard, got {_cells(shards)}; cut "
            "rows only, or use grid_shard"
        )
    return problems


def _short(values: Iterable[object]) -> str:
    listed = [str(v) for v in values]
    tail = f", ... ({len(listed)} in all)" if len(listed) > 8 else ""
    return f"[{', '.join(listed[:8])}{tail}]"


def _cells(shards: Sequence[Shard]) -> str:
    return _short(
        f"rows {s.row_offset}+{s.num_rows} cols {s.col_offset}+{s.num_cols}" for s in shards[:3]
    )


_LAYOUTS: Final[dict[ShardingType, Callable[[TablePlacement, Table, int, int], list[str]]]] = {
    ShardingType.DATA_PARALLEL: _data_parallel,
    ShardingType.TABLE_WISE: _table_wise,
    ShardingType.COLUMN_WISE: _column_wise,
    ShardingType.ROW_WISE: _row_wise,
    ShardingType.TABLE_ROW_WISE: _table_row_wise,
    ShardingType.TABLE_COLUMN_WISE: _table_column_wise,
    ShardingType.GRID_SHARD: _grid_shard,
}


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
