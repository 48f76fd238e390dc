"""Why a plan is as it is: what each option would cost, what would help, what constraints cost."""

from planner.explain.constraint_cost import ConstraintCost, constraint_costs, relaxed
from planner.explain.explainer import Change, Explainer, OptionCost, TableExplanation

__all__ = [
    "Change",
    "ConstraintCost",
    "Explainer",
    "OptionCost",
    "TableExplanation",
    "constraint_costs",
    "relaxed",
]
