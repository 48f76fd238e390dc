"""Searches the points of a sweep in several processes, and stores each result at once."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from planner import api
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError, StoppedError
from planner.io.plan.result_json import inputs_hash
from planner.problem import PlanningProblem
from planner.result import PlanningResult
from planner.search.construct.handed import HandedPlan
from planner.settings import SearchSettings
from planner.support.dask_cluster import WorkerError, require_same_version
from planner.support.file_errors import writing
from planner.support.status import Status
from planner.support.worker_pool import ProcessDiedError, WorkerPool
from planner.sweep.economics import Operation, economics
from planner.sweep.grid import Point
from planner.sweep.hand_on import FromHanded, better, handed_hash, handed_to, is_worth_it
from planner.sweep.outcome import CUT, DIED, PointResult, PointStatus

_POLL_S: Final = 0.5
"""Seconds between two checks of ``should_stop`` while a cluster works."""
_ROUNDS: Final = 3
"""At most this many further searches of a point, in rounds that all points finish together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A point with its problem, and how to search it.

    A second search has ``first``, which is what was found before, and ``handed``, which are plans
    of other points. Without them the task is a first search.
    """

    point: Point
    problem: PlanningProblem
    operation: Operation
    time_limit_s: float | None = None
    max_evaluations: int | None = None
    seed: int = 0
    first: PointResult | None = None
    handed: tuple[HandedPlan, ...] = ()

    def again(self, first: PointResult, found: Sequence[PointResult]) -> Task | None:
        """The second search of its point; None if it needs none, or neighbours have no plans.

        Args:
            first: what was found at this point.
            found: what was found at other points.
        """
        handed = handed_to(self.point, found) if is_worth_it(first) else ()
        return replace(self, first=first, handed=handed) if handed else None

    @property
    def inputs_hash(self) -> str:
        """A hash of the problem, of the failures, and of the budget and seed of the search."""
        asked = {
            "problem": inputs_hash(self.problem),
            "operation": asdict(self.operation),
            "search": [self.time_limit_s, self.max_evaluations, self.seed],
        }
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()

    @property
    def handed_hash(self) -> str:
        """A hash of the plans that a second search begins with."""
        return "" if self.first is None else handed_hash(self.first.handed_hash, self.handed)


class Journal:
    """A file of results, one line of JSON each; a last line that a crash has cut is dropped.

    Args:
        path: the file; it is made when the first result comes.

    Raises:
        InvalidInputError: the file has something else in it.
    """

    def __init__(self, path: Path) -> None:
        """Read the file, if it exists."""
        self.path = path
        self._results: dict[tuple[Point, str, str], PointResult] = {}
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        self._whole = not text or text.endswith("\n")
        lines = text.split("\n")
        for number, line in enumerate(lines, 1):
            if line.strip():
                self._read(line, number, last=number == len(lines))

    def _read(self, line: str, number: int, *, last: bool) -> None:
        try:
            result = PointResult.from_line(json.loads(line))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            if last:
                return
            message = (
                f"{self.path}:{number}: is no result of a sweep, or a damaged one ({error}); name "
                "another folder"
            )
            raise InvalidInputError(message) from error
        self._keep(result)

    def _keep(self, result: PointResult) -> None:
        self._results[result.point, result.inputs_hash, result.handed_hash] = result

    def find(self, task: Task) -> PointResult | None:
        """The stored result of a task with the same problem, failures, search and seed, if any.

        A failed result is not returned, so that its point is tried again.
        """
        key = task.point, task.inputs_hash, task.handed_hash
        known = self._results.get(key)
        return None if known is None or known.status is PointStatus.FAILED else known

    def add(self, result: PointResult) -> None:
        """Append a result, and wait until it is on the disk."""
        self._keep(result)
        if not self._whole:
            data = self.path.read_bytes()
            os.truncate(self.path, data.rfind(b"\n") + 1)
            self._whole = True
        line = json.dumps(result.to_line(), allow_nan=False) + "\n"
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            with writing(self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(self.path, size)
            raise


def run(
    tasks: Sequence[Task],
    *,
    journal: Journal | None = None,
    workers: int = 1,
    dask: Any = None,
    progress: Callable[[PointResult], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[PointResult, ...]:
    """Search all points; returns results in the order of the tasks, without those not reached.

    Every point is first searched by itself. When all are done, points with a wide gap are searched
    once more from the plans of their neighbours (:mod:`planner.sweep.hand_on`), and again if
    neighbours have become better. The result of a point never depends on which process was faster,
    and no point gets worse.

    A point that does not fit, or whose process dies, has a result as well, and does not stop the
    sweep.

    Args:
        tasks: the points with their problems.
        journal: gives known results, and stores new ones.
        workers: number of processes; with 1 everything runs in this process.
        dask: a client of a Dask cluster, whose workers take the place of processes.
        progress: called with every new result, and again with that of a second search.
        should_stop: called again and again; True ends the sweep with the results so far.

    Raises:
        InvalidInputError: workers of the cluster have another version of shardplan.
        WorkerError: the connection to the cluster was lost; the journal has the results so far.
    """
    if dask is not None:
        require_same_version(dask)
    with WorkerPool(workers) as pool:

        def results_of(asked: dict[int, Task]) -> dict[int, PointResult]:
            known = {i: journal.find(t) for i, t in asked.items()} if journal else {}
            found = {i: result for i, result in known.items() if result is not None}
            left = [(i, t) for i, t in asked.items() if i not in found]
            place = dask or (None if workers == 1 else pool)
            for index, result in _solved(left, place, should_stop):
                found[index] = result
                if journal is not None:
                    journal.add(result)
                if progress is not None:
                    progress(result)
            return found

        found = results_of(dict(enumerate(tasks)))
        given: dict[int, tuple[HandedPlan, ...]] = {}
        for _ in range(_ROUNDS if len(found) == len(tasks) else 0):
            asked = _second_looks(tasks, [found[i] for i in range(len(tasks))], given)
            if not asked or should_stop():
                break
            given |= {i: task.handed for i, task in asked.items()}
            found |= results_of(asked)
    return tuple(found[i] for i in sorted(found))


def _solved(
    left: Sequence[tuple[int, Task]], place: Any, should_stop: Callable[[], bool]
) -> Iterator[tuple[int, PointResult]]:
    """Results as they come; ``place`` is a pool of processes, a Dask client, or None for here."""
    if place is None:
        return _here(left, should_stop)
    if isinstance(place, WorkerPool):
        return _spread(left, place, should_stop)
    return _on_dask(left, place, should_stop)


def _second_looks(
    tasks: Sequence[Task],
    found: Sequence[PointResult],
    given: Mapping[int, tuple[HandedPlan, ...]],
) -> dict[int, Task]:
    """Second searches of the points that have not been given exactly these plans before."""
    again = {i: task.again(found[i], found) for i, task in enumerate(tasks)}
    return {i: t for i, t in again.items() if t is not None and t.handed != given.get(i)}


def _here(
    left: Iterable[tuple[int, Task]], should_stop: Callable[[], bool]
) -> Iterator[tuple[int, PointResult]]:
    for index, task in left:
        if should_stop():
            return
        try:
            found = solve(task, should_stop=should_stop)
        except StoppedError:
            return
        yield index, found


def _spread(
    left: Sequence[tuple[int, Task]], pool: WorkerPool, should_stop: Callable[[], bool]
) -> Iterator[tuple[int, PointResult]]:
    """Results of a pool of processes; a point whose process died is tried once more, alone."""
    died: list[tuple[int, Task]] = []
    for done in pool.run(solve, [task for _, task in left], should_stop=should_stop):
        if isinstance(done.error, ProcessDiedError):
            died.append(left[done.index])
        else:
            yield left[done.index][0], done.value
    with WorkerPool(1) as alone:
        for done in alone.run(solve, [t for _, t in died], should_stop=should_stop):
            index, task = died[done.index]
            if isinstance(done.error, ProcessDiedError):
                yield index, task.first or failed(task, DIED)
            else:
                yield index, done.value


def _on_dask(
    left: Sequence[tuple[int, Task]], client: Any, should_stop: Callable[[], bool]
) -> Iterator[tuple[int, PointResult]]:
    """Results of a cluster; the point of a lost worker goes to another one, a few times."""
    distributed = importlib.import_module("distributed")
    waiting = {client.submit(solve, task, pure=False): (i, task) for i, task in left}
    while waiting:
        if should_stop():
            client.cancel(list(waiting))
            return
        with contextlib.suppress(TimeoutError):
            distributed.wait(list(waiting), timeout=_POLL_S, return_when="FIRST_COMPLETED")
        for future in [f for f in waiting if f.done()]:
            index, task = waiting.pop(future)
            if future.cancelled():
                message = "the Dask cluster was lost; start again to go on from the results so far"
                raise WorkerError(message)
            error = future.exception()
            if isinstance(error, distributed.KilledWorker):
                yield index, task.first or failed(task, DIED)
            else:
                yield index, future.result()


def solve(task: Task, *, should_stop: Callable[[], bool] = lambda: False) -> PointResult:
    """Search a point; for a second search, the better one of both results is returned.

    Raises:
        StoppedError: ``should_stop`` was True before the search had ended.
    """
    found = _searched(task, should_stop)
    if task.first is None:
        return found
    return replace(better(task.first, found), handed_hash=task.handed_hash)


def solve_beside(
    task: Task,
    found: Sequence[PointResult],
    *,
    should_stop: Callable[[], bool] = lambda: False,
) -> PointResult:
    """Search a point, and then once more from the plans of points that were found before.

    Raises:
        StoppedError: ``should_stop`` was True before the first search had ended.
    """
    first = solve(task, should_stop=should_stop)
    again = task.again(first, found)
    if again is None:
        return first
    try:
        return solve(again, should_stop=should_stop)
    except StoppedError:
        return first


def _searched(task: Task, should_stop: Callable[[], bool]) -> PointResult:
    strategy = "auto" if task.first is None else FromHanded(task.first.plan, task.handed)
    try:
        search = SearchSettings(
            strategy=strategy,
            time_limit_s=task.time_limit_s,
            max_evaluations=task.max_evaluations,
            seed=task.seed,
            with_baselines=False,
        )
        result = api.solve(task.problem, search=search, should_stop=should_stop)
    except InfeasibleError as error:
        return replace(failed(task, str(error)), status=PointStatus.DOES_NOT_FIT)
    except NoPlanFoundError as error:
        if should_stop():
            raise _stopped(task) from error
        return failed(task, str(error))
    except InvalidInputError as error:
        return failed(task, str(error))
    if result.solver.status is Status.INTERRUPTED:
        raise _stopped(task)
    return _summary(task, result)


def _stopped(task: Task) -> StoppedError:
    return StoppedError(f"{task.point.name}: stopped before its search had ended")


def failed(task: Task, reason: str) -> PointResult:
    """The result of a point for which no plan was found."""
    return PointResult(
        point=task.point,
        status=PointStatus.FAILED,
        inputs_hash=task.inputs_hash,
        reason=reason,
        hosts=task.problem.topology.num_hosts,
        local_batch_size=task.problem.workload.local_batch_size,
    )


def _summary(task: Task, result: PlanningResult) -> PointResult:
    topology, estimate, memory = task.problem.topology, result.estimate, result.best.memory
    saved = max(r.weights_bytes + r.optimizer_bytes for r in memory.ranks)
    money = economics(
        task.operation,
        samples_per_s=estimate.samples_per_s,
        checkpoint_bytes=saved,
        hosts=topology.num_hosts,
        ranks=topology.world_size,
        usd_per_device_hour=topology.price_per_device_usd_per_hour,
    )
    return PointResult(
        point=task.point,
        status=PointStatus.DONE,
        reason=CUT if result.solver.status is Status.TIME_LIMIT else "",
        inputs_hash=task.inputs_hash,
        hosts=topology.num_hosts,
        local_batch_size=task.problem.workload.local_batch_size,
        iteration_time_s=estimate.time.time_s,
        low_s=estimate.time.low_s,
        high_s=estimate.time.high_s,
        bound_s=result.bound,
        samples_per_s=estimate.samples_per_s,
        headroom_bytes=memory.fullest.headroom_bytes,
        checkpoint_bytes=saved,
        exposed_ratio=estimate.exposed_communication_s / estimate.time.time_s,
        bottleneck=_bottleneck(result),
        price_usd_per_hour=money.usd_per_hour,
        availability_ratio=money.availability_ratio,
        checkpoint_interval_s=_finite(money.checkpoint_interval_s),
        usd_per_billion_samples=money.usd_per_billion_samples,
        plan=HandedPlan.of(result.plan, task.problem.workload, topology),
    )


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


def _bottleneck(result: PlanningResult) -> str:
    """The name of the stage with the largest share of the critical path."""
    shares: dict[str, float] = {}
    for step in result.estimate.critical_path:
        shares[step.stage] = shares.get(step.stage, 0.0) + step.duration_s
    return max(shares, key=lambda stage: shares[stage], default="")
