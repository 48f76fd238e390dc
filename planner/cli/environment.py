"""Checks the environment from package metadata, without importing packages.

CONTRIBUTING.md has the versions with which this project is tested.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from importlib.util import find_spec
from typing import Final

from planner.cli.types import shipped
from planner.errors import refuse
from planner.support.cores import usable_cores

TORCH_MINOR_OFFSET: Final = 5
DISTRIBUTION: Final = "shardplan"
PAIRS: Final = "torch==2.13.* fbgemm-gpu==1.8.* torchrec==1.8.*"
NEWEST_FBGEMM_MINOR: Final = 9
"""The newest fbgemm version that is suggested as a repair; torch is released before its fbgemm."""
GENERATIONS: Final = {"1.8": "2.13", "1.9": "2.14"}
"""The torch version for each TorchRec (and fbgemm) version with which the tests run."""

Versions = Callable[[str], str | None]


class CheckLevel(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


OK, WARN, FAIL = CheckLevel


@dataclass(frozen=True, slots=True)
class Check:
    """One line on the environment: the result, what was checked, and how to repair it."""

    level: CheckLevel
    subject: str
    finding: str
    fix: str = ""


def check_environment() -> list[Check]:
    """Everything that is checked of the environment, in the order in which it is printed."""
    systems = len(shipped("systems"))
    return [
        Check(OK, "python", platform.python_version()),
        *check_packages(),
        *check_torch(),
        Check(OK, "cores", f"{usable_cores()} usable"),
        Check(OK if systems else FAIL, "configs", f"{systems} systems shipped"),
    ]


# ------------------------------------------------------------------ packages


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


def check_packages(
    version_of: Versions = installed_version, requirements: list[str] | None = None
) -> list[Check]:
    """Check that every required package is installed in a version that fits."""
    needed = metadata.requires(DISTRIBUTION) or [] if requirements is None else requirements
    checks = []
    found = (re.match(r"([\w.-]+)\s*([^;]*)", line) for line in needed if "extra ==" not in line)
    for name, limits in (match.groups() for match in found if match is not None):
        version = version_of(name)
        fits = version is not None and satisfies(version, limits)
        told = "not installed" if version is None else f"{version} installed, {limits} needed"
        fix = f"pip install '{name}{limits.strip()}'"
        checks.append(Check(OK, name, str(version)) if fits else Check(FAIL, name, told, fix))
    return checks


def satisfies(version: str, limits: str) -> bool:
    """Whether a version meets limits such as ``>=1.2,<3``; other operators are ignored."""
    found = _numbers(version)
    pairs = re.findall(r"(>=|<)\s*([\d.]+)", limits)
    return all((found >= _numbers(bound)) is (sign == ">=") for sign, bound in pairs)


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


# ------------------------------------------------------------------ torch, fbgemm, TorchRec


def check_torch(
    version_of: Versions = installed_version,
    owns_files: Callable[[str], bool] = owns_fbgemm_files,
    nvml: Callable[[], bool] = has_nvml,
) -> list[Check]:
    """Check that torch, fbgemm and TorchRec fit together; planning needs none of them.

    Most broken installations break this rule: fbgemm-gpu 1.X is built for torch 2.(X+5) and for no
    other version. pip does not see that TorchRec 1.X wants fbgemm 1.X, because TorchRec takes any.
    """
    torch, torchrec = version_of("torch"), version_of("torchrec")
    builds = [name for name in ("fbgemm-gpu", "fbgemm-gpu-cpu") if owns_files(name)]
    if torch is None and torchrec is None and not builds:
        told = "not installed; planning works without it, `ShardPlanner` inside TorchRec does not"
        return [Check(OK, "torchrec", told)]
    checks = [_check_pair(torch, name, version_of(name)) for name in builds]
    if len(builds) == 2:
        told = "fbgemm-gpu and fbgemm-gpu-cpu are both installed and overwrite each other"
        fix = "pip uninstall fbgemm-gpu fbgemm-gpu-cpu, then install the one you want"
        checks.append(Check(WARN, "fbgemm", told, fix))
    if "fbgemm-gpu" in builds and not nvml():
        told = "libnvidia-ml.so.1 not found, so CUDA fbgemm-gpu cannot be imported"
        fix = "install the NVIDIA driver, or use fbgemm-gpu-cpu on a machine without a GPU"
        checks.append(Check(FAIL, "nvidia driver", told, fix))
    if torchrec is None:
        told = "not installed, though parts of its stack are"
        fix = "pip install 'shardplan[torchrec]' if you want to plan inside TorchRec"
        return [Check(WARN, "torchrec", told, fix), *checks]
    minor, checks = _minor(torchrec), [Check(OK, "torchrec", torchrec), *checks]
    if not builds:
        told = "torchrec is installed without fbgemm-gpu and cannot be imported"
        fix = f"pip install 'fbgemm-gpu=={minor}.*' (or fbgemm-gpu-cpu without a GPU)"
        checks.append(Check(FAIL, "fbgemm", told, fix))
    if minor not in GENERATIONS:
        newest = max(GENERATIONS)
        told = f"{torchrec}: ShardPlanner is tested with {', '.join(GENERATIONS)}"
        fix = f"pip install 'torchrec=={newest}.*' 'torch=={GENERATIONS[newest]}.*'"
        checks.append(Check(WARN, "torchrec version", told, fix))
    cuda = version_of("fbgemm-gpu")
    fbgemm = version_of("fbgemm-gpu-cpu") or cuda or torchrec
    if _minor(fbgemm) != minor:
        told = f"torchrec {torchrec} with fbgemm {fbgemm}: each is tested with its own number"
        fix = f"pip install 'torchrec=={_minor(fbgemm)}.*'"
        checks.append(Check(WARN, "torchrec / fbgemm", told, fix))
    if cuda is not None and "fbgemm-gpu" not in builds and nvml():
        told = "an NVIDIA driver is here, but fbgemm-gpu is the empty stand-in for its CPU build"
        fix = "pip uninstall fbgemm-gpu fbgemm-gpu-cpu, then pip install fbgemm-gpu"
        checks.append(Check(WARN, "fbgemm-gpu", told, fix))
    return checks


def _check_pair(torch: str | None, name: str, fbgemm: str | None) -> Check:
    subject = f"torch / {name}"
    if torch is None:
        return Check(FAIL, subject, "torch is not installed", f"pip install {PAIRS}")
    ours, theirs = _numbers(torch), _numbers(fbgemm or "")
    if len(ours) < 2 or len(theirs) < 2 or (ours[0], theirs[0]) != (2, 1):
        told = f"torch {torch} with {name} {fbgemm}: the rule of matching versions is unknown"
        return Check(WARN, subject, told)
    wanted, other = theirs[1] + TORCH_MINOR_OFFSET, ours[1] - TORCH_MINOR_OFFSET
    if ours[1] == wanted:
        return Check(OK, subject, f"{torch} / {fbgemm} match")
    fix = f"pip install 'torch==2.{wanted}.*'"
    if 0 <= other <= NEWEST_FBGEMM_MINOR:
        fix += f" or pip install '{name}==1.{other}.*'"
    told = f"{name} {fbgemm} is built for torch 2.{wanted}, but torch {torch} is installed"
    return Check(FAIL, subject, told, fix)


def _minor(version: str) -> str:
    return ".".join(map(str, _numbers(version)[:2])) or version


# ------------------------------------------------------------------ commands that train here


def require_torchrec(
    command: str, names: tuple[str, ...] = ("torch", "torchrec", "fbgemm_gpu")
) -> None:
    """Refuse to go on without torch and torchrec, or those of them in ``names``.

    Raises:
        InvalidInputError: one is missing; the message says how to install it.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        refuse(
            f"'shardplan {command}' needs {', '.join(missing)}: pip install 'shardplan[torchrec]'; "
            "'shardplan check' checks the versions"
        )


def refuse_launcher(command: str) -> None:
    """Refuse to run under a launcher, because the command starts its own ranks.

    Raises:
        InvalidInputError: a launcher has started this process as one of several.
    """
    started = os.environ.get("WORLD_SIZE", "") if os.environ.get("RANK") else ""
    if started not in ("", "1"):
        refuse(
            f"'shardplan {command}' starts its own ranks (--ranks), and a launcher has started it "
            f"{started} times: run it by itself, without torchrun"
        )
