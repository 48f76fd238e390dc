"""Checks for problems of a TorchRec installation or job that its versions do not show.

Each of them has happened: the wrong build of a right version, an untested version, a variable that
TorchRec's planner and its runtime read in different ways.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Final

from planner.cli.environment import (
    Check,
    Level,
    Versions,
    has_nvml,
    installed_version,
    owns_fbgemm_files,
)

GENERATIONS: Final = {"1.8": "2.13", "1.9": "2.14"}
"""The torch version for each TorchRec (and fbgemm) version with which the tests run."""

_POD_OF_PLANNER: Final = "TOPOLOGY_DOMAIN_MULTIPLE"
_POD_OF_RUNTIME: Final = "TORCHREC_RESOLVED_POD_SIZE"


def check_torch_traps(
    version_of: Versions = installed_version,
    owns_files: Callable[[str], bool] = owns_fbgemm_files,
    nvml: Callable[[], bool] = has_nvml,
    environ: Mapping[str, str] = os.environ,
    platform: str = sys.platform,
) -> list[Check]:
    """Warnings on TorchRec's installation and job; often there are none."""
    torchrec = version_of("torchrec")
    if torchrec is None:
        return _no_wheels(platform)
    checks = [
        _untested(torchrec),
        _mixed(torchrec, version_of),
        _stand_in(version_of, owns_files, nvml),
        _large_torch(version_of("torch"), nvml),
    ]
    return [c for c in (*checks, *_job(environ)) if c is not None]


def _no_wheels(platform: str) -> list[Check]:
    if platform.startswith("linux"):
        return []
    finding = f"fbgemm has no wheels for {platform}, so TorchRec cannot run here; planning can"
    return [Check(level=Level.OK, subject="platform", finding=finding)]


def _untested(torchrec: str) -> Check | None:
    if _minor(torchrec) in GENERATIONS:
        return None
    known = ", ".join(GENERATIONS)
    newest = max(GENERATIONS)
    return Check(
        level=Level.WARN,
        subject="torchrec version",
        finding=f"{torchrec}: ShardPlanner is tested with {known}",
        fix=f"pip install 'torchrec=={newest}.*' 'torch=={GENERATIONS[newest]}.*'",
    )


def _mixed(torchrec: str, version_of: Versions) -> Check | None:
    """Versions that do not fit, which pip installs because TorchRec accepts any fbgemm."""
    fbgemm = version_of("fbgemm-gpu-cpu") or version_of("fbgemm-gpu")
    if fbgemm is None or _minor(fbgemm) == _minor(torchrec):
        return None
    return Check(
        level=Level.WARN,
        subject="torchrec / fbgemm",
        finding=f"torchrec {torchrec} with fbgemm {fbgemm}: each is tested with its own number",
        fix=f"pip install 'torchrec=={_minor(fbgemm)}.*'",
    )


def _stand_in(
    version_of: Versions, owns_files: Callable[[str], bool], nvml: Callable[[], bool]
) -> Check | None:
    """The empty placeholder for fbgemm-gpu, which replaces a CUDA build and so hides the GPU."""
    installed = version_of("fbgemm-gpu") is not None
    if not installed or owns_files("fbgemm-gpu") or not nvml():
        return None
    return Check(
        level=Level.WARN,
        subject="fbgemm-gpu",
        finding="an NVIDIA driver is here, but fbgemm-gpu is the empty stand-in for its CPU build",
        fix="pip uninstall fbgemm-gpu fbgemm-gpu-cpu, then pip install fbgemm-gpu",
    )


def _large_torch(torch: str | None, nvml: Callable[[], bool]) -> Check | None:
    if torch is None or "+cpu" in torch or nvml():
        return None
    return Check(
        level=Level.OK,
        subject="torch build",
        finding=f"{torch} is a CUDA build and there is no GPU: it works, and takes 5 GB",
    )


def _job(environ: Mapping[str, str]) -> list[Check]:
    """Checks of the variables of a launched job; empty outside of one."""
    if "WORLD_SIZE" not in environ:
        return []
    checks = []
    if "LOCAL_WORLD_SIZE" not in environ:
        checks.append(
            Check(
                level=Level.WARN,
                subject="LOCAL_WORLD_SIZE",
                finding="not set: TorchRec then assumes 8 ranks per host",
                fix="start the job with torchrun, or export LOCAL_WORLD_SIZE on every rank",
            )
        )
    planned, run = environ.get(_POD_OF_PLANNER, "1"), environ.get(_POD_OF_RUNTIME, "1")
    if planned != run:
        checks.append(
            Check(
                level=Level.WARN,
                subject="pod size",
                finding=f"{_POD_OF_PLANNER} is {planned} but {_POD_OF_RUNTIME} is {run}: plan and "
                "runtime would group ranks differently",
                fix=f"export {_POD_OF_RUNTIME}={planned} on every rank",
            )
        )
    return checks


def _minor(version: str) -> str:
    match = re.match(r"\d+\.\d+", version)
    return match.group() if match else version
