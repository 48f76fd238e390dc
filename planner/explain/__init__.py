"""Explains a plan: what other options would cost, which change would help, what rules cost."""

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
