"""The matrix of TorchRec versions: what it installs, and how it counts."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import version_matrix
from benchmarks.version_matrix import Outcome, counted, newer, requirements

REPORT = """<testsuites><testsuite>
<testcase classname="a" name="good"/>
<testcase classname="a" name="bad"><failure message="x"/></testcase>
<testcase classname="a" name="broken"><error message="y&#10;z"/></testcase>
<testcase classname="a" name="left_out"><skipped message="x"/></testcase>
</testsuite></testsuites>"""


def test_torch_and_fbgemm_belong_to_the_version(tmp_path: Path) -> None:
    asked = requirements("1.9.2", tmp_path)
    assert asked[0] == "torch==2.14.*"
    assert asked[2] == "torchrec==1.9.2"
    shim = (tmp_path / "shim" / "pyproject.toml").read_text(encoding="utf-8")
    assert 'version = "1.9.0"' in shim
    assert 'dependencies = ["fbgemm-gpu-cpu==1.9.*"]' in shim
    assert "1.8" not in shim


def test_tests_are_counted(tmp_path: Path) -> None:
    report = tmp_path / "r.xml"
    report.write_text(REPORT, encoding="utf-8")
    found = counted(report, Outcome(version="1.9.2"))
    assert (found.passed, found.failed, found.skipped) == (1, ("a::bad: x", "a::broken: y"), 1)
    assert not found.is_good
    assert not Outcome(version="1.9.2").is_good  # no test ran


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torchrec (1.10.0)\nAvailable versions: 1.10.0, 1.9.2", ["1.10.0"]),
        ("torchrec (1.9.2)\nAvailable versions: 1.9.2", []),
        ("ERROR: none", []),
    ],
)
def test_a_newer_version_of_the_registry_is_tried(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: list[str]
) -> None:
    done = subprocess.CompletedProcess([], 0, stdout=text)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert newer(("1.8.0", "1.9.2"), Console(quiet=True)) == expected


def test_what_cannot_be_installed_fails_and_is_removed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = []

    def failing(command: Sequence[str]) -> str:
        folders.append(Path(command[-1]).parent)
        assert folders[0].is_dir()
        return "exit code 1 of pip\nno such torch"

    monkeypatch.setattr(version_matrix, "ran", failing)
    assert version_matrix.main(["1.9.2"]) == 1
    assert "torchrec 1.9.2: no such torch" in capsys.readouterr().out
    assert not folders[0].exists()
    with pytest.raises(SystemExit, match="2"):
        version_matrix.main(["newest"])
