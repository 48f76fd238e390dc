"""Reads the shards of one entry of a plan file, or lays them out if the file has none."""

from __future__ import annotations

from collections.abc import Sequence

from costmodels.sharding import SPREAD, Shard, ShardingOption, ShardingType, Spread, place
from costmodels.workload import Table
from planner.errors import InvalidInputError
from planner.io.plan.plan_schema import ParameterSchema


def shards_of(
    entry: ParameterSchema,
    table: Table | None,
    world_size: int | None,
    local_world_size: int | None,
) -> Sequence[Shard]:
    """The shards as written, or as TorchRec lays them out on the ranks of the entry.

    Args:
        entry: one table of the file.
        table: the table with its shape, if the workload is known.
        world_size: number of ranks that the plan was made for, if known.
        local_world_size: ranks per host, if known.

    Raises:
        InvalidInputError: the shards contradict the list of ranks, or they are missing and cannot
            be computed.
    """
    if entry.shards:
        shards = tuple(
            Shard(
                rank=int(s.placement.removeprefix("rank:").split("/")[0]),
                row_offset=s.shard_offsets[0],
                num_rows=s.shard_sizes[0],
                col_offset=s.shard_offsets[1],
                num_cols=s.shard_sizes[1],
            )
            for s in entry.shards
        )
        placed = [s.rank for s in shards]
        if entry.ranks is not None and placed != entry.ranks:
            msg = f"ranks: value {entry.ranks[:8]}: must be those of the placements, {placed[:8]}"
            raise InvalidInputError(msg)
        return shards
    if table is None:
        msg = "has no shards; its shape is only known with the workload"
        raise InvalidInputError(msg)
    everywhere = SPREAD[entry.sharding_type] is Spread.UNIFORM
    all_ranks = list(range(world_size or 0)) if everywhere else []
    ranks = all_ranks if entry.ranks is None else entry.ranks
    return _laid_out(entry, table, ranks, local_world_size)


def _laid_out(
    entry: ParameterSchema, table: Table, ranks: list[int], local_world_size: int | None
) -> Sequence[Shard]:
    if not ranks:
        msg = "has neither shards nor ranks; give one of them"
        raise InvalidInputError(msg)
    kind = entry.sharding_type
    if kind is ShardingType.DATA_PARALLEL:
        rows, columns = table.num_embeddings, table.embedding_dim
        return tuple(
            Shard(rank=r, row_offset=0, num_rows=rows, col_offset=0, num_cols=columns)
            for r in ranks
        )
    if kind is ShardingType.TABLE_WISE and len(ranks) > 1:
        msg = f"ranks: value {ranks[:8]}: a table_wise table lives on one rank"
        raise InvalidInputError(msg)
    local, where = _places(kind, ranks, local_world_size)
    pieces = max(len(where), 1)
    width, rest = divmod(table.embedding_dim, pieces)
    if rest:
        msg = f"ranks: value {ranks[:8]}: {table.embedding_dim} columns are no multiple of {pieces}"
        raise InvalidInputError(msg)
    option = ShardingOption(
        table=table.name,
        sharding_type=kind,
        kernel=entry.compute_kernel,
        column_widths=(width,) * pieces,
        cache_load_factor_ratio=None if "caching" not in entry.compute_kernel else 0.5,
    )
    placed = place(
        option, table.num_embeddings, where, world_size=len(ranks), local_world_size=local
    )
    if list(placed.ranks) != ranks:
        msg = f"ranks: value {ranks[:8]}: {kind} needs {list(placed.ranks)[:8]}; give shards"
        raise InvalidInputError(msg)
    return placed.shards


def _places(
    kind: ShardingType, ranks: list[int], local_world_size: int | None
) -> tuple[int, tuple[int, ...]]:
    """Ranks per host, and the rank or host of each column piece."""
    if SPREAD[kind] is not Spread.HOSTS:
        return 1, tuple(ranks) if SPREAD[kind] is Spread.RANKS else ()
    local = len(ranks) if kind is ShardingType.TABLE_ROW_WISE else local_world_size
    if local is None:
        msg = "has no shards; which ranks share a host is not known, give local_world_size"
        raise InvalidInputError(msg)
    return local, tuple(rank // local for rank in ranks[::local])
