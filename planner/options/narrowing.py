"""Narrower rules, under which TorchRec runs every plan and computes what the module computes.

They exclude two kinds of plans of :mod:`planner.options.runtime_warnings`: those that cut some of
the mean-pooled tables of a module by rows and others not, and those that cut unpooled tables of a
module into column pieces of several widths. Rules are one :class:`TableConstraint` for each table,
in the workload's order.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping
from dataclasses import replace

from costmodels.sharding import Plan, ShardingType
from costmodels.workload import Pooling, Workload
from planner.options.runtime_warnings import NOT_DIVIDED, rows_change, tables_by_module
from planner.options.table_limits import table_limits
from planner.options.torchrec_rules import SUMS_ROWS
from planner.problem import PlanningProblem, TableConstraint

Rules = tuple[TableConstraint, ...]


def rules_of(problem: PlanningProblem) -> Rules:
    """What the constraints of a problem leave each table: sharding types, kernels and widths.

    Raises:
        InvalidInputError: in the cases of :func:`planner.options.table_limits.table_limits`.
    """
    return tuple(
        TableConstraint(
            pattern=glob.escape(limit.table.name),
            sharding_types=tuple(limit.kernels),
            pairs=tuple((t, kernel) for t, kernels in limit.kernels.items() for kernel in kernels),
            min_column_width=limit.min_column_width,
        )
        for limit in table_limits(problem)
    )


def without_types(rule: TableConstraint, dropped: Iterable[ShardingType]) -> TableConstraint | None:
    """The rule of a table without some sharding types; None if no type is left."""
    gone = set(dropped)
    left = tuple(t for t in rule.sharding_types if t not in gone)
    pairs = tuple(pair for pair in rule.pairs if pair[0] in left)
    return replace(rule, sharding_types=left, pairs=pairs) if left else None


def pooled_alike(workload: Workload, rules: Rules, *, by_rows: bool) -> Rules:
    """Rules that treat the mean-pooled tables of a module alike.

    With ``by_rows``, all tables of such a module are cut by rows; otherwise none of them is. A
    module whose rules do not allow this gets the other of the two, and a module whose rules allow
    neither keeps its rules.
    """
    found = dict(zip((t.name for t in workload.tables), rules, strict=True))
    for tables in tables_by_module(workload).values():
        if all(t.pooling is not Pooling.MEAN for t in tables):
            continue
        whole = [
            (t, without_types(found[t.name], SUMS_ROWS if t.pooling is Pooling.MEAN else ()))
            for t in tables
        ]
        changes = rows_change(tables)
        rows = [(t, None if changes else without_types(found[t.name], NOT_DIVIDED)) for t in tables]
        for way in (rows, whole) if by_rows else (whole, rows):
            left = {t.name: rule for t, rule in way if rule is not None}
            if len(left) == len(way):
                found |= left
                break
    return tuple(found.values())


def uncut_columns(workload: Workload, rules: Rules, modules: Iterable[str]) -> Rules:
    """Rules under which the columns of the unpooled tables of some modules are not cut.

    They do without ``column_wise``, because a whole table in the exchange of pieces is a piece too.
    A table whose rule allows nothing else keeps it, with one piece.
    """
    chosen = set(modules)
    return tuple(
        replace(
            without_types(rule, (ShardingType.COLUMN_WISE,)) or rule,
            min_column_width=table.embedding_dim,
        )
        if table.pooling is Pooling.NONE and table.module in chosen
        else rule
        for table, rule in zip(workload.tables, rules, strict=True)
    )


def pieces_of_one_width(
    workload: Workload, rules: Rules, plan: Plan, widths: Mapping[str, int]
) -> Rules:
    """Rules under which the column pieces of the unpooled tables of some modules are alike.

    Tables may have pieces of this width or wider ones. They lose ``column_wise`` if their columns
    are no multiple of the width, or if the plan has all columns in one piece of another width.

    Args:
        workload: the tables, with the module of each.
        rules: the rules to narrow. A table whose rule allows ``column_wise`` alone keeps it.
        plan: the plan that was found under these rules.
        widths: from the path of each module to the columns of one piece.
    """
    placements = {p.table: p for p in plan.placements}
    found = []
    for table, rule in zip(workload.tables, rules, strict=True):
        width = widths.get(table.module) if table.pooling is Pooling.NONE else None
        placed, columns = placements[table.name], table.embedding_dim
        is_one_piece = placed.sharding_type is ShardingType.COLUMN_WISE and len(placed.shards) == 1
        if width is None:
            found.append(rule)
        elif columns % width or (is_one_piece and columns != width):
            found.append(without_types(rule, (ShardingType.COLUMN_WISE,)) or rule)
        else:
            found.append(replace(rule, min_column_width=max(rule.min_column_width or 1, width)))
    return tuple(found)
