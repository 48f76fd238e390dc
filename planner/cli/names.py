"""Completes names for the shell: shipped systems and workloads, and files.

Folders are listed directly. A shell waits for the answer at every press of the tab key, so that
nothing is imported that reads or checks files.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from collections.abc import Iterable

_WORKLOAD_FILES = frozenset({".yaml", ".yml", ".csv", ".tsv"})


class AnyFile(click.Path):
    """A path; for workloads, the names of shipped ones are completed too."""

    def __init__(self) -> None:
        """Paths arrive as :class:`pathlib.Path`."""
        super().__init__(path_type=Path)

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        """Refuse ``-``, which stands for a stream in other programs."""
        if os.fspath(value) == "-":
            self.fail("'-' names no file; streams are /dev/stdin and /dev/stdout", param, ctx)
        return super().convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Shipped workloads and files in the working directory; the shell does other folders."""
        if param.name != "workload" or "/" in incomplete:
            return super().shell_complete(ctx, param, incomplete)
        found = matching((*shipped("workloads"), *_files_here()), incomplete)
        return found or super().shell_complete(ctx, param, incomplete)


def complete_system(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of shipped systems, also after a comma in a list; otherwise files."""
    del ctx, param
    before, comma, last = incomplete.rpartition(",")
    found = matching(shipped("systems"), last)
    if not found:
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(f"{before}{comma}{item.value}") for item in found]


def matching(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """The names that begin with what was typed."""
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def shipped(kind: str) -> tuple[str, ...]:
    """Names of shipped files of a kind, ``systems`` or ``workloads``; empty if they are missing."""
    spec = find_spec("planner")
    if spec is None or spec.origin is None:
        return ()
    package = Path(spec.origin).parent
    folders = (package / "_configs" / kind, package.parent / "configs" / kind)
    return tuple(sorted({path.stem for folder in folders for path in folder.glob("*.yaml")}))


def _files_here() -> tuple[str, ...]:
    paths = sorted(Path().iterdir())
    return tuple(path.name for path in paths if path.suffix in _WORKLOAD_FILES)
