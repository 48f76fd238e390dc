"""Which versions of TorchRec the integration tests pass with, each in an environment of its own.

    python -m benchmarks.version_matrix
    python -m benchmarks.version_matrix 1.8.0 1.9.2
    python -m benchmarks.version_matrix 1.9.2 --keep .venv-matrix -- -m torchrec -k provider

Without versions: those that this project is made for, and the newest that the package registry
has. For each a virtual environment is made with the torch and the CPU build of fbgemm that belong
to it, the tests of ``tests/integration`` run in it, and it is removed again, unless ``--keep``
names a folder for it; one that is there already is used as it is. Arguments after ``--`` go to
pytest. Everything comes from package registries, as pip is set up (``PIP_INDEX_URL`` and so on);
without an index of PyTorch's CPU builds each version downloads several GB. The exit code is 1 if a
test fails or an environment cannot be made.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).resolve().parent.parent
SHIM: Final = ROOT / "requirements" / "fbgemm-gpu-cpu-shim" / "pyproject.toml"
SHIM_VERSION: Final = "1.8.0"
MADE_FOR: Final = ("1.8.0", "1.9.0", "1.9.2")
TORCH_AHEAD: Final = 5
"""Torch 2.(X+5) belongs to TorchRec and fbgemm 1.X."""
LINES_OF_AN_ERROR: Final = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the tests under one version came to; ``problem`` is why there was no run."""

    version: str
    torch: str = ""
    fbgemm: str = ""
    passed: int = 0
    failed: tuple[str, ...] = ()
    skipped: int = 0
    seconds: float = 0.0
    problem: str = ""

    @property
    def is_good(self) -> bool:
        """Whether tests ran and none failed."""
        return not self.problem and not self.failed and self.passed > 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Try each version in turn and print the table."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    cut = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="of torchrec, such as 1.9.2")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the environments there")
    asked = parser.parse_args(given[:cut])
    wrong = [v for v in asked.versions if not is_version(v)]
    if wrong:
        parser.error(f"{wrong[0]!r} is no version of torchrec such as 1.9.2")
    console = Console(highlight=False)
    versions = asked.versions or [*MADE_FOR, *newer(MADE_FOR, console)]
    outcomes = []
    for version in versions:
        if asked.keep is not None:
            outcomes.append(
                tried(version, asked.keep.resolve() / version, given[cut + 1 :], console)
            )
            continue
        with tempfile.TemporaryDirectory(prefix="torchrec-") as folder:
            outcomes.append(tried(version, Path(folder), given[cut + 1 :], console))
    show(outcomes, console)
    return 0 if all(o.is_good for o in outcomes) else 1


def is_version(text: str) -> bool:
    """Whether a text is a release of a generation that torch can be named for."""
    parts = text.split(".")
    return len(parts) == 3 and parts[0] == "1" and all(p.isdecimal() for p in parts)


def newer(known: Sequence[str], console: Console) -> list[str]:
    """The newest TorchRec of the registry, if it is newer than all that are known."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "torchrec"],
        capture_output=True,
        text=True,
        check=False,
    )
    newest = done.stdout.partition("(")[2].partition(")")[0]
    if done.returncode or not is_version(newest):
        console.print("the registry does not say which torchrec is the newest; it is left out")
        return []
    ahead = numbers(newest) > max(map(numbers, known))
    return [newest] if ahead else []


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers, which compare as versions do."""
    return tuple(int(part) for part in version.split("."))


def requirements(version: str, folder: Path) -> list[str]:
    """What pip has to install for a TorchRec; the stand-in for fbgemm-gpu is written to a folder.

    Args:
        version: of torchrec.
        folder: where the stand-in's project goes.
    """
    minor = numbers(version)[1]
    shim = folder / "shim"
    shim.mkdir(exist_ok=True)
    text = SHIM.read_text(encoding="utf-8").replace(SHIM_VERSION, f"1.{minor}.0")
    text = text.replace(f"fbgemm-gpu-cpu==1.{minor}.0", f"fbgemm-gpu-cpu==1.{minor}.*")
    (shim / "pyproject.toml").write_text(text, encoding="utf-8")
    torch = f"torch==2.{minor + TORCH_AHEAD}.*"
    return [torch, str(shim), f"torchrec=={version}", "-e", f"{ROOT}[dev,data]"]


def tried(version: str, folder: Path, more: Sequence[str], console: Console) -> Outcome:
    """Make the environment of a version, unless it is there, and run the tests in it."""
    started = time.perf_counter()
    python = folder / "env" / "bin" / "python"
    report = folder / "report.xml"
    if not python.exists():
        console.print(f"torchrec {version}: making its environment; downloads take minutes")
        folder.mkdir(parents=True, exist_ok=True)
        steps = (
            [sys.executable, "-m", "venv", str(folder / "env")],
            [str(python), "-m", "pip", "install", "-q", *requirements(version, folder)],
        )
        for step in steps:
            problem = ran(step)
            if problem:
                python.unlink(missing_ok=True)  # so that a kept folder is not taken for whole
                return Outcome(version=version, problem=problem)
    torch, fbgemm = (installed(python, name) for name in ("torch", "fbgemm-gpu-cpu"))
    console.print(f"torchrec {version}: torch {torch}, fbgemm {fbgemm}; running the tests")
    report.unlink(missing_ok=True)
    problem = ran(
        [str(python), "-m", "pytest", "tests/integration", "-q", f"--junitxml={report}", *more]
    )
    if not report.exists():
        return Outcome(version=version, torch=torch, fbgemm=fbgemm, problem=problem or "no report")
    seconds = time.perf_counter() - started
    return counted(report, Outcome(version=version, torch=torch, fbgemm=fbgemm, seconds=seconds))


def ran(command: Sequence[str]) -> str:
    """Run a command in the repository; the end of what it wrote if it fails, else nothing."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return ""
    lines = done.stdout.splitlines()[-LINES_OF_AN_ERROR:]
    return "\n".join([f"exit code {done.returncode} of {' '.join(command[:4])} ...", *lines])


def installed(python: Path, package: str) -> str:
    """The version of a package in an environment."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "none"


def counted(report: Path, outcome: Outcome) -> Outcome:
    """The outcome with the tests of a JUnit report."""
    cases = list(ET.parse(report).getroot().iter("testcase"))
    failed = tuple(
        f"{case.get('classname')}::{case.get('name')}: {_first_line(problem)}"
        for case in cases
        for problem in (*case.findall("failure"), *case.findall("error"))[:1]
    )
    skipped = sum(case.find("skipped") is not None for case in cases)
    return Outcome(
        version=outcome.version,
        torch=outcome.torch,
        fbgemm=outcome.fbgemm,
        seconds=outcome.seconds,
        passed=len(cases) - len(failed) - skipped,
        failed=failed,
        skipped=skipped,
    )


def _first_line(problem: ET.Element) -> str:
    return ((problem.get("message") or "").splitlines() or [""])[0]


def show(outcomes: Sequence[Outcome], console: Console) -> None:
    """The table, and below it what failed."""
    columns = ("torchrec", "torch", "fbgemm", "passed", "failed", "skipped", "minutes", "verdict")
    table = Table(*columns, box=SIMPLE)
    for one in outcomes:
        table.add_row(
            one.version,
            one.torch,
            one.fbgemm,
            str(one.passed),
            str(len(one.failed)),
            str(one.skipped),
            f"{one.seconds / 60:.1f}",
            "passes" if one.is_good else "fails",
        )
    console.print(table)
    for one in outcomes:
        for line in (*one.failed, *one.problem.splitlines()):
            console.print(f"torchrec {one.version}: {line}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
