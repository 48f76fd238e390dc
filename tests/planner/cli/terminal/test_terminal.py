"""Every command's output on narrow terminals, in pipes, without colour, as JSON and when quiet."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from planner import load_system, load_workload, plan
from planner.cli.run import run as run_command_line
from planner.io import save_plan
from tests.planner.cli.command_line import SYSTEM_TEXT, TWO_WAYS, WORKLOAD_TEXT, Run

pytestmark = pytest.mark.usefixtures("floors_once")

PLANNED = ("small.yaml", "run/plan.json")
SEARCH = ("--system", "box.yaml", "--seed", "1", "--evaluations", "5")
SWEPT = ("--system", "box.yaml", "--evaluations", "5")

COMMANDS: dict[str, tuple[str, ...]] = {
    "plan": ("plan", "small.yaml", *SEARCH, "-v"),
    "estimate": ("estimate", *PLANNED, "--system", "box.yaml", "-v"),
    "compare": ("compare", "small.yaml", "run/plan.json", "other.json", "--system", "box.yaml"),
    "explain": ("explain", *PLANNED, "--system", "box.yaml"),
    "explain table": ("explain", *PLANNED, "--system", "box.yaml", "--table", "user"),
    "explain prices": (
        *("explain", *PLANNED, "--system", "box.yaml", "--prices", "--time-limit", "0.1s"),
    ),
    "study": ("study", "two_ways.yaml", "--trials", "2", "--workers", "1", *SWEPT),
    "grid": ("study", "small.yaml", "--gpus", "4,8", "--grid", "--workers", "1", *SWEPT),
    "smallest": ("study", "small.yaml", "--smallest-for", "1000", "--workers", "1", *SWEPT),
    "validate published": ("validate", "published"),
    "validate trace": (
        "validate",
        "trace",
        *PLANNED,
        "trace/rank-0.json.gz",
        "--system",
        "box.yaml",
    ),
    "profile": ("profile", "day.tsv", "-o", "stats.json", "--jobs", "1"),
    "export nccl-matrix": (
        *("export", "nccl-matrix", *PLANNED, "--system", "box.yaml", "-o", "a2a.txt"),
    ),
    "check": ("check", "small.yaml"),
    "init": ("import", "tables", "new.yaml", "--tables", "30"),
    "systems": ("systems",),
    "doctor": ("check",),
}
"""What prints for people. Other commands print files: YAML, CSV, scripts."""

AGAIN = ("import", "tables", "profile")
"""Commands that want a file of theirs gone before they run a second time."""

VARYING = ("plan", "explain prices", "study", "grid", "smallest", "doctor")
"""Commands whose figures depend on how far a search came, or on the machine."""

NUMBER = re.compile(r"\d[\d,.]*")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a workload, a system, two plans, traces and a day of Criteo lines."""
    folder = tmp_path_factory.mktemp("terminal")
    (folder / "small.yaml").write_text(WORKLOAD_TEXT)
    (folder / "two_ways.yaml").write_text(WORKLOAD_TEXT + TWO_WAYS)
    (folder / "box.yaml").write_text(SYSTEM_TEXT)
    line = "\t".join(["1", *(["2"] * 13), *(["a1b2c3d4"] * 26)])
    (folder / "day.tsv").write_text(f"{line}\n" * 20)
    workload, system = load_workload(folder / "small.yaml"), load_system(folder / "box.yaml")
    for strategy, name in (("auto", "run/plan.json"), ("random", "other.json")):
        result = plan(workload, system, strategy=strategy, max_evaluations=10, seed=1)
        save_plan(folder / name, result)
    words = [str(folder / word) for word in PLANNED] + ["--system", str(folder / "box.yaml")]
    assert run_command_line(["export", "trace", *words, "-o", str(folder / "trace")]) == 0
    return folder


def call(
    run: Run, monkeypatch: pytest.MonkeyPatch, folder: Path, words: tuple[str, ...], columns: int
) -> tuple[str, str]:
    """What a command prints on a terminal of that width: stdout and stderr."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(columns))
    if words[0] in AGAIN:
        for name in ("new.yaml", "stats.json"):
            Path(name).unlink(missing_ok=True)
    done = run(*words)
    assert done.code in (0, 4), done.err
    return done.out, done.err


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_too_wide_or_cut(
    name: str, run: Run, monkeypatch: pytest.MonkeyPatch, workplace: Path
) -> None:
    words = COMMANDS[name]
    known: set[str] = set()
    for columns in (100, 60):
        out, _ = call(run, monkeypatch, workplace, words, columns)
        lines = out.splitlines()
        assert lines
        wide = [line for line in lines if cell_len(line.rstrip()) > columns]
        assert not wide
        assert "\u2026" not in out
        assert "\x1b" not in out, "colour codes off a terminal"
        numbers = set(NUMBER.findall(out))
        if columns == 100:
            known = numbers
        elif name not in VARYING:
            assert numbers <= known, "a number was broken"


@pytest.mark.parametrize("name", COMMANDS)
def test_json_is_one_document_and_quiet_is_quiet(
    name: str, run: Run, monkeypatch: pytest.MonkeyPatch, workplace: Path
) -> None:
    out, err = call(run, monkeypatch, workplace, (*COMMANDS[name], "--json", "-q"), 60)
    assert json.loads(out)
    exit_reason = err.replace("stopped by the time limit: this is the best plan so far", "")
    assert "wrote" not in exit_reason
    assert "warning" not in exit_reason


def test_colour_is_for_terminals_that_want_it(
    monkeypatch: pytest.MonkeyPatch, workplace: Path
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.chdir(workplace)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    shown = {}
    for wish in ("", "1"):
        terminal = Terminal()
        monkeypatch.setenv("NO_COLOR", wish)
        monkeypatch.setattr(sys, "stdout", terminal)
        run_command_line(["check"])
        shown[wish] = terminal.getvalue()
    assert re.search(r"\x1b\[[\d;]*3\dm", shown[""])
    assert not re.search(r"\x1b\[[\d;]*3\dm", shown["1"])


def test_a_dumb_terminal_keeps_its_width(
    run: Run, monkeypatch: pytest.MonkeyPatch, workplace: Path
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out, _ = call(run, monkeypatch, workplace, COMMANDS["systems"], 60)
    assert all(cell_len(line.rstrip()) <= 60 for line in out.splitlines())


# ------------------------------------------------------------------ warnings and order


def test_warnings_of_files_reach_the_user(
    run: Run, monkeypatch: pytest.MonkeyPatch, workplace: Path
) -> None:
    """What workload and plan files leave open is said by every command that prices a plan."""
    values = json.loads((workplace / "run/plan.json").read_text())
    for tables in values["plan"].values():
        for entry in tables.values():
            if entry["compute_kernel"] == "fused":
                entry["compute_kernel"] = "fused_uvm_caching"
    (workplace / "bare.json").write_text(json.dumps({"plan": values["plan"], "world_size": 4}))
    system = ("--system", "box.yaml")
    for words in (
        ("estimate", "small.yaml", "bare.json", *system),
        ("compare", "small.yaml", "bare.json", "bare.json", *system),
        ("explain", "small.yaml", "bare.json", "--table", "user", *system),
        ("plan", "small.yaml", *SEARCH, "--from", "bare.json"),
    ):
        out, err = call(run, monkeypatch, workplace, words, 100)
        said = " ".join((out + err).split())
        assert "6 tables have no distribution" in said, words
        assert "cache" in said.split("warning", 1)[1], words


def test_results_come_before_remarks(workplace: Path) -> None:
    """With both streams in one place, the table stands before what was written where."""
    command = [sys.executable, "-m", "planner", *COMMANDS["grid"], "-o", "swept"]
    done = subprocess.run(
        command, cwd=workplace, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert done.stdout.index("Setups") < done.stdout.index("wrote swept")
