"""Checks and writes the folder of a run, completely or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from planner.errors import InvalidInputError
from planner.support.files import allowed, behind_links, is_stream, writing

if TYPE_CHECKING:
    from planner.cli.flags.common import ProblemFlags

_FULL: Final = Path("/dev/full")
_PROBE_BYTES: Final = 1024
"""This many bytes are written into an unnamed file, to test whether the disk has room."""

PLAN_FILE = "plan.json"
HTML_FILE = "report.html"
COMPARE_FILE = "compare.html"
RESHARD_FILE = "reshard.json"
TRACE_FOLDER = "trace"
RUN_FILES = frozenset({PLAN_FILE, HTML_FILE, RESHARD_FILE, TRACE_FOLDER})
"""The names of all files that a run can leave in its folder."""


def check_folder(folder: Path, inputs: Iterable[Path], *, force: bool) -> None:
    """Refuse a folder with other contents than an earlier run, before any work is done.

    Args:
        folder: where the run is to be written.
        inputs: the files that the command reads; a new run may not replace or remove them.
        force: whether other contents may be there.

    Raises:
        InvalidInputError: there is such content; the message says what it is.
    """
    if not folder.exists():
        _check_parent(behind_links(folder))
        return
    if not folder.is_dir():
        message = f"--output {folder} is a file; name a folder"
        raise InvalidInputError(message)
    names = {path.name for path in folder.iterdir()}
    _check_kinds(folder, RUN_FILES & names)
    refuse_own_input((folder / name for name in names if name in RUN_FILES), inputs)
    holds_run = PLAN_FILE in names and names <= RUN_FILES
    if names and not holds_run and not force:
        others = [name for name in names if name not in RUN_FILES]
        shown = ", ".join(sorted(others or names)[:3])
        message = (
            f"--output {folder} is not empty and not an earlier run (it holds {shown}); "
            "choose another folder or add --force"
        )
        raise InvalidInputError(message)
    _check_writable(folder, folder)


def refuse_own_input(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Refuse to overwrite a file that the command reads, or that one of its inputs names.

    Raises:
        InvalidInputError: an output is also an input; the message names it.
    """
    there = [path for path in outputs if path.is_file()]
    if not there:
        return
    from planner.io.documents import with_named_files

    read = with_named_files(inputs)
    for path in there:
        if path.resolve() in read:
            message = f"{path}: is read by this command and would be lost; name another output"
            raise InvalidInputError(message)


def check_output(path: Path | None, inputs: Iterable[Path]) -> None:
    """Refuse an output that could not be written, or that is one of the inputs, before any work.

    Args:
        path: the output file; None if nothing is written.
        inputs: the files that the command reads; names of shipped files do not count.

    Raises:
        InvalidInputError: the output cannot be written; the message says why.
    """
    if path is not None:
        refuse_own_input([path], inputs)
        check_file(path)


def files_of(flags: ProblemFlags, workload: Path) -> tuple[Path, ...]:
    """The values of shared flags that can be files, ``--set`` among them."""
    named = (flags.system, *(text.partition("=")[2] for text in flags.models))
    return (*(Path(name) for name in named if name), *files_set(flags.overrides, workload))


def files_set(overrides: Iterable[str], workload: Path) -> tuple[Path, ...]:
    """The values of ``--set`` as files, which are looked for beside the workload."""
    from planner.io.documents import texts_of_yaml

    values = (text.partition("=")[2] for text in overrides)
    return tuple(workload.parent / name for value in values for name in texts_of_yaml(value))


def check_file(path: Path) -> None:
    """Refuse a file that could not be written, before any work is done.

    Raises:
        InvalidInputError: the file cannot be written; the message says why.
    """
    if path.is_dir():
        message = f"--output {path} is a folder; name a file"
        raise InvalidInputError(message)
    if not is_stream(path):
        _check_parent(behind_links(path))
    elif behind_links(path) == _FULL:
        message = f"--output {path}: {os.strerror(errno.ENOSPC)}"
        raise InvalidInputError(message)


def write_run(
    folder: Path, texts: Mapping[str, str], traces: Mapping[str, bytes] | None = None
) -> tuple[Path, ...]:
    """Write the files of a run.

    A new folder appears with all files at once. In an existing folder each file is replaced in one
    step, the plan last; the folder of traces is replaced as a whole.
    """
    named, folder = folder, behind_links(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    where = folder if folder.exists() else folder.parent
    staging = Path(tempfile.mkdtemp(prefix=".shardplan.", dir=where))
    try:
        staging.chmod(allowed(0o777))
        for name, text in texts.items():
            with writing(folder / name):
                (staging / name).write_text(text, encoding="utf-8")
        if traces:
            (staging / TRACE_FOLDER).mkdir()
            for name, data in traces.items():
                with writing(folder / TRACE_FOLDER / name):
                    (staging / TRACE_FOLDER / name).write_bytes(data)
        if not folder.exists():
            staging.rename(folder)
        else:
            if traces:
                shutil.rmtree(folder / TRACE_FOLDER, ignore_errors=True)
                (staging / TRACE_FOLDER).rename(folder / TRACE_FOLDER)
            for name in sorted(texts, key=lambda name: name == PLAN_FILE):
                (staging / name).replace(folder / name)
            for path in folder.iterdir():
                if path.is_file() and path.name in RUN_FILES and path.name not in texts:
                    path.unlink()  # it belongs to an earlier run, whose plan is replaced
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    written = (*texts, TRACE_FOLDER) if traces else tuple(texts)
    return tuple(named / name for name in written)


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files, completely or not at all; files of the same names are replaced.

    Raises:
        InvalidInputError: the folder is a file, or has other files in it.
    """
    if folder.exists() and not folder.is_dir():
        message = f"--output {folder} is a file; name a folder"
        raise InvalidInputError(message)
    other = (
        sorted(p.name for p in folder.iterdir() if p.name not in files) if folder.exists() else []
    )
    if other:
        message = f"--output {folder} holds {', '.join(other[:3])}; name a new or an empty folder"
        raise InvalidInputError(message)
    if folder.exists():
        _check_kinds(folder, (name for name in files if (folder / name).exists()))
    folder = behind_links(folder)
    _check_parent(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".shardplan.", dir=folder.absolute().parent))
    try:
        staging.chmod(allowed(0o777))
        for name, data in files.items():
            with writing(folder / name):
                (staging / name).write_bytes(data)
        if folder.exists():
            for name in files:
                (staging / name).replace(folder / name)
        else:
            staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _check_kinds(folder: Path, names: Iterable[str]) -> None:
    """Refuse folders where files are to be written: some files would be replaced, then it fails."""
    for name in sorted(names):
        is_folder, becomes_folder = (folder / name).is_dir(), name == TRACE_FOLDER
        if is_folder is not becomes_folder:
            there, made = ("a folder", "a file") if is_folder else ("a file", "a folder")
            message = (
                f"--output {folder}: {name} in it is {there}, where {made} is to be written; "
                "choose another folder"
            )
            raise InvalidInputError(message)


def _check_parent(path: Path) -> None:
    """Refuse a path whose nearest existing parent is not a folder that can be written."""
    parent = next(p for p in path.absolute().parents if p.exists())
    if not parent.is_dir():
        message = f"--output {path}: {parent} is a file, not a folder"
        raise InvalidInputError(message)
    _check_writable(path, parent)


def _check_writable(folder: Path, existing: Path) -> None:
    if not os.access(existing, os.W_OK | os.X_OK):
        message = f"--output {folder}: no permission to write in {existing}"
        raise InvalidInputError(message)
    try:
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(bytes(_PROBE_BYTES))
    except OSError as error:
        message = f"--output {folder}: cannot be written in {existing}: {error.strerror}"
        raise InvalidInputError(message) from error
