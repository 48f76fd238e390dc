"""Column pieces of unpooled tables that TorchRec's runtime cannot look up or exchange together.

The ``column_wise`` tables of one ``EmbeddingCollection`` share an exchange, for which TorchRec
takes the width of the vectors on a rank for that of all ranks (``comm_ops.py``,
``alltoall_sequence``), and on each rank a fused lookup, which FBGEMM has for one width only. With
pieces of two widths the job fails when it is sharded or in its first forward pass. (TorchRec 1.8;
seen in runs.)
"""

from __future__ import annotations

from costmodels.sharding import Plan, ShardingType
from costmodels.workload import Pooling, Workload


def width_problems(plan: Plan, workload: Workload) -> dict[str, str]:
    """One line for each module, by its path, whose pieces have several widths.

    Args:
        plan: of the workload.
        workload: the tables, with the module of each.
    """
    unpooled = {t.name: t.module for t in workload.tables if t.pooling is Pooling.NONE}
    widths: dict[str, set[int]] = {}
    for placed in plan.placements:
        if placed.sharding_type is ShardingType.COLUMN_WISE and placed.table in unpooled:
            found = widths.setdefault(unpooled[placed.table], set())
            found.update(s.num_cols for s in placed.shards)
    return {
        module: f"unpooled tables of module {module!r} are cut by columns into pieces of widths "
        f"{sorted(found)}, which TorchRec can neither look up nor exchange together; cut all of "
        "them into pieces of one width, or allow table_wise or row_wise alone"
        for module, found in widths.items()
        if len(found) > 1
    }
