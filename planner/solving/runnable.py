"""Finds a plan that TorchRec runs correctly if the best plan of the search is not one.

TorchRec cannot run some plans, and under others it computes something else than the model does.
This depends on several tables of a module together, and the search does not know of it. If the plan
of the search is such a plan, the problem is searched again under narrower rules
(:mod:`planner.options.narrowing`), and the best plan of these searches is the answer. The bound of
the first search holds for it as well, because all these plans are also plans of the first search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from costmodels.sharding import Plan
from costmodels.workload import Pipeline, Workload
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError, StoppedError
from planner.options.mean_pooling import pooling_problems
from planner.options.narrowing import Rules, pooled_alike, rules_of, uncut_columns, wider_pieces
from planner.options.unpooled_widths import width_problems
from planner.problem import PlanningProblem
from planner.result import PlanningResult
from planner.search.base import OPTIMALITY_GAP
from planner.support.status import Status

_WIDTH_SEARCHES: Final = 3
"""At most this many searches for pieces of one width; each makes the narrowest pieces wider."""
_LINE: Final = (
    "left out: plans that TorchRec cannot run or runs as another model (mean-pooled tables of a "
    "module cut by rows beside others that are not, unpooled ones in columns of several widths); "
    "the bound counts them"
)

Search = Callable[[PlanningProblem], PlanningResult | None]


def runnable(problem: PlanningProblem, first: PlanningResult, search: Search) -> PlanningResult:
    """The first result if TorchRec runs its plan correctly, otherwise the best of further searches.

    If these find no such plan, the first result is returned with its warnings. Otherwise
    runners-up that TorchRec does not run correctly are left out.

    Args:
        problem: the problem that was searched.
        first: the result of the search over all plans.
        search: solves a problem with narrower rules; it returns None if there is no time for it.
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
    if solver.status is Status.OPTIMAL and (gap is None or gap > OPTIMALITY_GAP):
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
    """Results under narrower rules.

    If means are pooled wrongly, there is one search with no mean cut by rows, and one with all
    tables of their modules cut by rows. From each result, further searches then look for pieces of
    one width.
    """
    workload, rules = problem.workload, rules_of(problem)
    ways = [rules]
    if pooling_problems(first.plan, workload):
        ways = [pooled_alike(workload, rules, by_rows=by_rows) for by_rows in (False, True)]

    def again(narrower: Rules) -> PlanningResult | None:
        constraints = problem.constraints
        tables = (*constraints.tables, *narrower)
        try:
            return search(replace(problem, constraints=replace(constraints, tables=tables)))
        except (InfeasibleError, InvalidInputError, NoPlanFoundError, StoppedError):
            return None

    for way in dict.fromkeys(ways):
        found = first if way == rules else again(way)
        if found is not None:
            yield found
            yield from _of_one_width(found, way, again)


def _of_one_width(
    found: PlanningResult, rules: Rules, again: Callable[[Rules], PlanningResult | None]
) -> Iterator[PlanningResult]:
    """Results with uncut columns, and with wider and wider pieces until all have one width."""
    workload = found.problem.workload
    modules = width_problems(found.plan, workload)
    if not modules:
        return
    uncut = again(uncut_columns(workload, rules, modules))
    if uncut is not None:
        yield uncut
    for _ in range(_WIDTH_SEARCHES):
        rules = wider_pieces(workload, rules, found.plan, modules)
        wider = again(rules)
        if wider is None:
            return
        yield wider
        found, modules = wider, width_problems(wider.plan, workload)
        if not modules:
            return


def _seconds(first: PlanningResult, others: list[PlanningResult]) -> float:
    """The seconds of all searches together."""
    anew = sum(other.solver.seconds for other in others if other is not first)
    return first.solver.seconds + anew
