"""The folder of an unfinished profile, with its finished units and its manifest.

The folder ``.stats.json.state`` is beside the output, and is removed when the output is written. A
profile that was stopped continues with the missing units. The manifest describes data and options,
so that only a profile with the same data and options continues.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from planner.errors import InvalidInputError
from planner.profiling.units import Source
from planner.support.atomic import write_text_atomic

_MANIFEST: Final = "manifest.json"
_STATE_VERSION: Final = 1


class State:
    """Keeps finished units in a folder.

    Args:
        output: the file that is written in the end.
    """

    def __init__(self, output: Path) -> None:
        self.folder = output.absolute().parent / f".{output.name}.state"
        self._new_parents = [p for p in self.folder.parents if not p.exists()]

    def open(self, manifest: dict[str, Any], *, resume: bool | None) -> None:
        """Start a profile, or continue one that was stopped.

        Args:
            manifest: describes data and options.
            resume: True to continue, which has to be possible; False to start anew; None to
                continue if possible.

        Raises:
            InvalidInputError: there is nothing to continue, or it belongs to other data or options.
        """
        if resume is False:
            self.discard()
        text = json.dumps(manifest, indent=1, sort_keys=True)
        path = self.folder / _MANIFEST
        if path.exists():
            if path.read_text(encoding="utf-8") != text:
                message = (
                    f"{self.folder} is what a stopped profile of other data or options left; "
                    "add --restart to drop it, or name another output"
                )
                raise InvalidInputError(message)
            return
        if resume:
            message = f"there is nothing to resume: {self.folder} does not exist"
            raise InvalidInputError(message)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text_atomic(path, text)

    def has(self, name: str) -> bool:
        """Whether a unit is finished."""
        return (self.folder / name).is_dir()

    def discard(self) -> None:
        """Remove the folder with its contents, and parent folders that were made only for it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            for parent in self._new_parents:
                parent.rmdir()


def describe_inputs(sources: Sequence[Source], options: dict[str, Any]) -> dict[str, Any]:
    """The manifest: every file with its size and time of change, and every option that matters."""
    files = []
    for source in sources:
        stat = source.path.stat()
        files.append(
            [str(source.path.resolve()), stat.st_size, stat.st_mtime_ns, repr(source.reader)]
        )
    return {"version": _STATE_VERSION, "files": files, "options": options}
