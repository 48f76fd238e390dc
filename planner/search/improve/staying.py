"""Finds a plan like a given one that makes no move from the plan in use which does not pay.

Where the host, the data source or another rank sets the iteration time, a search for a successor of
a plan in use ends with one of many plans that are equally fast, and nearly all of them move tables.
Others save so little that the move is never paid back. Therefore the plan in use is tried itself;
then each table that moves is put back, the largest first. It stays there if that costs no more than
its share of what the whole move has to save: :data:`planner.result.LEAST_GAIN_RATIO` of an
iteration, and its own seconds within :data:`planner.result.PAYBACK_S` of training.
"""

from __future__ import annotations

from costmodels.sharding import Plan, Spread
from planner.options.runtime_warnings import runtime_warnings
from planner.problem import MoveLimit
from planner.replan import reshard
from planner.result import LEAST_GAIN_RATIO, PAYBACK_S
from planner.rules.moved_bytes import received_bytes
from planner.search.improve.simplify import EQUAL
from planner.space.evaluation import Assignment, Evaluator, SearchSpace

_Choice = tuple[int, tuple[int, ...]]
"""The index of a table's option, and the places of its pieces."""


def staying(
    space: SearchSpace, evaluate: Evaluator, found: Assignment, limit: MoveLimit
) -> Assignment:
    """A plan like ``found`` without the moves that do not pay.

    Args:
        space: options and places.
        evaluate: prices the plans that are tried.
        found: a plan that fits and keeps the rules.
        limit: the plan in use; tables that are cut in a way that is not listed move in any case.
    """
    at_home = {t: _located(space, t, limit.start) for t in range(space.num_tables)}
    moved = {t: own for t, own in at_home.items() if own and own != _choice(found, t)}
    if not moved:
        return found
    value, costs = evaluate.value(found), _costs_ratio(space, found, limit, moved)
    now = _put_back(found, moved)
    most = value + abs(value) * max(sum(costs.values()), EQUAL - 1)
    if _is_as_good(space, evaluate, now, most) and _runs(space, now, found):
        return now
    now = found
    for table in sorted(moved, key=lambda t: -costs[t]):
        if evaluate.late:
            break
        changed = _put_back(now, {table: moved[table]})
        most = value + abs(value) * max(costs[table], EQUAL - 1)
        if _is_as_good(space, evaluate, changed, most):
            now, value = changed, evaluate.value(changed)
    return now if _runs(space, now, found) else found


def _costs_ratio(
    space: SearchSpace, found: Assignment, limit: MoveLimit, moved: dict[int, _Choice]
) -> dict[int, float]:
    """The share of the objective that the move of each of these tables has to save.

    Tables share what the whole move has to save in proportion to their bytes.
    """
    problem, plan = space.problem, space.plan(found)
    workload, held = problem.workload, limit.present
    sizes = {}
    for t in moved:
        table = workload.tables[t]
        old, new = held.placement(table.name), plan.placement(table.name)
        sizes[t] = received_bytes(old, new, table, workload)
    move = reshard(
        limit.start, plan, workload, problem.topology, before_s=0.0, after_s=0.0, held=held
    )
    if move.moved_bytes <= 0:
        return dict.fromkeys(moved, 0.0)
    whole = max(move.time_s / PAYBACK_S, LEAST_GAIN_RATIO)
    return {t: whole * size / move.moved_bytes for t, size in sizes.items()}


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
