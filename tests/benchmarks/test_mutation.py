"""The mutation run plants one fault at a time, in a copy, and takes it back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.mutation import MODULES, ROOT, drawn, mutants, planted

SOURCE = b'''"""Doc."""
LIMIT: int = 3

def f(a: int | None, *, b: float = 0.5) -> float:
    """Text of 7."""
    if a is None or not b:
        raise ValueError(f"{a} is above {b + 1}")
    return max(a, 2) * -b if a <= LIMIT else (a) // 2
'''


def test_each_fault_changes_one_place() -> None:
    found = {(m.line, m.old, m.new) for m in mutants("m.py", SOURCE)}
    assert found == {
        (2, "3", "4"),
        (4, "0.5", "1.0"),
        (6, "a is None or not b", "(not (a is None or not b))"),
        (6, "is", "is not"),
        (6, "or", "and"),
        (6, "not b", "b"),
        (8, "max(a, 2) * -b if a <= LIMIT else (a) // 2", "None"),
        (8, "a <= LIMIT", "(not (a <= LIMIT))"),
        (8, "<=", "<"),
        (8, "max", "min"),
        (8, "2", "3"),
        (8, "*", "/"),
        (8, "-b", "b"),
        (8, "//", "*"),
    }


def test_what_changes_nothing_is_no_fault() -> None:
    assert mutants("m.py", b"def g() -> None:\n    return None\n") == []


def test_a_fault_is_planted_and_taken_back(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_bytes(SOURCE)
    fault = next(m for m in mutants("m.py", SOURCE) if m.old == "<=")
    with planted(fault, tmp_path):
        assert b"if a < LIMIT" in (tmp_path / "m.py").read_bytes()
    assert (tmp_path / "m.py").read_bytes() == SOURCE


def loaded(folder: Path) -> str:
    """What a process finds in ``m.py`` that keeps its bytecode beside the file."""
    code = "import m; print(m.RATIO, m.OTHER)"
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)}
    command = [sys.executable, "-S", "-c", code]
    return subprocess.run(command, env=given, capture_output=True, text=True, check=True).stdout


def test_bytecode_of_one_fault_never_stands_in_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two faults of one size within one second are told apart, and so is the file without them."""
    path, write = tmp_path / "m.py", Path.write_bytes

    def written(self: Path, data: bytes) -> int:
        """All within the same second."""
        count = write(self, data)
        os.utime(self, (1e9, 1e9))
        return count

    monkeypatch.setattr(Path, "write_bytes", written)
    path.write_bytes(b"RATIO = 6 * 2\nOTHER = 6 * 2\n")
    one, other = (m for m in mutants("m.py", path.read_bytes()) if m.old == "*")
    found = []
    for fault in (one, other):
        with planted(fault, tmp_path):
            found.append(loaded(tmp_path))
        found.append(loaded(tmp_path))
    assert found == ["3.0 12\n", "12 12\n", "12 3.0\n", "12 12\n"]


@pytest.mark.parametrize("module", MODULES)
def test_modules_and_their_tests_are_there(module: str) -> None:
    assert len(drawn(module, 5, 0)) == 5
    assert drawn(module, 5, 0) == drawn(module, 5, 0)
    assert all((ROOT / test).exists() for test in MODULES[module][1].split())
