"""The last check of a proof: no plan that was priced may be better than the proven bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from planner.errors import InvalidInputError
from planner.search.base import SearchOutcome
from planner.space.evaluation import Evaluator
from planner.support.status import Status

_ROUNDING: Final = 1e-9
"""Share of the objective by which a plan may be below the bound without contradicting it: sums of
the same numbers in another order differ by less. A larger share would hide small errors."""


def guarded(
    outcome: SearchOutcome, others: Sequence[float], evaluate: Evaluator
) -> tuple[SearchOutcome, tuple[str, ...]]:
    """Withdraw the proof of a search if any known plan is better than the proven bound.

    Args:
        outcome: the outcome of the search.
        others: objectives of plans that other strategies found.
        evaluate: prices the plan in use, if there is one.

    Returns:
        The outcome, without a bound if that was withdrawn; and sentences for the user about it,
        none if the bound holds.
    """
    if outcome.bound is None:
        return outcome, ()
    least = min([*outcome.values, *others, *_value_in_use(evaluate)])
    if outcome.bound <= least + _ROUNDING * abs(least):
        return replace(outcome, bound=min(outcome.bound, least)), ()
    text = (
        f"a plan was priced at {least:.9g}, below the proven bound {outcome.bound:.9g}: the proof "
        "is wrong and was withdrawn; please report this with the workload, the system and the flags"
    )
    return replace(outcome, bound=None, termination=Status.NO_PROOF), (text,)


def _value_in_use(evaluate: Evaluator) -> list[float]:
    """The objective of the plan in use, if that plan could be the answer; otherwise nothing.

    It could be if there is a limit on moves, and it fits into memory and keeps the constraints.
    """
    space = evaluate.space
    if space.problem.move_limit is None:
        return []
    try:
        assignment = space.assignment(space.problem.move_limit.start)
    except InvalidInputError:
        return []
    value = evaluate.value(assignment)
    return [value] if np.isfinite(value) else []
