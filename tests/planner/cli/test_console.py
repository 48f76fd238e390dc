"""Interrupts, progress, width and colour, and the command as its own process."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from planner.__main__ import main
from planner.cli import console
from planner.cli.console import Settings
from planner.cli.flags import Count, Percent, Quantity
from planner.cli.interrupt import StopOnInterrupt
from planner.cli.progress import describe, live_progress
from planner.search.base import SearchProgress

LINE = SearchProgress(
    seconds=1.5, incumbent=3.1e-3, bound=3.0e-3, gap_ratio=0.0323, evaluations=1234, phase="improve"
)
EMPTY = SearchProgress(
    seconds=0.1, incumbent=None, bound=None, gap_ratio=None, evaluations=0, phase="start"
)


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


# ------------------------------------------------------------------ Ctrl-C


def test_the_first_interrupt_stops_and_the_second_gives_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopOnInterrupt() as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert "best plan so far" in capsys.readouterr().err


def test_interrupts_are_left_alone_outside_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGINT)
    asked: list[bool] = []

    def work() -> None:
        with StopOnInterrupt() as stop:
            asked.append(stop())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert asked == [False]
    assert signal.getsignal(signal.SIGINT) is before


# ------------------------------------------------------------------ progress


def test_progress_in_words() -> None:
    text = describe(LINE, "iteration")
    assert text == "improve   best 3.1 ms   bound 3 ms   gap 3.23 %   1,234 plans   1.5 s"
    assert describe(EMPTY, "iteration") == "start   best -   bound -   0 plans   0.1 s"
    assert "best 0.0031" in describe(LINE, "cost")


def test_progress_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with live_progress(Settings(), "iteration") as report:
        assert report is not None
        report(LINE)
        time.sleep(0.2)
    assert "gap 3.23 %" in terminal.getvalue()


@pytest.mark.parametrize("settings", [Settings(json=True), Settings(quiet=True)])
def test_progress_is_silent_when_asked(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with live_progress(settings, "iteration") as report:
        assert report is None


def test_progress_is_silent_off_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with live_progress(Settings(), "iteration") as report:
        assert report is None


# ------------------------------------------------------------------ width and colour


@pytest.mark.parametrize(
    ("columns", "terminal", "width"),
    [("", False, 100), ("72", False, 72), ("300", True, 100), ("0", False, 100), ("", True, 80)],
)
def test_width(monkeypatch: pytest.MonkeyPatch, columns: str, terminal: bool, width: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", Terminal() if terminal else io.StringIO())
    size = os.terminal_size((80, 24))
    monkeypatch.setattr("planner.cli.console.shutil.get_terminal_size", lambda _: size)
    assert console.stdout_console().width == width


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert not console.stdout_console().no_color
    monkeypatch.setenv("NO_COLOR", "1")
    assert console.stdout_console().no_color
    assert console.stderr_console().no_color


def test_values_already_read_pass_through() -> None:
    assert Quantity("s").convert(2.0, None, None) == 2.0
    assert Percent().convert(0.03, None, None) == 0.03
    assert Count(10).convert(3, None, None) == 3


# ------------------------------------------------------------------ the real process


def start(*args: object, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "planner", *map(str, args)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def test_help_is_fast_and_light() -> None:
    code = (
        "import sys, time; start = time.perf_counter()\n"
        "from planner.cli.run import run\n"
        "assert run(['--help']) == 0 and run(['plan', '--help']) == 0\n"
        "seconds = time.perf_counter() - start\n"
        "heavy = 'torch torchrec ortools optuna sklearn pandas numpy scipy pydantic rich'.split()\n"
        "print(seconds, sorted(set(heavy) & set(sys.modules)))\n"
    )
    best = 9.0
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        seconds, loaded = done.stdout.splitlines()[-1].split(" ", 1)
        assert loaded == "[]"
        best = min(best, float(seconds))
    assert best < 0.2


@pytest.mark.parametrize("command", ["list", "list --json", "systems"])
def test_a_closed_pipe_is_quiet(command: str) -> None:
    with start(*command.split()) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_ctrl_c_keeps_the_best_plan(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(
        *("plan", "synthetic_300", "--system", "a100_80gb_sxm", "--gpus", 64),
        *("--time-limit", "10min", "-o", folder),
    )
    time.sleep(4.0)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 4, err
    assert "stopped by Ctrl-C" in err
    assert "Predicted" in out
    data = json.loads((folder / "plan.json").read_text())
    assert data["solver"]["status"] == "interrupted"
    check = start("check", folder / "plan.json")
    assert "300 tables on 64 ranks" in check.communicate(timeout=60)[0]


def test_an_interrupt_while_starting_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.cli.run.run", interrupted)
    assert main() == 130
    assert capsys.readouterr().err == "shardplan: stopped by Ctrl-C\n"
