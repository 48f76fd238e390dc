"""How many cores this process may use; every place that starts processes asks here.

A process cannot use all cores of its machine if it was started under ``taskset``, in a container
with a set of cores, or under a quota of processor time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_ROOT = Path("/")


def usable_cores(root: Path = _ROOT) -> int:
    """The number of cores that this process may run on, limited by its quota.

    A quota of 1.5 cores counts as 2, so that all of it can be used.

    Args:
        root: the folder with ``proc`` and ``sys``.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quotas = [math.ceil(quota) for quota in _quotas(root)]
    return max(1, min([cores, *quotas]))


def _quotas(root: Path) -> Iterator[float]:
    """Limits on processor time, in cores, of this process's control groups and their parents."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        names = controllers.split(",")
        if controllers and "cpu" not in names:
            continue
        folder = root / "sys/fs/cgroup"
        for mount in (folder, folder / "cpu", folder / controllers):
            for group in (PurePosixPath(path), *PurePosixPath(path).parents):
                at = mount / str(group).lstrip("/")
                quota = _quota(at)
                if quota is not None:
                    yield quota


def _quota(group: Path) -> float | None:
    """The quota of a control group, of version 2 or 1, in cores; None without one."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError, ValueError):
            texts = " ".join((group / name).read_text() for name in names)
            quota, period = map(int, texts.split())
            return quota / period if quota > 0 and period > 0 else None
    return None
