"""Programs solved in a process of their own; in place where none can be started."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from planner.search.common.other_process import OtherProcess, serve_standard_streams
from planner.search.common.programs import MilpProgram, Solution, solve

_Task = tuple[list[MilpProgram], float, float]


class SolverProcess:
    """Solves some programs at a time: ``start`` them, do something else, ask for the ``result``."""

    def __init__(self) -> None:
        """Nothing is started before the first program."""
        self._other = OtherProcess(__name__)
        self._task: _Task | None = None
        self._inline = False

    @property
    def ready(self) -> bool:
        """Whether ``result`` would not have to wait for the process."""
        return not self._other.busy

    def start(self, programs: list[MilpProgram], *, time_limit_s: float, gap_ratio: float) -> None:
        """Begin; see :func:`planner.search.common.programs.solve` for the arguments."""
        self._task = (programs, time_limit_s, gap_ratio)
        self._inline = not self._other.send(self._task)

    def result(self, stopped: Callable[[], bool]) -> list[Solution]:
        """Wait for the programs begun last; only the first ones if ``stopped`` says so before."""
        task, self._task = self._task, None
        if task is None:
            msg = "no program was begun"
            raise RuntimeError(msg)
        if self._inline:
            return list(solutions(task))
        self._other.wait(stopped)
        return list(self._other.replies)

    def close(self) -> None:
        """End the process, also in the middle of a program."""
        self._other.close()


def solutions(task: _Task) -> Iterator[Solution]:
    """One after the other, as many as can be begun in time."""
    programs, time_limit_s, gap_ratio = task
    started = time.monotonic()
    for program in programs:
        left_s = time_limit_s - (time.monotonic() - started)
        if left_s <= 0:
            return
        yield solve(program, time_limit_s=left_s, gap_ratio=gap_ratio)


if __name__ == "__main__":
    serve_standard_streams(solutions)
