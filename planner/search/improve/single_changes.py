"""The last step of a search: single tables get other options as long as that helps.

Searches compare moves by a function below the objective, and a search that is cut has not compared
all. Here every option of a table is placed piece by piece where the whole objective is least, which
is what ``shardplan explain`` does with a finished plan. Copied tables come first: they have moved
nowhere yet, and searches leave them for last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from planner.space.evaluation import Assignment, Evaluator, SearchSpace

_GAIN: Final = 1e-6
"""Share of the objective by which a change has to help; smaller gains nobody sees."""
_SHARE: Final = 0.25
"""Most work of this step, as a share of that of the search before it."""
_MOST_PIECES: Final = 4
"""Options with more pieces take too long to place for what they gain."""


def single_changes(
    space: SearchSpace,
    evaluate: Evaluator,
    start: Assignment,
    late: Callable[[], bool],
    *,
    most_s: float | None = None,
) -> Assignment:
    """A plan that no change of one table betters, as far as there is work left to look.

    Args:
        space: options and places.
        evaluate: prices the plans that are tried.
        start: a plan that fits and keeps the rules.
        late: whether the clock ends this step too.
        most_s: nominal seconds after which it ends; None for a share of those of the search.
    """
    now, most_s = start, most_s or (1.0 + _SHARE) * evaluate.meter.spent_s
    copied = [space.option(t, i).is_uniform for t, i in enumerate(start.options)]
    order = sorted(range(space.num_tables), key=lambda t: not copied[t])
    helps = True
    while helps:
        helps = False
        for table in order:
            rest = space.work_without(space.work(now), table, now.options[table], now.places[table])
            for index in range(len(space.tables[table].options)):
                if late() or evaluate.meter.spent_s >= most_s:
                    return now
                places = _placed(space, evaluate, rest, table, index)
                if places is None:
                    continue
                options, others = list(now.options), list(now.places)
                options[table], others[table] = index, places
                changed = Assignment(options=tuple(options), places=tuple(others))
                if evaluate.value(changed) < evaluate.value(now) * (1 - _GAIN):
                    now, helps = changed, True
    return now


def _placed(
    space: SearchSpace, evaluate: Evaluator, rest: FloatArray, table: int, index: int
) -> tuple[int, ...] | None:
    """Places of the pieces of an option, one after the other; None if a piece fits nowhere.

    Args:
        space: options and places.
        evaluate: prices the plans that are tried.
        rest: ``[W, F]`` the work of all other tables.
        table: which table.
        index: which of its options.
    """
    flat = int(space.first[table]) + index
    if space.is_uniform[flat]:
        return ()
    pieces = space.pool[space.rows[flat]]
    if len(pieces) > _MOST_PIECES:
        return None
    on_hosts = bool(space.is_on_hosts[flat])
    allowed = (space.may_use_host if on_hosts else space.may_use_rank)[table].copy()
    local = space.local_world_size if on_hosts else 1
    work, places = rest.copy(), list[int]()
    for piece in pieces:
        where = np.flatnonzero(allowed)
        if not len(where):
            return None
        tried = np.repeat(work[None], len(where), axis=0)
        ranks = where[:, None] * local + np.arange(local)
        tried[np.arange(len(where))[:, None], ranks] += piece.reshape(local, -1)
        values = evaluate.values(tried)
        best = int(values.argmin())
        if not np.isfinite(values[best]):
            return None
        work = tried[best]
        places.append(int(where[best]))
        allowed[where[best]] = False
    return tuple(places)
