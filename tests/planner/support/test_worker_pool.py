"""Pools: all results, errors as they are, and no process that outlives them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import spawn
from pathlib import Path

import pytest

from planner.errors import InfeasibleError, InvalidInputError
from planner.support.processes import ProcessDiedError, WorkerPool
from tests.planner.support.test_lifeline import PATIENCE_S, ROOT, children_of, wait_until_gone


def square(number: int) -> int:
    """Of ten, nothing: it is no good number."""
    if number == 10:
        message = "ten"
        raise InvalidInputError(message)
    return number * number


def picky(number: int) -> bytes:
    """Dies, fails in a way that cannot be sent, or answers with a lot."""
    if number == 0:
        os._exit(9)
    if number == 1:
        message = "too large"
        raise InfeasibleError(message, shortfall_bytes=1.0)
    return bytes(number)


def own_pid(_: int) -> int:
    """Of the process that does the work."""
    return os.getpid()


def sleepy(seconds: float) -> float:
    """Takes its time."""
    time.sleep(seconds)
    return seconds


def test_every_item_has_its_result() -> None:
    with WorkerPool(2) as pool:
        found = dict(pool.run(square, [*range(9), 10]))
        assert [found[i].result() for i in range(9)] == [i * i for i in range(9)]
        with pytest.raises(InvalidInputError, match="ten") as caught:
            found[9].result()
        assert "in square" in "".join(caught.value.__notes__), "where it was raised"
        assert list(pool.run(square, [])) == []


def test_threads_start_processes_side_by_side() -> None:
    """Starting one without the main module of the caller takes nothing from others."""
    main, prepare = sys.modules["__main__"], spawn.get_preparation_data

    def called(number: int) -> int:
        with WorkerPool(1, quiet=True) as pool:
            return next(pool.run(square, [number]))[1].result()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(called, range(4))) == [0, 1, 4, 9]
    assert sys.modules["__main__"] is main
    assert spawn.get_preparation_data is prepare


def test_processes_are_used_again_and_no_more_than_wanted() -> None:
    with WorkerPool(2) as pool:
        first = {f.result() for _, f in pool.run(own_pid, range(20))}
        second = {f.result() for _, f in pool.run(own_pid, range(20))}
    assert len(first | second) <= 2
    assert os.getpid() not in first
    for pid in first | second:
        wait_until_gone(pid)


def test_one_that_dies_takes_no_other_along() -> None:
    """Nor does an error that cannot be sent, or a result larger than a pipe holds."""
    with WorkerPool(2) as pool:
        found = dict(pool.run(picky, [10**7, 0, 1, 2, 0, 10**7]))
    for index in (1, 4):
        with pytest.raises(ProcessDiedError):
            found[index].result()
    with pytest.raises(RuntimeError, match="InfeasibleError: too large"):
        found[2].result()
    assert [len(found[i].result()) for i in (0, 3, 5)] == [10**7, 2, 10**7]


def test_stopping_ends_running_calls() -> None:
    """They would go on for days."""
    with WorkerPool(2) as pool:
        found = list(pool.run(sleepy, [0.0, 1e6, 1e6], should_stop=lambda: bool(asked())))
        assert not multiprocessing.active_children()
    assert [f.result() for _, f in found] in ([], [0.0])


_ASKED = [0]


def asked() -> int:
    """True from the fifth time on."""
    _ASKED[0] += 1
    return _ASKED[0] >= 5


FOLDERS = """
import os, pathlib, sys
sys.path[:0] = ["", "more", pathlib.Path("mine")]
import first, second
from planner.support.processes import WorkerPool
os.chdir("/")
with WorkerPool(1, quiet=True) as pool:
    print([next(pool.run(module.double, [4]))[1].result() for module in (first, second)])
"""


def test_modules_of_relative_folders_are_found(tmp_path: Path) -> None:
    """As from a notebook that has changed its folder; a path among the folders is no matter."""
    (tmp_path / "more").mkdir()
    for path in ("first.py", "more/second.py"):
        (tmp_path / path).write_text("def double(x):\n    return 2 * x\n")
    done = subprocess.run(
        [sys.executable],
        input=FOLDERS,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == "[8, 8]\n", done.stderr


POOL = """
import sys
from planner.support.processes import WorkerPool
from tests.planner.support.test_worker_pool import sleepy
if __name__ == "__main__":
    with WorkerPool(2) as pool:
        for _ in pool.run(sleepy, [0.0] * 2 + [600.0] * 2):
            print("up", flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_worker_outlives_the_parent(number: int, tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as parent:
        assert parent.stdout is not None
        assert [parent.stdout.readline() for _ in range(2)] == ["up\n"] * 2
        children = children_of(parent.pid)
        assert len(children) >= 2
        parent.send_signal(number)
        parent.wait(PATIENCE_S)
        for child in children:
            wait_until_gone(child)
