"""The mutation run plants one fault at a time, in a copy, and takes it back."""

from __future__ import annotations

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


@pytest.mark.parametrize("module", MODULES)
def test_modules_and_their_tests_are_there(module: str) -> None:
    assert len(drawn(module, 5, 0)) == 5
    assert drawn(module, 5, 0) == drawn(module, 5, 0)
    assert all((ROOT / test).exists() for test in MODULES[module][1].split())
