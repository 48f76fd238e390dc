"""Explains a plan: what other options would cost, which change would help, what rules cost."""

from planner.explain.explainer import (
    Change,
    ConstraintCost,
    Explainer,
    OptionCost,
    TableExplanation,
    constraint_costs,
    relaxed,
)

__all__ = [
    "Change",
    "ConstraintCost",
    "Explainer",
    "OptionCost",
    "TableExplanation",
    "constraint_costs",
    "relaxed",
]
