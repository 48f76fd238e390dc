"""Write a whole file or nothing."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from planner.errors import InvalidInputError


def write_text_atomic(path: Path, text: str) -> None:
    """Write ``text`` beside ``path`` and move it into place.

    Raises:
        InvalidInputError: the folder is missing or not writable; nothing is left behind.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except OSError as error:
        message = f"{path}: cannot be written: {error.strerror}"
        raise InvalidInputError(message) from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        message = f"{path}: cannot be written: {error.strerror}"
        raise InvalidInputError(message) from error
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
