"""Ways to cut a table, without kernels and places.

Some sharding types can give the same shards: a whole table on one rank is ``table_wise``,
``column_wise`` with one piece, and ``table_column_wise`` with one piece. Each of these names has
collectives of its own, and two collectives never take less time than one with the bytes of both.
If every table may have the most general name of such a group, only that name is listed
(:func:`names_to_list`). Bounds hold for the other names as well, because they price the group by a
subadditive model, and without the slow-down of compute beside communication, which more names can
make smaller. Otherwise every name is listed for every table that may have it.

Two more kinds of cuts are left out: those with more column pieces than there are ranks (or hosts),
and those with pieces of unequal widths, which TorchRec trains but cannot load from a checkpoint
(:mod:`planner.options.torchrec_rules`). A table that may use only some of the ranks is cut into
as many pieces as any other, because two pieces on one rank do not cost the same as one.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from costmodels.pipeline import CostPipeline
from costmodels.shard_work.cells import OptionWork
from costmodels.sharding import Plan, ShardingOption, ShardingType
from costmodels.torchrec_estimates import MIN_COLUMN_WIDTH
from costmodels.workload import Pooling, Workload
from planner.errors import StoppedError, refuse
from planner.options.table_limits import TableLimits, table_limits
from planner.options.torchrec_rules import (
    COLUMN_MULTIPLE,
    NOT_DIVIDED,
    SUMS_ROWS,
    rows_change,
    tables_by_module,
)
from planner.problem import PlanningProblem, TableConstraint

ColumnSplit = tuple[ShardingType, tuple[int, ...]]
"""Sharding type and widths of the column pieces."""

PLAIN_NAMES: Final = {
    ShardingType.COLUMN_WISE: ShardingType.TABLE_WISE,
    ShardingType.GRID_SHARD: ShardingType.TABLE_ROW_WISE,
}
"""For each general type its plain name, which it has in a plan if it splits no columns."""


Names = Mapping[ShardingType, ShardingType]
"""From each type that is not listed to the type that is listed in its place."""


def names_to_list(limits: Sequence[TableLimits], alike: Sequence[Sequence[ShardingType]]) -> Names:
    """Choose which of several sharding types that give the same shards are listed.

    A type stands for another one if it leaves every table the kernels that the other leaves it.

    Args:
        limits: what constraints leave to every table.
        alike: groups of types that cost the same for the same shards, the most general one first.
    """
    stands_for: dict[ShardingType, ShardingType] = {}
    for general, *others in alike:
        users = [limit for limit in limits if any(t in limit.kernels for t in (general, *others))]
        if general in stands_for or not all(general in limit.kernels for limit in users):
            continue
        for other in others:
            pairs = ((x.kernels.get(other, ()), x.kernels.get(general, ())) for x in users)
            if all(set(theirs) <= set(own) for theirs, own in pairs):
                stands_for.setdefault(other, general)
    return stands_for


def table_cuts(problem: PlanningProblem, limit: TableLimits, names: Names) -> Iterator[ColumnSplit]:
    """Sharding types with column widths; the module says which cuts are left out.

    Args:
        problem: tables and ranks.
        limit: what constraints leave to the table.
        names: the sharding types under which cuts are listed.
    """
    topology = problem.topology
    most_pieces = {
        ShardingType.COLUMN_WISE: topology.world_size,
        ShardingType.TABLE_COLUMN_WISE: topology.local_world_size,
        ShardingType.GRID_SHARD: topology.num_hosts,
    }
    for kind in ShardingType:
        if kind in limit.kernels and kind not in names:
            most, dim = most_pieces.get(kind, 1), limit.table.embedding_dim
            for widths in column_splits(dim, limit.min_column_width, most):
                yield kind, widths


def column_splits(dim: int, min_width: int, most: int) -> Iterator[tuple[int, ...]]:
    """Column widths of 1 to ``most`` equal pieces: multiples of 4, at least ``min_width`` wide."""
    yield (dim,)
    for count in range(2, min(most, dim // COLUMN_MULTIPLE) + 1):
        width, rest = divmod(dim, count)
        if width < min_width:
            return
        if not rest and width % COLUMN_MULTIPLE == 0:
            yield (width,) * count


def torchrec_widths(dim: int, min_width: int) -> tuple[int, ...]:
    """TorchRec's cut of ``dim`` columns: the narrowest equal pieces that its rule allows.

    Multiples of 4 that divide the columns and are no narrower than 128, or than ``min_width``.
    """
    least = max(min_width, MIN_COLUMN_WIDTH)
    widths = range(least + -least % COLUMN_MULTIPLE, dim, COLUMN_MULTIPLE)
    width = next((w for w in widths if dim % w == 0), dim)
    return (width,) * (dim // width)


# ------------------ work
#
# The work of all options, counted for many tables in one call.

ListingProgress = Callable[[int, int], None]
"""Called with how many of how many tables are done."""

_AT_ONCE: Final = 4096
"""How many options are counted in one call; more would take gigabytes if all ranks differ."""


def priced(
    pipeline: CostPipeline,
    options: Sequence[Sequence[ShardingOption]],
    *,
    progress: ListingProgress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> list[tuple[OptionWork, ...]]:
    """Count the work of every option of every table.

    Args:
        pipeline: counts the work.
        options: the options of each table.
        progress: called after each part with the number of tables done and of all tables.
        should_stop: called before each part; True ends the counting.

    Raises:
        StoppedError: ``should_stop`` was True.
    """
    works: list[tuple[OptionWork, ...]] = []
    part: list[ShardingOption] = []
    for number, table in enumerate(options, start=1):
        part += table
        if len(part) < _AT_ONCE and number < len(options):
            continue
        if should_stop is not None and should_stop():
            msg = f"stopped while options of tables were listed, {len(works):,} of {len(options):,}"
            raise StoppedError(msg)
        found, part = iter(pipeline.options_work(part)), []
        works += [tuple(next(found) for _ in own) for own in options[len(works) : number]]
        if progress is not None:
            progress(number, len(options))
    return works


# ------------------ global batch
#
# From the samples of a step over all ranks to those of one micro-batch of one rank.


def rank_batch(samples: int, workload: Workload, num_ranks: int) -> float:
    """Samples of one micro-batch of one rank, if a step has ``samples`` over all ranks.

    Raises:
        InvalidInputError: ranks and micro-batches cannot share the samples evenly.
    """
    parts, count = num_ranks * workload.gradient_accumulation, workload.gradient_accumulation
    shared = samples * workload.tensor_parallel
    if shared < parts or shared % parts:
        micro = f" times {count} micro-batches (gradient_accumulation)" if count > 1 else ""
        ranks = f"{num_ranks} ranks"
        if workload.tensor_parallel > 1:
            ranks += f" over {workload.tensor_parallel} (tensor_parallel)"
        refuse(f"--global-batch-size {samples} is not a multiple of {ranks}{micro}")
    return samples / parts


# ------------------ narrowing
#
# Narrower rules, under which TorchRec runs every plan and computes what the module computes.
#
# They exclude two kinds of plans of :mod:`planner.options.torchrec_rules`: those that cut some of
# the mean-pooled tables of a module by rows and others not, and those that cut unpooled tables of a
# module into column pieces of several widths. Rules are one :class:`TableConstraint` for each
# table, in the workload's order.

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
