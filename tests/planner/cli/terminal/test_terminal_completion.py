"""What the shell completes, the scripts that ask for it, and help that costs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from planner.cli.run import cli

SYSTEMS = ("h100_nvl", "h100_pcie", "h100_sxm")


def completed(*words: str) -> list[str]:
    """What the shell offers for the last word."""
    *done, last = words
    found = ShellComplete(cli, {}, "shardplan", "_SHARDPLAN_COMPLETE").get_completions(done, last)
    return [item.value for item in found]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("pl",), {"plan"}),
        (("import", "tor"), {"torchrec"}),
        (("plan", "--obj"), {"--objective"}),
        (("plan", "small_d"), {"small_demo"}),
        (("study", "dlrm_dcnv2"), {"dlrm_dcnv2_hugectr", "dlrm_dcnv2_mlperf"}),
        (("plan", "x", "--system", "h100"), set(SYSTEMS)),
        (("predict", "dense", "--system", "h100_s"), {"h100_sxm"}),
        (("systems", "show", "h100_s"), {"h100_sxm"}),
        (("study", "x", "--system", "a40,h100_s"), {"a40,h100_sxm"}),
        (("study", "x", "--objective", "cost,thr"), {"cost,throughput"}),
        (("plan", "x", "--strategy", "torch"), {"torchrec_greedy"}),
        (("plan", "x", "--objective", "ph"), {"phases"}),
        (("no-such-command", "--h"), {"--help"}),
    ],
)
def test_completed(words: tuple[str, ...], offered: set[str]) -> None:
    assert set(completed(*words)) == offered


def test_files_are_completed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workload files here beside shipped names; everything else is left to the shell."""
    monkeypatch.chdir(tmp_path)
    for name in ("small_mine.yaml", "small_list.csv", "small_other.txt"):
        (tmp_path / name).touch()
    assert set(completed("plan", "small")) == {"small_demo", "small_list.csv", "small_mine.yaml"}
    complete = ShellComplete(cli, {}, "shardplan", "_SHARDPLAN_COMPLETE").get_completions
    for words, last in ((["plan"], "models/x"), (["estimate", "x"], "r"), (["check"], "r")):
        assert [item.type for item in complete(words, last)] == ["file"]
    assert [item.type for item in complete(["plan", "x", "--system"], "./b")] == ["file"]


def test_bash_asks_and_is_answered() -> None:
    """The real protocol: words and the place of the cursor in the environment, no heavy import."""
    code = (
        "import sys; from planner.__main__ import main\n"
        "heavy = {'torch', 'ortools', 'optuna', 'sklearn', 'pandas'}\n"
        "try: main()\n"
        "finally: print(sorted(heavy & set(sys.modules)))"
    )
    for words, at, answer in (
        ("shardplan expl", 1, "plain,explain"),
        ("shardplan ", 1, "plain,plan"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={
                "COMP_WORDS": words,
                "COMP_CWORD": str(at),
                "_SHARDPLAN_COMPLETE": "bash_complete",
                "PATH": "/usr/bin",
            },
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[4],
        )
        lines = done.stdout.splitlines()
        assert answer in lines
        assert lines[-1] == "[]"
        assert done.stderr == ""


# ------------------------------------------------------------------ help


def commands() -> list[tuple[str, ...]]:
    """Every command and sub-command, by the words that name it."""
    context = click.Context(cli)
    found: list[tuple[str, ...]] = []
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        found.append((name,))
        if isinstance(command, click.Group):
            found += [(name, sub) for sub in command.list_commands(context)]
    return found


def test_every_help_is_light_and_has_examples() -> None:
    """All helps in one process load none of the big packages; each top command shows examples."""
    lists = [list(words) for words in commands()]
    code = (
        "import sys, io, contextlib\n"
        "from planner.cli.run import run\n"
        f"for words in {lists!r}:\n"
        "    text = io.StringIO()\n"
        "    with contextlib.redirect_stdout(text):\n"
        "        assert run([*words, '--help']) == 0, words\n"
        "    assert 'Usage: shardplan' in text.getvalue(), words\n"
        "    if len(words) == 1: assert 'Examples:' in text.getvalue(), words\n"
        "    assert all(len(l) <= 100 for l in text.getvalue().splitlines()), words\n"
        "heavy = 'torch torchrec ortools optuna sklearn pandas numpy scipy pydantic rich'.split()\n"
        "print(sorted(set(heavy) & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("words", commands())
def test_every_flag_has_a_help(words: tuple[str, ...]) -> None:
    """It is what the docstring of its command or dataclass says of it."""
    context, command = click.Context(cli), cli.get_command(click.Context(cli), words[0])
    for word in words[1:]:
        assert isinstance(command, click.Group)
        command = command.get_command(context, word)
    assert command is not None
    flags = [param for param in command.params if isinstance(param, click.Option)]
    assert all(flag.help for flag in flags), [flag.name for flag in flags if not flag.help]
