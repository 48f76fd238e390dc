"""Checks and writes the folder of a run, completely or not at all."""

import json
import tempfile
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import refuse
from planner.support import files as support

if TYPE_CHECKING:
    from costmodels.workload import Workload


def _refuse(when: object, message: str) -> None:
    if when:
        refuse(message)


def check_folder(folder: Path, inputs: Iterable[Path], *, force: bool) -> None:
    """Refuse a folder with other contents than an earlier run, before any work is done.

    Args:
        folder: where the run is to be written.
        inputs: the files that the command reads; a new run may not replace or remove them.
        force: whether other contents may be there.

    Raises:
        InvalidInputError: there is such content; the message says what it is.
    """
    names = _names_in(folder, support.RUN_FILES)
    refuse_own_input((folder / name for name in names & support.RUN_FILES), inputs)
    holds_run = support.PLAN_FILE in names and names <= support.RUN_FILES
    shown = ", ".join(sorted(names - support.RUN_FILES or names)[:3])
    _refuse(
        names and not holds_run and not force,
        f"--output {folder} is not empty and not an earlier run (it holds {shown}); choose another "
        "folder or add --force",
    )


def _names_in(folder: Path, made: Set[str]) -> set[str]:
    """What is in an output folder, where files are to be made; empty if there is none.

    Raises:
        InvalidInputError: it is a file, cannot be written, or has folders in the place of files.
    """
    if not folder.exists():
        _check_writable(support.behind_links(folder))
        return set()
    _refuse(not folder.is_dir(), f"--output {folder} is a file; name a folder")
    names = {path.name for path in folder.iterdir()}
    for name in sorted(made & names):
        is_folder = (folder / name).is_dir()
        there, new = ("a folder", "a file") if is_folder else ("a file", "a folder")
        _refuse(
            is_folder is not (name == support.TRACE_FOLDER),
            f"--output {folder}: {name} in it is {there}, where {new} is to be written; choose "
            "another folder",
        )
    _check_writable(folder)
    return names


def refuse_other_run(folder: Path, workload: "Workload") -> None:
    """Refuse a folder that holds the run of another model, which would be lost.

    Raises:
        InvalidInputError: its plan was made for a workload of another name, or has none of the
            tables.
    """
    try:
        saved = json.loads((folder / support.PLAN_FILE).read_bytes())
        name, modules = saved["workload"], saved["plan"].values()
        tables = {table for module in modules for table in module}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # no plan, or one that is not ours to judge
    mine = {table.name for table in workload.tables}
    _refuse(
        name != workload.name or (tables and mine and not tables & mine),
        f"--output {folder} holds a plan of another model ({name}), which would be lost; choose "
        "another folder or add --force",
    )


def refuse_own_input(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Refuse to overwrite a file that the command reads, or that one of its inputs names.

    Raises:
        InvalidInputError: an output is also an input; the message names it.
    """
    from planner.io.documents import with_named_files

    there = [path for path in outputs if path.is_file()]
    read = with_named_files(inputs) if there else ()
    for path in there:
        lost = f"{path}: is read by this command and would be lost; name another output"
        _refuse(path.resolve() in read, lost)


def check_output(path: Path | None, inputs: Iterable[Path] = (), *, flag: str = "--output") -> None:
    """Refuse an output that could not be written, or that is one of the inputs, before any work.

    Args:
        path: the output file; None if nothing is written.
        inputs: the files that the command reads; names of shipped files do not count.
        flag: what names the output.

    Raises:
        InvalidInputError: the output cannot be written; the message says why.
    """
    if path is None:
        return
    refuse_own_input([path], inputs)
    _refuse(path.is_dir(), f"{flag} {path} is a folder; name a file")
    if not support.is_stream(path):
        _check_writable(support.behind_links(path), flag)


def files_of(flags: Any, workload: Path) -> tuple[Path, ...]:
    """The values of flags on the problem, or of a study, that can be files, ``--set`` among them.

    The values of ``--set`` are looked for beside the workload.
    """
    from planner.io.documents import texts_of_yaml

    named = (*getattr(flags, "systems", ()), getattr(flags, "system", None))
    models = (text.partition("=")[2] for text in flags.models)
    values = (text.partition("=")[2] for text in flags.overrides)
    given = (workload.parent / name for value in values for name in texts_of_yaml(value))
    return (*(Path(name) for name in (*named, *models) if name), *given)


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files, completely or not at all; files of the same names are replaced.

    Raises:
        InvalidInputError: the folder is a file, or has other files in it.
    """
    other = sorted(_names_in(folder, set(files)) - set(files))[:3]
    _refuse(other, f"--output {folder} holds {', '.join(other)}; name a new or an empty folder")
    support.write_files(folder, files)


def _check_writable(path: Path, flag: str = "--output") -> None:
    """Refuse a folder, or the nearest one above a path, where no unnamed KiB can be written."""
    there = path if path.is_dir() else next(p for p in path.absolute().parents if p.exists())
    _refuse(not there.is_dir(), f"{flag} {path}: {there} is a file, not a folder")
    try:
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(bytes(1024))
    except OSError as error:
        refuse(f"{flag} {path}: cannot be written in {there}: {error.strerror}")
