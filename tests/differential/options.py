"""Every way in which TorchRec can run one table, placed, written down from its rules.

The rules are those of the layouts and of the legal combinations in TorchRec's runtime: a replicated
table has a copy on every rank and a dense kernel; row-wise blocks of ceil(rows / ranks) go to all
ranks in order, table-row-wise ones to all ranks of one host; column pieces are multiples of four
columns wide and may share a rank only if they are equally wide. Nothing of the planner's own
listing is used, so that a fault there cannot hide here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from costmodels.sharding import ComputeKernel, Shard, ShardingType, TablePlacement
from costmodels.workload import Table
from tests.differential.case import COLUMN_MULTIPLE, Case, Leave, leave_of, received_bytes

Widths = tuple[int, ...]

_UNEQUAL_COUNTS = (2, 3, 4, 8, 16)
"""Numbers of pieces for which the planner documents widths that differ by four."""

_SPLIT = (
    ShardingType.COLUMN_WISE,
    ShardingType.TABLE_COLUMN_WISE,
    ShardingType.GRID_SHARD,
)

_MOST_UNEQUAL = 3
"""Pieces of any widths in the wide menu."""


def placements(
    case: Case, table: Table, *, wide: bool = False, few: int | None = None
) -> list[TablePlacement]:
    """All placements of one table, by every name that they can have.

    Pieces of one width are interchangeable, so only one of their orders is listed: under a limit on
    what moves the one that receives least, else any.

    Args:
        case: the question.
        table: one of its tables.
        wide: also any widths of up to three pieces, and more pieces than ranks or hosts.
        few: at most so many ways to cut and place it, drawn at random beside the plainest ones.
    """
    leave = leave_of(case, table)
    ways = list(_cut_and_placed(case, table, leave, wide=wide))
    if few is not None and len(ways) > few:
        rng = np.random.default_rng(len(ways))
        plain = [w for w in ways if w[0] not in _SPLIT]
        split = [w for w in ways if w[0] in _SPLIT]
        count = min(max(few - len(plain), 0), len(split))
        ways = plain + [split[i] for i in rng.choice(len(split), size=count, replace=False)]
    found = []
    for kind, shards in ways:
        for kernel, factor in _kernels(kind, leave):
            placement = TablePlacement(
                table=table.name,
                sharding_type=kind,
                kernel=kernel,
                shards=shards,
                cache_load_factor_ratio=factor,
            )
            found.append(placement)
    return found


def _kernels(kind: ShardingType, leave: Leave) -> Iterator[tuple[ComputeKernel, float | None]]:
    if kind is ShardingType.DATA_PARALLEL:
        if ComputeKernel.DENSE in leave.kernels:
            yield ComputeKernel.DENSE, None
        return
    for kernel in (ComputeKernel.FUSED, ComputeKernel.FUSED_UVM):
        if kernel in leave.kernels:
            yield kernel, None
    if ComputeKernel.FUSED_UVM_CACHING in leave.kernels:
        for factor in leave.factors:
            yield ComputeKernel.FUSED_UVM_CACHING, factor


def _cut_and_placed(
    case: Case, table: Table, leave: Leave, *, wide: bool
) -> Iterator[tuple[ShardingType, tuple[Shard, ...]]]:
    """Sharding types with shards on ranks, whatever the kernel."""
    topology, rows, dim = case.topology, table.num_embeddings, table.embedding_dim
    world, local = topology.world_size, topology.local_world_size
    whole = ((0, rows), (0, dim))
    every: dict[ShardingType, Iterable[tuple[Shard, ...]]] = {
        ShardingType.DATA_PARALLEL: [tuple(_shard(rank, *whole) for rank in range(world))],
        ShardingType.ROW_WISE: [_blocks(rows, range(world), (0, dim))],
        ShardingType.TABLE_WISE: [(_shard(rank, *whole),) for rank in leave.ranks],
        ShardingType.TABLE_ROW_WISE: [
            _blocks(rows, _ranks_of(host, local), (0, dim)) for host in leave.hosts
        ],
    }
    for kind in _SPLIT:
        if kind in leave.types:
            every[kind] = _split(case, table, leave, kind, wide=wide)
    for kind in ShardingType:
        if kind in leave.types:
            yield from ((kind, shards) for shards in every[kind])


def _split(
    case: Case, table: Table, leave: Leave, kind: ShardingType, *, wide: bool
) -> Iterator[tuple[Shard, ...]]:
    """The shards of a type that cuts columns: on any ranks, on those of one host, or on hosts."""
    local, hosts = case.topology.local_world_size, range(case.topology.num_hosts)
    places: list[tuple[int, ...]]
    if kind is ShardingType.COLUMN_WISE:
        most, places, on = len(leave.ranks), [leave.ranks], _on_ranks
    elif kind is ShardingType.TABLE_COLUMN_WISE:
        near = [tuple(r for r in _ranks_of(h, local) if r in leave.ranks) for h in hosts]
        most, places, on = local, [ranks for ranks in near if ranks], _on_ranks
    else:
        most, places, on = len(leave.hosts), [leave.hosts] if leave.hosts else [], _on_hosts
    for widths in _cuts(case, table, leave, kind, most, wide):
        for some in places:
            yield from on(case, table, widths, some)


# ------------------------------------------------------------------ columns


def _cuts(
    case: Case, table: Table, leave: Leave, kind: ShardingType, most: int, wide: bool
) -> list[Widths]:
    """Widths of the column pieces: the menu's, that of the plan in use, and the wide ones."""
    dim, least = table.embedding_dim, leave.min_width
    unequal = kind is not ShardingType.GRID_SHARD
    cuts = list(documented_cuts(dim, least, most, unequal=unequal))
    given = _given_cut(case, table, kind)
    if given is not None and (len(given) == 1 or min(given) >= least):
        cuts.append(given)
    if wide:
        cuts += _wide_cuts(dim, least, most, in_order=case.limits_moves)
    return list(dict.fromkeys(cuts))


def documented_cuts(dim: int, least: int, most: int, *, unequal: bool = True) -> Iterator[Widths]:
    """One piece, every number of equal pieces, and a few numbers of pieces that differ by four."""
    yield (dim,)
    units, rest = divmod(dim, COLUMN_MULTIPLE)
    for count in range(2, most + 1):
        narrow, wider = divmod(units, count)
        if rest or narrow == 0 or narrow * COLUMN_MULTIPLE < least:
            continue
        if wider == 0 or (unequal and count in _UNEQUAL_COUNTS):
            parts = [narrow + 1] * wider + [narrow] * (count - wider)
            yield tuple(part * COLUMN_MULTIPLE for part in parts)


def _wide_cuts(dim: int, least: int, most: int, *, in_order: bool) -> Iterator[Widths]:
    """Any widths of few pieces, widest first unless their order counts; many equal pieces."""
    units, rest = divmod(dim, COLUMN_MULTIPLE)
    if rest:
        return
    least_units = max(1, math.ceil(least / COLUMN_MULTIPLE))
    for count in range(2, _MOST_UNEQUAL + 1):
        for head in itertools.product(range(least_units, units), repeat=count - 1):
            last = units - sum(head)
            parts = (*head, last)
            if last >= least_units and (in_order or list(parts) == sorted(parts, reverse=True)):
                yield tuple(part * COLUMN_MULTIPLE for part in parts)
    for count in range(2, 2 * most + 1):
        if units % count == 0 and units // count >= least_units:
            yield (dim // count,) * count


def _given_cut(case: Case, table: Table, kind: ShardingType) -> Widths | None:
    """Widths of the table's pieces in the plan in use, if it is cut by that type there."""
    if case.moves is None:
        return None
    given = case.moves.start.placement(table.name)
    if given.sharding_type is not kind:
        return None
    step = case.topology.local_world_size if kind is ShardingType.GRID_SHARD else 1
    return tuple(s.num_cols for s in given.shards[::step])


# ------------------------------------------------------------------ places


def _on_ranks(
    case: Case, table: Table, widths: Widths, ranks: Sequence[int]
) -> Iterator[tuple[Shard, ...]]:
    rows = (0, table.num_embeddings)
    spans = _spans(widths)
    for places in arrangements(widths, ranks):
        orders = _orders(widths, places) if case.limits_moves else [places]
        made = [
            tuple(_shard(r, rows, span) for r, span in zip(order, spans, strict=True))
            for order in orders
        ]
        yield _least_moved(case, table, ShardingType.COLUMN_WISE, made)


def _on_hosts(
    case: Case, table: Table, widths: Widths, hosts: Sequence[int]
) -> Iterator[tuple[Shard, ...]]:
    local = case.topology.local_world_size
    spans = _spans(widths)
    for places in arrangements(widths, hosts):
        orders = _orders(widths, places) if case.limits_moves else [places]
        made = [
            tuple(
                shard
                for host, span in zip(order, spans, strict=True)
                for shard in _blocks(table.num_embeddings, _ranks_of(host, local), span)
            )
            for order in orders
        ]
        yield _least_moved(case, table, ShardingType.GRID_SHARD, made)


def arrangements(widths: Widths, places: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Places of the pieces, up to exchanges of equally wide ones.

    Pieces of a table that share a place have to be equally wide.
    """
    positions: dict[int, list[int]] = {}
    for i, width in enumerate(widths):
        positions.setdefault(width, []).append(i)
    runs = [
        itertools.combinations_with_replacement(places, len(where)) for where in positions.values()
    ]
    for chosen in itertools.product(*runs):
        used = [set(part) for part in chosen]
        if sum(map(len, used)) > len(set().union(*used)):
            continue
        result = [0] * len(widths)
        for where, part in zip(positions.values(), chosen, strict=True):
            for i, place in zip(where, part, strict=True):
                result[i] = place
        yield tuple(result)


def _orders(widths: Widths, places: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All ways to hand the places of each width to its pieces."""
    positions: dict[int, list[int]] = {}
    for i, width in enumerate(widths):
        positions.setdefault(width, []).append(i)
    runs = [
        sorted(set(itertools.permutations([places[i] for i in where])))
        for where in positions.values()
    ]
    found = []
    for chosen in itertools.product(*runs):
        result = [0] * len(widths)
        for where, part in zip(positions.values(), chosen, strict=True):
            for i, place in zip(where, part, strict=True):
                result[i] = place
        found.append(tuple(result))
    return found


def _least_moved(
    case: Case, table: Table, kind: ShardingType, made: list[tuple[Shard, ...]]
) -> tuple[Shard, ...]:
    if len(made) == 1:
        return made[0]

    def received(shards: tuple[Shard, ...]) -> float:
        placement = TablePlacement(
            table=table.name, sharding_type=kind, kernel=ComputeKernel.FUSED, shards=shards
        )
        return received_bytes(case, placement)

    return min(made, key=received)


# ------------------------------------------------------------------ shards


def _shard(rank: int, rows: tuple[int, int], cols: tuple[int, int]) -> Shard:
    return Shard(
        rank=rank, row_offset=rows[0], num_rows=rows[1], col_offset=cols[0], num_cols=cols[1]
    )


def _blocks(rows: int, ranks: Iterable[int], cols: tuple[int, int]) -> tuple[Shard, ...]:
    """Blocks of ceil(rows / ranks), then what is left, then empty ones."""
    where = list(ranks)
    size = -(-rows // len(where))
    starts = [min(i * size, rows) for i in range(len(where) + 1)]
    return tuple(
        _shard(rank, (start, end - start), cols)
        for rank, start, end in zip(where, starts[:-1], starts[1:], strict=True)
    )


def _spans(widths: Widths) -> list[tuple[int, int]]:
    """(first column, columns) of each piece."""
    return [(sum(widths[:i]), width) for i, width in enumerate(widths)]


def _ranks_of(host: int, local: int) -> range:
    return range(host * local, (host + 1) * local)
