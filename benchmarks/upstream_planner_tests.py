"""Runs TorchRec's own planner tests against ``ShardPlanner``; none of them is part of this project.

    git clone https://github.com/meta-pytorch/torchrec
    python benchmarks/upstream_planner_tests.py torchrec
    python benchmarks/upstream_planner_tests.py torchrec --ref v1.8.0-rc1
    python benchmarks/upstream_planner_tests.py torchrec --objective torchrec
    python benchmarks/upstream_planner_tests.py torchrec --planner torchrec

The first argument is a checkout, or a git directory, of TorchRec. Tests are read at the newest tag
of the installed minor version; a checkout without one is read at its checked-out revision, and the
summary says so. Each file goes to a temporary folder with one line behind it that gives the name
``EmbeddingShardingPlanner`` to our class, and is run. A table of the outcome is printed with the
reason of every failure; the exit code is 1 if a test fails that is not among the differences meant,
or if one of these passes, for then its reason is out of date.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import logging
import subprocess
import sys
import tempfile
import unittest
import warnings
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

PLANNER_TESTS: Final = "torchrec/distributed/planner/tests"
SWAP: Final = """
from planner.integrations.torchrec_planner import ShardPlanner as EmbeddingShardingPlanner
"""
SWAP_WITH_OBJECTIVE: Final = """
import functools

from planner.integrations.torchrec_planner import ShardPlanner


class EmbeddingShardingPlanner(ShardPlanner):
    @functools.wraps(ShardPlanner.__init__)
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named, objective="{objective}")
"""

CLASSES: Final = {
    f"{PLANNER_TESTS}/test_planners.py": (
        "TestEmbeddingShardingPlanner",
        "TestEmbeddingShardingPlannerWithConstraints",
        "TestEmbeddingShardingHashPlannerContextInputs",
        "TestAutoPlannerWithScaleupProposer",
        "TestPlanLoaderIntegration",
        "TestExtractPlan",
        "TestValidateModulesInclusionInShardingPlan",
        "TestFixedAbsoluteStorageReservation",
    ),
    f"{PLANNER_TESTS}/test_types.py": ("TestConsistentHashingBetweenProcesses",),
    f"{PLANNER_TESTS}/test_stats.py": ("TestEmbeddingStats",),
    f"{PLANNER_TESTS}/test_embedding_utils.py": ("CreateShardingInfoTest",),
    f"{PLANNER_TESTS}/test_embeddingbag_utils.py": ("CreateShardingInfoTest",),
    "torchrec/schema/api_tests/test_planner_schema.py": ("TestPlanner",),
}
"""Test classes that make a planner, by file; those of its parts alone are left out."""

MEANT: Final = {
    "TestEmbeddingShardingPlanner.test_hidden_rw_solution": (
        "asks for the least sum of TorchRec's shard costs. We predict 630 us for that plan, which "
        "runs the collectives of two sharding types, and 360 us for the one returned; passes with "
        "--objective torchrec"
    ),
    "TestAutoPlannerWithScaleupProposer.test_auto_sharder_solution": (
        "asks for what one proposer of TorchRec's proposes; ShardPlanner replaces proposers"
    ),
    "TestAutoPlannerWithScaleupProposer.test_planner_with_virtual_table": (
        "its virtual tables are planned as it asks; of the ordinary ones beside them it asks what "
        "one proposer of TorchRec's proposes: cut by rows and cached, where all fit on the devices"
    ),
    "TestExtractPlan.test_extract_plan_properties_preservation": (
        "gives every table one shard afterwards, so it holds only for plans of one shard per "
        "table; passes with --objective torchrec"
    ),
}
"""Tests that fail by design, and why."""

DRAWS: Final = ("TestAutoPlannerWithScaleupProposer.test_auto_sharder_solution",)
"""Those among them that ask for one of several plans of the same predicted time: ours is another
with torchrec 1.8, and that one with 1.9, whose planner makes no plan of its own to compare with."""


@dataclass
class Tally:
    """What became of one class: names of passed tests, and (name, reason) of the others."""

    passed: list[str] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Number of tests."""
        return len(self.passed) + len(self.failed) + len(self.skipped)


class Recorder(unittest.TestResult):
    """Sorts outcomes into a tally."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally

    def addSuccess(self, test: Any) -> None:  # noqa: N802
        """A passed test."""
        super().addSuccess(test)
        self._tally.passed.append(short_name(test))

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        """A skipped test."""
        super().addSkip(test, reason)
        self._tally.skipped.append((short_name(test), reason))

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        """An assertion of the test does not hold."""
        super().addFailure(test, err)
        self._tally.failed.append((short_name(test), reason_of(err[1])))

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        """The test, or what it tests, raised."""
        super().addError(test, err)
        self._tally.failed.append((short_name(test), reason_of(err[1])))


def short_name(test: Any) -> str:
    """``Class.test``."""
    return ".".join(str(test.id()).split(".")[-2:])


def reason_of(error: BaseException) -> str:
    """An error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' / '.join(lines[:3])}"[:220]


def read_tests(checkout: Path, revision: str, folder: Path, behind: str) -> list[str]:
    """Put the test files of a revision into ``folder``; the paths that exist there."""
    found = []
    for path in CLASSES:
        done = git(checkout, "show", f"{revision}:{path}")
        if done.returncode == 0:
            (folder / f"upstream_{Path(path).name}").write_text(
                done.stdout + behind, encoding="utf-8"
            )
            found.append(path)
    return found


def matching_revision(checkout: Path) -> tuple[str, str]:
    """(revision, what the summary calls it): the newest tag of the installed minor version.

    Without such a tag, the checked-out revision, by its version and commit.
    """
    minor = ".".join(metadata.version("torchrec").split(".")[:2])
    tags = git(checkout, "tag", "--list", f"v{minor}.*", "--sort=version:refname").stdout.split()
    if tags:
        return tags[-1], tags[-1]
    version = git(checkout, "show", "HEAD:version.txt").stdout.strip() or "of unknown version"
    commit = git(checkout, "log", "-1", "--format=%h of %cs", "HEAD").stdout.strip()
    return "HEAD", f"HEAD ({version}, {commit}), because the checkout has no tag v{minor}.*"


def installed_versions() -> dict[str, str]:
    """Versions of what the tests run with; FBGEMM's is that of its CPU build where that is all."""
    found = {}
    for names in (("torch",), ("fbgemm-gpu-cpu", "fbgemm-gpu"), ("torchrec",)):
        for name in names:
            with contextlib.suppress(metadata.PackageNotFoundError):
                found[name] = metadata.version(name)
                break
    return found


def git(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A git command in a checkout or a git directory."""
    return subprocess.run(
        ["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=False
    )


def run_class(case: type[unittest.TestCase]) -> Tally:
    """Run one test class, quietly."""
    tally = Tally()
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        tests.run(Recorder(tally))
    return tally


def report(title: str, tally: Tally, *, is_default: bool) -> bool:
    """Print one class; whether all that failed was meant to, and nothing else.

    Args:
        title: of the class.
        tally: what became of its tests.
        is_default: our planner with its default objective, of which :data:`MEANT` speaks.
    """
    print(f"{title:<72}{len(tally.passed):>3} of {tally.total}")
    for name, reason in tally.failed:
        print(f"    {'by design' if name in MEANT else 'FAILED'}  {name}\n        {reason}")
        if name in MEANT:
            print(f"        why: {MEANT[name]}")
    for name, reason in tally.skipped:
        print(f"    skipped  {name}: {reason}")
    stale = [name for name in tally.passed if name in MEANT and name not in DRAWS and is_default]
    for name in stale:
        print(f"    OUT OF DATE  {name}: passes, though it is said to fail by design")
    return all(name in MEANT for name, _ in tally.failed) and not stale


def main() -> int:
    """Run everything and print the tally."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("checkout", type=Path, help="a checkout or git directory of TorchRec")
    parser.add_argument("--ref", help="tag, branch or commit to read the tests from")
    parser.add_argument(
        "--planner", choices=("ours", "torchrec"), default="ours", help="torchrec: nothing swapped"
    )
    parser.add_argument(
        "--objective", default="iteration", help="of ShardPlanner; torchrec: TorchRec's rating"
    )
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    revision, called = (asked.ref, asked.ref) if asked.ref else matching_revision(asked.checkout)
    good, passed, total = True, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        plain = asked.objective == "iteration"
        swap = SWAP if plain else SWAP_WITH_OBJECTIVE.format(objective=asked.objective)
        behind = swap if asked.planner == "ours" else ""
        paths = read_tests(asked.checkout, revision, Path(folder), behind)
        if not paths:
            parser.error(f"{asked.checkout} at {revision} has no planner tests of TorchRec")
        print(f"tests of {called}, run with {installed_versions()}, planner: {asked.planner}")
        print(f"objective of the search: {asked.objective}\n")
        sys.path[:0] = [folder, str(Path(__file__).resolve().parents[1])]
        for path in paths:
            module = importlib.import_module(f"upstream_{Path(path).stem}")
            for name in CLASSES[path]:
                if not hasattr(module, name):
                    print(f"{Path(path).stem}.{name}: not in {revision}")
                    continue
                tally = run_class(getattr(module, name))
                title = f"{Path(path).stem}.{name}"
                good &= report(title, tally, is_default=plain and bool(behind))
                passed += len(tally.passed)
                total += tally.total
    print(f"\n{passed} of {total} tests of {called} passed")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
