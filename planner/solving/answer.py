"""From what a search found to the result: the plan, its price, its proof and the other plans."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.sharding import Plan
from costmodels.topology import batch_ratios
from costmodels.units import format_bytes, format_time
from planner.errors import InfeasibleError, NoPlanFoundError, refuse, refuse_any
from planner.models import pipeline_of
from planner.options.table_limits import constraint_problems, refuse_hopeless
from planner.options.torchrec_default import torchrec_default
from planner.options.torchrec_rules import odd_tables, runtime_warnings, width_remarks
from planner.problem import PlanningProblem
from planner.result import TORCHREC_BASELINE, Candidate, PlanningResult, SolverReport
from planner.rules.placement_rules import received_bytes, rule_names, unmet_rules
from planner.search.base import OPTIMALITY_GAP, SearchOutcome
from planner.search.bounds.feasibility import least_excess_bytes
from planner.search.improve.afterwards import simplified, staying
from planner.search.improve.single_changes import single_changes
from planner.settings import SearchSettings
from planner.solving.prepare import objective_value, searched_options, with_context
from planner.space.budget import Deadline
from planner.space.evaluation import ROUNDED, ROUNDING, Assignment, Evaluator, SearchSpace
from planner.space.objective import MakePipeline
from planner.support.status import Status
from planner.support.text import counted, significant
from planner.torchrec_terms import ColumnMaxima

# ------------------ no priced plan may be below the bound


def guarded(
    outcome: SearchOutcome, others: Sequence[float], evaluate: Evaluator
) -> tuple[SearchOutcome, tuple[str, ...]]:
    """Withdraw the proof of a search if any known plan is better than the proven bound.

    Args:
        outcome: the outcome of the search.
        others: objectives of plans that other strategies found.
        evaluate: prices the plan in use, which is known as well if moves from it are limited.

    Returns:
        The outcome, without a bound if that was withdrawn; and sentences for the user about it,
        none if the bound holds.
    """
    if outcome.bound is None:
        return outcome, ()
    start = evaluate.space.start
    in_use = math.inf if start is None else evaluate.value(start)
    least = min([*outcome.values, *others, in_use])
    if outcome.bound <= least + ROUNDED * abs(least):
        return replace(outcome, bound=min(outcome.bound, least)), ()
    text = (
        f"a plan was priced at {least:.9g}, below the proven bound {outcome.bound:.9g}: the proof "
        "is wrong and was withdrawn; please report this with the workload, the system and the flags"
    )
    return replace(outcome, bound=None, termination=Status.NO_PROOF), (text,)


# ------------------ from what a search found to the result: the plan, its price, its proof

Point = tuple[float, Assignment]
"""A plan with its value."""

BASELINES: Final = (
    TORCHREC_BASELINE,
    "split_hottest",
    "size_lookup_greedy",
    "lookup_greedy",
    "size_greedy",
)
"""Strategies whose plans are reported beside the best one."""
NO_SEARCH: Final = "none"
"""The name of the strategy of a result for which nothing was searched."""
_WITHOUT_TABLES: Final = ("iteration", "phases")
RUNNERS_UP: Final = 3
"""How many of the next best plans a result has beside the best one."""


def answer(
    settings: SearchSettings,
    outcome: SearchOutcome,
    points: dict[str, Point | None],
    evaluate: Evaluator,
    deadline: Deadline,
) -> PlanningResult:
    """The result of a search, with the plans of the baselines that there is time to price.

    Args:
        settings: of the search; for strategy ``auto`` the best baseline may replace its plan.
        outcome: what the search found and proved.
        points: value and assignment of each baseline, None where it found no plan that fits.
        evaluate: has priced the plans of the search.
        deadline: the clock of the search.

    Raises:
        InfeasibleError: it is proven that no plan fits.
        NoPlanFoundError: the search ended without a plan that fits.
    """
    space, strategy = evaluate.space, settings.strategy
    known = [p for p in points.values() if p is not None]
    if strategy == "auto":
        outcome = _descended(_no_worse(outcome, known), evaluate, deadline)
    _check_found(space, outcome)
    best = first = outcome.assignments[0]
    if strategy == "auto":
        if space.problem.move_limit is not None:
            best = staying(evaluate, first, space.problem.move_limit)
        elif not evaluate.late:
            best = simplified(evaluate, first)
        outcome = _with_best(outcome, evaluate, best)
    outcome, remarks = guarded(outcome, [value for value, _ in known], evaluate)
    name = strategy if isinstance(strategy, str) else type(strategy).__name__
    found = [candidate(space, outcome.assignments[0], name)]
    baselines = {n: _baseline(space, n, p) for n, p in points.items() if deadline.can_price}
    others = outcome.assignments[1 : 1 + RUNNERS_UP]
    found += [candidate(space, a, name) for a in others if deadline.can_price]
    return with_context(
        space,
        PlanningResult(
            problem=space.problem,
            best=found[0],
            solver=_report(name, outcome, evaluate, settings.seed),
            runners_up=tuple(found[1:]),
            baselines=tuple(b for b in baselines.values() if b is not None),
            unfit_baselines=tuple(n for n, b in baselines.items() if b is None),
            warnings=(
                *remarks,
                *_left_out(space, first, best, evaluate),
                *_remarks(settings, found[0], evaluate, baselines, deadline),
                *width_remarks(space.problem.workload),
                *runtime_warnings(found[0].plan, space.problem.workload),
                *found[0].estimate.warnings,
            ),
            searched=searched_options(space),
        ),
    )


def _with_best(outcome: SearchOutcome, evaluate: Evaluator, best: Assignment) -> SearchOutcome:
    """The outcome with another plan in the place of its best one, and none that is better."""
    if best == outcome.assignments[0]:
        return outcome
    value, others = evaluate.value(best), zip(outcome.values, outcome.assignments, strict=True)
    kept = [pair for pair in list(others)[1:] if pair[0] >= value]
    gap = 0.0 if outcome.bound is None else value - outcome.bound
    loses_proof = outcome.termination is Status.OPTIMAL and gap > OPTIMALITY_GAP * abs(value)
    return replace(
        outcome,
        values=(value, *(v for v, _ in kept)),
        assignments=(best, *(a for _, a in kept)),
        termination=Status.GAP if loses_proof else outcome.termination,
    )


def _descended(outcome: SearchOutcome, evaluate: Evaluator, deadline: Deadline) -> SearchOutcome:
    """The outcome after changes of single tables, unless it is optimal or all moves are allowed.

    A plan that replaces another one moves no table for a small gain.
    """
    space = evaluate.space
    moves = space.problem.move_limit is not None and space.rules.budget is None
    if moves or not outcome.assignments or outcome.termination is Status.OPTIMAL:
        return outcome
    best = outcome.assignments[0]
    better = single_changes(evaluate, best, lambda: not deadline.can_price)
    return _with_best(outcome, evaluate, better)


def _left_out(
    space: SearchSpace, found: Assignment, stayed: Assignment, evaluate: Evaluator
) -> tuple[str, ...]:
    """A remark on moves that were left out although they would save something."""
    if space.problem.move_limit is None:
        return ()
    value, least = evaluate.value(stayed), evaluate.value(found)
    if value <= least * ROUNDING:
        return ()
    start, workload = space.problem.move_limit.start, space.problem.workload
    tables, freed = 0, 0.0
    for table in workload.tables:
        sizes = [
            received_bytes(start.placement(table.name), p.placement(table.name), table, workload)
            for p in (space.plan(found), space.plan(stayed))
        ]
        tables, freed = tables + (sizes[0] > sizes[1]), freed + sizes[0] - sizes[1]
    return (
        f"moving {counted(tables, 'more table')}, {format_bytes(freed)}, would save "
        f"{significant(100 * (value - least) / value, 2)} % of each iteration, which does not pay",
    )


def _baseline(space: SearchSpace, name: str, point: Point | None) -> Candidate | None:
    """A baseline's plan with its price; None if it found no plan that fits.

    TorchRec's own plan is in the result even if it breaks rules that TorchRec does not have, or has
    an option that this search left out.
    """
    if point is not None:
        return candidate(space, point[1], name)
    plan = torchrec_default(space.problem).plan if name == TORCHREC_BASELINE else None
    if plan is None:
        return None
    found = Candidate.of(name, plan, space.pipeline)
    return found if found.memory.fits else None


def _remarks(
    settings: SearchSettings,
    best: Candidate,
    evaluate: Evaluator,
    priced: Collection[str],
    deadline: Deadline,
) -> Iterator[str]:
    """Warnings on memory below the reserve, and on what a time limit cut short or left out.

    TorchRec's objectives keep TorchRec's own reservation free, and not the workload's.
    """
    if not best.memory.fits and isinstance(evaluate.objective, ColumnMaxima):
        yield (
            "the plan does not fit beside the workload's memory.reserve: objective "
            f"{evaluate.objective.name} keeps free what TorchRec's planner keeps instead"
        )
    if TORCHREC_BASELINE in priced and torchrec_default(evaluate.space.problem).is_cut:
        yield "TorchRec's own plan is from a search cut short; the whole one would take minutes"
    if deadline.is_short and deadline.search_s is not None and deadline.limit_s is not None:
        yield (
            "listing options, pricing plans and writing them left the search "
            f"{format_time(deadline.search_s)} of the time limit of "
            f"{format_time(deadline.limit_s)}; with more time the plan may be better"
        )
    missing = [n for n in BASELINES if settings.with_baselines and n not in priced]
    if missing:
        yield f"the time limit left no time to compare with {', '.join(missing)}; give it more"


def answer_without_tables(
    problem: PlanningProblem, make_pipeline: MakePipeline, search: SearchSettings
) -> PlanningResult:
    """The result for a workload without tables: there is one plan, and its price is its bound.

    Raises:
        InvalidInputError: the objective or a constraint is about tables, or there are scenarios or
            a limit on moves, which are about tables too; or a constraint names a missing rank.
        InfeasibleError: the dense part and the reserve do not fit into some device.
    """
    if search.objective not in _WITHOUT_TABLES:
        names = ", ".join(_WITHOUT_TABLES)
        refuse(
            f"objective {search.objective} is about tables, and the workload "
            f"{problem.workload.name!r} has none; use one of {names}"
        )
    if problem.scenarios or problem.move_limit is not None:
        refuse(
            f"scenarios and plans in use are about tables, and the workload "
            f"{problem.workload.name!r} has none; leave them out"
        )
    broken = constraint_problems(problem.constraints, (), problem.topology)
    refuse_any(broken)
    only = Plan(placements=())
    pipeline = pipeline_of(problem, make_pipeline)
    refuse_hopeless(problem, pipeline)
    best = Candidate.of(NO_SEARCH, only, pipeline)
    value = objective_value(problem, only, search.objective)
    report = SolverReport(
        strategy=NO_SEARCH,
        objective=search.objective,
        status=Status.OPTIMAL,
        value=value,
        bound=value,
        seconds=0.0,
        seed=search.seed,
        evaluations=1,
    )
    lines = ("no tables, so there is one plan: every rank trains a copy of the dense part",)
    return PlanningResult(
        problem=problem, best=best, solver=report, warnings=best.estimate.warnings, searched=lines
    )


def _report(name: str, outcome: SearchOutcome, evaluate: Evaluator, seed: int) -> SolverReport:
    status, best = outcome.termination, outcome.assignments[0]
    space = evaluate.space
    seen = evaluate.objective.separable_value(space.work(best), space.types(best))
    if status is Status.OPTIMAL and odd_tables(space.problem.workload):
        status = Status.OPTIMAL_FOR_WIDTHS
    return SolverReport(
        strategy=name,
        objective=evaluate.objective.name,
        status=status,
        value=outcome.values[0],
        bound=outcome.bound,
        seconds=evaluate.seconds,
        seed=seed,
        evaluations=evaluate.num_evaluations,
        work=evaluate.work,
        separable_value=None if seen is None else min(seen, outcome.values[0]),
        balanced_value=_balanced_value(outcome, evaluate),
        progress=tuple((p.seconds, p.incumbent, p.bound) for p in outcome.progress if p.incumbent),
    )


def _balanced_value(outcome: SearchOutcome, evaluate: Evaluator) -> float | None:
    """What the value would be if the best plan's work were spread evenly over its ranks.

    None where ranks differ in speed or batch, or where there is no bound to compare with.
    """
    best, space, objective = outcome.assignments[0], evaluate.space, evaluate.objective
    problem = space.problem
    speeds = problem.topology.speeds()
    unequal = batch_ratios(problem.workload, problem.topology) is not None
    if outcome.bound is None or speeds.min() < speeds.max() or unequal:
        return None
    work = space.work(best)
    even = np.tile(work.mean(axis=0), (len(work), 1))
    found = objective.separable_value(even, space.types(best))
    value = float(objective.values(even)) if found is None else found
    return value if np.isfinite(value) else None


def _check_found(space: SearchSpace, outcome: SearchOutcome) -> None:
    if outcome.assignments:
        return
    if outcome.bound is not None and np.isinf(outcome.bound):
        raise _infeasible(space)
    excess = least_excess_bytes(space)
    short = f" Even if memory were balanced, one rank would lack {format_bytes(excess)}."
    rules = ", or drop or widen constraints" if space.rules else ""
    msg = (
        f"no plan found; not proven impossible.{short if excess > 0 else ''} "
        f"Raise --evaluations or --time-limit, or use more memory{rules}"
    )
    raise NoPlanFoundError(msg)


def candidate(space: SearchSpace, assignment: Assignment, name: str) -> Candidate:
    """The plan of an assignment, with its price and its memory."""
    return Candidate.of(name, space.plan(assignment), space.pipeline)


def _no_worse(outcome: SearchOutcome, points: list[Point]) -> SearchOutcome:
    """The outcome, with the best of ``points`` put first if the search found no plan as good."""
    best = min(points, key=lambda p: p[0], default=None)
    if best is None or (outcome.values and outcome.values[0] <= best[0]):
        return outcome
    return replace(
        outcome, values=(best[0], *outcome.values), assignments=(best[1], *outcome.assignments)
    )


def _infeasible(space: SearchSpace) -> InfeasibleError:
    """The error that names what is missing: bytes, rules that cannot hold, or both."""
    excess, reasons = least_excess_bytes(space), list[str]()
    advice = ["allow more sharding types or kernels"]
    if space.rules:
        unmet = unmet_rules(space.rules, [table.options for table in space.tables])
        named = ", ".join(rule_names(space.rules))
        reasons += unmet or [f"the constraints are {named}"]
        advice.insert(0, "widen or drop the rules named")
    if excess > 0 or not reasons:
        over = f"the fullest rank is {format_bytes(excess)} over its limit"
        reasons.insert(0, f"balanced by size, {over}")
        advice.insert(0, "use more GPUs, or GPUs with more memory")
    breaks = " or breaks a constraint" if space.rules else ""
    words = f"every combination of options and places overfills a device or a host{breaks}"
    message = f"nothing fits: {words}; {'; '.join(reasons)}"
    return InfeasibleError(message, shortfall_bytes=excess, advice=tuple(advice))
