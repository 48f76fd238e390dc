"""Interrupts, progress, width and colour, and the command as its own process."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import click
import pytest

from planner.__main__ import run_guarded
from planner.cli import console
from planner.cli.console import Settings, status_line
from planner.cli.interrupt import (
    GaveUp,
    Interrupted,
    StopOnInterrupt,
    interrupt_in,
    signals_interrupt,
)
from planner.cli.run import run as run_command_line
from planner.cli.spec import PERCENT, count, quantity
from planner.errors import InvalidInputError
from planner.search.base import SearchProgress
from tests.planner import cases

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


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_and_a_second_ctrl_c_gives_up(
    capfd: pytest.CaptureFixture[str], first: int
) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopOnInterrupt() as stop:
        assert not stop()
        os.kill(os.getpid(), first)
        assert stop()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(GaveUp):
            os.kill(os.getpid(), signal.SIGINT)
    word = "Ctrl-C" if first == signal.SIGINT else "SIGTERM"
    assert stop.stopped_by == word
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert f"{word}: stopping with the best so far" in capfd.readouterr().err


def test_nothing_to_keep_is_stopped_at_once() -> None:
    """Until the search tells of a plan."""

    def work() -> None:
        with StopOnInterrupt(keeps=False, lost="nothing is written"):
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("it went on")

    with pytest.raises(Interrupted, match="SIGTERM") as caught:
        work()
    assert caught.value.__notes__ == ["nothing is written"]
    with StopOnInterrupt(keeps=False) as stop:
        stop.keeps = True
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()


@pytest.mark.parametrize("ends", [InvalidInputError("no plan"), RuntimeError("lost in C++"), None])
def test_a_search_without_a_plan_is_left_to_ask(
    capfd: pytest.CaptureFixture[str], ends: Exception | None
) -> None:
    """Solvers lose what is raised in the Python that they call; whatever comes of it is a stop."""
    search = compile("def search(call): call()", "auto.py", "exec")
    names: dict[str, Any] = {"__name__": "planner.search.auto"}
    exec(search, names)

    def signalled() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop(), "nothing was raised"
        if ends is not None:
            raise ends

    expected = contextlib.nullcontext() if ends is None else pytest.raises(Interrupted)
    with expected, StopOnInterrupt(keeps=False) as stop:
        names["search"](signalled)
    assert "Ctrl-C: stopping; Ctrl-C gives up" in capfd.readouterr().err, "there is no best so far"


def test_an_interrupt_that_python_cannot_pass_on_is_not_lost(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Unlucky:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    def work() -> None:
        del unlucky[0]
        with StopOnInterrupt():
            pytest.fail("it went on")

    unlucky = [Unlucky()]
    with signals_interrupt(), pytest.raises(Interrupted, match="SIGTERM"):
        work()
    assert capfd.readouterr().err == ""
    with signals_interrupt(), StopOnInterrupt() as stop:
        assert not stop(), "the next command starts anew"


def test_a_second_ctrl_c_that_a_solver_loses_still_gives_up() -> None:
    def work(stop: StopOnInterrupt) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        with contextlib.suppress(GaveUp):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop()
        message = "a result with an exception set"
        raise SystemError(message)

    with pytest.raises(GaveUp), StopOnInterrupt() as stop:
        work(stop)


def test_a_signal_that_somebody_ignores_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As nohup and some job managers do."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with signals_interrupt(), StopOnInterrupt() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            assert not stop()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


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
    text = LINE.line()
    assert text == "improve   best 3.1 ms   bound 3 ms   gap 3.23 %   1,234 plans   1.5 s"
    assert EMPTY.line() == "start   best -   bound -   0 plans   0.1 s"


def test_progress_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with status_line("search") as show:
        show(LINE.line())
        time.sleep(0.2)
    assert "gap 3.23 %" in terminal.getvalue()


@pytest.mark.parametrize("settings", [Settings(json=True), Settings(quiet=True)])
def test_progress_is_silent_when_asked(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with click.Context(click.Command(None), obj=settings), status_line("search") as show:
        show(LINE.line())
    assert terminal.getvalue() == ""


def test_progress_is_silent_off_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with status_line("search") as show:
        show(LINE.line())
    assert sys.stderr.getvalue() == ""


# ------------------------------------------------------------------ width and colour


@pytest.mark.parametrize(
    ("columns", "terminal", "width"),
    [
        ("", False, 100),
        ("72", False, 72),
        ("300", True, 100),
        ("0", False, 100),
        ("", True, 80),
        ("\N{SUPERSCRIPT TWO}", False, 100),
        ("9" * 5000, False, 100),
    ],
)
def test_width(monkeypatch: pytest.MonkeyPatch, columns: str, terminal: bool, width: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", Terminal() if terminal else io.StringIO())

    def size(_: int) -> os.terminal_size:
        if not terminal:
            raise OSError
        return os.terminal_size((80, 24))

    with monkeypatch.context() as patch:  # pytest -vv asks for the size too, after the test
        patch.setattr("os.get_terminal_size", size)
        assert console.console_of(sys.stdout).width == width


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert not console.console_of(sys.stdout).no_color
    monkeypatch.setenv("NO_COLOR", "1")
    assert console.console_of(sys.stdout).no_color
    assert console.console_of(sys.stderr).no_color


def test_values_already_read_pass_through() -> None:
    assert quantity("s").convert(2.0, None, None) == 2.0
    assert PERCENT.convert(0.03, None, None) == 0.03
    assert count(10).convert(3, None, None) == 3


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


@pytest.mark.parametrize("words", [["--help"], ["plan", "--help"], ["--version"], ["pla"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    """What is imported decides how long it takes: ``benchmarks.start_up`` measures that."""
    code = (
        "import sys\n"
        "from planner.cli.run import run\n"
        "run(sys.argv[1:])\n"
        "heavy = 'torch torchrec ortools optuna sklearn pandas numpy scipy pydantic rich yaml'\n"
        "heavy += ' multiprocessing concurrent.futures ctypes'\n"
        "ours = 'planner.api planner.io.documents planner.search planner.report.figures'\n"
        "ours += ' planner.report.page planner.report.terminal planner.space.evaluation'\n"
        "is_lazy = {name: type(m).__name__ == '_LazyModule' for name, m in sys.modules.items()}\n"
        "names = {*heavy.split(), *ours.split()}\n"
        "print(sorted(name for name in names if not is_lazy.get(name, True)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", cases.first(["systems", "systems --json"], 2))
def test_a_closed_pipe_is_quiet(command: str) -> None:
    with start(*command.split()) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_starting_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    def interrupted() -> int:
        os.kill(os.getpid(), number)
        return 0

    monkeypatch.setattr("planner.cli.run.run", interrupted)
    assert run_guarded() == 4
    word = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert capsys.readouterr().err == f"shardplan: stopped by {word}\n"


@pytest.mark.parametrize("stop", [Interrupted("SIGTERM"), GaveUp("Ctrl-C")])
def test_an_interrupt_that_python_wraps_is_one_all_the_same(
    stop: Interrupted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal in ``__set_name__``, as a class is made, arrives in a RuntimeError."""

    class Descriptor:
        def __set_name__(self, owner: type, name: str) -> None:
            raise stop

    def main(*_: object, **__: object) -> None:
        type("Made", (), {"field": Descriptor()})

    monkeypatch.setattr("planner.cli.run.cli.main", main)
    assert run_command_line(["check"]) == (130 if isinstance(stop, GaveUp) else 4)
    assert f"stopped by {stop.args[0]}" in capsys.readouterr().err


def test_an_interrupt_of_which_only_the_words_are_left_is_one_all_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """pydantic builds its validators in Rust, and keeps only the text of what was raised there."""

    def main(*_: object, **__: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5.0)
        except KeyboardInterrupt as interrupt:
            words = str(interrupt)
        raise ValueError(f"Error building validator: {words}")

    monkeypatch.setattr("planner.cli.run.cli.main", main)
    assert run_command_line(["check"]) == 4
    assert "stopped by SIGTERM" in capsys.readouterr().err


def test_other_errors_of_that_kind_are_no_interrupts() -> None:
    error = RuntimeError("outer")
    error.__cause__ = ValueError("inner")
    assert interrupt_in(error) is None
    assert interrupt_in(RuntimeError("alone")) is None
