"""One search of a problem, with the baselines beside it, and what was found as the result.

The result has the plan, its price, its proof and the other plans. Where TorchRec could not run the
plan, the problem is searched again.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

import planner.search as strategies
from costmodels import discovery
from costmodels.fields import is_in
from costmodels.sharding import Plan
from costmodels.topology import batch_ratios
from costmodels.units import format_bytes, format_time
from costmodels.workload import Pipeline, Workload
from planner.errors import (
    InfeasibleError,
    NoPlanFoundError,
    PlannerError,
    StoppedError,
    refuse,
    refuse_any,
)
from planner.models import pipeline_of
from planner.options import enumeration, torchrec_rules
from planner.options.table_limits import constraint_problems, refuse_hopeless
from planner.options.torchrec_default import torchrec_default
from planner.problem import PlanningProblem
from planner.result import TORCHREC_BASELINE, Candidate, PlanningResult, SolverReport
from planner.rules.placement_rules import received_bytes, rule_names, unmet_rules
from planner.search import base
from planner.search.auto import Auto
from planner.search.bounds.feasibility import least_excess_bytes, require_feasible
from planner.search.improve.afterwards import simplified, staying
from planner.search.improve.single_changes import single_changes
from planner.settings import SearchSettings
from planner.solving import prepare
from planner.space.budget import Deadline, default_evaluations
from planner.space.evaluation import ROUNDED, ROUNDING, Assignment, Budget, Evaluator, SearchSpace
from planner.space.objective import MakePipeline
from planner.support.kinds import require_kind
from planner.support.status import Status
from planner.support.text import counted, significant
from planner.torchrec_terms import ColumnMaxima

_DEFAULT: Final = "auto"
"""The strategy that can begin near a plan, and whose plans are made better afterwards."""
_LEAST_S: Final = 0.2
"""Seconds left of a time limit below which no further search begins."""
_SHORT_SHARE: Final = 0.5
"""Share of the time limit below which the time of a search is worth a warning."""
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

Point = tuple[float, Assignment]
"""A plan with its value."""


def strategy_named(name: str) -> base.AbstractStrategy:
    """Make the strategy in ``planner/search/<name>.py``.

    Raises:
        InvalidInputError: there is no such file; the message lists the names of all strategies.
    """
    known = discovery.names(strategies)
    if not is_in(name, known):
        refuse(f"strategy {name!r} is not one of {', '.join(known)}")
    return discovery.load(strategies, name, base.AbstractStrategy)()


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvingRun:
    """One search of a problem, and the baselines that it is compared with.

    The default strategy also begins with the plan that is most like ``near``. The clock of the
    search, its baselines and the pricing of what they found starts with the run.
    """

    problem: PlanningProblem
    settings: SearchSettings
    make_pipeline: MakePipeline
    progress: Callable[[base.SearchProgress], None] | None = None
    should_stop: Callable[[], bool] | None = None
    near: Plan | None = None
    deadline: Deadline = field(init=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        baselines = len(BASELINES) if self.settings.with_baselines else 0
        deadline = Deadline(
            self.settings.time_limit_s,
            kept_s=self.settings.kept_s,
            num_plans=1 + RUNNERS_UP + baselines,
            num_baselines=baselines,
        )
        object.__setattr__(self, "deadline", deadline)

    def result(self) -> PlanningResult:
        """The best plan found, beside those of the baselines."""
        if not self.problem.workload.tables:
            return self.without_tables()
        evaluate, outcome = self.search()
        points = self.baselines(evaluate) if self.settings.with_baselines else {}
        return self.answer(outcome, points, evaluate)

    def runnable(self) -> PlanningResult:
        """The result if TorchRec runs its plan correctly, otherwise the best of further searches.

        TorchRec cannot run some plans, and under others it computes something else than the model
        does. This depends on several tables of a module together, and the search does not know of
        it. If the plan of the search is such a plan, the problem is searched again under narrower
        rules (:mod:`planner.options.enumeration`), and the best plan of these searches is the
        answer. The bound of the first search holds for it as well, because all these plans are also
        plans of the first search. If no search finds a plan that runs, the first result is returned
        with its warnings. Otherwise runners-up that TorchRec does not run correctly are left out.
        """
        first, workload = self.result(), self.problem.workload
        if runs(first.plan, workload):
            return _with_runners_up_that_run(first)
        results = list(self._searched_anew(first))
        found = [result for result in results if runs(result.plan, workload)]
        if not found:
            return first
        best = _with_runners_up_that_run(min(found, key=lambda result: result.solver.value))
        seconds = sum(result.solver.seconds for result in (first, *results))
        solver = replace(best.solver, bound=first.solver.bound, seconds=seconds)
        gap = solver.gap_ratio
        if solver.status in (Status.OPTIMAL, Status.OPTIMAL_FOR_WIDTHS) and (
            gap is None or gap > base.OPTIMALITY_GAP
        ):
            solver = replace(solver, status=Status.GAP)
        return replace(best, problem=self.problem, solver=solver, searched=(*best.searched, _LINE))

    def _searched_anew(self, first: PlanningResult) -> Iterator[PlanningResult]:
        """Results under narrower rules, and under still narrower ones where these are not enough.

        Rules that are narrowed less are searched first. Each search begins near the plan found
        under the wider rules. They end with the time limit.
        """
        constraints, given = self.problem.constraints, enumeration.rules_of(self.problem)
        seen, waiting = {given}, deque([(first, given)])
        while waiting:
            found, rules = waiting.popleft()
            for narrower in _narrower(found, rules):
                if narrower in seen or len(seen) > _SEARCHES:
                    continue
                seen.add(narrower)
                left_s = self.deadline.left_s + self.settings.kept_s
                if left_s <= _LEAST_S or (self.should_stop is not None and self.should_stop()):
                    return
                limit_s = left_s if math.isfinite(left_s) else None
                settings = replace(self.settings, time_limit_s=limit_s)
                tables = (*constraints.tables, *narrower)
                problem = replace(self.problem, constraints=replace(constraints, tables=tables))
                again = replace(self, problem=problem, settings=settings, near=found.plan)
                try:
                    result = again.result()
                except PlannerError:
                    continue
                yield result
                waiting.append((result, narrower))

    def search(self) -> tuple[Evaluator, base.SearchOutcome]:
        """Search with the kernels that matter; if nothing fits, search again with all kernels."""
        settings, named = self.settings, self.settings.strategy
        strategy = named if isinstance(named, base.AbstractStrategy) else strategy_named(named)
        if named == _DEFAULT and self.near is not None:
            strategy = Auto(self.near)
        for every_kernel in (False, True):
            space = self.listed(every_kernel=every_kernel)
            limit_s = self.deadline.for_search(space)
            most = settings.max_evaluations or default_evaluations(space, settings.time_limit_s)
            objective = prepare.search_objective(settings.objective, space, settings.robust)
            budget = Budget(time_limit_s=limit_s, max_evaluations=most)
            evaluate = Evaluator(space, objective, budget)
            record = base.Record(evaluate, self.progress, self.should_stop)
            outcome = strategy.search(record, seed=settings.seed)
            hint = "AbstractStrategy.search says what to return"
            require_kind("what the strategy returned", outcome, base.SearchOutcome, hint)
            if outcome.assignments or space.listing.has_every_kernel:
                break
        return evaluate, outcome

    def baselines(self, evaluate: Evaluator) -> dict[str, Point | None]:
        """The best plan of each baseline strategy; None where it found no plan that fits.

        A baseline that the clock leaves no time for is not among them.
        """
        points: dict[str, Point | None] = {}
        for left, name in zip(range(len(BASELINES), 0, -1), BASELINES, strict=True):
            is_alone = name == TORCHREC_BASELINE
            budget = self.deadline.for_baseline(evaluate.space, left, alone=is_alone)
            if budget.time_limit_s == 0.0:
                continue
            record = base.Record(Evaluator(evaluate.space, evaluate.objective, budget))
            outcome = strategy_named(name).search(record, seed=self.settings.seed)
            if outcome.termination is Status.TIME_LIMIT and not outcome.values:
                continue
            points[name] = (outcome.values[0], outcome.assignments[0]) if outcome.values else None
        return points

    def listed(self, *, every_kernel: bool = False) -> SearchSpace:
        """The space of plans; raises if it is proven that nothing fits, or if asked to stop.

        Where kernels are left out of the listing, "nothing fits" cannot be proven. If a table then
        has no option at all, all kernels are listed after all.
        """
        started = time.perf_counter()

        def tell(done: int, total: int) -> None:
            if self.should_stop is not None and self.should_stop():
                msg = f"stopped while options of tables were listed, {done:,} of {total:,}"
                raise StoppedError(msg)
            if self.progress is not None:
                phase = f"options of {done:,} of {total:,} tables listed"
                seconds = time.perf_counter() - started
                self.progress(base.SearchProgress(seconds=seconds, phase=phase))

        space = prepare.search_space(
            self.problem, self.make_pipeline, every_kernel=every_kernel, progress=tell
        )
        if space.listing.has_every_kernel:
            require_feasible(space)
        if not every_kernel and not all(t.options for t in space.tables):
            return self.listed(every_kernel=True)
        return space

    def answer(
        self, outcome: base.SearchOutcome, points: dict[str, Point | None], evaluate: Evaluator
    ) -> PlanningResult:
        """The result of a search, with the plans of the baselines that there is time to price.

        Args:
            outcome: what the search found and proved.
            points: value and assignment of each baseline, None where it found no plan that fits;
                for strategy ``auto`` the best one may replace the plan of the search.
            evaluate: has priced the plans of the search.

        Raises:
            InfeasibleError: it is proven that no plan fits.
            NoPlanFoundError: the search ended without a plan that fits.
        """
        space, deadline, strategy = evaluate.space, self.deadline, self.settings.strategy
        known = [p for p in points.values() if p is not None]
        if strategy == _DEFAULT:
            outcome = self._descended(_no_worse(outcome, known), evaluate)
        if not outcome.assignments:
            raise _nothing_found(space, outcome.bound)
        best = first = outcome.assignments[0]
        if strategy == _DEFAULT:
            if space.problem.move_limit is not None:
                best = staying(evaluate, first, space.problem.move_limit)
            elif not evaluate.late:
                best = simplified(evaluate, first)
            outcome = _with_best(outcome, evaluate, best)
        outcome, remarks = guarded(outcome, [value for value, _ in known], evaluate)
        name = strategy if isinstance(strategy, str) else type(strategy).__name__
        found = [_candidate(space, outcome.assignments[0], name)]
        baselines = {n: _baseline(space, n, p) for n, p in points.items() if deadline.can_price}
        others = outcome.assignments[1 : 1 + RUNNERS_UP]
        found += [_candidate(space, a, name) for a in others if deadline.can_price]
        return prepare.with_context(
            space,
            PlanningResult(
                problem=space.problem,
                best=found[0],
                solver=_report(name, outcome, evaluate, self.settings.seed),
                runners_up=tuple(found[1:]),
                baselines=tuple(b for b in baselines.values() if b is not None),
                unfit_baselines=tuple(n for n, b in baselines.items() if b is None),
                warnings=(
                    *remarks,
                    *_left_out(space, first, best, evaluate),
                    *self._remarks(found[0], evaluate, baselines),
                    *torchrec_rules.width_remarks(space.problem.workload),
                    *torchrec_rules.runtime_warnings(found[0].plan, space.problem.workload),
                    *found[0].estimate.warnings,
                ),
                searched=prepare.searched_options(space),
            ),
        )

    def _descended(self, outcome: base.SearchOutcome, evaluate: Evaluator) -> base.SearchOutcome:
        """The outcome after changes of single tables; an optimal one stays as it is.

        So does one from which all moves are allowed: its plan moves no table for a small gain.
        """
        space = evaluate.space
        moves = space.problem.move_limit is not None and space.rules.budget is None
        if moves or not outcome.assignments or outcome.termination is Status.OPTIMAL:
            return outcome
        best = outcome.assignments[0]
        better = single_changes(evaluate, best, lambda: not self.deadline.can_price)
        return _with_best(outcome, evaluate, better)

    def _remarks(
        self, best: Candidate, evaluate: Evaluator, priced: Collection[str]
    ) -> Iterator[str]:
        """Warnings on memory below the reserve, and on what a time limit cut short or left out.

        TorchRec's objectives keep TorchRec's own reservation free, and not the workload's.
        """
        deadline = self.deadline
        if not best.memory.fits and isinstance(evaluate.objective, ColumnMaxima):
            yield (
                "the plan does not fit beside the workload's memory.reserve: objective "
                f"{evaluate.objective.name} keeps free what TorchRec's planner keeps instead"
            )
        if TORCHREC_BASELINE in priced and torchrec_default(evaluate.space.problem).is_cut:
            yield "TorchRec's own plan is from a search cut short; the whole one would take minutes"
        search_s, limit_s = deadline.search_s, deadline.limit_s
        if search_s is not None and limit_s is not None and search_s < _SHORT_SHARE * limit_s:
            yield (
                "listing options, pricing plans and writing them left the search "
                f"{format_time(search_s)} of the time limit of {format_time(limit_s)}; with more "
                "time the plan may be better"
            )
        missing = [n for n in BASELINES if self.settings.with_baselines and n not in priced]
        if missing:
            yield f"the time limit left no time to compare with {', '.join(missing)}; give it more"

    def without_tables(self) -> PlanningResult:
        """The result for a workload without tables: there is one plan, and its price is its bound.

        Raises:
            InvalidInputError: the objective or a constraint is about tables, or there are scenarios
                or a limit on moves, which are about tables too; or a constraint names a missing
                rank.
            InfeasibleError: the dense part and the reserve do not fit into some device.
        """
        problem, search = self.problem, self.settings
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
        pipeline = pipeline_of(problem, self.make_pipeline)
        refuse_hopeless(problem, pipeline)
        best = Candidate.of(NO_SEARCH, only, pipeline)
        value = prepare.objective_value(problem, only, search.objective)
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
            problem=problem,
            best=best,
            solver=report,
            warnings=best.estimate.warnings,
            searched=lines,
        )


# ------------------ from what a search found to its parts of the result


def guarded(
    outcome: base.SearchOutcome, others: Sequence[float], evaluate: Evaluator
) -> tuple[base.SearchOutcome, tuple[str, ...]]:
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


def _with_best(
    outcome: base.SearchOutcome, evaluate: Evaluator, best: Assignment
) -> base.SearchOutcome:
    """The outcome with another plan in the place of its best one, and none that is better."""
    if best == outcome.assignments[0]:
        return outcome
    value, others = evaluate.value(best), zip(outcome.values, outcome.assignments, strict=True)
    kept = [pair for pair in list(others)[1:] if pair[0] >= value]
    gap = 0.0 if outcome.bound is None else value - outcome.bound
    loses_proof = outcome.termination is Status.OPTIMAL and gap > base.OPTIMALITY_GAP * abs(value)
    return replace(
        outcome,
        values=(value, *(v for v, _ in kept)),
        assignments=(best, *(a for _, a in kept)),
        termination=Status.GAP if loses_proof else outcome.termination,
    )


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
    plans = space.plan(found), space.plan(stayed)
    moved = [
        [received_bytes(start.placement(t.name), p.placement(t.name), t, workload) for p in plans]
        for t in workload.tables
    ]
    tables, freed = sum(a > b for a, b in moved), sum(a - b for a, b in moved)
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
        return _candidate(space, point[1], name)
    plan = torchrec_default(space.problem).plan if name == TORCHREC_BASELINE else None
    if plan is None:
        return None
    found = Candidate.of(name, plan, space.pipeline)
    return found if found.memory.fits else None


def _report(name: str, outcome: base.SearchOutcome, evaluate: Evaluator, seed: int) -> SolverReport:
    status, best = outcome.termination, outcome.assignments[0]
    space = evaluate.space
    seen = evaluate.objective.separable_value(space.work(best), space.types(best))
    if status is Status.OPTIMAL and torchrec_rules.odd_tables(space.problem.workload):
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


def _balanced_value(outcome: base.SearchOutcome, evaluate: Evaluator) -> float | None:
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


def _candidate(space: SearchSpace, assignment: Assignment, name: str) -> Candidate:
    """The plan of an assignment, with its price and its memory."""
    return Candidate.of(name, space.plan(assignment), space.pipeline)


def _no_worse(outcome: base.SearchOutcome, points: list[Point]) -> base.SearchOutcome:
    """The outcome, with the best of ``points`` put first if the search found no plan as good."""
    best = min(points, key=lambda p: p[0], default=None)
    if best is None or (outcome.values and outcome.values[0] <= best[0]):
        return outcome
    return replace(
        outcome, values=(best[0], *outcome.values), assignments=(best[1], *outcome.assignments)
    )


def _nothing_found(space: SearchSpace, bound: float | None) -> PlannerError:
    """The error that names what is missing: bytes, rules that cannot hold, or both.

    An infinite bound proves that no plan fits.
    """
    excess = least_excess_bytes(space)
    if bound is None or not math.isinf(bound):
        short = f" Even if memory were balanced, one rank would lack {format_bytes(excess)}."
        rules = ", or drop or widen constraints" if space.rules else ""
        return NoPlanFoundError(
            f"no plan found; not proven impossible.{short if excess > 0 else ''} "
            f"Raise --evaluations or --time-limit, or use more memory{rules}"
        )
    reasons, advice = list[str](), ["allow more sharding types or kernels"]
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


# ------------------ a plan that TorchRec runs correctly

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


def runs(plan: Plan, workload: Workload) -> bool:
    """Whether TorchRec runs a plan correctly; HugeCTR, which is not TorchRec, runs every plan."""
    if workload.pipeline is Pipeline.HUGECTR:
        return True
    pools_otherwise = torchrec_rules.pooling_problems(plan, workload)
    return not (pools_otherwise or torchrec_rules.width_problems(plan, workload))


def _with_runners_up_that_run(result: PlanningResult) -> PlanningResult:
    workload = result.problem.workload
    kept = tuple(c for c in result.runners_up if runs(c.plan, workload))
    return result if kept == result.runners_up else replace(result, runners_up=kept)


def _narrower(found: PlanningResult, rules: enumeration.Rules) -> Iterator[enumeration.Rules]:
    """Rules that leave out what TorchRec does not run correctly in the plan found under ``rules``.

    If means are pooled wrongly, either no mean is cut by rows, or all tables of their modules are.
    Otherwise, if pieces have several widths, either no columns are cut, or one of the widths stays,
    the most common ones first.
    """
    workload = found.problem.workload
    if torchrec_rules.pooling_problems(found.plan, workload):
        for by_rows in (False, True):
            yield enumeration.pooled_alike(workload, rules, by_rows=by_rows)
    elif modules := torchrec_rules.width_problems(found.plan, workload):
        widths = torchrec_rules.piece_widths(found.plan, workload)
        each = [{m: widths[m][min(i, len(widths[m]) - 1)] for m in modules} for i in range(_WIDTHS)]
        for chosen in (dict.fromkeys(modules, 0), *each):
            yield enumeration.pieces_of_one_width(workload, rules, found.plan, chosen)
