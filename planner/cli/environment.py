"""Checks the environment from package metadata, without importing packages.

Most broken installations break this rule: fbgemm-gpu 1.X is built for torch 2.(X+5) and for no
other version. CONTRIBUTING.md has the versions with which this project is tested.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Final

from costmodels import units
from planner.cli.types import shipped
from planner.support.cores import usable_cores

TORCH_MINOR_OFFSET = 5
MIN_PYTHON = (3, 11)
MIN_MEMORY_BYTES = 2 * units.GIB
DISTRIBUTION = "shardplan"
PAIRS = "torch==2.13.* fbgemm-gpu==1.8.* torchrec==1.8.*"
NEWEST_FBGEMM_MINOR = 9
"""The newest fbgemm version that is suggested as a repair; torch is released before its fbgemm."""

Versions = Callable[[str], str | None]


class Level(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line on the environment: what was checked, the result, and how to repair it."""

    level: Level
    subject: str
    finding: str
    fix: str = ""


def installed_version(name: str) -> str | None:
    """The version of an installed distribution, which is not imported."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def owns_fbgemm_files(name: str) -> bool:
    """Whether a distribution has the ``fbgemm_gpu`` package; an empty placeholder has not."""
    try:
        files = metadata.distribution(name).files or []
    except metadata.PackageNotFoundError:
        return False
    return any(file.parts[0] == "fbgemm_gpu" for file in files)


def has_nvml() -> bool:
    """Whether the NVIDIA driver's management library can be loaded."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def check_python() -> Check:
    """Check that Python is new enough."""
    running = sys.version_info[:3]
    version = ".".join(map(str, running))
    if running < MIN_PYTHON:
        needed = ".".join(map(str, MIN_PYTHON))
        return Check(
            level=Level.FAIL,
            subject="python",
            finding=f"{version}; {needed} or newer is needed",
            fix=f"make an environment with Python {needed}",
        )
    return Check(level=Level.OK, subject="python", finding=version)


def check_packages(
    version_of: Versions = installed_version, requirements: list[str] | None = None
) -> list[Check]:
    """Check that every required package is installed in a version that fits."""
    needed = metadata.requires(DISTRIBUTION) or [] if requirements is None else requirements
    checks = []
    for line in needed:
        match = re.match(r"[A-Za-z0-9._-]+", line)
        if match is None or "extra ==" in line:
            continue
        name, limits = match.group(), line[match.end() :].split(";")[0].strip()
        version = version_of(name)
        if version is None:
            finding = "not installed"
        elif not satisfies(version, limits):
            finding = f"{version} installed, {limits} needed"
        else:
            checks.append(Check(level=Level.OK, subject=name, finding=version))
            continue
        fix = f"pip install '{name}{limits}'"
        checks.append(Check(level=Level.FAIL, subject=name, finding=finding, fix=fix))
    return checks


def satisfies(version: str, limits: str) -> bool:
    """Whether a version meets limits such as ``>=1.2,<3``; other operators are ignored."""
    found = _numbers(version)
    for limit in filter(None, (part.strip() for part in limits.split(","))):
        match = re.match(r"(>=|<)\s*(.+)", limit)
        if match is None:
            continue
        bound = _numbers(match.group(2))
        if (found >= bound) != (match.group(1) == ">="):
            return False
    return True


def check_torch_stack(
    version_of: Versions = installed_version,
    owns_files: Callable[[str], bool] = owns_fbgemm_files,
    nvml: Callable[[], bool] = has_nvml,
) -> list[Check]:
    """Check that torch, fbgemm and TorchRec fit together; planning needs none of them."""
    torch, torchrec = version_of("torch"), version_of("torchrec")
    builds = [name for name in ("fbgemm-gpu", "fbgemm-gpu-cpu") if owns_files(name)]
    if torch is None and torchrec is None and not builds:
        finding = (
            "not installed; planning works without it, `ShardPlanner` inside TorchRec does not"
        )
        return [Check(level=Level.OK, subject="torchrec", finding=finding)]
    checks = [_check_torchrec(torchrec)]
    checks.extend(_check_pair(torch, name, version_of(name)) for name in builds)
    if torchrec is not None and not builds:
        checks.append(_missing_fbgemm(torch))
    if len(builds) == 2:
        checks.append(
            Check(
                level=Level.WARN,
                subject="fbgemm",
                finding="fbgemm-gpu and fbgemm-gpu-cpu are both installed and overwrite each other",
                fix="pip uninstall fbgemm-gpu fbgemm-gpu-cpu, then install the one you want",
            )
        )
    if "fbgemm-gpu" in builds and not nvml():
        checks.append(
            Check(
                level=Level.FAIL,
                subject="nvidia driver",
                finding="libnvidia-ml.so.1 not found, so CUDA fbgemm-gpu cannot be imported",
                fix="install the NVIDIA driver, or use fbgemm-gpu-cpu on a machine without a GPU",
            )
        )
    return checks


def check_machine() -> list[Check]:
    """Check the cores and the memory for a search."""
    checks = [Check(level=Level.OK, subject="cores", finding=f"{usable_cores()} usable")]
    memory = available_memory_bytes()
    if memory is None:
        return checks
    enough = memory >= MIN_MEMORY_BYTES
    finding = f"{units.format_bytes(memory)} available"
    fix = "" if enough else "large workloads may need more; close other programs"
    level = Level.OK if enough else Level.WARN
    return [*checks, Check(level=level, subject="memory", finding=finding, fix=fix)]


def available_memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> float | None:
    """Memory that a new program can use, as the kernel estimates it; None if it does not."""
    try:
        match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if match is None else float(match.group(1)) * units.KIB


def _check_torchrec(version: str | None) -> Check:
    if version is None:
        fix = "pip install 'shardplan[torchrec]' if you want to plan inside TorchRec"
        finding = "not installed, though parts of its stack are"
        return Check(level=Level.WARN, subject="torchrec", finding=finding, fix=fix)
    return Check(level=Level.OK, subject="torchrec", finding=version)


def _check_pair(torch: str | None, name: str, fbgemm: str | None) -> Check:
    subject = f"torch / {name}"
    if torch is None:
        fix = f"pip install {PAIRS}"
        return Check(level=Level.FAIL, subject=subject, finding="torch is not installed", fix=fix)
    ours, theirs = _numbers(torch), _numbers(fbgemm or "")
    if len(ours) < 2 or len(theirs) < 2 or (ours[0], theirs[0]) != (2, 1):
        finding = f"torch {torch} with {name} {fbgemm}: the rule of matching versions is unknown"
        return Check(level=Level.WARN, subject=subject, finding=finding)
    if ours[1] == theirs[1] + TORCH_MINOR_OFFSET:
        finding = f"{torch} / {fbgemm} match"
        return Check(level=Level.OK, subject=subject, finding=finding)
    wanted = theirs[1] + TORCH_MINOR_OFFSET
    other = ours[1] - TORCH_MINOR_OFFSET
    choices = [f"pip install 'torch==2.{wanted}.*'"]
    if 0 <= other <= NEWEST_FBGEMM_MINOR:
        choices.append(f"pip install '{name}==1.{other}.*'")
    return Check(
        level=Level.FAIL,
        subject=subject,
        finding=f"{name} {fbgemm} is built for torch 2.{wanted}, but torch {torch} is installed",
        fix=" or ".join(choices),
    )


def _missing_fbgemm(torch: str | None) -> Check:
    numbers = _numbers(torch or "")
    known = len(numbers) > 1 and numbers[0] == 2 and numbers[1] >= TORCH_MINOR_OFFSET
    wanted = f"==1.{numbers[1] - TORCH_MINOR_OFFSET}.*" if known else "==1.8.*"
    return Check(
        level=Level.FAIL,
        subject="fbgemm",
        finding="torchrec is installed without fbgemm-gpu and cannot be imported",
        fix=f"pip install 'fbgemm-gpu{wanted}' (or fbgemm-gpu-cpu on a machine without a GPU)",
    )


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


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


def check_environment() -> list[Check]:
    """Everything that is checked of the environment, in the order in which it is printed."""
    return [
        check_python(),
        *check_packages(),
        *check_torch_stack(),
        *check_torch_traps(),
        *check_machine(),
        _check_configs(),
    ]


def _check_configs() -> Check:
    found = shipped("systems")
    if found:
        return Check(level=Level.OK, subject="configs", finding=f"{len(found)} systems shipped")
    return Check(
        level=Level.FAIL,
        subject="configs",
        finding="the files of the shipped systems are missing",
        fix="install shardplan again: pip install --force-reinstall shardplan",
    )
