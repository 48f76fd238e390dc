"""One problem, planned as users plan it, by the engine alone, or interrupted on the way."""

from __future__ import annotations

import json
import math
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from costmodels.sharding import Plan, check_plan
from planner.api import estimate, floor, solve
from planner.io import load_plan, plan_text
from planner.problem import PlanningProblem
from planner.result import Reshard
from planner.scenarios import ScenarioRule
from planner.search.auto import Auto
from planner.search.base import AbstractStrategy
from planner.search.bounds.proofs import Floor
from planner.settings import SearchSettings
from planner.solving.prepare import BOUND_OF_LISTED
from planner.support.status import Status
from tests.differential.case import Case, models_on
from tests.planner.cases import scheduled

TIME_LIMIT_S = 60.0
"""Only a safety: a run that reaches it is as good as hung."""

_LATEST = 3.5
"""An interrupted search is asked at most ten to the power of this times before it has to stop."""


class Run(StrEnum):
    """How the planner is asked.

    As users ask it; without pricing every plan of tiny spaces; or like that and interrupted at a
    moment that the name of the case draws.
    """

    USERS = "plan"
    ENGINE = "engine"
    CUT = "cut"


UNCUT = (Run.USERS, Run.ENGINE)
"""The runs that end by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the planner said. Without a plan, ``error`` is the exception it ended with.

    ``bound`` is what was proven of every plan, None where the planner says that it is about listed
    options alone. ``plan`` is as read back from the written file; ``estimate_s`` is what
    ``estimate`` says of it, and ``reshard`` what a move from the plan in use takes.
    ``others`` are the runners-up and the baselines' plans; ``text`` is all that was said, times
    of the search apart. ``floor`` is what is known without a search (of the engine, about times),
    and ``free_bytes`` what the plan leaves of its fullest rank. ``withdrew`` says that the planner
    itself saw its bound to be wrong (:mod:`planner.solving.run`).
    """

    run: Run
    plan: Plan | None = None
    value: float = math.inf
    bound: float | None = None
    is_optimal: bool = False
    estimate_s: float | None = None
    others: tuple[Plan, ...] = ()
    floor: Floor | None = None
    reshard: Reshard | None = None
    free_bytes: float = math.inf
    withdrew: bool = False
    text: str = ""
    error: Exception | None = None
    trace: str = ""
    seconds: float = 0.0
    evaluations: int = 0


def ask(case: Case, run: Run, *, max_evaluations: int, floors: bool = True) -> Answer:
    """Plan a case, write the plan, and read it back; ``floors`` asks the engine for its floor."""
    strategy: str | AbstractStrategy = "auto" if run is Run.USERS else Auto()
    search = SearchSettings(
        strategy=strategy,
        objective=case.objective,
        time_limit_s=TIME_LIMIT_S,
        max_evaluations=max_evaluations,
        with_baselines=run is Run.USERS,
        robust=case.robust,
    )
    should_stop = _stop_at_a_moment(case) if run is Run.CUT else None
    started = time.perf_counter()
    try:
        with nullcontext() if run is Run.USERS else scheduled(exhaustive_s=0.0):
            result = solve(problem_of(case), search=search, should_stop=should_stop)
        seconds = time.perf_counter() - started
        text = plan_text(result)
        written = _read_back(case, text)
        check_plan(written, case.workload, case.topology.world_size)
        models = problem_of(case).models
        found = estimate(case.workload, case.topology, written, models=models)
        is_of_every_plan = not any(BOUND_OF_LISTED in line for line in result.searched)
    except Exception as error:  # whatever it is: the judgement is faults_of's
        return Answer(
            run=run,
            error=error,
            text=f"{type(error).__name__}: {error}",
            trace=traceback.format_exc(),
            seconds=time.perf_counter() - started,
        )
    return Answer(
        run=run,
        plan=written,
        value=result.solver.value,
        bound=result.solver.bound if is_of_every_plan else None,
        is_optimal=result.solver.status is Status.OPTIMAL and is_of_every_plan,
        estimate_s=found.estimate.time.time_s,
        others=tuple(c.plan for c in (*result.runners_up, *result.baselines)),
        floor=_floor(case) if floors and run is Run.ENGINE else None,
        reshard=result.reshard,
        free_bytes=result.best.memory.fullest.headroom_bytes,
        withdrew=result.solver.status is Status.NO_PROOF,
        text=_without_times(text),
        seconds=seconds,
        evaluations=result.solver.evaluations,
    )


def _floor(case: Case) -> Floor | None:
    """What no plan can go below, which is told of iteration times alone."""
    if case.objective != "iteration" or case.robust is not ScenarioRule.WORST:
        return None
    return floor(problem_of(case))


def problem_of(case: Case) -> PlanningProblem:
    """The question that a case asks, without its objective."""
    return PlanningProblem(
        workload=case.workload,
        topology=case.topology,
        constraints=case.constraints,
        move_limit=case.moves,
        scenarios=case.scenarios,
        models=models_on(case, case.topology) if case.collective else None,
    )


def _stop_at_a_moment(case: Case) -> Callable[[], bool]:
    """Says that the search has to stop from some time on that it is asked; often early."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    left = int(10.0 ** rng.uniform(0.0, _LATEST))

    def should_stop() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    return should_stop


def _without_times(text: str) -> str:
    """A plan file without the wall-clock times of the search."""
    values = json.loads(text)
    for key in ("seconds", "progress"):
        values["solver"].pop(key, None)
    return json.dumps(values, indent=1)


def _read_back(case: Case, text: str) -> Plan:
    """The plan as a file holds it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_text(text, encoding="utf-8")
        return load_plan(path, case.workload, case.topology).plan
