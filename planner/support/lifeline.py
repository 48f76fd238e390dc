"""Makes sure that the processes that this one starts end when it ends, however it ends.

A child that only waits for messages of its parent notices the end of the pipe. A child that is
inside a solver for minutes does not; and its other threads cannot notice either, because the solver
may hold the interpreter's lock. On Linux the kernel is therefore asked to kill the child
(``PR_SET_PDEATHSIG``).

The kernel sends that signal when the *thread* that started the child ends, even if the rest of the
parent goes on. Children are therefore started by the thread that uses them, which also ends them. A
search in a worker thread of a training job, for example, starts its processes in that thread, and
no other thread uses them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import runpy
import signal
import sys
import threading
import time
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
"""An option of ``prctl``; see ``linux/prctl.h``."""
_LOOK_EVERY_S: Final = 0.5


def end_with(parent: int) -> None:
    """Let this process end when its parent ends; a child calls this before anything else.

    Args:
        parent: the process id of the parent, as the parent knows it. If the parent of this process
            is another one by now, that process has already ended, and this process ends at once.
    """
    if not _kernel_kills_orphan():
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def call_as_child(parent: int, request: bytes) -> None:
    """The target of a process of :mod:`multiprocessing`, which ends with its parent.

    Args:
        parent: as for :func:`end_with`.
        request: a pickled pair of a function and its arguments. Unpickling it may import much; it
            is done here, so that the end of the parent is noticed meanwhile.
    """
    end_with(parent)
    function, arguments = pickle.loads(request)
    function(*arguments)


def command(module: str) -> list[str]:
    """The command line that runs a module as a child of this process, which ends with it."""
    return [sys.executable, "-m", __name__, str(os.getpid()), module]


def _kernel_kills_orphan() -> bool:
    """Ask the kernel to kill this process when its parent ends; False if it cannot."""
    if not sys.platform.startswith("linux"):
        return False
    with contextlib.suppress(OSError, AttributeError):
        done: int = ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        return done == 0
    return False


def _watch(parent: int) -> None:
    """Check from time to time whether the parent still runs; end this process if not."""
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    os._exit(1)


def main() -> None:
    """Run a module as a child: the command line has the process id of the parent and its name."""
    _, parent, module = sys.argv
    end_with(int(parent))
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main()
