"""The README says what the code does: its Python runs, its commands exist, its figures print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import costmodels

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


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
    named = set(re.findall(r"^\| `(\w+)", README, re.MULTILINE))
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


def test_shipped_names_in_the_readme_are_known() -> None:
    listed = _run("systems").stdout
    for name in set(re.findall(r"--system (\w+)", README)) - {"NAME"}:
        assert name in listed


def test_the_changelog_has_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{costmodels.__version__}]" in text
