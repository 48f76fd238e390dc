"""Choices around a plan that a search cannot see: cluster, batch, pipeline, 2D groups, menus.

They are not separable, so each pick is judged by a search of its own under the full pipeline,
unless a proven bound says beforehand that it cannot be better than one already known. A journal
file on a shared disk lets many processes work on one study.
"""

from planner.tuning.design import DesignSpace, design_space
from planner.tuning.goals import GOALS, Facts
from planner.tuning.journal import SAMPLERS, Effort
from planner.tuning.known import Look
from planner.tuning.pricer import Pricer, Tuned
from planner.tuning.setups import Menu, Setup
from planner.tuning.study import Study, StudyProgress

__all__ = [
    "GOALS",
    "SAMPLERS",
    "DesignSpace",
    "Effort",
    "Facts",
    "Look",
    "Menu",
    "Pricer",
    "Setup",
    "Study",
    "StudyProgress",
    "Tuned",
    "design_space",
]
