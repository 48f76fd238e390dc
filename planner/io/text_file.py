"""Text in and out of files: bounded reading, and writing whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Final

from costmodels.units import MIB, format_bytes
from planner.errors import InvalidInputError

MAX_BYTES: Final = 64 * MIB
"""Larger inputs are refused: no workload or plan comes near it."""


def read_text(path: Path) -> str:
    """The UTF-8 text of a file of at most 64 MiB; a byte order mark is dropped.

    Raises:
        InvalidInputError: missing, a folder, unreadable, too large, or not UTF-8.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except IsADirectoryError as error:
        raise InvalidInputError(f"{path}: is a folder; name a file") from error
    except FileNotFoundError as error:
        raise InvalidInputError(f"{path}: there is no such file") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInputError(f"{path}: cannot be read: {reason}") from error
    if len(data) > MAX_BYTES:
        message = f"{path}: must be at most {format_bytes(MAX_BYTES)}; this file is larger"
        raise InvalidInputError(message)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        message = (
            f"{path}:{line}: byte {data[error.start]:#04x} is not UTF-8; save the file as UTF-8"
        )
        raise InvalidInputError(message) from error


def write_text_atomic(path: Path, text: str) -> None:
    """Write a file in one step: a reader sees the old content or the new, never a part.

    The text goes to a temporary file in the same folder, which then takes the name. Missing folders
    are made.

    Raises:
        InvalidInputError: the place cannot be written; what was there before is untouched.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                Path(temporary).unlink()


def _umask() -> int:
    """Permissions that new files lack; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
