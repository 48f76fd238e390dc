"""Writes every shard of a plan as a row of CSV."""

from __future__ import annotations

from costmodels.sharding import Plan
from planner.support.csv_text import csv_text

COLUMNS = (
    "table",
    "sharding_type",
    "compute_kernel",
    "cache_load_factor",
    "rank",
    "row_offset",
    "num_rows",
    "col_offset",
    "num_cols",
)


def shards_csv(plan: Plan) -> str:
    """The shards of all tables in the plan's order, with the columns of :data:`COLUMNS`."""
    rows = [
        (
            placement.table,
            placement.sharding_type.value,
            placement.kernel.value,
            placement.cache_load_factor_ratio,
            shard.rank,
            shard.row_offset,
            shard.num_rows,
            shard.col_offset,
            shard.num_cols,
        )
        for placement in plan.placements
        for shard in placement.shards
    ]
    return csv_text(COLUMNS, rows)
