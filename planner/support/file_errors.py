"""Adds the file name to errors of writing; the system gives it only if it cannot open a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A context in which an ``OSError`` without a file name, such as a full disk, gets ``path``.

    Raises:
        OSError: an error of the same kind, with a file name.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
