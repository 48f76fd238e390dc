"""Processes that this one starts end when it ends, however it ends.

A child that only waits for its parent to say something notices the end of the pipe. One that is
inside a solver for minutes does not, and neither does one of its own threads, because the solver
may hold the interpreter. So on Linux the kernel is asked to kill the child: ``PR_SET_PDEATHSIG``.

The kernel sends that signal when the *thread* that started the child ends, also if the rest of the
parent lives on. Children are therefore started by the thread that needs them and that closes them
before it goes on: a search in a worker thread of a training job, for instance, starts its processes
in that thread, and no other thread ever uses them.
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
"""Of ``prctl``, see ``linux/prctl.h``."""
_LOOK_EVERY_S: Final = 0.5


def end_with(parent: int) -> None:
    """From now on this process ends when its parent does; a child calls this before all else.

    Args:
        parent: process id of the parent, as the parent knows it. If that process is not the parent
            any more, it has ended already, and this process ends at once.
    """
    if not _kernel_kills_orphan():
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def call_as_child(parent: int, request: bytes) -> None:
    """The target of a process of :mod:`multiprocessing`, which ends with its parent.

    Args:
        parent: as for :func:`end_with`.
        request: a pickled pair of a function and its arguments; unpickling it may import much, and
            a parent that ends meanwhile is noticed.
    """
    end_with(parent)
    function, arguments = pickle.loads(request)
    function(*arguments)


def command(module: str) -> list[str]:
    """The command line that runs a module as a child of this process, which ends with it."""
    return [sys.executable, "-m", __name__, str(os.getpid()), module]


def _kernel_kills_orphan() -> bool:
    """Ask the kernel to kill this process when its parent ends; False where it cannot."""
    if not sys.platform.startswith("linux"):
        return False
    with contextlib.suppress(OSError, AttributeError):
        done: int = ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        return done == 0
    return False


def _watch(parent: int) -> None:
    """Look from time to time whether the parent is still there."""
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    os._exit(1)


def main() -> None:
    """Run the module named on the command line as a child of the process named before it."""
    _, parent, module = sys.argv
    end_with(int(parent))
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main()
