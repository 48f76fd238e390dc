"""Finds a plan that TorchRec runs correctly if the best plan of the search is not one.

TorchRec cannot run some plans, and under others it computes something else than the model does.
This depends on several tables of a module together, and the search does not know of it. If the plan
of the search is such a plan, the problem is searched again under narrower rules
(:mod:`planner.options.cuts`), and the best plan of these searches is the answer. The bound of
the first search holds for it as well, because all these plans are also plans of the first search.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from costmodels.sharding import Plan
from costmodels.workload import Pipeline, Workload
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError, StoppedError
from planner.options.cuts import Rules, pieces_of_one_width, pooled_alike, rules_of, uncut_columns
from planner.options.torchrec_rules import piece_widths, pooling_problems, width_problems
from planner.problem import PlanningProblem
from planner.result import PlanningResult
from planner.search.base import OPTIMALITY_GAP
from planner.support.status import Status

_SEARCHES: Final = 10
"""At most this many further searches. Most problems need one or two: several only where means and
widths both have to change, or where a module has pieces of many widths."""
_LINE: Final = (
    "left out: plans that TorchRec cannot run or runs as another model (mean-pooled tables of a "
    "module cut by rows beside others that are not, unpooled ones in columns of several widths); "
    "the bound counts them"
)

_WIDTHS: Final = 3
"""At most this many widths of a plan are tried as the only one of a module."""

Search = Callable[[PlanningProblem, Plan], PlanningResult | None]


def runnable(problem: PlanningProblem, first: PlanningResult, search: Search) -> PlanningResult:
    """The first result if TorchRec runs its plan correctly, otherwise the best of further searches.

    If these find no such plan, the first result is returned with its warnings. Otherwise
    runners-up that TorchRec does not run correctly are left out.

    Args:
        problem: the problem that was searched.
        first: the result of the search over all plans.
        search: solves a problem with narrower rules, beginning near a plan under wider ones; it
            returns None if there is no time for it.
    """
    workload = problem.workload
    if runs(first.plan, workload):
        return _with_runners_up_that_run(first)
    results = list(_searched_anew(problem, first, search))
    found = [result for result in results if runs(result.plan, workload)]
    if not found:
        return first
    best = _with_runners_up_that_run(min(found, key=lambda result: result.solver.value))
    solver = replace(best.solver, bound=first.solver.bound, seconds=_seconds(first, results))
    gap = solver.gap_ratio
    if solver.status in (Status.OPTIMAL, Status.OPTIMAL_FOR_WIDTHS) and (
        gap is None or gap > OPTIMALITY_GAP
    ):
        solver = replace(solver, status=Status.GAP)
    return replace(best, problem=problem, solver=solver, searched=(*best.searched, _LINE))


def runs(plan: Plan, workload: Workload) -> bool:
    """Whether TorchRec runs a plan correctly; HugeCTR, which is not TorchRec, runs every plan."""
    if workload.pipeline is Pipeline.HUGECTR:
        return True
    return not (pooling_problems(plan, workload) or width_problems(plan, workload))


def _with_runners_up_that_run(result: PlanningResult) -> PlanningResult:
    workload = result.problem.workload
    kept = tuple(c for c in result.runners_up if runs(c.plan, workload))
    return result if kept == result.runners_up else replace(result, runners_up=kept)


def _searched_anew(
    problem: PlanningProblem, first: PlanningResult, search: Search
) -> Iterator[PlanningResult]:
    """Results under narrower rules, and under still narrower ones where these are not enough.

    Rules that are narrowed less are searched first.
    """
    constraints, given = problem.constraints, rules_of(problem)
    seen, waiting = {given}, deque([(first, given)])
    while waiting:
        found, rules = waiting.popleft()
        for narrower in _narrower(found, rules):
            if narrower in seen or len(seen) > _SEARCHES:
                continue
            seen.add(narrower)
            tables = (*constraints.tables, *narrower)
            narrowed = replace(problem, constraints=replace(constraints, tables=tables))
            try:
                result = search(narrowed, found.plan)
            except (InfeasibleError, InvalidInputError, NoPlanFoundError, StoppedError):
                continue
            if result is None:
                return
            yield result
            waiting.append((result, narrower))


def _narrower(found: PlanningResult, rules: Rules) -> Iterator[Rules]:
    """Rules that leave out what TorchRec does not run correctly in the plan found under ``rules``.

    If means are pooled wrongly, either no mean is cut by rows, or all tables of their modules are.
    Otherwise, if pieces have several widths, either no columns are cut, or one of the widths stays,
    the most common ones first.
    """
    workload = found.problem.workload
    if pooling_problems(found.plan, workload):
        for by_rows in (False, True):
            yield pooled_alike(workload, rules, by_rows=by_rows)
    elif modules := width_problems(found.plan, workload):
        yield uncut_columns(workload, rules, modules)
        widths = piece_widths(found.plan, workload)
        for i in range(_WIDTHS):
            each = {m: widths[m][min(i, len(widths[m]) - 1)] for m in modules}
            yield pieces_of_one_width(workload, rules, found.plan, each)


def _seconds(first: PlanningResult, others: list[PlanningResult]) -> float:
    """The seconds of all searches together."""
    anew = sum(other.solver.seconds for other in others)
    return first.solver.seconds + anew
