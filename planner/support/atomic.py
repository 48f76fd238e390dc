"""Writes files completely or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from planner.errors import InvalidInputError
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


def _encoded(text: str) -> bytes:
    """The bytes of a file; names of files that are no text are written by their numbers."""
    return text.encode("utf-8", errors="backslashreplace")
