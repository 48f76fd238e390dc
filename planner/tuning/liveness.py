"""Tells whether the process that began a trial still runs, as far as another process can see."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def own_process() -> dict[str, Any]:
    """What other processes on the same machine need to find this process."""
    return {"where": _where(), "pid": os.getpid()}


def has_ended(attributes: Mapping[str, Any]) -> bool:
    """Whether the process of a trial is known to be gone; False if it is on another machine.

    Args:
        attributes: the attributes of the trial, with :func:`own_process` as ``process``.
    """
    process = attributes.get("process")
    if process is None or process["where"] != _where():
        return False
    try:
        os.kill(process["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:  # it runs, under another user
        return False
    return False


def _where() -> str:
    """The machine, and on Linux the namespace in which its process numbers are valid."""
    try:
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        space = ""
    return f"{socket.gethostname()} {space}"
