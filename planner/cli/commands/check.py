"""``shardplan check``: all errors of a file; without a file, is this environment fit to plan?"""

import json
import platform
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final

import click

import planner
from costmodels import units
from costmodels.dense import base
from planner import io
from planner.cli import spec
from planner.cli.console import assumed_section, console_of, say, settings, tell, write_json
from planner.errors import InvalidInputError, refuse
from planner.io import constraints, documents
from planner.io.workload import table_list
from planner.options import torchrec_rules
from planner.report import figures
from planner.solving import assumed as assuming
from planner.support.cores import usable_cores
from planner.support.text import counted, printable

KINDS = ("workload", "system", "plan", "constraints")
_MARKS = {
    "workload": {"tables", "training"},
    "system": {"device", "links", "base"},
    "constraints": {"constraints"},
}


@spec.command("List the errors of an input file; without one, check the environment.")
def command(
    file: Path | None = None, schema: Annotated[str | None, click.Choice(KINDS)] = None
) -> int:
    """Read a workload, system, constraint or plan file and list every error with its line.

    The kind of file is told from its content. Exit code 2 says that there are errors. With the
    output of --schema, editors that know JSON schemas can complete and check the YAML files.

    Without FILE, check the environment from package metadata, also where torch cannot be imported;
    every line that is not ok says how to repair it, and exit code 1 says that a check failed.
    fbgemm-gpu 1.X fits torch 2.(X+5) alone: torchrec 1.8 needs torch 2.13, torchrec 1.9 torch 2.14.

    Args:
        schema: Print the JSON schema of this kind of file instead.

    Examples:
      shardplan check                          Python, packages, torch and fbgemm, the machine
      shardplan check dlrm.yaml
      shardplan check run1/plan.json --json
      shardplan check --schema workload > workload.schema.json
    """
    both = file is not None and schema is not None
    spec.refuse(both, "give either FILE or --schema KIND")
    if file is not None:
        return _check(file)
    if schema is None:
        return _check_environment()

    write_json(getattr(io, f"{schema}_json_schema")())
    return 0


def _check(file: Path) -> int:
    try:
        kind, summary, warnings, assumed = _told(file)
    except InvalidInputError as error:
        if not settings().json:
            raise
        write_json({"ok": False, "file": str(file), "problems": error.problems})
        return 2
    told = {"ok": True, "file": str(file), "kind": kind, "summary": summary, "assumed": assumed}
    if not settings().json:
        say(f"OK  {file}: {kind}: {summary}")
    tell(told, (assumed_section(assumed, None),), warnings)
    return 0


def _told(path: Path) -> tuple[str, str, tuple[str, ...], tuple[Any, ...]]:
    """The kind of a file (from its content), a line about it, and what it leaves open.

    Raises:
        InvalidInputError: the file breaks rules; the message lists all of them.
    """
    kind = "systems" if str(path) in io.names("systems") else "workloads"
    if not path.is_dir() or str(path) in io.names(kind):
        path = documents.locate(path, kind)
    kind = _kind(path)
    if kind == "workload":
        file = io.load_workload_file(path)
        warnings = (*torchrec_rules.width_remarks(file.workload), *file.warnings)
        assumed = assuming.assumptions(file.workload, file.assumed)
        return kind, _summary(file.workload), warnings, assumed
    if kind == "system":
        topology = io.load_smallest(path)
        size = units.format_bytes(topology.device.hbm_capacity_bytes)
        summary = f"{topology.local_world_size} x {topology.name} per host, {size} each"
    elif kind == "constraints":
        rules = counted(constraints.check_constraints(path), "rule")
        summary = f"{rules}; names of tables are checked beside their workload"
    else:
        plan = io.load_plan(path).plan
        ranks = {rank for p in plan.placements for rank in p.ranks}
        held = f"{counted(len(plan.placements), 'table')} on {counted(len(ranks), 'rank')}"
        summary = f"{held}: {'  '.join(figures.sharding_kinds(plan))}"
    return kind, summary, (), ()


def _kind(path: Path) -> str:
    """The kind of a file, from its keys; JSON of no other kind is a plan."""
    if path.suffix.lower() in table_list.LIST_ENDINGS:
        return "workload"
    is_json = path.suffix == ".json" and documents.read_text(path).lstrip()[:1] in ("{", "[")
    found = documents.read_json(path) if is_json else documents.read_yaml(path).value
    keys = set(found) if isinstance(found, dict) else set()
    kind = next((kind for kind, marks in _MARKS.items() if keys & marks), None)
    if is_json and (kind is None or "plan" in keys):
        return "plan"
    if kind is None:
        refuse(
            f"{path}: neither a workload (keys training and tables), a system (keys device and "
            "links), constraints (key constraints) nor a plan (a .json file)"
        )
    return kind


def _summary(workload: "planner.Workload") -> str:
    batch = f"{counted(workload.batch_size_per_rank, 'sample')} per rank"
    if workload.tables:
        size = units.format_bytes(workload.weight_bytes)
        return f"{counted(len(workload.tables), 'table')}, {size}, {batch}"
    return f"no tables, {base.dense_parameters(workload):,} dense parameters, {batch}"


# ------------------------------------------------------------------ the environment

TORCH_MINOR_OFFSET: Final = 5
NEWEST_FBGEMM_MINOR: Final = 9
"""The newest fbgemm version that is suggested as a repair; torch is released before its fbgemm."""
GENERATIONS: Final = {"1.8": "2.13", "1.9": "2.14"}
"""The torch version for each TorchRec (and fbgemm) version with which the tests run."""

Versions = Callable[[str], str | None]


STYLES: Final = {"ok": "green", "warn": "yellow", "fail": "bold red"}
OK, WARN, FAIL = STYLES
"""The results of a check, and their colours."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line on the environment: the result, what was checked, and how to repair it."""

    level: str
    subject: str
    finding: str
    fix: str = ""


# ------------------------------------------------------------------ packages


def installed_version(name: str) -> str | None:
    """The version of an installed distribution, which is not imported."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def owns_fbgemm_files(name: str) -> bool:
    """Whether a distribution has the ``fbgemm_gpu`` package; an empty placeholder has not."""
    with suppress(metadata.PackageNotFoundError):
        files = metadata.distribution(name).files or []
        return any(file.parts[0] == "fbgemm_gpu" for file in files)
    return False


def has_nvml() -> bool:
    """Whether the NVIDIA driver's management library can be loaded."""
    import ctypes

    with suppress(OSError):
        return bool(ctypes.CDLL("libnvidia-ml.so.1"))
    return False


def check_packages(
    version_of: Versions = installed_version, requirements: list[str] | None = None
) -> list[Check]:
    """Check that every required package is installed in a version that fits."""
    needed = metadata.requires("shardplan") or [] if requirements is None else requirements
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
    torch, torchrec, cuda = map(version_of, ("torch", "torchrec", "fbgemm-gpu"))
    builds = [name for name in ("fbgemm-gpu", "fbgemm-gpu-cpu") if owns_files(name)]
    if torch is None and torchrec is None and not builds:
        return [_said("nothing")]
    fbgemm = version_of("fbgemm-gpu-cpu") or cuda or torchrec or ""
    is_there, minor = torchrec is not None, _minor(torchrec or "")
    found = {
        "two builds": len(builds) == 2,
        "no driver": "fbgemm-gpu" in builds and not nvml(),
        "no fbgemm": is_there and not builds,
        "untested": is_there and minor not in GENERATIONS,
        "unlike numbers": is_there and _minor(fbgemm) != minor,
        "stand-in": is_there and cuda is not None and "fbgemm-gpu" not in builds and nvml(),
    }
    told = {"torchrec": torchrec, "minor": minor, "fbgemm": fbgemm, "fbgemm_minor": _minor(fbgemm)}
    told["tested"] = ", ".join(GENERATIONS)
    told["newest"], told["newest_torch"] = max(GENERATIONS.items())
    return [
        _said("torchrec" if is_there else "no torchrec", **told),
        *(_check_pair(torch, name, version_of(name)) for name in builds),
        *(_said(name, **told) for name, holds in found.items() if holds),
    ]


def _said(what: str, /, **values: object) -> Check:
    """A finding of a file that is read without the packages that may be missing."""
    words = json.loads(spec.shipped("imports")["environment"].read_text())
    return Check(*(text.format(**values) for text in words[what]))


def _check_pair(torch: str | None, name: str, fbgemm: str | None) -> Check:
    if torch is None:
        return _said("pair without torch", name=name)
    ours, theirs = _numbers(torch), _numbers(fbgemm or "")
    values = {"torch": torch, "name": name, "fbgemm": fbgemm}
    if len(ours) < 2 or len(theirs) < 2 or (ours[0], theirs[0]) != (2, 1):
        return _said("unknown pair", **values)
    wanted, fitting = theirs[1] + TORCH_MINOR_OFFSET, ours[1] - TORCH_MINOR_OFFSET
    if ours[1] == wanted:
        return _said("pair", **values)
    is_known = 0 <= fitting <= NEWEST_FBGEMM_MINOR
    other = f" or pip install '{name}==1.{fitting}.*'" if is_known else ""
    return _said("wrong pair", wanted=wanted, other=other, **values)


def _minor(version: str) -> str:
    return ".".join(map(str, _numbers(version)[:2])) or version


def _check_environment() -> int:
    """Print what was checked of the environment; 1 if a check failed."""
    from rich.text import Text

    systems = len(spec.shipped("systems"))
    checks = (
        Check(OK, "python", platform.python_version()),
        *check_packages(),
        *(check_torch() if systems else ()),
        Check(OK, "cores", f"{usable_cores()} usable"),
        Check(OK if systems else FAIL, "configs", f"{systems} systems shipped"),
    )
    failed = any(check.level == FAIL for check in checks)
    if settings().json:
        write_json({"ok": not failed, "checks": checks})
        return int(failed)
    for check in checks:
        if not settings().quiet or check.level != OK:
            finding = printable(f"{check.subject:<22} {check.finding}")
            level = (f"{check.level:<5}", STYLES[check.level])
            console_of(sys.stdout).print(Text.assemble(level, finding))
            if check.fix:
                say(f"{'':<27} fix: {check.fix}")
    if not settings().quiet or failed:
        say("some checks failed" if failed else "all checks passed")
    return int(failed)
