"""One problem, planned as users plan it and by the engine alone, held against the true optimum."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from costmodels.sharding import Plan, TablePlacement
from costmodels.workload import Pipeline
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError, StoppedError
from planner.options.torchrec_rules import layout_problems
from planner.result import Reshard
from tests.differential import laws
from tests.differential.asking import UNCUT, Answer, Run, ask
from tests.differential.case import Case, received_bytes_by_rank
from tests.differential.judging.descent import FEW, best_known
from tests.differential.judging.enumerator import Enumerator, Optimum
from tests.differential.judging.rules import MOVED_BYTES, broken_rules

EVALUATIONS = 40
"""Plans that the search may price for each problem of a test: it is about promises, not quality."""

SAME = 1e-9
"""Relative difference of two prices of one plan; how far a bound may be above the optimum."""

OPTIMAL = 1e-4
"""A plan called optimal is at most this share above the optimum."""


class Kind(StrEnum):
    """What can be wrong with an answer."""

    BOUND = "bound above the optimum"
    WIDE = "bound above the optimum of wider menus only"
    WITHDRAWN = "bound above a plan, and therefore not told"
    BELOW = "value below the optimum"
    PRICE = "written price differs"
    MOVE = "the price of the move differs"
    INFEASIBLE = "feasible called infeasible"
    REFUSED = "feasible refused as bad input"
    NOT_FOUND = "feasible, no plan found"
    OPTIMAL = "falsely optimal"
    RULE = "constraint or memory broken"
    LAYOUT = "not legal in TorchRec"
    REPEAT = "another answer when asked again"
    CRASH = "crash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One broken promise."""

    run: Run
    kind: Kind
    text: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.run}: {self.kind}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All there is to say about one case. ``wide`` is the optimum over cuts beyond the documented
    menu; None where those are too many to price, or nobody asked.
    """

    case: Case
    optimum: Optimum
    answers: tuple[Answer, ...]
    faults: tuple[Fault, ...]
    wide: Optimum | None = None
    seconds: float = 0.0

    def answer(self, run: Run) -> Answer:
        """The answer of one run."""
        return next(a for a in self.answers if a.run is run)

    def excess(self, run: Run) -> float | None:
        """How far the plan of a run is above the optimum, as a share; None where none fits."""
        found = [a for a in self.answers if a.run is run]
        if not found or math.isinf(self.optimum.value):
            return None
        value, best = found[0].value, self.optimum.value
        return 0.0 if value == best else (value - best) / best if best > 0 else math.inf

    def wide_faults(self) -> list[Fault]:
        """Bounds that hold over the documented menu and not over the wide one."""
        if self.wide is None:
            return []
        known = {f.run for f in self.faults if f.kind is Kind.BOUND}
        best = self.wide.value
        return [
            Fault(
                run=a.run,
                kind=Kind.WIDE,
                text=f"{a.bound:.9g}, wide optimum {best:.9g} ({_percent(a.bound, best)})",
            )
            for a in self.answers
            if a.bound is not None and a.run not in known and _above(a.bound, best)
        ]


def check(
    case: Case,
    *,
    runs: tuple[Run, ...] = UNCUT,
    max_evaluations: int = 2000,
    most_wide: int = 0,
    exact: bool = True,
    twice: bool = False,
    floors: bool = True,
) -> Verdict:
    """Plan a case and judge the answers.

    Args:
        case: the problem.
        runs: ways to ask.
        max_evaluations: plans that the search may price.
        most_wide: wide menus with at most so many plans are priced too.
        exact: price every plan; else hold the answers against the best plan that a descent finds,
            for problems with too many plans.
        twice: ask again, and compare the two answers byte by byte.
        floors: ask the engine also what is known without a search.
    """
    started = time.perf_counter()
    space = Enumerator(case, few=None if exact else FEW, mirrors=exact)
    optimum = space.optimum() if exact else best_known(space)
    answers = tuple(ask(case, run, max_evaluations=max_evaluations, floors=floors) for run in runs)
    faults = [fault for a in answers for fault in faults_of(case, optimum, a, space)]
    for first in answers if twice else ():
        again = ask(case, first.run, max_evaluations=max_evaluations, floors=floors)
        if again.text != first.text:
            text = f"{first.value:.9g} and {again.value:.9g}, or other words"
            faults.append(Fault(run=first.run, kind=Kind.REPEAT, text=text))
    wide = None
    if most_wide:
        more = Enumerator(case, wide=True)
        wide = more.optimum() if more.num_plans <= most_wide else None
    return Verdict(
        case=case,
        optimum=optimum,
        answers=answers,
        faults=tuple(faults),
        wide=wide,
        seconds=time.perf_counter() - started,
    )


# ------------------------------------------------------------------ judging


def faults_of(case: Case, optimum: Optimum, answer: Answer, space: Enumerator) -> list[Fault]:
    """Every promise that an answer breaks.

    Args:
        case: the problem.
        optimum: the best of all plans.
        answer: what the planner said.
        space: prices plans of the case.
    """
    if answer.error is not None:
        lines = _faults_without_plan(optimum, answer)
    else:
        lines = _faults_of_plan(case, optimum, answer, space)
    return [Fault(run=answer.run, kind=kind, text=text) for kind, text in lines]


def _faults_without_plan(optimum: Optimum, answer: Answer) -> list[tuple[Kind, str]]:
    error = answer.error
    if answer.run is Run.CUT and isinstance(error, NoPlanFoundError | StoppedError):
        return []
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    kinds = {
        InfeasibleError: Kind.INFEASIBLE,
        InvalidInputError: Kind.REFUSED,
        NoPlanFoundError: Kind.NOT_FOUND,
    }
    kind = kinds.get(type(error), Kind.CRASH)
    if kind is Kind.CRASH:
        return [(kind, f"{type(error).__name__}: {text}")]
    if math.isinf(optimum.value):
        return []
    return [(kind, f"{optimum.num_fitting} plans fit, the best at {optimum.value:.9g}: {text}")]


def _faults_of_plan(
    case: Case, optimum: Optimum, answer: Answer, space: Enumerator
) -> list[tuple[Kind, str]]:
    found = answer.plan
    if found is None:
        return [(Kind.CRASH, "neither a plan nor an error")]
    faults = []
    value, bound, best = answer.value, answer.bound, optimum.value
    # TorchRec's own plan is told also where it breaks rules that TorchRec does not know.
    legal = [p for p in answer.others if not broken_rules(case, p) and not space.judge.overfull(p)]
    known = min([best, *(space.judge.price(p) for p in (found, *legal))])
    if bound is not None and (math.isnan(bound) or _above(bound, known)):
        faults.append((Kind.BOUND, f"{bound:.9g}, optimum {known:.9g} ({_percent(bound, known)})"))
    least = answer.floor
    if least is not None and _above(least.value, known):
        faults.append((Kind.BOUND, f"floor {least.value:.9g}, optimum {known:.9g}"))
    if least is not None and _above(answer.free_bytes, least.free_bytes + 1.0):
        text = f"{answer.free_bytes:.9g} bytes left, floor {least.free_bytes:.9g}"
        faults.append((Kind.BOUND, text))
    if answer.withdrew:
        faults.append((Kind.WITHDRAWN, f"{value:.9g}, optimum {known:.9g}"))
    if math.isnan(value) or (optimum.is_exact and _above(best, value)):
        faults.append((Kind.BELOW, f"{value:.9g}, optimum {best:.9g} ({_percent(value, best)})"))
    if answer.is_optimal and not value <= best * (1.0 + OPTIMAL):
        faults.append((Kind.OPTIMAL, f"{value:.9g}, optimum {best:.9g} ({_percent(value, best)})"))
    price = space.judge.price(found)
    if not same(price, value):
        faults.append((Kind.PRICE, f"{value:.9g}, priced {price:.9g} ({_percent(price, value)})"))
    alone = case.objective == "iteration" and not case.scenarios
    if alone and answer.estimate_s is not None and not same(answer.estimate_s, value):
        faults.append((Kind.PRICE, f"{value:.9g}, estimate says {answer.estimate_s:.9g}"))
    faults += [(Kind.MOVE, line) for line in _unlike_moves(case, found.placements, answer.reshard)]
    faults += [(Kind.RULE, line) for line in broken_rules(case, found)]
    faults += [(Kind.RULE, line) for line in space.judge.overfull(found)]
    return faults + [(Kind.LAYOUT, line) for line in illegal_lines(case, found)]


def illegal_lines(case: Case, found: Plan) -> list[str]:
    """What keeps TorchRec from running a plan; HugeCTR's kernels take any width."""
    lines = layout_problems(found, case.workload, case.topology)
    if case.workload.pipeline is not Pipeline.HUGECTR:
        return lines
    return [line for line in lines if "fused kernels need a multiple" not in line]


def _unlike_moves(
    case: Case, placements: Sequence[TablePlacement], told: Reshard | None
) -> Iterator[str]:
    """Lines where bytes and tables that move are told otherwise than they are counted."""
    if case.moves is None or told is None:
        return
    received = np.array([received_bytes_by_rank(case, p) for p in placements])
    pairs = (
        ("tables", told.moved_tables, float((received.sum(axis=1) > MOVED_BYTES).sum())),
        ("bytes", told.moved_bytes, float(received.sum())),
        ("bytes to one rank", told.most_received_bytes, float(received.sum(axis=0).max())),
    )
    for name, said, counted in pairs:
        if abs(said - counted) > MOVED_BYTES + SAME * counted:
            yield f"{name} that move: {said:.9g}, counted {counted:.9g}"


def same(one: float, other: float) -> bool:
    """Whether two prices are equal but for rounding."""
    return abs(one - other) <= SAME * max(abs(one), abs(other))


def _above(one: float, other: float) -> bool:
    """Whether ``one`` is above ``other`` by more than rounding."""
    return one > other + SAME * abs(other)


def _percent(value: float, other: float) -> str:
    return f"{value / other - 1.0:+.3%}" if other and math.isfinite(other) else "no share"


def assert_answers(case: Case) -> None:
    """The answers about a problem have no fault."""
    found = [str(fault) for fault in check(case, max_evaluations=EVALUATIONS).faults]
    assert not found, "\n".join(found)


def assert_sound(case: Case, seed: int) -> None:
    """The answers have no fault, and the plans that the seed draws break no law."""
    faults = check(case, max_evaluations=EVALUATIONS).faults
    found = [*map(str, faults), *laws.broken_laws(case, seed)]
    assert not found, "\n".join(found)
