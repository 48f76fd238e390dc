"""Whether the process that began a trial still runs, as far as another one can see."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def own_process() -> dict[str, Any]:
    """This process, as others on the same machine can find it."""
    return {"where": _where(), "pid": os.getpid()}


def has_ended(attributes: Mapping[str, Any]) -> bool:
    """Whether the process of a trial is known to be gone; one elsewhere may run or not.

    Args:
        attributes: of the trial; :func:`own_process` under the key ``process``.
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
    """The machine, and where there are such the space that its process numbers count in."""
    try:
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        space = ""
    return f"{socket.gethostname()} {space}"
