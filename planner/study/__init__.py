"""Chooses what surrounds a plan: cluster, batch, pipeline, copies of tables, codecs, and any key.

A setup is one choice of all of these. How good a setup is depends on the best plan under it, so
each setup is judged by a search of its own, unless a proven bound says beforehand that it cannot be
better than a setup that is already known. Optuna's journal keeps a study for a later run.
"""

from typing import TYPE_CHECKING

from planner.support import load_lazily

if TYPE_CHECKING:
    from planner.study.figures import Operation as Operation
    from planner.study.space import Space as Space
    from planner.study.studying import Effort as Effort
    from planner.study.studying import Study as Study
    from planner.study.studying import study as study
    from planner.study.trials import SetupResult as SetupResult

load_lazily(globals())
