"""Finds a plan of the same objective that moves no table for nothing.

Where the host, the data source or another rank sets the iteration time, a search for a successor of
a plan in use ends with one of many plans that are equally fast, and nearly all of them move tables.
Therefore the plan in use is tried itself; then each table that moves is put back, the largest
first. It stays there if the objective gets no worse.
"""

from __future__ import annotations

from costmodels.sharding import Plan, Spread
from planner.options.runtime_warnings import runtime_warnings
from planner.search.improve.simplify import EQUAL
from planner.space.evaluation import Assignment, Evaluator, SearchSpace

_Choice = tuple[int, tuple[int, ...]]
"""The index of a table's option, and the places of its pieces."""


def staying(space: SearchSpace, evaluate: Evaluator, found: Assignment, in_use: Plan) -> Assignment:
    """A plan like ``found`` that moves fewer tables, if there is one with the same objective.

    Args:
        space: options and places.
        evaluate: prices the plans that are tried.
        found: a plan that fits and keeps the rules.
        in_use: the plan in use; tables that are cut in a way that is not listed move in any case.
    """
    value = evaluate.value(found) * EQUAL
    at_home = {t: _located(space, t, in_use) for t in range(space.num_tables)}
    moved = {t: own for t, own in at_home.items() if own and own != _choice(found, t)}
    now = _put_back(found, moved)
    if _is_as_good(space, evaluate, now, value) and _runs(space, now, found):
        return now
    now = found
    sizes = [table.weight_bytes for table in space.problem.workload.tables]
    for table in sorted(moved, key=lambda t: -sizes[t]):
        if evaluate.late:
            break
        changed = _put_back(now, {table: moved[table]})
        if _is_as_good(space, evaluate, changed, value):
            now = changed
    return now if _runs(space, now, found) else found


def _located(space: SearchSpace, table: int, plan: Plan) -> _Choice | None:
    """Option and places of a table in a plan; None if they are not listed or not allowed now."""
    own = space.located(table, plan.placement(space.tables[table].table))
    if own is None:
        return None
    hosts = space.option(table, own[0]).spread is Spread.HOSTS
    allowed = (space.may_use_host if hosts else space.may_use_rank)[table]
    return own if allowed[list(own[1])].all() else None


def _choice(assignment: Assignment, table: int) -> _Choice:
    return assignment.options[table], assignment.places[table]


def _put_back(assignment: Assignment, at_home: dict[int, _Choice]) -> Assignment:
    """The assignment with some tables as in the plan in use."""
    options, places = list(assignment.options), list(assignment.places)
    for table, own in at_home.items():
        options[table], places[table] = own
    return Assignment(options=tuple(options), places=tuple(places))


def _is_as_good(space: SearchSpace, evaluate: Evaluator, changed: Assignment, most: float) -> bool:
    """Whether a plan keeps the rules, fits, and has at most this objective."""
    return space.keeps_rules(changed) and evaluate.value(changed) <= most


def _runs(space: SearchSpace, changed: Assignment, found: Assignment) -> bool:
    """Whether TorchRec runs a plan, or says no more against it than against the plan found."""
    workload = space.problem.workload
    against = set(runtime_warnings(space.plan(changed), workload))
    return not against or against <= set(runtime_warnings(space.plan(found), workload))
