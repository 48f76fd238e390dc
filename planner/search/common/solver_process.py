"""Programs that are solved in another process, or in this one if none can be started."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from planner.search.common.milp import MilpProgram, Solution
from planner.search.common.other_process import OtherProcess, serve_standard_streams
from planner.search.common.programs import solve

_Task = tuple[list[MilpProgram], float, float]
"""Programs, the seconds for all of them together, and the relative gap at which each ends."""


class SolverProcess:
    """Solves programs beside the search: ``start`` some, work on, then ask for the ``result``."""

    def __init__(self) -> None:
        """Start nothing yet: the process starts with the first programs."""
        self._other = OtherProcess(__name__)
        self._task: _Task | None = None
        self._inline = False

    @property
    def ready(self) -> bool:
        """Whether ``result`` would return at once, without waiting for the process."""
        return not self._other.busy

    def start(self, programs: list[MilpProgram], *, time_limit_s: float, gap_ratio: float) -> None:
        """Begin to solve programs, one after the other.

        Args:
            programs: what to solve.
            time_limit_s: seconds by the clock for all of them together.
            gap_ratio: the solver stops at this relative gap; see
                :func:`planner.search.common.programs.solve`.
        """
        self._task = (programs, time_limit_s, gap_ratio)
        self._inline = not self._other.send(self._task)

    def result(self, stopped: Callable[[], bool]) -> list[Solution]:
        """Wait for the programs that were begun last.

        Args:
            stopped: is asked often; True ends the process.

        Returns:
            One solution per program, in order; only those of the first programs if the process was
            ended or the time was up before.
        """
        task, self._task = self._task, None
        if task is None:
            msg = "no program was begun"
            raise RuntimeError(msg)
        if self._inline:
            return list(solutions(task))
        self._other.wait(stopped)
        return list(self._other.replies)

    def close(self) -> None:
        """End the process, even while it solves a program."""
        self._other.close()


def solutions(task: _Task) -> Iterator[Solution]:
    """The solutions of the programs of a task, as many as can be begun within its time limit."""
    programs, time_limit_s, gap_ratio = task
    started = time.monotonic()
    for program in programs:
        left_s = time_limit_s - (time.monotonic() - started)
        if left_s <= 0:
            return
        yield solve(program, time_limit_s=left_s, gap_ratio=gap_ratio)


if __name__ == "__main__":
    serve_standard_streams(solutions)
