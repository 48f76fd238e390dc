"""Imports the tables of a TorchRec plan: shards give the shapes, everything else is assumed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from costmodels.sharding import ComputeKernel, ShardingType, TablePlacement, check_tiling
from costmodels.workload import Table
from planner.errors import refuse, refuse_any
from planner.io.importers.base import (
    DEFAULT_BATCH,
    MAX_COLUMNS,
    MAX_ROWS,
    Imported,
    imported_of,
    plain_table,
)
from planner.io.plan.plan_file import ParameterSchema, entries_of, read_plan_schema, shards_of
from planner.io.schemas import collect

Shape = tuple[int, int]

_ASSUMED: Final = {
    "tables": "one feature per table with 1 index per sample, fp32, sum pooling, uniform indices; "
    "a plan says none of it",
    "training.optimizer": "a plan does not name it",
    "dense": "none, for a plan does not hold the dense part",
}


def import_torchrec_plan(path: Path, shapes: Mapping[str, Shape] | None = None) -> Imported:
    """The workload that a TorchRec plan was made for, as far as the plan says it.

    Args:
        path: the plan, in TorchRec's form or as ``plan.json``.
        shapes: rows and columns of tables without shards in the plan, by name. TorchRec writes no
            shards for replicated tables.

    Raises:
        InvalidInputError: the file is not a plan, a table has neither shards nor a shape, shards do
            not cover their table, or there are shapes for tables that are not in the plan.
    """
    given = dict(shapes or {})
    schema = read_plan_schema(path)
    problems: list[str] = []
    tables: list[Table] = []
    for (module, _), name, entry, _ in entries_of(schema):
        build = partial(_table, name, module, entry, given.pop(name, None))
        table = collect(problems, f"{path}", build)
        tables += [table] if table is not None else []
    problems += [f"--shape {name}: the plan has no such table" for name in given]
    if not tables and not problems:
        problems = [f"{path}: plan: holds no tables"]
    refuse_any(problems)
    batch = schema.batch_size_per_rank
    assumed = dict(_ASSUMED)
    if batch is None:
        assumed["training.batch_size_per_rank"] = f"{DEFAULT_BATCH}; a plan does not say it"
    values = {
        "name": schema.workload or path.stem,
        "tables": tables,
        "batch_size_per_rank": batch or DEFAULT_BATCH,
    }
    source = f"the TorchRec plan {path.name}"
    return imported_of(str(path), source, values, assumed=assumed, law_is_known=False)


def _table(name: str, module: str, entry: ParameterSchema, given: Shape | None) -> Table:
    """One table; shards with holes are refused, because the shape read from them would be wrong."""
    rows, columns = _shape(name, entry, given)
    for what, value, most in (("rows", rows, MAX_ROWS), ("columns", columns, MAX_COLUMNS)):
        if not 1 <= value <= most:
            refuse(f"table {name!r}: value {value} {what}: must be 1 to {most}")
    table = plain_table(name, rows, columns, [(name, 1.0)], module=module)
    if entry.shards:
        replicated = entry.sharding_type is ShardingType.DATA_PARALLEL
        placement = TablePlacement(
            table=name,
            sharding_type=entry.sharding_type,
            kernel=ComputeKernel.DENSE if replicated else ComputeKernel.FUSED,
            shards=shards_of(entry, table, None, None),
        )
        check_tiling(placement, rows, columns)
    return table


def _shape(name: str, entry: ParameterSchema, given: Shape | None) -> Shape:
    if not entry.shards:
        if given is None:
            refuse(
                f"table {name!r}: has no shards, so that its shape is not known; give it with "
                f"--shape {name}=ROWSxCOLUMNS"
            )
        return given
    ends = [
        [a + n for a, n in zip(s.shard_offsets, s.shard_sizes, strict=True)] for s in entry.shards
    ]
    rows, columns = (max(end[axis] for end in ends) for axis in (0, 1))
    if given is not None and given != (rows, columns):
        refuse(f"table {name!r}: shape {given} was given, its shards cover {(rows, columns)}")
    return rows, columns
