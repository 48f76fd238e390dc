"""Recognises the option in a placement that somebody else made."""

from __future__ import annotations

from costmodels.sharding import SPREAD, ShardingOption, ShardingType, Spread, TablePlacement, place
from costmodels.workload import Table


def option_of(
    placement: TablePlacement, table: Table, *, world_size: int, local_world_size: int
) -> ShardingOption | None:
    """The option that a placement has, whatever its places; None if no option cuts a table so."""
    option = ShardingOption(
        table=table.name,
        sharding_type=placement.sharding_type,
        kernel=placement.kernel,
        column_widths=_widths(placement, placement.sharding_type, table, local_world_size),
        cache_load_factor_ratio=placement.cache_load_factor_ratio,
    )
    step = local_world_size if option.spread is Spread.HOSTS else 1
    places = tuple(r // step for r in placement.ranks[::step])
    places = () if option.is_uniform else places
    if len(places) != option.num_pieces:
        return None
    same = place(
        option,
        table.num_embeddings,
        places,
        world_size=world_size,
        local_world_size=local_world_size,
    )
    return option if same.shards == placement.shards else None


def _widths(
    placement: TablePlacement, kind: ShardingType, table: Table, local_world_size: int
) -> tuple[int, ...]:
    uniform = kind in (ShardingType.DATA_PARALLEL, ShardingType.ROW_WISE)
    if uniform or not placement.shards:
        return (table.embedding_dim,)
    step = local_world_size if SPREAD[kind] is Spread.HOSTS else 1
    return tuple(s.num_cols for s in placement.shards[::step])
