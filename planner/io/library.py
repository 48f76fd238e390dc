"""Finds shipped systems, workloads and templates by name, in a wheel or in a checkout."""

from __future__ import annotations

import difflib
from pathlib import Path

from planner.errors import refuse
from planner.support.kinds import path_of

_PACKAGE = Path(__file__).resolve().parent.parent
_PLACES = (_PACKAGE / "_configs", _PACKAGE.parent / "configs")


def configs_folder() -> Path:
    """The folder of shipped files.

    Raises:
        InvalidInputError: the installation has no such folder.
    """
    found = next((place for place in _PLACES if (place / "systems").is_dir()), None)
    if found is None:
        refuse("the shipped configs folder is missing; install the package again")
    return found


def names(kind: str) -> tuple[str, ...]:
    """Names of shipped files of a kind: ``systems`` or ``workloads``."""
    return tuple(sorted(p.stem for p in (configs_folder() / kind).glob("*.yaml")))


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file can have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def locate(source: str | Path, kind: str) -> Path:
    """The file that a name or a path means.

    A name without folder and ending means a shipped file, unless the working directory has a file
    of this name.

    Raises:
        InvalidInputError: there is no such file; the message lists similar names.
    """
    path = path_of(source, kind[:-1])
    if is_file(path) or path.suffix or len(path.parts) > 1:
        return path
    known = names(kind)
    if str(source) not in known:
        near = difflib.get_close_matches(str(source), known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        other = "workloads" if kind == "systems" else "systems"
        if str(source) in names(other):
            hint = f"it is the name of a shipped {other[:-1]}; "
        listed = ", ".join(known)
        refuse(f"{source}: no such file and no shipped {kind[:-1]}; {hint}known: {listed}")
    return configs_folder() / kind / f"{source}.yaml"


def read_template(name: str = "workload") -> str:
    """A shipped template; that of a workload is what ``shardplan import tables`` writes."""
    return (configs_folder() / "templates" / f"{name}.yaml").read_text(encoding="utf-8")
