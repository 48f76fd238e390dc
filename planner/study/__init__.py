"""Chooses what surrounds a plan: cluster, batch, pipeline, copies of tables, codecs, and any key.

A setup is one choice of all of these. How good a setup is depends on the best plan under it, so
each setup is judged by a search of its own, unless a proven bound says beforehand that it cannot be
better than a setup that is already known. Optuna's journal keeps a study for a later run.
"""

from planner.study.figures import GOALS, Figures, Operation
from planner.study.files import study
from planner.study.space import Setup, Space
from planner.study.study import Answer, Choice, Effort, Study
from planner.study.trials import SetupResult

__all__ = [
    "GOALS",
    "Answer",
    "Choice",
    "Effort",
    "Figures",
    "Operation",
    "Setup",
    "SetupResult",
    "Space",
    "Study",
    "study",
]
