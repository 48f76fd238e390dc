"""Plans that TorchRec cannot run, or under which it computes another model.

**Means.** Row-wise shards of a mean-pooled table send sums. TorchRec then divides the whole output
of the module by the lengths of its bags. This goes wrong in several ways:

- The columns of mean-pooled tables that are not cut by rows are divided too, a second time.
- Those of sum-pooled tables that are not cut by rows are divided although they are sums.
- The sums of ``grid_shard`` are not divided unless another table of the module is.
- With weights, a row-wise mean is divided by the sum of the weights, and every other mean by the
  number of indices.
- TorchRec decides by feature what is divided. A feature that a sum-pooled table shares with another
  table is divided in the wrong places.

(TorchRec 1.8, ``_create_mean_pooling_divisor`` of ``embeddingbag.py``; seen in runs.)

**Unequal pieces** train, but cannot load a checkpoint. When TorchRec loads a state, it takes the
width of a table's first piece for the width of all its pieces (1.8, ``_pre_load_state_dict_hook``
of ``embeddingbag.py`` and ``embedding.py``; seen in runs). On ranks with a piece of another width
the job then ends with an error about shapes. TorchRec's own planner cuts columns only into equal
pieces.

**Widths of unpooled tables.** The ``column_wise`` tables of one ``EmbeddingCollection`` share one
exchange, and on each rank one fused lookup. In the exchange, TorchRec takes the width of a rank's
vectors for the width on all ranks (``comm_ops.py``, ``alltoall_sequence``); FBGEMM's unpooled
lookup has only one width. With pieces of two widths the job therefore fails when the model is
sharded, or in its first forward pass. (TorchRec 1.8; seen in runs.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from costmodels.sharding import Plan, ShardingType
from costmodels.workload import DataType, Pipeline, Pooling, Table, Workload
from planner.options.torchrec_rules import SUMS_ROWS

_DIVIDED: Final = (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE)
"""The sharding types for which TorchRec divides sums to make means of them."""

NOT_DIVIDED: Final = tuple(t for t in ShardingType if t not in _DIVIDED)
"""The other sharding types. Their shards send means, except those of ``grid_shard``, which send
sums."""


def module_problem(tables: Iterable[tuple[Table, ShardingType]]) -> str:
    """Why a plan changes what a module computes; empty if it does not.

    Args:
        tables: the tables of one module, each with its sharding type.
    """
    chosen = list(tables)
    means = [(t, kind) for t, kind in chosen if t.pooling is Pooling.MEAN]
    cut = [t.name for t, kind in means if kind in SUMS_ROWS]
    others = [t.name for t, kind in chosen if kind not in _DIVIDED]
    reason = rows_change([t for t, _ in chosen])
    if not cut or not (others or reason):
        return ""
    why = (
        f"and tables {others[:5]} of the same module are not: TorchRec then divides by the number "
        "of indices too often"
        if others
        else reason
    )
    return f"mean-pooled tables {cut[:5]} are cut by rows, {why}"


def pooling_problems(plan: Plan, workload: Workload) -> list[str]:
    """One line for each module that computes something else under a plan."""
    types = {p.table: p.sharding_type for p in plan.placements}
    found = [
        module_problem([(t, types[t.name]) for t in tables if t.name in types])
        for tables in tables_by_module(workload).values()
    ]
    return [line for line in found if line]


def rows_change(tables: Iterable[Table]) -> str:
    """Why a module computes other numbers even if all its tables are cut by rows; else empty.

    Args:
        tables: the tables of the module.
    """
    chosen = list(tables)
    means = [t for t in chosen if t.pooling is Pooling.MEAN]
    if not means:
        return ""
    if any(t.is_weighted for t in means):
        return "and have weights: TorchRec then divides by the sum of the weights"
    if any(t.dtype is DataType.INT8 for t in means):
        return "and quantized: TorchRec then adds the means of the blocks"
    if shared := _shared_with_sums(chosen):
        return (
            f"and sum-pooled tables of the same module share features {shared[:5]} with others: "
            "TorchRec then divides these sums as well, or does not divide these means"
        )
    return ""


def _shared_with_sums(tables: Iterable[Table]) -> list[str]:
    """Features that several tables of a module read, of which at least one pools by sum."""
    readers: dict[str, list[Table]] = {}
    for table in tables:
        for feature in table.features:
            readers.setdefault(feature.name, []).append(table)
    return [
        name
        for name, found in readers.items()
        if len(found) > 1 and any(t.pooling is Pooling.SUM for t in found)
    ]


def tables_by_module(workload: Workload) -> dict[str, list[Table]]:
    """Pooled tables of each module, in the workload's order."""
    found: dict[str, list[Table]] = {}
    for table in workload.tables:
        if table.pooling is not Pooling.NONE:
            found.setdefault(table.module, []).append(table)
    return found


_NAMED: Final = 5
"""The warning names this many tables."""


def checkpoint_problem(plan: Plan) -> str:
    """Which tables could not be loaded from a checkpoint; empty if all could.

    Args:
        plan: any plan.
    """
    found = [
        p.table
        for p in plan.placements
        if p.sharding_type is not ShardingType.DATA_PARALLEL and len(set(p.cells.num_cols)) > 1
    ]
    if not found:
        return ""
    shown = ", ".join(found[:_NAMED]) + (", ..." if len(found) > _NAMED else "")
    return (
        f"{len(found)} tables are cut into columns of unequal widths ({shown}): TorchRec trains "
        "them, but fails when it loads a checkpoint; cut them into equal widths"
    )


def width_problems(plan: Plan, workload: Workload) -> dict[str, str]:
    """From the path of each module whose pieces have several widths to a line about it.

    Args:
        plan: a plan of the workload.
        workload: the tables, with the module of each.
    """
    return {
        module: f"unpooled tables of module {module!r} are cut by columns into pieces of widths "
        f"{sorted(widths)}, which TorchRec can neither look up nor exchange together; cut all of "
        "them into pieces of one width, or allow table_wise or row_wise alone"
        for module, widths in piece_widths(plan, workload).items()
        if len(widths) > 1
    }


def piece_widths(plan: Plan, workload: Workload) -> dict[str, tuple[int, ...]]:
    """The columns of the ``column_wise`` pieces of each module's unpooled tables.

    Args:
        plan: a plan of the workload.
        workload: the tables, with the module of each.

    Returns:
        From the path of each module to the different widths, those of most pieces first.
    """
    unpooled = {t.name: t.module for t in workload.tables if t.pooling is Pooling.NONE}
    counted: dict[str, Counter[int]] = {}
    for placed in plan.placements:
        if placed.sharding_type is ShardingType.COLUMN_WISE and placed.table in unpooled:
            found = counted.setdefault(unpooled[placed.table], Counter())
            found.update(s.num_cols for s in placed.shards)
    return {
        module: tuple(width for width, _ in widths.most_common())
        for module, widths in counted.items()
    }


def runtime_warnings(plan: Plan, workload: Workload) -> tuple[str, ...]:
    """One line for each module that a plan breaks, and one if checkpoints cannot be loaded.

    There are no lines under HugeCTR's pipeline, because these are limits of TorchRec.

    Args:
        plan: a plan of the workload.
        workload: the tables, with the module of each.
    """
    if workload.pipeline is Pipeline.HUGECTR:
        return ()
    fails = [f"training will fail: {line}" for line in width_problems(plan, workload).values()]
    others = [
        f"under this plan TorchRec computes another model: {problem}; cut all tables of the module "
        "by rows (row_wise, table_row_wise) or no mean-pooled one"
        for problem in pooling_problems(plan, workload)
    ]
    return (*fails, *others, *filter(None, [checkpoint_problem(plan)]))
