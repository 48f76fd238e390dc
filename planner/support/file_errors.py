"""Errors of writing that name the file: the system says which one only where it cannot open it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Whatever goes wrong inside, a full disk for instance, names ``path`` if it names no file.

    Raises:
        OSError: of the same kind, with a file name.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
