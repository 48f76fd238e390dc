"""A pool that starts no process."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any
from unittest import mock

from planner.support.processes import ProcessDiedError, WorkerPool


class Died(BaseException):
    """In the place of the end of a process."""


class Here(WorkerPool):
    """Calls in this process, the last item first; what goes to a process and back is pickled.

    A call that would end its process is reported as one whose process died.
    """

    def run(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        *,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[int, Future[Any]]]:
        for index in reversed(range(len(items))):
            if should_stop():
                return
            called, item = pickle.loads(pickle.dumps((function, items[index])))
            done: Future[Any] = Future()
            try:
                with mock.patch.object(os, "_exit", side_effect=Died):
                    done.set_result(pickle.loads(pickle.dumps(called(item))))
            except Died:
                done.set_exception(ProcessDiedError("its process died"))
            yield index, done
