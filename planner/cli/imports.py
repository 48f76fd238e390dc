"""Shared by the commands that import workloads: flags, writing, the summary."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from planner.cli.console import Settings, remark, shown_paths, write_data, write_json
from planner.cli.flags.common import (
    FILE,
    MAX_SAMPLES,
    Command,
    Count,
    gathered,
    output_options,
)
from planner.support.digits import counted

if TYPE_CHECKING:
    from costmodels.workload import Workload
    from planner.io.importers.base import Imported


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportFlags:
    """The flags of every import of a workload; None for flags that were not given."""

    output: Path | None
    name: str | None
    batch_size: int | None


def import_options(command: Command) -> Command:
    """Add the flags of every import of a workload; the command gets them as ``flags``."""
    options = (
        click.option(
            "-o", "--output", type=FILE, metavar="FILE", help="File to write.  [default: stdout]"
        ),
        click.option("--name", metavar="NAME", help="Name of the workload.  [default: the file's]"),
        click.option("--batch-size", "--batch", type=Count(MAX_SAMPLES), help="Samples per rank."),
    )
    return gathered(output_options(command), options, ImportFlags, "flags")


def shape_of(
    context: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, tuple[int, int]]:
    """The shapes of all ``--shape NAME=ROWSxCOLUMNS``, by table."""
    del context
    shapes = {}
    for value in values:
        name, _, text = value.rpartition("=")
        rows, _, columns = text.replace("_", "").partition("x")
        digits = rows.isascii() and rows.isdigit() and columns.isascii() and columns.isdigit()
        if not name or not digits or len(rows) > 15 or len(columns) > 6:
            message = f"{value!r} is not NAME=ROWSxCOLUMNS, such as user=1000000x64"
            raise click.BadParameter(message, param=param)
        shapes[name] = (int(rows), int(columns))
    return shapes


def finish(
    settings: Settings,
    imported: Imported,
    flags: ImportFlags,
    *,
    read: tuple[Path, ...] = (),
    plan: Path | None = None,
    only_plan: bool = False,
) -> int:
    """Write or print what was read, and say what had to be assumed.

    Raises:
        InvalidInputError: a file cannot hold some name, a folder cannot be written, or an output is
            one of the files in ``read``; nothing is written then.
    """
    from costmodels.units import format_bytes
    from planner.io.importers.base import imported_plan_text, imported_text
    from planner.support.atomic import write_texts_atomic

    imported, output = _changed(imported, flags.name, flags.batch_size), flags.output
    texts: dict[Path, str] = {}
    text = imported_text(imported)
    _check_outputs(output, plan, read)
    if plan is not None:
        texts[plan] = imported_plan_text(imported)
    if output is not None:
        texts[output] = text
    elif not settings.json and not only_plan:
        write_data(text)
    write_texts_atomic(texts)
    workload = imported.workload
    if settings.json:
        write_json(
            {
                "source": imported.source,
                "files": [str(path) for path in texts],
                "tables": len(workload.tables),
                "weight_bytes": workload.weight_bytes,
                "batch_size_per_rank": workload.local_batch_size,
                "world_size": imported.world_size,
                "assumed": imported.assumed,
                "left_out": list(imported.unsaid),
            }
        )
    size = format_bytes(workload.weight_bytes) + _listed(workload)
    where = f"; written to {shown_paths(texts)}" if texts else ""
    assumed = ", ".join(imported.assumed) or "nothing"
    remark(
        settings,
        f"{counted(len(workload.tables), 'table')}, {size}, "
        f"{counted(workload.local_batch_size, 'sample')} per rank, "
        f"from {imported.source}{where}; assumed: {assumed}",
    )
    for key, what in imported.assumed.items():
        remark(settings, f"  {key}: {what}")
    for what in imported.unsaid:
        remark(settings, f"  left out: {what}")
    return 0


def _check_outputs(output: Path | None, plan: Path | None, read: tuple[Path, ...]) -> None:
    """Refuse to overwrite a file that is read, or to write two outputs into one file.

    Raises:
        InvalidInputError: an output is such a file; the message names it.
    """
    from planner.cli.output import refuse_own_input
    from planner.errors import InvalidInputError

    refuse_own_input([path for path in (output, plan) if path is not None], read)
    if plan is not None and plan == output:
        message = f"{plan}: is named for both the workload and the plan; name two files"
        raise InvalidInputError(message)


def _listed(workload: Workload) -> str:
    traced = workload.dense.operators
    if traced is None:
        return ""
    return f", {len(traced.before_tables) + len(traced.after_tables)} kinds of operators"


def _changed(imported: Imported, name: str | None, batch_size: int | None) -> Imported:
    """The import with the name and the batch size that flags give."""
    workload, assumed = imported.workload, dict(imported.assumed)
    if name is not None:
        workload = replace(workload, name=name)
    if batch_size is not None and batch_size != workload.local_batch_size:
        workload = replace(workload, local_batch_size=batch_size)
    if batch_size is not None:
        assumed.pop("training.batch_size_per_rank", None)
    return replace(imported, workload=workload, assumed=assumed)
