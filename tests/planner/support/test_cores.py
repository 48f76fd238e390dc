"""Cores that this process may use: by affinity, and by quotas of either kind of control group."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.support.cores import usable_cores

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/job/own\n", "sys/fs/cgroup/job/cpu.max": "150000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "6400000 100000\n"}, 8),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "500000 100000\n",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/m\n2:cpu,cpuacct:/docker/x\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
        ({"proc/self/cgroup": "nonsense\n0::/\n", "sys/fs/cgroup/cpu.max": "no number\n"}, 8),
    ],
)
@pytest.mark.usefixtures("eight")
def test_quotas_are_rounded_up_and_the_tightest_counts(
    files: dict[str, str], cores: int, tmp_path: Path
) -> None:
    assert usable_cores(write(tmp_path, files)) == cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_a_process_that_is_pinned_has_the_cores_it_is_pinned_to() -> None:
    core = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{core}}}); "
        "from planner.support.cores import usable_cores; print(usable_cores())"
    )
    done = subprocess.run(
        (sys.executable, "-c", code), cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"


def test_cores_are_counted_in_one_place() -> None:
    """The name of a machine in a calibration says how many it has; ranks are pinned to theirs."""
    words = ("os.cpu_count", "sched_getaffinity")
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "planner").rglob("*.py")
        if any(word in path.read_text() for word in words)
    }
    assert found == {
        "planner/support/cores.py",
        "planner/integrations/measure/calibrate.py",
        "planner/integrations/measure/gloo_ranks.py",
    }
