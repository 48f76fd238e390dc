"""Runs points in processes of their own and keeps each result as soon as it is there."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner import api
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError, StoppedError
from planner.io.plan.result_json import inputs_hash
from planner.problem import PlanningProblem
from planner.result import PlanningResult
from planner.settings import SearchSettings
from planner.support.file_errors import writing
from planner.support.status import Status
from planner.support.worker_pool import ProcessDiedError, WorkerPool
from planner.sweep.economics import Operation, economics
from planner.sweep.grid import Point
from planner.sweep.outcome import CUT, PointResult, PointStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A point with its problem, and how hard to search."""

    point: Point
    problem: PlanningProblem
    operation: Operation
    time_limit_s: float | None = None
    max_evaluations: int | None = None
    seed: int = 0


class Journal:
    """Results as lines of JSON, appended one by one; a line cut off by a crash is dropped.

    Args:
        path: the file; made when the first result comes.

    Raises:
        InvalidInputError: it holds something else.
    """

    def __init__(self, path: Path) -> None:
        """Read what is there."""
        self.path = path
        self._results: dict[tuple[Point, str], PointResult] = {}
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        self._whole = not text or text.endswith("\n")
        lines = text.split("\n")
        for number, line in enumerate(lines, 1):
            if line.strip():
                self._read(line, number, last=number == len(lines))

    def _read(self, line: str, number: int, *, last: bool) -> None:
        try:
            result = PointResult.from_json(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            if last:
                return
            message = f"{self.path}:{number}: is no result of a sweep; name another folder"
            raise InvalidInputError(message) from error
        self._results[result.point, result.inputs_hash] = result

    def find(self, task: Task) -> PointResult | None:
        """The result of a task of the same inputs; failed ones are tried again."""
        known = self._results.get((task.point, inputs_hash(task.problem)))
        return known if known is not None and known.status is not PointStatus.FAILED else None

    def add(self, result: PointResult) -> None:
        """Append a result and make sure that it is on the disk."""
        self._results[result.point, result.inputs_hash] = result
        if not self._whole:
            data = self.path.read_bytes()
            os.truncate(self.path, data.rfind(b"\n") + 1)
            self._whole = True
        line = json.dumps(result.to_json(), allow_nan=False) + "\n"
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
    progress: Callable[[PointResult], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[PointResult, ...]:
    """Results in the order of the tasks; those not reached are missing.

    A point that does not fit, or whose process dies, is a result too and stops nothing.

    Args:
        tasks: what to do.
        journal: results known already are taken from it, new ones are added.
        workers: processes; 1 runs everything in this one.
        progress: called with every new result.
        should_stop: asked often; True ends the sweep with what it has.
    """
    known = {i: journal.find(t) for i, t in enumerate(tasks)} if journal else {}
    found = {i: result for i, result in known.items() if result is not None}
    left = [(i, t) for i, t in enumerate(tasks) if i not in found]
    solved = _here(left, should_stop) if workers == 1 else _spread(left, workers, should_stop)
    for index, result in solved:
        found[index] = result
        if journal is not None:
            journal.add(result)
        if progress is not None:
            progress(result)
    return tuple(found[i] for i in sorted(found))


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
    left: Sequence[tuple[int, Task]], workers: int, should_stop: Callable[[], bool]
) -> Iterator[tuple[int, PointResult]]:
    """Some processes at a time; what a process died of is tried once more, alone."""
    died: list[tuple[int, Task]] = []
    with WorkerPool(workers) as pool:
        tasks = [task for _, task in left]
        for done in pool.run(solve, tasks, should_stop=should_stop):
            if isinstance(done.error, ProcessDiedError):
                died.append(left[done.index])
            else:
                yield left[done.index][0], done.value
    with WorkerPool(1) as pool:
        for done in pool.run(solve, [t for _, t in died], should_stop=should_stop):
            index, task = died[done.index]
            if isinstance(done.error, ProcessDiedError):
                yield index, failed(task, "its process died, for want of memory perhaps")
            else:
                yield index, done.value


def solve(task: Task, *, should_stop: Callable[[], bool] = lambda: False) -> PointResult:
    """The best plan of a point in figures.

    Raises:
        StoppedError: ``should_stop`` said so before the search had ended.
    """
    try:
        search = SearchSettings(
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
    """A point without a plan."""
    return PointResult(
        point=task.point,
        status=PointStatus.FAILED,
        inputs_hash=inputs_hash(task.problem),
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
        inputs_hash=inputs_hash(task.problem),
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
        usd_per_billion_samples=money.usd_per_billion_samples,
    )


def _bottleneck(result: PlanningResult) -> str:
    """The stage with the largest share of the critical path."""
    shares: dict[str, float] = {}
    for step in result.estimate.critical_path:
        shares[step.stage] = shares.get(step.stage, 0.0) + step.duration_s
    return max(shares, key=lambda stage: shares[stage], default="")
