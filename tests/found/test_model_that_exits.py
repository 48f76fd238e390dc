"""A model of a user that ends the process does not end a command as if all were well."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cli.run import run

DATA = Path(__file__).parent / "data"

IN_CONSTRUCTOR = """
from costmodels.lookup.roofline import Roofline

class Mine(Roofline):
    def __init__(self):
        raise SystemExit
"""
WHEN_ASKED = """
import sys
from costmodels.lookup.roofline import Roofline

class Mine(Roofline):
    def forward_time(self, work, topology):
        sys.exit(0)
"""
WITH_FLAGS = """
import argparse
argparse.ArgumentParser().parse_args(["--unknown"])
"""


def asked(model: Path) -> list[str]:
    flags = ["--system", "h100_sxm", "--gpus", 2, "--model", f"lookup={model}"]
    return [str(a) for a in ("plan", DATA / "small.yaml", *flags, "--require-gap", "1%", "-q")]


def test_a_file_that_exits(capsys: pytest.CaptureFixture[str]) -> None:
    """It ended with exit code 0 and without a plan."""
    assert run(asked(DATA / "bad_model.py")) == 2
    told = capsys.readouterr()
    assert not told.out
    assert "bad_model.py: cannot be run: SystemExit: 7" in told.err


@pytest.mark.parametrize(
    ("name", "text"),
    [("born", IN_CONSTRUCTOR), ("when_asked", WHEN_ASKED), ("with_flags", WITH_FLAGS)],
)
def test_wherever_it_exits(
    name: str, text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / f"exits_{name}.py"
    file.write_text(text)
    assert run(asked(file)) == 2
    told = capsys.readouterr()
    assert not told.out
    assert f"lookup={file}" in told.err
    assert "SystemExit" in told.err
