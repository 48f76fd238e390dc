"""Writes files completely or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from planner.errors import InvalidInputError
from planner.support.file_errors import writing
from planner.support.places import allowed, behind_links, is_stream


def write_text_atomic(path: Path, text: str) -> None:
    """Write ``text`` beside ``path`` and move it into place, as :func:`write_texts_atomic` does.

    Raises:
        InvalidInputError: the folder is missing or not writable, or the disk is full; nothing is
            left behind.
    """
    write_texts_atomic({path: text})


def write_texts_atomic(texts: Mapping[Path, str]) -> None:
    """Write several files, each under another name beside its place, and then move all of them.

    A symbolic link stays, and the file that it leads to is replaced. Something that is not a file,
    such as a pipe or ``/dev/stdout``, cannot be replaced; the text is written into it.

    Raises:
        InvalidInputError: one of the files cannot be written; then none of them is.
    """
    staged: dict[Path, Path] = {}
    at = Path()
    try:
        for path, text in texts.items():
            at = path
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if is_stream(path):
                continue
            place = behind_links(path)
            place.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=place.parent, prefix=".shardplan.", suffix=".tmp")
            staged[path] = Path(name)
            with os.fdopen(handle, "wb") as file:
                file.write(_encoded(text))
            staged[path].chmod(allowed(0o666))
        for path, text in texts.items():
            at = path
            if path in staged:
                staged[path].replace(behind_links(path))
                del staged[path]
            else:
                path.write_bytes(_encoded(text))
    except OSError as error:
        message = f"{at}: cannot be written: {error.strerror}"
        raise InvalidInputError(message) from error
    finally:
        for left in staged.values():
            left.unlink(missing_ok=True)


def write_files(
    folder: Path, files: Mapping[str, bytes], *, last: str = "", stale: Collection[str] = ()
) -> None:
    """Write the files of a folder, all or none; a new folder appears with all of them at once.

    Args:
        folder: where to write; other files in it stay.
        files: contents by name. ``a/b`` is file b of folder a, which is replaced as a whole.
        last: the file that is replaced after all others.
        stale: names of files that are removed where they are not among those written.
    """
    folder = behind_links(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    where = folder if folder.exists() else folder.absolute().parent
    staging = Path(tempfile.mkdtemp(prefix=".shardplan.", dir=where))
    try:
        staging.chmod(allowed(0o777))
        for name, data in files.items():
            with writing(folder / name):
                (staging / name).parent.mkdir(exist_ok=True)
                (staging / name).write_bytes(data)
        if not folder.exists():
            staging.rename(folder)
            return
        names = dict.fromkeys(name.partition("/")[0] for name in files)
        for name in sorted(names, key=last.__eq__):
            if (staging / name).is_dir():
                shutil.rmtree(folder / name, ignore_errors=True)
            (staging / name).replace(folder / name)
        for name in set(stale) - set(names):
            if (folder / name).is_file():
                (folder / name).unlink()
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _encoded(text: str) -> bytes:
    """The bytes of a file; names of files that are no text are written by their numbers."""
    return text.encode("utf-8", errors="backslashreplace")
