"""Children end with their parent, however it ends, and whatever they are doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

PATIENCE_S = 300.0
"""Nothing here waits so long unless it hangs."""

STUCK = """
import ctypes, sys, time
from planner.support.processes import end_with
end_with(int(sys.argv[1]))
print("up", flush=True)
{busy}
"""

HOLDS_THE_INTERPRETER = "ctypes.PyDLL(None).sleep(600)"
"""A call into C that keeps the interpreter lock: no Python thread of the child runs meanwhile."""

PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], stdout=sys.stdout)
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def children_of(pid: int) -> list[int]:
    """Its children, by process id."""
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until_gone(pid: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while is_alive(pid):
        assert time.monotonic() < end, f"process {pid} is still there"
        time.sleep(0.02)


def python(code: str, *args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_child_ends_with_its_parent(number: int) -> None:
    with python(PARENT, STUCK.format(busy=HOLDS_THE_INTERPRETER)) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        (child,) = children_of(parent.pid)
        assert is_alive(child)
        parent.send_signal(number)
        parent.wait(PATIENCE_S)
        wait_until_gone(child)


SPAWNER = """
from planner.support.processes import WorkerPool
class Heavy:
    def __reduce__(self):
        return __import__, ("heavy",)  # importing heavy never ends
if __name__ == "__main__":
    for _ in WorkerPool(1).run(print, [Heavy()]):
        pass
"""

HEAVY = """
import ctypes
print("up", flush=True)
ctypes.PyDLL(None).sleep(600)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_a_child_that_is_still_importing_ends_with_its_parent(tmp_path: Path) -> None:
    """The guard is there before what the child has to do is even read."""
    (tmp_path / "heavy.py").write_text(HEAVY)
    (tmp_path / "spawner.py").write_text(SPAWNER)
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "spawner.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])},
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        children = children_of(parent.pid)
        parent.kill()
        parent.wait(PATIENCE_S)
        for child in children:
            wait_until_gone(child)


def test_a_child_whose_parent_has_ended_already_ends_at_once() -> None:
    """As one does whose parent was killed while the child was starting up."""
    code = (
        "import sys; from planner.support.processes import end_with; "
        "end_with(int(sys.argv[1])); print(1)"
    )
    with python(code, os.getpid() + 1) as child:
        assert child.communicate(timeout=PATIENCE_S)[0] == ""
        assert child.returncode == 1
    with python(code, os.getpid()) as child:
        assert child.communicate(timeout=PATIENCE_S)[0] == "1\n"


def test_a_thread_that_ends_takes_its_children_along() -> None:
    """Known and meant: see the module. Whoever needs a child for longer must start it elsewhere."""
    code = STUCK.format(busy="time.sleep(600)")
    started: list[subprocess.Popen[str]] = []

    def work() -> None:
        started.append(python(code, os.getpid()))
        assert started[0].stdout is not None
        assert started[0].stdout.readline() == "up\n"

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with started[0] as child:
        if sys.platform.startswith("linux"):
            assert child.wait(PATIENCE_S) == -signal.SIGKILL
        else:
            child.kill()
