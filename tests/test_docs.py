"""The site says what the code does: its blocks run, its pages are up to date, its links lead on."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from costmodels import discovery, layers
from costmodels.layers.base import AbstractLayer
from planner.cli.run import run

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))

_BLOCK = re.compile(r"(<!-- not run:[^\n]*-->\n)?```(\w+)\n(.*?)```", re.DOTALL)
_QUICK = ("quickstart", "own_model", "search", "cost_model", "dense")
"""Pages whose blocks run by default; the others are slow."""

_WORKED = "set -e\n"

_SHELL = re.compile(r"[|<>&;$*\\`]")
"""What a shell does something with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a page that is meant to run."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Blocks of Python and shell, but those marked as not run."""
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [
        Block(language=language, text=text)
        for mark, language, text in found
        if language in ("python", "sh") and not mark
    ]


def runnable() -> list[object]:
    """Pages with blocks, the long ones marked slow."""
    return [
        pytest.param(page, id=page.stem, marks=[] if page.stem in _QUICK else [pytest.mark.slow])
        for page in PAGES
        if blocks(page)
    ]


def reference() -> ModuleType:
    """The script that writes pages."""
    spec = importlib.util.spec_from_file_location("docs_reference", DOCS / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("end_of_searches")
@pytest.mark.parametrize("page", runnable())
def test_blocks_run(page: Path, tmp_path: Path) -> None:
    """In order, in one folder, as a reader would; our commands run in this process."""
    for block in blocks(page):
        if block.language == "python":
            with contextlib.chdir(tmp_path):
                exec(compile(block.text, page.name, "exec"), {"__name__": "__main__"})
            continue
        text, commands = apart(block.text)
        code, printed = in_shell(text, tmp_path)
        assert code == 0, f"{text}\n{printed}"
        for words in commands:
            code, printed = in_this_process(words, tmp_path)
            assert code == 0, f"{words}\n{printed}"
            assert "bug:" not in printed


def apart(text: str) -> tuple[str, list[list[str]]]:
    """What only a shell can run, and the commands of ours that end a block, split into words.

    A block with a command of ours that uses the shell is left to it as a whole.
    """
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("shardplan ")), len(lines))
    ours = lines[first:]
    if any(not line.startswith("shardplan ") or _SHELL.search(line) for line in ours):
        return text, []
    return "\n".join(lines[:first]), [shlex.split(line, comments=True)[1:] for line in ours]


def in_shell(text: str, folder: Path) -> tuple[int, str]:
    """Exit code of a shell, and what it prints."""
    binaries = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    command = ["bash", "-c", _WORKED + text]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert "bug:" not in done.stderr
    return done.returncode, done.stdout[-2000:] + done.stderr[-2000:]


def in_this_process(words: list[str], folder: Path) -> tuple[int, str]:
    """Exit code of a command of ours, and what it prints."""
    printed = io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        code = run(words)
    return code, printed.getvalue()


@pytest.mark.slow
def test_three_commands_from_nothing_to_a_report(tmp_path: Path) -> None:
    """The last two commands of the first page, with 300 tables; the first one installs."""
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("shardplan")]
    assert len(lines) == 2
    for line in lines:
        words = line.split("#")[0].split()[1:]
        done = subprocess.run(
            [sys.executable, "-m", "planner", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    page = (tmp_path / "run1" / "report.html").read_text(encoding="utf-8")
    assert "300 tables" in page
    assert len(page.encode()) < 1_000_000


def test_command_reference_is_up_to_date() -> None:
    code = "import reference, sys; sys.stdout.write(reference.commands_page())"
    done = subprocess.run(  # of its own: click keeps a command's help flag once it was shown
        [sys.executable, "-c", code],
        cwd=DOCS,
        env={**os.environ, "PYTHONPATH": f"{DOCS}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    written = reference().COMMANDS.read_text(encoding="utf-8")
    assert written == done.stdout, "run: python docs/reference.py"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_quoted_outputs_are_those_printed(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert reference().with_outputs(text) == text, "run: python docs/reference.py"


def test_flags_named_in_the_docs_exist() -> None:
    """Every ``--flag`` beside shardplan in a block, also of those not run, is a known one."""
    helps = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    known = set(re.findall(r"--[a-z][a-z-]+", helps))
    for page in PAGES:
        for _, language, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
            if language != "sh":
                continue
            lines = [line for line in text.splitlines() if line.startswith("shardplan")]
            named = {flag for line in lines for flag in re.findall(r" (--[a-z][a-z-]+)", line)}
            assert named <= known, page


def test_links_and_code_paths_lead_somewhere() -> None:
    """Pages and anchors that links name exist; so do files of the repository in backticks."""
    anchors = {page: _anchors(page) for page in PAGES}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]*\.(?:md|png))(?:#[^)]*)?\)", text):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
        for target, anchor in re.findall(r"\]\(([^)#]*)#([^)]+)\)", text):
            where = (page.parent / target).resolve() if target else page
            assert anchor in anchors[where], f"{page.name}: {target}#{anchor}"
        roots = r"`((?:costmodels|planner|benchmarks|examples|tests|docs|configs)/[\w/.]+)`"
        for path in re.findall(roots, text):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_files_named_in_the_architecture_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = ("costmodels", "planner", "benchmarks", "docs", "tests")
    known = [f"/{path.as_posix()}" for room in rooms for path in (ROOT / room).rglob("*.py")]
    for name in re.findall(r"`([\w/]+\.py)`", text):
        assert any(path.endswith(f"/{name}") for path in known), name


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert listed == {str(page.relative_to(DOCS)) for page in PAGES}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the docs extra")
def test_the_site_builds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    remote = re.compile(r'<(?:script|link)[^>]+(?:src|href)="https?://')
    assert not [p for p in tmp_path.rglob("*.html") if remote.search(p.read_text("utf-8"))]


def test_every_kind_of_layer_is_documented_with_its_keys() -> None:
    text = (DOCS / "how-to" / "dense.md").read_text(encoding="utf-8")
    table = text.partition("| kind | what | keys |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", table, re.MULTILINE)
    told = {kind: re.findall(r"\[?`\w+`\]?", keys) for kind, keys in rows}
    shared = {field.name for field in dataclasses.fields(AbstractLayer)}
    known = {}
    for kind in discovery.names(layers):
        fields = dataclasses.fields(cast("Any", discovery.load(layers, kind, AbstractLayer)))
        known[kind] = [
            f"`{f.name}`" if f.default is dataclasses.MISSING else f"[`{f.name}`]"
            for f in fields
            if f.name not in shared
        ]
    assert told == known
