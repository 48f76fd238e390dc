"""Plans under which TorchRec computes other means than the module does.

Row-wise shards of a mean-pooled table send sums, and TorchRec divides the whole output of the
module by the lengths of its bags: also the columns of tables that are not cut by rows, whose means
are then divided twice. Sums of tables that are not cut by rows are divided as well, and means of
``grid_shard`` are not divided unless another table is. With weights a row-wise mean is divided by
the sum of the weights, and every other mean by the number of indices. (TorchRec 1.8,
``embeddingbag.py``; seen in runs.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from costmodels.sharding import Plan, ShardingType
from costmodels.workload import DataType, Pipeline, Pooling, Table, Workload
from planner.options.torchrec_rules import SUMS_ROWS

_DIVIDED: Final = (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE)
"""Types for which TorchRec knows that a mean was sent as a sum."""

NOT_DIVIDED: Final = tuple(t for t in ShardingType if t not in _DIVIDED)
"""The others, and ``grid_shard``."""


def module_problem(tables: Iterable[tuple[Table, ShardingType]]) -> str:
    """Why a plan changes what a module computes; nothing if it does not.

    Args:
        tables: of one module, each with its sharding type.
    """
    chosen = list(tables)
    means = [(t, kind) for t, kind in chosen if t.pooling is Pooling.MEAN]
    cut = [t.name for t, kind in means if kind in SUMS_ROWS]
    others = [t.name for t, kind in chosen if kind not in _DIVIDED]
    reasons = [rows_change(t) for t, _ in means]
    if not cut or not (others or any(reasons)):
        return ""
    why = (
        f"and tables {others[:5]} of the same module are not: TorchRec then divides by the number "
        "of indices too often"
        if others
        else max(reasons)
    )
    return f"mean-pooled tables {cut[:5]} are cut by rows, {why}"


def pooling_problems(plan: Plan, workload: Workload) -> list[str]:
    """One line for each module of which a plan changes what it computes."""
    types = {p.table: p.sharding_type for p in plan.placements}
    found = [
        module_problem([(t, types[t.name]) for t in tables if t.name in types])
        for tables in tables_by_module(workload).values()
    ]
    return [line for line in found if line]


def pooling_warnings(plan: Plan, workload: Workload) -> tuple[str, ...]:
    """What to say of a plan under which TorchRec computes other means; HugeCTR does not."""
    if workload.pipeline is Pipeline.HUGECTR:
        return ()
    return tuple(
        f"under this plan TorchRec computes another model: {problem}; cut all tables of the module "
        "by rows (row_wise, table_row_wise) or no mean-pooled one"
        for problem in pooling_problems(plan, workload)
    )


def rows_change(table: Table) -> str:
    """Why the mean of row blocks is another number, whatever becomes of the other tables."""
    if table.pooling is not Pooling.MEAN:
        return ""
    if table.is_weighted:
        return "and have weights: TorchRec then divides by the sum of the weights"
    if table.dtype is DataType.INT8:
        return "and quantized: TorchRec then adds the means of the blocks"
    return ""


def tables_by_module(workload: Workload) -> dict[str, list[Table]]:
    """Pooled tables of each module, in the workload's order."""
    found: dict[str, list[Table]] = {}
    for table in workload.tables:
        if table.pooling is not Pooling.NONE:
            found.setdefault(table.module, []).append(table)
    return found
