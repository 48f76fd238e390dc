"""Writes what the calls of a host take into a system file, and leaves every other line as it is."""

from __future__ import annotations

import re
from pathlib import Path

from costmodels.calibration.fit_device import HostCalls
from planner.errors import InvalidInputError
from planner.support.atomic import write_text_atomic

_HOST = re.compile(r"^host:[ \t]*(#.*)?$", re.MULTILINE)
_NEXT_BLOCK = re.compile(r"^\S", re.MULTILINE)


def write_host_calls(path: Path, calls: HostCalls) -> None:
    """Replace or add ``eager_call`` and ``eager_pass`` in the block ``host`` of a system file.

    Raises:
        InvalidInputError: the file cannot be read, or has no such block with a key on each line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path}: cannot be read as a system file; -o names one that exists ({error})"
        raise InvalidInputError(message) from error
    block = _HOST.search(text)
    if block is None:
        message = f"{path}: no block 'host:' with a key on each line; write these lines into it"
        raise InvalidInputError(message)
    after = _NEXT_BLOCK.search(text, block.end())
    end = after.start() if after else len(text)
    body = text[block.end() : end]
    indent = re.search(r"^([ \t]+)\S", body, re.MULTILINE)
    for line in calls.lines():
        key = line.partition(":")[0]
        written = f"{indent.group(1) if indent else '  '}{line}"
        old = re.search(rf"^[ \t]+{key}:.*$", body, re.MULTILINE)
        if old is None:
            body = f"{body.rstrip()}\n{written}\n"
        else:
            body = body[: old.start()] + written + body[old.end() :]
    write_text_atomic(path, text[: block.end()] + body + text[end:])
