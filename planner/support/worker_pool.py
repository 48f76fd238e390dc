"""Processes that call a function on many items; none of them outlives its parent or its pool.

:class:`concurrent.futures.ProcessPoolExecutor` waits for running calls when it is shut down, its
workers never notice that their parent was killed, and one lost worker takes all others with it.
"""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from planner.support.lifeline import end_with

Item = TypeVar("Item")
Result = TypeVar("Result")

_POLL_S: Final = 0.2
"""Between two looks at whether to stop."""


class ProcessDiedError(Exception):
    """The process ended in the middle of a call, for want of memory perhaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Generic[Result]):
    """The call on one item: its result, or the error that it raised."""

    index: int
    result: Result | None = None
    error: BaseException | None = None

    @property
    def value(self) -> Result:
        """The result.

        Raises:
            BaseException: what the call raised; ``ProcessDiedError`` if its process was lost.
        """
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    process: BaseProcess
    pipe: Connection

    def end(self) -> None:
        self.process.kill()
        self.pipe.close()
        self.process.join()


class WorkerPool:
    """Processes that are started when they are needed, and all ended by :meth:`close`.

    A pool belongs to the thread that made it: its processes end with that thread
    (:mod:`planner.support.lifeline`).

    Args:
        workers: most processes at a time.
    """

    def __init__(self, workers: int) -> None:
        """Nothing is started yet."""
        self._most = workers
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, tuple[_Worker, int]] = {}

    def __enter__(self) -> Self:
        """The pool itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all processes."""
        del kind, error, trace
        self.close()

    def close(self) -> None:
        """End all processes at once, also in the middle of a call."""
        workers = [*self._idle, *(worker for worker, _ in self._busy.values())]
        self._idle, self._busy = [], {}
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.end()

    def run(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[Finished[Result]]:
        """Call ``function`` on each item; what is finished comes first.

        Args:
            function: of a module, so that it can be sent; so must items and results be.
            items: begun in this order.
            should_stop: asked often; True ends all processes, and no more comes.
        """
        waiting = deque(enumerate(items))
        while waiting or self._busy:
            if should_stop():
                self.close()
                return
            while waiting and len(self._busy) < self._most:
                index, item = waiting.popleft()
                self._begin(function, index, item)
            for ready in wait(list(self._busy), timeout=_POLL_S):
                if isinstance(ready, Connection):
                    yield self._end(ready)

    def _begin(self, function: Callable[[Item], Result], index: int, item: Item) -> None:
        worker = self._idle.pop() if self._idle else _started()
        self._busy[worker.pipe] = (worker, index)
        try:
            worker.pipe.send_bytes(pickle.dumps((function, item)))
        except (BrokenPipeError, ConnectionError):
            return  # it died; what comes back from it says so

    def _end(self, pipe: Connection) -> Finished[Result]:
        worker, index = self._busy.pop(pipe)
        try:
            reply = pipe.recv_bytes()
        except (EOFError, OSError):
            worker.end()
            return Finished(index=index, error=ProcessDiedError("its process died"))
        self._idle.append(worker)
        result, error = pickle.loads(reply)
        return Finished(index=index, result=result, error=error)


def _started() -> _Worker:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, os.getpid()), daemon=True)
    with interrupts_blocked():
        process.start()
    theirs.close()
    return _Worker(process=process, pipe=ours)


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """What is started inside is not reached by Ctrl-C, which is for the parent to deal with."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # what starts a process does it, and unblocks signals then
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pipe: Connection, parent: int) -> None:
    """Answer calls until the pool closes the pipe."""
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            request = pipe.recv_bytes()
        except EOFError:
            return
        pipe.send_bytes(_answer(request))


def _answer(request: bytes) -> bytes:
    """The result of a call, or its error with the traceback as a note."""
    try:
        function, item = pickle.loads(request)
        return pickle.dumps((function(item), None))
    except Exception as error:
        error.add_note(f"in a process of a pool:\n{traceback.format_exc()}")
        return pickle.dumps((None, _sendable(error)))


def _sendable(error: Exception) -> Exception:
    """The error, or its words where it does not survive being sent."""
    try:
        copy: Any = pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error if type(copy) is type(error) else RuntimeError(str(error))
