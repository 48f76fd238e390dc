"""The README says what the code does: its Python runs, its commands exist, its figures print."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

import costmodels
from planner.cli.run import run

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@functools.cache
def _run(*arguments: str) -> tuple[int, str]:
    """Exit code and standard output of a command line, run in this process."""
    printed = io.StringIO()
    wide = {"COLUMNS": "100", "NO_COLOR": "1"}
    with mock.patch.dict(os.environ, wide), contextlib.redirect_stdout(printed):
        return run(list(arguments)), printed.getvalue()


@functools.cache
def _printed_table() -> str:
    """What the benchmark of plan quality prints of its stored results."""
    stored = "benchmarks/results/search/torchrec.csv"
    command = [sys.executable, "-m", "benchmarks.search.torchrec", "--table-only", "--out", stored]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("end_of_searches")
def test_python_blocks_run() -> None:
    blocks = _blocks("python")
    assert blocks
    for block in blocks:
        printed = io.StringIO()
        with contextlib.chdir(ROOT), contextlib.redirect_stdout(printed):
            exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})
        assert printed.getvalue().strip()


_QUOTED = re.compile(
    r"Verdict +([\d.]+)x as fast .*\n.*\nPredicted +([\d.]+) ms/iter \[([\d.]+) \.\. ([\d.]+)\]"
    r" +([\d.]+) M samples/s"
)
"""The speed-up, milliseconds, the ends of the interval, and millions of samples per second."""


def test_the_first_plan_is_the_one_shown() -> None:
    """Another version of a solver may lead to a slightly other plan."""
    command = re.search(r"shardplan (plan dlrm_dcnv2_mlperf .*)$", README, re.MULTILINE)
    shown = _QUOTED.search(README)
    assert command is not None
    assert shown is not None
    code, printed = _run(*command.group(1).split())
    found = _QUOTED.search(printed)
    assert code == 0
    assert found is not None, printed
    for now, then in zip(map(float, found.groups()), map(float, shown.groups()), strict=True):
        assert now == pytest.approx(then, rel=0.015)


def test_commands_exist() -> None:
    named = {name for row in _table("command") for name in re.findall(r"`(\w+)`", row[0])}
    assert {"plan", "estimate", "compare"} <= named
    for name in named:
        assert _run(name, "--help")[0] == 0, f"README names {name!r}"


def test_published_errors_are_those_printed() -> None:
    quoted = re.search(r"^ as shipped .*$", README, re.MULTILINE)
    assert quoted is not None
    code, printed = _run("validate", "published")
    assert code == 0
    assert quoted.group(0) in printed


def _table(first: str) -> list[list[str]]:
    """Rows of the table of the README whose first heading is given, without the headings."""
    start = README.index(f"\n| {first} |") + 1
    lines = README[start : README.index("\n\n", start)].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def _has_row(cells: list[str], printed: str) -> bool:
    """Whether one printed line has all these cells in this order."""
    row = re.compile(r"(?<![\w.])" + r"(?![\w.]).*?(?<![\w.])".join(map(re.escape, cells)))
    return any(row.search(line) for line in printed.splitlines())


def test_rows_of_the_accuracy_table_are_those_printed() -> None:
    _, printed = _run("validate", "published")
    rows = _table("system")
    assert len(rows) == 6
    for row in rows:
        assert _has_row(row, printed), row
    assert not _has_row([rows[0][0], "9.99"], printed)


@pytest.mark.skipif(importlib.util.find_spec("torchrec") is None, reason="needs torchrec")
@pytest.mark.parametrize("page", ["README.md", "docs/search.md"])
def test_rows_of_the_plan_quality_table_are_those_printed(page: str) -> None:
    rows = re.findall(
        r"^\| (\w+@\d+(?:/[\w+]+)? \|.*)$", (ROOT / page).read_text("utf-8"), re.MULTILINE
    )
    assert len(rows) >= 4
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert _has_row(cells, _printed_table()), row


def test_the_readme_fits_three_screens_and_its_links_lead_somewhere() -> None:
    assert len(README.splitlines()) <= 130
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_shipped_names_in_the_readme_are_known() -> None:
    _, listed = _run("systems")
    for name in set(re.findall(r"--system (\w+)", README)) - {"NAME"}:
        assert name in listed


def test_the_changelog_has_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{costmodels.__version__}]" in text
