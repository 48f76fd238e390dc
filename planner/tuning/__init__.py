"""Choices around a plan that a search cannot see: pipeline, 2D groups, cache menus.

They are few and not separable, so Optuna picks them and each pick is judged by a search of its own
under the full pipeline. A journal file on a shared disk lets many processes work on one study.
"""

from planner.tuning.journal import Effort
from planner.tuning.setups import Setup, SetupChoices, Tuned, menu_of
from planner.tuning.study import Study, StudyProgress

__all__ = ["Effort", "Setup", "SetupChoices", "Study", "StudyProgress", "Tuned", "menu_of"]
