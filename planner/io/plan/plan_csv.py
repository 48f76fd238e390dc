"""Reads and writes plans as CSV: a row for each shard, or only the columns ``table`` and ``rank``.

In the short form a table on one rank is whole there; a table on several ranks is cut into as many
equal column pieces, in the order of its rows.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, Final

from costmodels.sharding import ComputeKernel, Plan, ShardingType
from planner.errors import refuse, refuse_any
from planner.io.documents import parse_scalar, read_text
from planner.support.files import csv_text, unguarded

_SHORT: Final = ("table", "rank")
_CELLS: Final = ("row_offset", "num_rows", "col_offset", "num_cols")
COLUMNS: Final = (
    "table", "sharding_type", "compute_kernel", "cache_load_factor", "rank", *_CELLS,
)  # fmt: skip


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


def ranks_csv(plan: Plan) -> str:
    """Table and rank of each shard, for plans that the short form can hold.

    Raises:
        InvalidInputError: names each table that is neither whole nor cut into equal column pieces,
            or not in device memory.
    """
    kinds = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)
    problems = [
        f"table {p.table!r}: {p.sharding_type} with kernel {p.kernel} and pieces of "
        f"{sorted({s.num_cols for s in p.shards})} columns is more than columns table and rank can "
        "say; use 'export csv', or plan with table_wise, column_wise and kernel fused"
        for p in plan.placements
        if p.sharding_type not in kinds
        or p.kernel is not ComputeKernel.FUSED
        or len({s.num_cols for s in p.shards}) > 1
    ]
    refuse_any(problems)
    return csv_text(_SHORT, [(p.table, s.rank) for p in plan.placements for s in p.shards])


def read_plan_csv(path: Path) -> dict[str, Any]:
    """The values of a plan file, from CSV with either set of columns.

    Raises:
        InvalidInputError: a column is unknown or missing, or a cell is no number.
    """
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    tables: dict[str, dict[str, Any]] = {}
    try:
        columns = tuple(name.strip() for name in reader.fieldnames or ())
        reader.fieldnames = list(columns)
        if set(columns) not in (set(_SHORT), set(COLUMNS)) or len(set(columns)) < len(columns):
            refuse(
                f"{path}:1: columns {', '.join(columns) or 'none'}: a plan has table and rank, or "
                f"{', '.join(COLUMNS)}"
            )
        for row in reader:
            _add(tables, row, f"{path}:{reader.line_num}", is_short=len(columns) == len(_SHORT))
    except csv.Error as error:
        refuse(f"{path}:{reader.line_num}: not well-formed CSV: {error}")
    for entry in tables.values():
        if "sharding_type" not in entry:
            is_whole = len(entry["ranks"]) == 1
            kind = ShardingType.TABLE_WISE if is_whole else ShardingType.COLUMN_WISE
            entry |= {"sharding_type": kind.value, "compute_kernel": ComputeKernel.FUSED.value}
    return {"plan": {"": tables}}


def _add(
    tables: dict[str, dict[str, Any]], row: dict[Any, Any], where: str, *, is_short: bool
) -> None:
    if None in row or None in row.values():
        refuse(f"{where}: has more or fewer cells than the first line has columns")
    name = unguarded(row["table"])
    numbers = {key: _whole(row[key], f"{where}: {key}") for key in ("rank", *_CELLS) if key in row}
    if is_short:
        tables.setdefault(name, {"ranks": []})["ranks"].append(numbers["rank"])
        return
    said = {key: row[key] for key in ("sharding_type", "compute_kernel")}
    if row["cache_load_factor"]:
        said["cache_load_factor"] = parse_scalar(row["cache_load_factor"])
    entry = tables.setdefault(name, {**said, "shards": []})
    if {key: entry[key] for key in said} != said:
        refuse(f"{where}: table {name!r} has another type, kernel or cache above; keep one")
    rows, num_rows, cols, num_cols = (numbers[key] for key in _CELLS)
    shard = {
        "shard_offsets": [rows, cols],
        "shard_sizes": [num_rows, num_cols],
        "placement": f"rank:{numbers['rank']}/cuda:{numbers['rank']}",
    }
    entry["shards"].append(shard)


def _whole(text: str, where: str) -> int:
    if not (text.isascii() and text.strip().isdigit() and len(text) < 19):
        refuse(f"{where}: value {text[:40]!r}: must be a whole number")
    return int(text)
