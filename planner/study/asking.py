"""The public function of studies, from files to results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.study.files import Files, checked_knobs
from planner.study.space import GPUS, SYSTEM, Space, Value, usual_choices
from planner.study.study import Effort, Study, knobs_of


def study(
    workload: str | Path,
    systems: Sequence[str],
    *,
    gpus: Sequence[int] = (),
    vary: Mapping[str, Sequence[Value]] | None = None,
    goals: Sequence[str] = (),
    smallest_for: float | None = None,
    journal: Path | None = None,
    **effort: Any,
) -> Study:
    """Choose what surrounds a plan, and find the plan.

    Args:
        workload: path of a workload file, or the name of a shipped one.
        systems: paths or names of systems, the usual one first.
        gpus: numbers of ranks; none for one host of each system.
        vary: the values of further knobs, the usual one first: keys of the workload, keys of the
            system with ``system.`` before them, and those of
            :data:`planner.study.space.OWN_KNOBS`.
        goals: names of :data:`planner.study.GOALS`.
        smallest_for: samples per second that the smallest cluster has to reach; None looks for the
            best setup.
        journal: Optuna's journal, with which a later call goes on.
        **effort: fields of :class:`planner.study.Effort`, such as ``trials=10``.

    Returns:
        The study: ``best()`` has the recommended setup with its plan (times in seconds), and
        ``results`` has every setup that was searched.

    Raises:
        InvalidInputError: a file or value breaks a rule.

    Example:
        >>> found = study("small_demo", ["h100_sxm"], gpus=[2], trials=1, evaluations=20)
        >>> found.best().setup.get("gpus")
        2
    """
    load = Files(workload=workload)
    knobs = knobs_of(
        {
            SYSTEM: systems,
            GPUS: gpus,
            **checked_knobs(vary or {}),
        }
    )
    asked = Effort(**effort)
    if not asked.is_grid and smallest_for is None:
        knobs = {k: tuple(v) for k, v in usual_choices(dict(knobs), load).items()}
    found = Study(
        Space(knobs, load),
        asked,
        goals=tuple(goals),
        smallest_for=smallest_for,
        journal=journal,
    )
    found.run()
    return found
