"""Warnings for plans that TorchRec cannot run, or under which it computes another model."""

from __future__ import annotations

from costmodels.sharding import Plan
from costmodels.workload import Pipeline, Workload
from planner.options.mean_pooling import pooling_problems
from planner.options.unequal_pieces import checkpoint_problem
from planner.options.unpooled_widths import width_problems


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
