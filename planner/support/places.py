"""Finds where an output goes: the file behind a link, or something that is not a file."""

from __future__ import annotations

import os
from pathlib import Path


def is_stream(path: Path) -> bool:
    """Whether the path is something to write into, such as a pipe, a terminal, ``/dev/null``."""
    return path.exists() and not path.is_file() and not path.is_dir()


def behind_links(path: Path) -> Path:
    """The absolute path of the file that ``path`` leads to; it need not exist yet."""
    return Path(os.path.realpath(path))


def allowed(mode: int) -> int:
    """The bits of ``mode`` that new files and folders of this process get: those of its umask."""
    mask = os.umask(0)
    os.umask(mask)
    return mode & ~mask
