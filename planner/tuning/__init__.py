"""Chooses what surrounds a plan: cluster, batch, pipeline, 2D groups, and menus of options.

A setup is one choice of all of these. How good a setup is depends on the best plan under it, so
each setup is judged by a search of its own, unless a proven bound says beforehand that it cannot be
better than a setup that is already known. A journal file keeps a study for a later run.
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
