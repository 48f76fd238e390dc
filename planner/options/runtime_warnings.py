"""What users are told of a plan that TorchRec cannot run, or runs as another model."""

from __future__ import annotations

from costmodels.sharding import Plan
from costmodels.workload import Pipeline, Workload
from planner.options.mean_pooling import pooling_problems
from planner.options.unequal_pieces import checkpoint_problem
from planner.options.unpooled_widths import width_problems


def runtime_warnings(plan: Plan, workload: Workload) -> tuple[str, ...]:
    """One line for each module, and one for checkpoints.

    None under the pipeline of HugeCTR, which is no TorchRec.

    Args:
        plan: of the workload.
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
