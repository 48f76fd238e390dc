"""Column pieces of one table that differ in width: they train, but cannot load a checkpoint.

When TorchRec loads a state, it takes the width of a table's first piece for the width of all its
pieces (1.8, ``_pre_load_state_dict_hook`` of ``embeddingbag.py`` and ``embedding.py``; seen in
runs). On ranks with a piece of another width the job then ends with an error about shapes.
TorchRec's own planner cuts columns only into equal pieces.
"""

from __future__ import annotations

from costmodels.sharding import Plan, ShardingType

_NAMED = 5
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
