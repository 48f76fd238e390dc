"""Write a whole file or nothing."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from planner.errors import InvalidInputError


def write_text_atomic(path: Path, text: str) -> None:
    """Write ``text`` beside ``path`` and move it into place.

    Raises:
        InvalidInputError: the folder is missing or not writable, or the disk is full; nothing is
            left behind.
    """
    write_texts_atomic({path: text})


def write_texts_atomic(texts: Mapping[Path, str]) -> None:
    """Write several files, each beside its place, then move all of them there.

    Raises:
        InvalidInputError: one of them cannot be written; none is then.
    """
    staged: dict[Path, Path] = {}
    at = Path()
    try:
        for path, text in texts.items():
            at = path
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
            staged[path] = Path(name)
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            staged[path].chmod(0o644)
        for path in texts:
            at = path
            staged[path].replace(path)
            del staged[path]
    except OSError as error:
        message = f"{at}: cannot be written: {error.strerror}"
        raise InvalidInputError(message) from error
    finally:
        for left in staged.values():
            left.unlink(missing_ok=True)
