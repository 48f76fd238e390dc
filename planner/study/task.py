"""What processes and machines do for a study: search the plan of a setup, or prove its bound.

A setup is searched twice at most in each round. The second search starts from plans that were found
under other setups: it prices them on the setup's own ranks, and goes on from there if one of them
is better than the setup's own plan. Proofs are left out, because the first search has made them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, final

from pydantic import Field, TypeAdapter

from costmodels.system_models import sync_time_s
from planner import api
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError, StoppedError
from planner.io.plan.plan_file import plan_to_json
from planner.problem import PlanningProblem
from planner.result import PlanningResult
from planner.search.auto import Auto
from planner.search.base import (
    AbstractStrategy,
    ProgressCallback,
    Record,
    SearchOutcome,
    StopCallback,
)
from planner.search.bounds.quick import Floor
from planner.search.common.schedule import SearchPart
from planner.search.construct.handed import HandedPlan, offered
from planner.settings import SearchSettings
from planner.space.evaluation import Evaluator, SearchSpace
from planner.study.figures import Amount, Figures, Operation, figures_of, saved_bytes
from planner.study.space import Setup
from planner.support.dask_cluster import WorkerError
from planner.support.processes import ProcessDiedError, WorkerPool
from planner.support.status import Status

DIED: Final = "its process died, for want of memory perhaps"
DONE, UNFIT, FAILED, STOPPED = "done", "does_not_fit", "failed", "stopped"

_POLL_S: Final = 0.5
"""Seconds between two checks of ``should_stop`` while a cluster works."""
_WORTH_GAP_RATIO: Final = 0.01
"""Setups whose gap is at most this share get no second search."""
_MOST_HANDED: Final = 6
"""A setup is given the plans of this many neighbours at most, the nearest first."""
_KNOWN: Final = frozenset({SearchPart.GREEDY, SearchPart.PROOFS})
"""The parts of a search that the first search has done, which the second one leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupResult:
    """A setup that was searched, or is impossible.

    Attributes:
        setup: the setup.
        status: ``done``, ``does_not_fit``, ``failed``, or ``stopped`` before the search had ended.
        figures: those of its plan; None if there is none.
        reason: why there is no plan.
        number: of its trial; trials are numbered in the order in which they began.
        bound_s: proven bound on the iteration, without the averaging of copies.
        sync_s: seconds per iteration for the averaging of copies.
        evaluations: plans that the search priced.
        is_cut: whether the clock ended the search.
        waits_for: the stage with the largest share of the critical path.
        handed: the plan, as other searches can start from it.
        handed_hash: identifies the plans that this search started from; empty for a first one.
        plan: the plan as in ``plan.json``.
    """

    setup: Setup
    status: str
    figures: Figures | None = None
    reason: str = ""
    number: int = -1
    bound_s: Amount | None = None
    sync_s: Amount = 0.0
    evaluations: Annotated[int, Field(ge=0)] = 0
    is_cut: bool = False
    waits_for: str = ""
    handed: HandedPlan | None = None
    handed_hash: str = ""
    plan: dict[str, Any] | None = None

    @property
    def gap_ratio(self) -> float | None:
        """The most that its plan can be above the best one, as a share; None without a bound."""
        if self.bound_s is None or self.figures is None or not self.figures.time_s:
            return None
        return max(0.0, 1.0 - (self.bound_s + self.sync_s) / self.figures.time_s)

    def to_json(self) -> dict[str, Any]:
        """The result as values that JSON can store, without setup, number and plan."""
        kept = TypeAdapter(SetupResult).dump_python(self, exclude={"setup", "number", "plan"})
        return {**kept, "handed": None if self.handed is None else self.handed.to_json()}

    @classmethod
    def from_json(cls, setup: Setup, values: dict[str, Any], number: int) -> SetupResult:
        """The inverse of :meth:`to_json`.

        Raises:
            LookupError, TypeError, ValueError: the values are not those of a result.
        """
        handed = values["handed"]
        handed = None if handed is None else HandedPlan.from_json(handed)
        told = {**values, "handed": handed, "setup": setup, "number": number}
        found = TypeAdapter(SetupResult).validate_python(told)
        if found.status == DONE and (found.figures is None or not found.figures.time_s > 0):
            message = "a setup with a plan has times above 0"
            raise ValueError(message)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A setup with its problems, and how to search it.

    Attributes:
        setup: the setup.
        whole: the problem of all ranks.
        problem: that of one group of ranks.
        sync_interval: iterations between two averagings of copies.
        operation: failures, and speeds of checkpoints.
        search: budget, limits and seed.
        first: what was found before, for a second search.
        handed: plans of other setups, for a second search.
    """

    setup: Setup
    whole: PlanningProblem
    problem: PlanningProblem
    sync_interval: int
    operation: Operation
    search: SearchSettings
    first: SetupResult | None = None
    handed: tuple[HandedPlan, ...] = ()

    def again(self, first: SetupResult, found: Sequence[SetupResult]) -> Task | None:
        """The second search of its setup; None if it needs none, or neighbours have no plans."""
        handed = handed_to(self.setup, found) if _is_worth_it(first) else ()
        return replace(self, first=first, handed=handed) if handed else None

    @property
    def handed_hash(self) -> str:
        """A hash of the plans that a second search begins with, and of those before."""
        if self.first is None:
            return ""
        text = json.dumps([self.first.handed_hash, *(plan.to_json() for plan in self.handed)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def search(task: Task, *, should_stop: Callable[[], bool] | None = None) -> SetupResult:
    """Search a setup; for a second search, the better one of both results is returned."""
    found = _searched(task, should_stop)
    if task.first is None or found.status == STOPPED:
        return found
    return replace(better(task.first, found), handed_hash=task.handed_hash)


def _searched(task: Task, should_stop: Callable[[], bool] | None) -> SetupResult:
    settings = task.search
    if task.first is not None:
        settings = replace(settings, strategy=FromHanded(task.first.handed, task.handed))
    try:
        result = api.solve(task.problem, search=settings, should_stop=should_stop)
    except InfeasibleError as error:
        return SetupResult(setup=task.setup, status=UNFIT, reason=str(error))
    except (NoPlanFoundError, StoppedError) as error:
        is_stopped = should_stop is not None and should_stop()
        status = STOPPED if is_stopped else FAILED
        return SetupResult(setup=task.setup, status=status, reason=str(error))
    except InvalidInputError as error:
        return SetupResult(setup=task.setup, status=FAILED, reason=str(error))
    memory, time = result.best.memory, result.estimate.time
    topology, problem = task.whole.topology, task.problem
    once_s = sync_time_s(topology, problem.topology.world_size, memory, models=task.whole.models)
    sync_s = once_s / task.sync_interval
    figures = figures_of(
        task.whole,
        task.operation,
        time_s=time.time_s + sync_s,
        free_bytes=memory.fullest.headroom_bytes,
        checkpoint_bytes=saved_bytes(result),
    )
    return SetupResult(
        setup=task.setup,
        status=STOPPED if result.solver.status is Status.INTERRUPTED else DONE,
        figures=replace(figures, low_s=time.low_s + sync_s, high_s=time.high_s + sync_s),
        bound_s=result.bound,
        sync_s=sync_s,
        evaluations=result.solver.evaluations,
        is_cut=result.solver.status is Status.TIME_LIMIT,
        waits_for=_longest_stage(result),
        handed=HandedPlan.of(result.plan, problem.workload, problem.topology),
        plan=plan_to_json(result.plan, problem.workload, problem.topology.local_world_size),
    )


def _longest_stage(result: PlanningResult) -> str:
    shares: dict[str, float] = {}
    for step in result.estimate.critical_path:
        shares[step.stage] = shares.get(step.stage, 0.0) + step.duration_s
    return max(shares, key=lambda stage: shares[stage], default="")


def prove(
    problem: PlanningProblem, *, should_stop: Callable[[], bool] | None = None
) -> Floor | None:
    """What no plan of a problem can better; None if nothing fits.

    Raises:
        StoppedError: ``should_stop`` was True.
    """
    with contextlib.suppress(InfeasibleError, InvalidInputError):
        return api.floor(problem, should_stop=should_stop)
    return None


@final
class FromHanded(AbstractStrategy):
    """The default search from handed plans; it runs only if one of them is better than ``own``.

    Args:
        own: the plan that the setup has; None if it has none.
        others: the plans of other setups.
    """

    __slots__ = ("_others", "_own")

    def __init__(self, own: HandedPlan | None, others: Sequence[HandedPlan]) -> None:
        """Keep the plans."""
        self._own = () if own is None else (own,)
        self._others = tuple(others)

    def search(
        self,
        space: SearchSpace,
        evaluate: Evaluator,
        *,
        seed: int,
        progress: ProgressCallback | None = None,
        should_stop: StopCallback | None = None,
    ) -> SearchOutcome:
        """Price the handed plans, and search from them if one of them is better than ``own``."""
        record = Record(evaluate, progress, should_stop)
        offered(self._own, space, record)
        own = record.value
        offered(self._others, space, record)
        if record.value >= own:
            return record.outcome(proves=False)
        handed = (*self._own, *self._others)
        return Auto(_KNOWN, handed).search(
            space, evaluate, seed=seed, progress=progress, should_stop=should_stop
        )


def _is_worth_it(first: SetupResult) -> bool:
    """Whether a setup is searched again once its neighbours are done."""
    if first.status == FAILED:
        return first.reason != DIED
    gap = first.gap_ratio
    return first.status == DONE and (gap is None or gap > _WORTH_GAP_RATIO)


def handed_to(setup: Setup, found: Sequence[SetupResult]) -> tuple[HandedPlan, ...]:
    """Plans of the nearest setups that differ in one value, the nearest first.

    The distance between numbers, such as ranks or samples, is the logarithm of their ratio: twice
    as many are as far as half as many. Other values have distance 1, which is more.
    """
    near = [(distance, r.handed) for r in found if (distance := _distance(setup, r.setup)) < 9e9]
    near.sort(key=lambda pair: pair[0])
    return tuple(plan for _, plan in near if plan is not None)[:_MOST_HANDED]


def _distance(one: Setup, other: Setup) -> float:
    """The distance of two setups; infinite if they are the same, or differ in several values."""
    pairs = zip(one.picks, other.picks, strict=True)
    unlike = [(mine, theirs) for (_, mine), (_, theirs) in pairs if mine != theirs]
    if len(unlike) != 1:
        return math.inf
    mine, theirs = unlike[0]
    if type(mine) is int and type(theirs) is int and mine > 0 and theirs > 0:
        return abs(math.log(mine / theirs))
    return 1.0


def better(first: SetupResult, second: SetupResult) -> SetupResult:
    """The result with the faster plan, and with the bound that the first search has proven.

    If the plan is faster than that bound, the bound was wrong, and is dropped.
    """
    if second.figures is None:
        return first
    if first.figures is not None and first.figures.time_s <= second.figures.time_s:
        return first
    bound_s = first.bound_s
    plan_s = second.figures.time_s - second.sync_s
    is_wrong = bound_s is not None and bound_s > plan_s * (1 + 1e-9)
    return replace(second, bound_s=None if is_wrong else bound_s)


# ------------------------------------------------------------------ where tasks are done


def done_at(
    place: Any, function: Callable[..., Any], items: Sequence[Any], should_stop: StopCallback
) -> Iterator[tuple[int, Any]]:
    """Call a function on each item; yields the index and the result, as calls finish.

    The result is None for a call whose process died twice, the second time alone.

    Args:
        place: a pool of processes, a client of a Dask cluster, or None for this process.
        function: :func:`search` or :func:`prove`.
        items: the arguments.
        should_stop: called again and again; True ends the calls.

    Raises:
        StoppedError: ``should_stop`` was True in a proof of this process.
        WorkerError: the connection to the cluster was lost.
    """
    if place is None:
        for index, item in enumerate(items):
            if should_stop():
                return
            yield index, function(item, should_stop=should_stop)
    elif isinstance(place, WorkerPool):
        died: list[int] = []
        for done in place.run(function, items, should_stop=should_stop):
            if isinstance(done.error, ProcessDiedError):
                died.append(done.index)
            else:
                yield done.index, done.value
        with type(place)(1) as alone:
            for done in alone.run(function, [items[i] for i in died], should_stop=should_stop):
                lost = isinstance(done.error, ProcessDiedError)
                yield died[done.index], None if lost else done.value
    else:
        yield from _on_dask(place, function, items, should_stop)


def _on_dask(
    client: Any, function: Callable[..., Any], items: Sequence[Any], should_stop: StopCallback
) -> Iterator[tuple[int, Any]]:
    """Results of a cluster; what a lost worker did goes to another one, a few times."""
    distributed = importlib.import_module("distributed")
    waiting = {client.submit(function, item, pure=False): i for i, item in enumerate(items)}
    while waiting:
        if should_stop():
            client.cancel(list(waiting))
            return
        with contextlib.suppress(TimeoutError):
            distributed.wait(list(waiting), timeout=_POLL_S, return_when="FIRST_COMPLETED")
        for future in [f for f in waiting if f.done()]:
            index = waiting.pop(future)
            if future.cancelled():
                message = "the Dask cluster was lost; start again to go on from the results so far"
                raise WorkerError(message)
            is_lost = isinstance(future.exception(), distributed.KilledWorker)
            yield index, None if is_lost else future.result()
