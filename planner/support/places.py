"""Where outputs go: the files of a run, what is behind a link, or something that is no file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PLAN_FILE: Final = "plan.json"
HTML_FILE: Final = "report.html"
RESHARD_FILE: Final = "reshard.json"
TRACE_FOLDER: Final = "trace"
RUN_FILES: Final = frozenset({PLAN_FILE, HTML_FILE, RESHARD_FILE, TRACE_FOLDER})
"""The names of all files that a run can leave in its folder."""


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
