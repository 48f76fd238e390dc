"""Every shard of a plan as a row of CSV."""

from __future__ import annotations

import csv
import io

from costmodels.sharding import Plan

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
    """Rows in the plan's order, shards in theirs; columns as in :data:`COLUMNS`."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for placement in plan.placements:
        factor = placement.cache_load_factor_ratio
        for shard in placement.shards:
            writer.writerow(
                (
                    placement.table,
                    placement.sharding_type.value,
                    placement.kernel.value,
                    "" if factor is None else factor,
                    shard.rank,
                    shard.row_offset,
                    shard.num_rows,
                    shard.col_offset,
                    shard.num_cols,
                )
            )
    return buffer.getvalue()
