"""Every example runs as it stands."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))


def needs_torch(path: Path) -> bool:
    """Whether an example imports torch, or our adapter to it, at its top or anywhere else."""
    text = path.read_text(encoding="utf-8")
    return any(f"{word} torch" in text for word in ("import", "from")) or "integrations" in text


def test_examples_have_numbers_of_their_own() -> None:
    numbers = [path.name[:2] for path in EXAMPLES]
    assert numbers
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    if needs_torch(path) and importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert list(tmp_path.iterdir()) == [], "an example cleans up after itself"
