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
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from costmodels.sharding import ComputeKernel, Shard, ShardingType, Shards, TablePlacement
from costmodels.workload import Table
from tests.differential.case import COLUMN_MULTIPLE, Case, Leave, leave_of, received_bytes

Widths = tuple[int, ...]
Choose = Callable[[Widths, Sequence[int]], Iterable[tuple[int, ...]]]
"""The arrangements of pieces on places that are looked at."""

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
    """All placements of one table, by every name that they can have; those asked for are kept.

    Pieces of one width are interchangeable, so only one of their orders is listed: under a limit on
    what moves the one that receives least, else any.

    Args:
        case: the question.
        table: one of its tables.
        wide: also any widths of up to three pieces, and more pieces than ranks or hosts.
        few: at most so many ways to cut and place it, drawn at random beside the plainest ones.
    """
    return list(_placements(case, table, wide=wide, few=few))


@lru_cache(maxsize=256)
def _placements(
    case: Case, table: Table, *, wide: bool, few: int | None
) -> tuple[TablePlacement, ...]:
    leave = leave_of(case, table)
    choose = arrangements if few is None else _Some(few, table.num_embeddings)
    ways = list(_cut_and_placed(case, table, leave, choose, wide=wide))
    if few is not None and len(ways) > few:
        split = [w for w in ways if w[0] in _SPLIT]
        rest = [w for w in ways if w[0] not in _SPLIT]
        ways = rest + split[:: max(1, len(split) // few)]
    found = [
        _placement(table, kind, shards, kernel, factor)
        for kind, cut in ways
        for shards in (Shards.of(cut),)
        for kernel, factor in _kernels(kind, leave)
    ]
    every = dict.fromkeys([*found, *_in_use(case, table, leave)])
    return tuple(p for p in every if (p.sharding_type, p.kernel) in leave.pairs)


@lru_cache(maxsize=256)
def num_placements(case: Case, table: Table) -> int:
    """How many :func:`placements` there are; without a plan in use none of them is made for it."""
    if case.moves is not None:
        return len(_placements(case, table, wide=False, few=None))
    leave = leave_of(case, table)
    kernels = {
        kind: sum((kind, kernel) in leave.pairs for kernel, _ in _kernels(kind, leave))
        for kind in leave.types
    }
    ways = _cut_and_placed(case, table, leave, arrangements, wide=False)
    return sum(kernels[kind] for kind, _ in ways)


def _placement(
    table: Table,
    kind: ShardingType,
    shards: Sequence[Shard],
    kernel: ComputeKernel,
    factor: float | None,
) -> TablePlacement:
    return TablePlacement(
        table=table.name,
        sharding_type=kind,
        kernel=kernel,
        shards=shards,
        cache_load_factor_ratio=factor,
    )


def _in_use(case: Case, table: Table, leave: Leave) -> Iterator[TablePlacement]:
    """The cut and kernel of the plan in use, on any places, as far as the constraints allow it.

    It may go by every name that means the same shards (:func:`_same_shards`).
    """
    if case.moves is None:
        return
    given = case.moves.start.placement(table.name)
    factor = given.cache_load_factor_ratio
    barred = factor is not None and leave.names_factors and factor not in leave.factors
    if given.kernel not in leave.kernels or barred:
        return
    step = case.topology.local_world_size if given.sharding_type is ShardingType.GRID_SHARD else 1
    widths = tuple(s.num_cols for s in given.shards[::step])
    for kind in _same_shards(case, given.sharding_type):
        if kind not in leave.types:
            continue
        if kind not in _SPLIT:
            for other, shards in _cut_and_placed(case, table, leave, arrangements, wide=False):
                if other is kind:
                    yield _placement(table, kind, shards, given.kernel, factor)
        elif len(widths) == 1 or min(widths) >= leave.min_width:
            for shards in _split(case, table, leave, kind, [widths], arrangements):
                yield _placement(table, kind, shards, given.kernel, factor)


def _same_shards(case: Case, kind: ShardingType) -> list[ShardingType]:
    """Types that cut a table as ``kind`` does, so that a plan may call the shards by their name.

    On hosts of one rank a grid has column pieces of one block; on one host all pieces are on it.
    """
    equal = [
        {ShardingType.COLUMN_WISE, ShardingType.GRID_SHARD}
        if case.topology.local_world_size == 1
        else set[ShardingType](),
        {ShardingType.COLUMN_WISE, ShardingType.TABLE_COLUMN_WISE}
        if case.topology.num_hosts == 1
        else set[ShardingType](),
    ]
    return [t for t in ShardingType if t is kind or any({t, kind} <= pair for pair in equal)]


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
    case: Case, table: Table, leave: Leave, choose: Choose, *, wide: bool
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
            cuts = _cuts(case, table, leave, kind, wide=wide)
            every[kind] = _split(case, table, leave, kind, cuts, choose)
    for kind in ShardingType:
        if kind in leave.types:
            yield from ((kind, shards) for shards in every[kind])


def _split(
    case: Case,
    table: Table,
    leave: Leave,
    kind: ShardingType,
    cuts: Iterable[Widths],
    choose: Choose,
) -> Iterator[tuple[Shard, ...]]:
    """The shards of a type that cuts columns: on any ranks, on those of one host, or on hosts."""
    local, hosts = case.topology.local_world_size, range(case.topology.num_hosts)
    places: list[tuple[int, ...]] = [leave.ranks]
    on = _on_hosts if kind is ShardingType.GRID_SHARD else _on_ranks
    if kind is ShardingType.GRID_SHARD:
        places = [leave.hosts]
    elif kind is ShardingType.TABLE_COLUMN_WISE:
        places = [tuple(r for r in _ranks_of(h, local) if r in leave.ranks) for h in hosts]
    for widths in cuts:
        for some in places:
            for where in choose(widths, some):
                orders = _orders(widths, where) if case.limits_moves else [where]
                made = [on(case, table, widths, order) for order in orders]
                yield _least_moved(case, table, made)


# ------------------------------------------------------------------ columns


def _cuts(
    case: Case, table: Table, leave: Leave, kind: ShardingType, *, wide: bool
) -> list[Widths]:
    """Widths of the column pieces: no more than there are ranks, or hosts, unless ``wide``."""
    most = {
        ShardingType.COLUMN_WISE: case.topology.world_size,
        ShardingType.TABLE_COLUMN_WISE: case.topology.local_world_size,
        ShardingType.GRID_SHARD: case.topology.num_hosts,
    }[kind]
    dim, least = table.embedding_dim, leave.min_width
    cuts = list(documented_cuts(dim, least, most))
    if wide:
        cuts += _wide_cuts(dim, least, most, in_order=case.limits_moves)
    return list(dict.fromkeys(cuts))


def documented_cuts(dim: int, least: int, most: int) -> Iterator[Widths]:
    """One piece, and every number of equal pieces of a multiple of four columns."""
    yield (dim,)
    for count in range(2, most + 1):
        width = dim // count
        if width >= least and width * count == dim and width % COLUMN_MULTIPLE == 0:
            yield (width,) * count


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


# ------------------------------------------------------------------ places


class _Some:
    """A few arrangements, drawn at random."""

    def __init__(self, few: int, seed: int) -> None:
        self._few = few
        self._rng = np.random.default_rng(seed)

    def __call__(self, widths: Widths, places: Sequence[int]) -> list[tuple[int, ...]]:
        if math.comb(len(widths) + len(places) - 1, len(widths)) <= self._few:
            return list(arrangements(widths, places))
        drawn = [
            tuple(int(p) for p in self._rng.choice(places, size=len(widths)))
            for _ in range(self._few)
        ]
        return [d for d in dict.fromkeys(drawn) if _may_share(widths, d)]


def _may_share(widths: Widths, places: Sequence[int]) -> bool:
    """Whether pieces on one place are equally wide."""
    found: dict[int, int] = {}
    return all(found.setdefault(p, w) == w for p, w in zip(places, widths, strict=True))


def _on_ranks(
    case: Case, table: Table, widths: Widths, ranks: tuple[int, ...]
) -> tuple[Shard, ...]:
    rows = (0, table.num_embeddings)
    pairs = zip(ranks, _spans(widths), strict=True)
    return tuple(_shard(rank, rows, span) for rank, span in pairs)


def _on_hosts(
    case: Case, table: Table, widths: Widths, hosts: tuple[int, ...]
) -> tuple[Shard, ...]:
    local = case.topology.local_world_size
    return tuple(
        shard
        for host, span in zip(hosts, _spans(widths), strict=True)
        for shard in _blocks(table.num_embeddings, _ranks_of(host, local), span)
    )


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


def _least_moved(case: Case, table: Table, made: list[tuple[Shard, ...]]) -> tuple[Shard, ...]:
    if len(made) == 1:
        return made[0]

    def received(shards: tuple[Shard, ...]) -> float:
        kind, kernel = ShardingType.COLUMN_WISE, ComputeKernel.FUSED
        return received_bytes(case, _placement(table, kind, shards, kernel, None))

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
