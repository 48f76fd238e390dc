"""Processes: that they end with their parent, a pool that loses no call, and a Dask cluster."""

import contextlib
import ctypes
import importlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.process import ORIGINAL_DIR  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from planner.errors import PlannerError, refuse

# ------------------ lifeline
#
# Makes sure that the processes that this one starts end when it ends, however it ends.
#
# A child that only waits for messages of its parent notices the end of the pipe. A child that is
# inside a solver for minutes does not; and its other threads cannot notice either, because the
# solver may hold the interpreter's lock. The kernel is therefore asked to kill the child
# (``PR_SET_PDEATHSIG`` of Linux).
#
# The kernel sends that signal when the *thread* that started the child ends, even if the rest of
# the parent goes on. Children are therefore started by the thread that uses them, which also ends
# them. A search in a worker thread of a training job, for example, starts its processes in that
# thread, and no other thread uses them.

_PR_SET_PDEATHSIG: Final = 1
"""An option of ``prctl``; see ``linux/prctl.h``."""


def end_with(parent: int) -> None:
    """Let this process end when its parent ends; a child calls this before anything else.

    Args:
        parent: the process id of the parent, as the parent knows it. If the parent of this process
            is another one by now, that process has already ended, and this process ends at once.
    """
    with contextlib.suppress(OSError, AttributeError):  # other systems have no such call
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


# ------------------ worker pool
#
# Calls a function on many items in processes, which always end with their parent or pool.
#
# :class:`concurrent.futures.ProcessPoolExecutor` is not used for three reasons: it waits for
# running calls when it is shut down, its workers do not notice that their parent was killed, and
# one lost worker ends all others.

Item = TypeVar("Item")
Result = TypeVar("Result")

_POLL_S: Final = 0.2
"""Seconds between two checks of ``should_stop``."""
_QUIT_S: Final = 1.0
"""Most seconds to wait until the system has ended a process after it was killed."""
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class ProcessDiedError(Exception):
    """The process ended in the middle of a call, perhaps because memory was short."""


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    pipe: Connection

    def end(self) -> None:
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_QUIT_S)
        self.pipe.close()


class WorkerPool(contextlib.AbstractContextManager["WorkerPool"]):
    """Processes that are started when they are needed; :meth:`close` ends all of them.

    A pool belongs to the thread that made it: its processes end with that thread
    (:func:`end_with`).

    Args:
        workers: the largest number of processes at a time.
        quiet: whether they compute on one thread and print nothing.
    """

    def __init__(self, workers: int, *, quiet: bool = False) -> None:
        """Start no process yet."""
        self._most, self._quiet = workers, quiet
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, tuple[_Worker, int]] = {}

    def __exit__(self, *error: object) -> None:
        """End all processes."""
        self.close()

    def close(self) -> None:
        """End all processes at once, even in the middle of a call."""
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
    ) -> Iterator[tuple[int, Future[Result]]]:
        """Call ``function`` on each item; yields the index and the result, as calls finish.

        The exception of a result is that of the call, or :class:`ProcessDiedError`.

        Args:
            function: a function of a module, so that it can be sent to a process.
            items: the arguments, in the order in which calls begin. It has to be possible to send
                them and the results.
            should_stop: called again and again; True ends all processes and the iteration.
        """
        waiting = deque(enumerate(items))
        while waiting or self._busy:
            if should_stop():
                self.close()
                return
            while waiting and len(self._busy) < self._most:
                index, item = waiting.popleft()
                self.begin(function, item, index)
            for ready in wait(list(self._busy), timeout=_POLL_S):
                if isinstance(ready, Connection):
                    yield self._end(ready)

    def begin(self, function: Callable[[Item], Result], item: Item, index: int = 0) -> None:
        """Begin a call, whose result :meth:`run` gives later; at most as many as processes."""
        request = pickle.dumps((function, item))
        worker = self._idle.pop() if self._idle else _started(quiet=self._quiet)
        self._busy[worker.pipe] = (worker, index)
        # A thread sends it, because a new process reads only after its imports.
        threading.Thread(target=_send, args=(worker.pipe, request), daemon=True).start()

    def _end(self, pipe: Connection) -> tuple[int, Future[Any]]:
        worker, index = self._busy.pop(pipe)
        done: Future[Any] = Future()
        try:
            reply = pipe.recv_bytes()
        except (EOFError, OSError):
            worker.end()
            done.set_exception(ProcessDiedError("its process died"))
            return index, done
        self._idle.append(worker)
        result, error = pickle.loads(reply)
        done.set_result(result) if error is None else done.set_exception(error)
        return index, done


def _send(pipe: Connection, request: bytes) -> None:
    # If the process has died, reading from its pipe will tell; a pipe that is closed while it is
    # written has no number.
    with contextlib.suppress(OSError, TypeError):
        pipe.send_bytes(request)


def _started(*, quiet: bool) -> _Worker:
    """A process in a session of its own, so that Ctrl-C does not reach it; the parent handles it.

    It does not import the main module of the caller.
    """
    ours, theirs = Pipe()
    called = f"work({theirs.fileno()}, {os.getpid()})"
    # Relative folders are those of the start; what is no text, such as a path, imports nothing.
    start = ORIGINAL_DIR or ""
    folders = [str(Path(start, folder)) for folder in sys.path if isinstance(folder, str)]
    code = f"import sys; sys.path[:] = {folders!r}; from {__name__} import work; {called}"
    silent: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
        env={**os.environ, **_ONE_THREAD} if quiet else None,
        **(silent if quiet else {}),
    )
    theirs.close()
    return _Worker(process=process, pipe=ours)


def work(pipe_number: int, parent: int) -> None:
    """The loop of a process: answer calls until the pool closes the pipe of this number."""
    end_with(parent)
    pipe = Connection(pipe_number)
    while True:
        try:
            request = pipe.recv_bytes()
        except EOFError:
            return
        pipe.send_bytes(_answer(request))


def _answer(request: bytes) -> bytes:
    """The result of a call, or its error with the traceback as a note.

    An error that cannot be sent is replaced by another one with its text.
    """
    try:
        function, item = pickle.loads(request)
        return pickle.dumps((function(item), None))
    except Exception as error:
        error.add_note(f"in a process of a pool:\n{traceback.format_exc()}")
        try:
            reply = pickle.dumps((None, error))
            pickle.loads(reply)
        except Exception:
            reply = pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))
        return reply


# ------------------ Dask
#
# A Dask cluster, whose workers see the same files under the same paths.

_PACKAGE: Final = "shardplan"


class WorkerError(PlannerError):
    """A worker was lost, or the cluster cannot be reached."""


@contextmanager
def dask_client(address: str) -> Iterator[Any]:
    """A client of a Dask cluster.

    Args:
        address: of its scheduler.

    Raises:
        InvalidInputError: Dask is not installed, or workers have another version of shardplan.
        WorkerError: no scheduler answers.
    """
    try:
        distributed = importlib.import_module("distributed")
    except ImportError:
        refuse("--dask needs Dask: pip install 'shardplan[dask]'")
    try:
        client = distributed.Client(address, timeout="10s")
    except (OSError, TimeoutError, ValueError) as error:
        message = f"no Dask scheduler answers at {address!r}: {error}"
        raise WorkerError(message) from error
    with client:
        _require_same_version(client)
        yield client


def _require_same_version(client: Any) -> None:
    """Refuse a cluster whose workers cannot load what they are sent; Dask would wait for ever.

    Raises:
        InvalidInputError: a worker has no shardplan, or another version.
    """
    from importlib import metadata

    ours = metadata.version(_PACKAGE)
    try:
        theirs = set(client.run(metadata.version, _PACKAGE).values())
    except metadata.PackageNotFoundError:
        refuse(f"--dask: a worker of the cluster has no {_PACKAGE}; install {ours} on all of them")
    if theirs - {ours}:
        refuse(f"--dask: workers have {_PACKAGE} {', '.join(sorted(theirs))}, and this is {ours}")
