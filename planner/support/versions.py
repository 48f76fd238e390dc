"""Reads a file once per version: what was read is kept until the file changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from pathlib import Path
from typing import TypeVar

_Content = TypeVar("_Content")
_Read = Callable[[Path], _Content]


def once_per_version(*, num_kept: int) -> Callable[[_Read[_Content]], _Read[_Content]]:
    """Decorate a function that reads a file, so that it reads each version of it once.

    A file is another version if its size, or the time when it was written or its entry changed,
    is another one. Where there is no such file, the function is called, and says what is wrong.

    Args:
        num_kept: the most results that are kept; the one not asked for longest goes first.
    """

    def decorate(read: _Read[_Content]) -> _Read[_Content]:
        @lru_cache(maxsize=num_kept)
        def read_version(path: Path, *version: int) -> _Content:
            del version
            return read(path)

        @wraps(read)
        def kept(path: Path) -> _Content:
            try:
                stat = path.stat()
            except (OSError, ValueError):
                return read(path)
            return read_version(path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

        return kept

    return decorate
