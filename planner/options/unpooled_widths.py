"""Column pieces of unpooled tables that TorchRec's runtime cannot look up or exchange together.

The ``column_wise`` tables of one ``EmbeddingCollection`` share one exchange, and on each rank one
fused lookup. In the exchange, TorchRec takes the width of a rank's vectors for the width on all
ranks (``comm_ops.py``, ``alltoall_sequence``); FBGEMM's unpooled lookup has only one width. With
pieces of two widths the job therefore fails when the model is sharded, or in its first forward
pass. (TorchRec 1.8; seen in runs.)
"""

from __future__ import annotations

from collections import Counter

from costmodels.sharding import Plan, ShardingType
from costmodels.workload import Pooling, Workload


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
