"""Bounds from mixed-integer programs, solved beside the search.

The set of sharding types, or the box of phase maxima, with the least bound is taken again and
again: first with whole options, then with the rows of special ranks as well, more of them each
time. What is found here moves the bound alone, so that how fast it is found cannot change the plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from planner.search.base import Record
from planner.search.parts.bound import RankFreeBound
from planner.search.parts.branching import Branching, Node
from planner.search.parts.relaxation import Relaxation, TypeSet
from planner.search.parts.solver_process import SolverProcess

_SPECIAL: Final = (2, 4, 8)
"""Special ranks at each attempt."""
_MOST_VARIABLES: Final = 12_000
"""Further variables of special ranks in one program."""
_BATCH: Final = 2
"""Programs solved in a row beside one cycle of the search."""
_GAP_RATIO: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Task:
    types: TypeSet | None
    node: Node | None
    special: tuple[int, ...]


def left_s(record: Record) -> float:
    """Seconds left to a search, infinite without a limit."""
    limit_s = record.evaluate.budget.time_limit_s
    return math.inf if limit_s is None else max(limit_s - record.evaluate.seconds, 0.01)


class Prover:
    """Raises the least bound, a few programs at a time.

    Args:
        bounds: makes the programs.
        relaxed: bounds of the sets of sharding types.
        branching: open boxes, if the objective has such; raised in place.
    """

    def __init__(
        self,
        bounds: RankFreeBound,
        relaxed: dict[TypeSet | None, Relaxation],
        branching: Branching | None,
    ) -> None:
        """Nothing is begun yet."""
        self._bounds, self._relaxed = bounds, dict(relaxed)
        self._branching = branching if branching is not None and branching.possible else None
        self._tries: dict[object, int] = {}
        self._process = SolverProcess()
        self._tasks: list[_Task] = []
        self._units: list[float] = []

    def bound(self, incumbent: float) -> float:
        """The least bound over all plans."""
        if self._branching is not None:
            return self._branching.bound(incumbent)
        return min([incumbent, *(r.bound for r in self._relaxed.values())])

    def advance(self, record: Record, *, wait: bool) -> bool:
        """Take what has been proven and begin the next programs; False if there are none.

        Without a time limit it waits, so that the outcome does not depend on the clock.
        """
        value, seconds = record.value, left_s(record)
        if self._tasks and (wait or math.isinf(seconds) or self._process.ready):
            self.finish(value, lambda: record.stopped)
            record.raise_bound(self.bound(value), "special ranks")
        if self._tasks or record.stopped or not math.isfinite(value):
            return bool(self._tasks)
        return self.start(value, seconds)

    def start(self, incumbent: float, time_limit_s: float) -> bool:
        """Begin the next programs; False if there is none that could help."""
        self._tasks = self._next(incumbent)
        programs, self._units = [], []
        for task in self._tasks:
            box = None if task.node is None else task.node.box
            kept = None if task.node is None else task.node.kept
            made, unit = self._bounds.program(task.types, box=box, kept=kept, special=task.special)
            programs.append(made)
            self._units.append(unit)
        if programs:
            self._process.start(programs, time_limit_s=time_limit_s, gap_ratio=_GAP_RATIO)
        return bool(programs)

    def finish(self, incumbent: float, stopped: Callable[[], bool]) -> None:
        """Wait for them and take what they prove."""
        tasks, self._tasks = self._tasks, []
        solutions = self._process.result(stopped) if tasks else []
        for i, task in enumerate(tasks):
            bound = -math.inf
            if i < len(solutions):
                bound = solutions[i].bound * self._units[i]
            self._take(task, bound, incumbent)

    def close(self) -> None:
        """End the process."""
        self._process.close()
        for task in self._tasks:
            self._take(task, -math.inf, math.inf)
        self._tasks = []

    # -- private ----------------------------------------------------------------------------------

    def _take(self, task: _Task, bound: float, incumbent: float) -> None:
        if task.node is not None and self._branching is not None:
            node = replace(task.node, bound=max(task.node.bound, bound), whole=True)
            self._branching.put_back(task.node, node, incumbent)
            self._tries[node.box] = self._tries.get(node.box, 0) + 1
            return
        self._tries[task.types] = self._tries.get(task.types, 0) + 1
        known = self._relaxed[task.types]
        self._relaxed[task.types] = replace(known, bound=max(known.bound, bound))

    def _next(self, incumbent: float) -> list[_Task]:
        if self._branching is not None:
            return self._next_boxes(self._branching, incumbent)
        tasks: list[_Task] = []
        for types in sorted(self._relaxed, key=lambda t: self._relaxed[t].bound)[:_BATCH]:
            relaxation, tries = self._relaxed[types], self._tries.get(types, 0)
            if relaxation.bound >= incumbent:
                break
            special = self._special(types, relaxation, tries)
            if special is None:
                break
            tasks.append(_Task(types=types, node=None, special=special))
        return tasks

    def _next_boxes(self, branching: Branching, incumbent: float) -> list[_Task]:
        """The least boxes; those that programs have said all of are split."""
        tasks: list[_Task] = []
        while len(tasks) < _BATCH:
            node = branching.take(incumbent)
            if node is None:
                break
            special = None
            if node.relaxation is not None and node.box is not None:
                tries = self._tries.get(node.box, int(node.whole))
                special = self._special(node.types, node.relaxation, tries)
            if special is not None:
                tasks.append(_Task(types=node.types, node=node, special=special))
                continue
            branching.put_back(node, node, incumbent)
            if tasks or branching.step(incumbent, whole_limit_s=None) is None:
                break
        return tasks

    def _special(
        self, types: TypeSet | None, relaxation: Relaxation, tries: int
    ) -> tuple[int, ...] | None:
        """Tables for special ranks; None if there would not be more than the last time."""
        if tries == 0:
            return ()
        most = max(_MOST_VARIABLES // max(len(self._bounds.space.options), 1), 1)
        counts = [0, *(min(count, most) for count in _SPECIAL)]
        if tries >= len(counts) or counts[tries] == counts[tries - 1]:
            return None
        if relaxation.phases is None or relaxation.shares is None:
            relaxation = self._bounds.relax(types, rounds=2)
        found = self._bounds.special(relaxation, counts[tries])
        return found if len(found) > counts[tries - 1] else None
