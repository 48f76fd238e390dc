"""The README says what the code does: its Python runs, its commands exist, its figures print."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import costmodels

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@functools.cache
def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "planner", *arguments]
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )


def test_python_blocks_run() -> None:
    blocks = _blocks("python")
    assert blocks
    for block in blocks:
        done = subprocess.run(
            [sys.executable, "-c", block], capture_output=True, text=True, check=False, cwd=ROOT
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def test_commands_exist() -> None:
    named = {name for row in _table("command") for name in re.findall(r"`(\w+)`", row[0])}
    assert {"plan", "estimate", "compare"} <= named
    for name in named:
        done = _run(name, "--help")
        assert done.returncode == 0, f"README names {name!r}: {done.stderr}"


def test_published_errors_are_those_printed() -> None:
    quoted = re.search(r"^shardplan +MAPE.*$", README, re.MULTILINE)
    assert quoted is not None
    done = _run("validate", "published")
    assert done.returncode == 0, done.stderr
    assert quoted.group(0) in done.stdout


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
    printed = _run("validate", "published").stdout
    rows = _table("system")
    assert len(rows) == 6
    for row in rows:
        assert _has_row(row, printed), row
    assert not _has_row([rows[0][0], "9.99"], printed)


@pytest.mark.skipif(importlib.util.find_spec("torchrec") is None, reason="needs torchrec")
@pytest.mark.parametrize("page", ["README.md", "docs/search.md"])
def test_rows_of_the_plan_quality_table_are_those_printed(page: str) -> None:
    stored = "benchmarks/results/search/torchrec.csv"
    command = [sys.executable, "-m", "benchmarks.search.torchrec", "--table-only", "--out", stored]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^\| (\w+@\d+ \|.*)$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
    assert len(rows) >= 4
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert _has_row(cells, done.stdout), row


def test_the_readme_fits_three_screens_and_its_links_lead_somewhere() -> None:
    assert len(README.splitlines()) <= 130
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_shipped_names_in_the_readme_are_known() -> None:
    listed = _run("systems").stdout
    for name in set(re.findall(r"--system (\w+)", README)) - {"NAME"}:
        assert name in listed


def test_the_changelog_has_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{costmodels.__version__}]" in text
