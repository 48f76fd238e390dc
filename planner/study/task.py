"""What processes and machines do for a study: search the plan of a setup, or prove its bound."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from costmodels.system_models import sync_time_s
from planner import api
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError, StoppedError
from planner.io.plan.plan_file import plan_to_json
from planner.problem import PlanningProblem
from planner.result import PlanningResult
from planner.search.base import StopCallback
from planner.search.bounds.quick import Floor
from planner.settings import SearchSettings
from planner.study.figures import Amount, Figures, Operation, figures_of, saved_bytes
from planner.study.space import Setup
from planner.support.processes import ProcessDiedError, WorkerError, WorkerPool
from planner.support.status import Status

DIED: Final = "its process died, for want of memory perhaps"
DONE, UNFIT, FAILED, STOPPED = "done", "does_not_fit", "failed", "stopped"

_POLL_S: Final = 0.5
"""Seconds between two checks of ``should_stop`` while a cluster works."""


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
    plan: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The result as values that JSON can store, without setup, number and plan."""
        kept = TypeAdapter(SetupResult).dump_python(self, exclude={"setup", "number", "plan"})
        return dict(kept)

    @classmethod
    def from_json(cls, setup: Setup, values: dict[str, Any], number: int) -> SetupResult:
        """The inverse of :meth:`to_json`.

        Raises:
            LookupError, TypeError, ValueError: the values are not those of a result.
        """
        told = {**values, "setup": setup, "number": number}
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
    """

    setup: Setup
    whole: PlanningProblem
    problem: PlanningProblem
    sync_interval: int
    operation: Operation
    search: SearchSettings


def search(task: Task, *, should_stop: Callable[[], bool] | None = None) -> SetupResult:
    """Search a setup."""
    try:
        result = api.solve(task.problem, search=task.search, should_stop=should_stop)
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
