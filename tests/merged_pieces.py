"""Column pieces of a table that share a rank must be equally wide; those that are not are merged.

TorchRec holds all pieces of a table on one rank as one tensor of one width
(``TableBatchedEmbeddingSlice``) and fails to build it from others. It costs nothing which columns a
piece holds, so pieces of a rank can stand side by side and be one.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from costmodels.sharding import SPREAD, Plan, Shard, Spread, TablePlacement


def merged_pieces(plan: Plan) -> Plan:
    """The plan with unequal pieces of one table on one rank (or host) made into one piece."""
    if not any(_is_unequal(p) for p in plan.placements):
        return plan
    return Plan(placements=tuple(_merged(p) if _is_unequal(p) else p for p in plan.placements))


def _is_unequal(placement: TablePlacement) -> bool:
    if SPREAD[placement.sharding_type] is Spread.UNIFORM:
        return False
    widths: dict[int, int] = {}
    return any(widths.setdefault(s.rank, s.num_cols) != s.num_cols for s in placement.shards)


def _merged(placement: TablePlacement) -> TablePlacement:
    columns = [tuple(shards) for _, shards in groupby(placement.shards, key=lambda s: s.col_offset)]
    widths: dict[tuple[int, ...], int] = {}
    for shards in columns:
        ranks = tuple(s.rank for s in shards)
        widths[ranks] = widths.get(ranks, 0) + shards[0].num_cols
    rows = [(s.row_offset, s.num_rows) for s in columns[0]]
    made: list[Shard] = []
    offset = 0
    for ranks, width in widths.items():
        made += [
            Shard(rank=r, row_offset=at, num_rows=n, col_offset=offset, num_cols=width)
            for r, (at, n) in zip(ranks, rows, strict=True)
        ]
        offset += width
    return replace(placement, shards=tuple(made))
