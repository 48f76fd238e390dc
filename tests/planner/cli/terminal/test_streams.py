"""Streams that are closed or full, disks that are full, and names that would disturb a terminal."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.cli.console import complain, remark, tell, write_data
from planner.report.base import Section
from planner.support.text import printable, printable_lines
from tests.planner.cases import first
from tests.planner.cli.command_line import FakeApi, Run

ROOT = Path(__file__).resolve().parents[4]
CODES = "\u202e\u2066\x1b[31m\x07\x9b\u200b\u2028\x7f"
"""Right-to-left, an isolate, red, a bell, a one-byte escape, no width, a line break, delete."""

PLAN = "plan small_demo --system h100_sxm --gpus 2 --evaluations 2"


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command line of ours with the redirections of a shell."""
    return subprocess.run(
        ["bash", "-c", f"{shlex.quote(sys.executable)} -m planner {line}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"},
    )


# ------------------------------------------------------------------ closed


CLOSED = (">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-")
COMMANDS = {
    "systems": 0, "systems --json": 0, "--help": 0, "plan nothere": 2, "plan --nothing": 2,
    "systems show h100_sxm": 0, f"{PLAN} -o run": 0, f"{PLAN} --json": 0,
}  # fmt: skip


LONG = (f"{PLAN} --json", "systems show h100_sxm", "plan --nothing")


def pairs() -> list[object]:
    """All ways to close streams with the first command, one with each other; the rest is slow.

    So are those of commands that print, or refuse, what others do too.
    """
    return [
        pytest.param(
            *(words, code, closed),
            marks=[]
            if j == 0 or (i == j % len(CLOSED) and words not in LONG)
            else pytest.mark.slow,
        )
        for j, (words, code) in enumerate(COMMANDS.items())
        for i, closed in enumerate(CLOSED)
    ]


@pytest.mark.parametrize(("words", "code", "closed"), pairs())
def test_a_closed_stream_stops_nothing(words: str, code: int, closed: str, tmp_path: Path) -> None:
    done = shell(f"{words} {closed}", tmp_path)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    if closed == ">&-" and code == 0:
        assert "standard output is closed; results are printed nowhere" in done.stderr
    if closed == "2>&-" and code == 0:
        assert done.stdout
    if "run" in words:
        assert json.loads((tmp_path / "run" / "plan.json").read_text())["plan"]


# ------------------------------------------------------------------ full


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "words", first(["systems", "--help", "systems --json", "systems show h100_sxm", PLAN], 2)
)
def test_output_that_cannot_be_written_is_named(words: str, tmp_path: Path) -> None:
    done = shell(f"{words} > /dev/full", tmp_path)
    assert done.returncode == 2
    assert "shardplan: error: standard output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(("words", "code"), [("systems", 0), ("plan nothere", 2)])
def test_remarks_that_cannot_be_written_stop_nothing(words: str, code: int, tmp_path: Path) -> None:
    assert shell(f"{words} 2> /dev/full", tmp_path).returncode == code


FULL = {
    "plan": (f"{PLAN} -o out", "out/"),
    "study": (
        "study small_demo --system h100_sxm --gpus 2 --trials 1 --evaluations 20 -o out",
        "out/",
    ),
    "profile": ("profile day.tsv -o stats.json", "stats.json"),
    "init": ("import tables new.yaml --tables 300", "new.yaml"),
    "import": ("import dlrm 'python dlrm_s_pytorch.py --arch-embedding-size=9-9-9' -o w.yaml", ""),
}


@pytest.mark.parametrize("name", [name for name in FULL if FULL[name][1]])
def test_a_full_disk_is_named_and_nothing_is_half_written(
    name: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on the size of files stands for a disk that fills up while a file is written."""
    line = "\t".join(["1", *(["2"] * 13), *(["a1b2c3d4"] * 26)])
    (tmp_path / "day.tsv").write_text(f"{line}\n" * 100)
    words, target = FULL[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2500, before[1]))
    try:
        done = run(*shlex.split(words))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done.code == 2, done.err
    last = done.err.splitlines()[-1]
    assert re.match(rf"shardplan: error: \S*{re.escape(target)}\S*: .*File too large", last), last
    left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    goes_on_with = (".stats.json.state/manifest", "out/study.journal")
    kept = {p for p in left if p.startswith(goes_on_with)}
    assert left - kept == {"day.tsv"}
    if name == "plan":
        assert "Predicted" in done.out, "the plan is not lost"


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_several_files_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.errors import InvalidInputError
    from planner.support.files import write_texts_atomic

    (tmp_path / "b").mkdir()
    with pytest.raises(InvalidInputError, match="b: cannot be written: Is a directory"):
        write_texts_atomic({tmp_path / "a": "1", tmp_path / "b": "2"})
    monkeypatch.setattr(Path, "write_bytes", no_space)
    with pytest.raises(InvalidInputError, match="c: cannot be written: No space left"):
        write_texts_atomic({tmp_path / "c": "1", tmp_path / "d": "2"})
    assert {p.name for p in tmp_path.iterdir()} == {"b"}


def test_a_cut_line_of_a_journal_is_dropped(
    run: Run, two_ways_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """Optuna would append to it; a damaged line inside is an error with the file's name."""
    journal = tmp_path / "out" / "study.journal"
    asked = ("study", two_ways_file, "--system", system_file, "-o", tmp_path / "out")
    quick = ("--trials", 2, "--evaluations", 20, "--workers", 1)
    assert run(*asked, *quick).code == 0
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code":8,"wor')
    assert run(*asked, *quick, "-q").code == 0
    assert journal.read_bytes().startswith(whole)
    journal.write_bytes(whole[:-30] + b"\n" + whole)
    done = run(*asked, *quick)
    assert done.code == 2
    assert "study.journal: a line of the journal is damaged" in done.err


# ------------------------------------------------------------------ names


def test_codes_are_shown_by_their_number() -> None:
    assert printable("a\u202eb\x1b[31m\n") == "a\\u202eb\\x1b[31m\\n"
    assert printable_lines("a\tb\nc\u2066\r") == "a\tb\nc\\u2066\\r"
    plain = "Straße 東京 עברית العربية 👩\u200d👧 a\u00a0b\u00ad"
    assert printable(plain) == plain
    assert printable("\udc80") == "\\udc80"


@pytest.mark.parametrize("tell", [complain, remark, lambda text: tell({}, (Section(text),))])
def test_no_line_passes_codes_on(
    tell: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    tell(f"x{CODES}y")
    captured = capsys.readouterr()
    assert clean(captured.out + captured.err)
    assert "\\u202e" in captured.out + captured.err


def test_data_is_left_alone_but_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(f"x{CODES}\r\n")
    assert capsys.readouterr().out == f"x{CODES}\r\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    write_data(f"x{CODES}\n")
    assert clean(capsys.readouterr().out)


def clean(text: str) -> bool:
    """Whether nothing in a text disturbs a terminal."""
    return not set(text) & (set(CODES) - set("[31m")) and "\r" not in text


EVIL = f"t{CODES}"


@pytest.fixture
def evil(tmp_path: Path, workload_file: Path) -> Path:
    """The small workload with names that hold codes, for tables, features and itself."""
    text = workload_file.read_text()
    name = json.dumps(EVIL)
    text = text.replace("{name: user,", f"{{name: {name}, module: {name},")
    path = tmp_path / "evil.yaml"
    path.write_text(text.replace("name: small\n", f"name: {name}\n"), encoding="utf-8")
    return path


def test_no_command_passes_names_on_as_they_are(
    run: Run, evil: Path, system_file: Path, tmp_path: Path
) -> None:
    folder, listed = tmp_path / f"run{EVIL}", tmp_path / f"l{EVIL}.csv"
    listed.write_text(f"name,rows,dim\n{EVIL},7,8\n{EVIL},x,8\n", encoding="utf-8", newline="")
    system = ("--system", system_file)
    effort = ("--evaluations", 8)
    plan = folder / "plan.json"
    commands: list[tuple[Any, ...]] = [
        ("plan", evil, *system, "--gpus", 4, *effort, "-o", folder, "-v"),
        ("estimate", evil, plan, *system, "-v"),
        ("estimate", evil, plan, "--system", EVIL),
        ("compare", evil, plan, plan, *system),
        ("explain", evil, plan, *system, "--table", EVIL),
        ("explain", evil, plan, *system, "--table", f"no{EVIL}"),
        ("explain", evil, plan, *system),
        ("study", evil, *system, "--gpus", "2,4", *effort, "--workers", 1, "--grid"),
        ("study", evil, *system, "--smallest-for", "1000", *effort, "--workers", 1),
        ("study", evil, *system, "--trials", 1, "--evaluations", 20, "--vary", f"{EVIL}=1"),
        ("check", evil),
        ("check", plan),
        ("check", tmp_path / EVIL),
        ("import", "tables", tmp_path / f"{EVIL}.yaml", "--list", listed),
        ("import", "tables", tmp_path / f"{EVIL}.yaml"),
        ("export", "csv", evil, plan, *system, "-o", tmp_path / f"{EVIL}.csv"),
        ("plan", evil, *system, "--set", f"{EVIL}=1"),
        ("plan", evil, *system, "--strategy", EVIL),
        (EVIL,),
    ]
    for words in commands:
        done = run(*words)
        assert done.code != 70, done.err
        assert clean(done.out), words[0]
        assert clean(done.err), words[0]
        assert done.out or done.err
    assert "\\u202e" in run("estimate", evil, plan, *system, "-v").out
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert clean(report)


def test_nothing_prints_past_the_console() -> None:
    """One place sanitises: commands print through it, or through the renderer of reports."""
    allowed = {"console.py", "streams.py", "interrupt.py", "group.py"}
    files = [p for p in (ROOT / "planner" / "cli").rglob("*.py") if p.name not in allowed]
    for path in files:
        text = path.read_text()
        assert not re.search(r"click\.(s?echo|secho)\(|sys\.std(out|err)\.write\(", text), path


def test_fake_plans_are_still_plans(run: Run, fake_api: FakeApi, workload_file: Path) -> None:
    """A name of many lines is one line on the terminal."""
    text = workload_file.read_text().replace("name: small\n", 'name: "a\\nb"\n')
    workload_file.write_text(text)
    done = run("plan", workload_file, "--system", "h100_sxm", "--gpus", 4)
    assert fake_api.asked is not None or done.code == 2
    assert not any(line == "b" for line in (done.out + done.err).splitlines())


def test_the_next_command_can_be_typed_whatever_the_name(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blanks are quoted, and a line break breaks no line."""
    monkeypatch.chdir(tmp_path)
    assert "plan 'my model.yaml' --system" in run("import", "tables", "my model.yaml").err
    done = run("import", "tables", "a\nb.yaml")
    assert "plan $'a\\nb.yaml' --system" in done.err
    assert done.out == "Wrote a\\nb.yaml\n"
