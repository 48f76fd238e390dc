"""Shows the progress of a search on stderr, if that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from planner.cli.console import Settings, stderr_console
from planner.support.text import printable

if TYPE_CHECKING:
    from planner.search.base import SearchProgress

Report = Callable[["SearchProgress"], None]


@contextmanager
def live_progress(settings: Settings, objective: str) -> Iterator[Report | None]:
    """A callback that redraws one line, or None when progress is not shown."""
    if not settings.shows_progress:
        yield None
        return
    console = stderr_console()
    with console.status("reading the options of every table", spinner="line") as status:

        def show(progress: SearchProgress) -> None:
            status.update(describe(progress, objective))

        yield show


def describe(progress: SearchProgress, objective: str) -> str:
    """The line of a search for an objective."""
    from planner.objectives import objective_class

    return progress.line(in_seconds=objective_class(objective).unit == "s")


@contextmanager
def bar(settings: Settings, what: str, total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar over at least ``total`` items; call it with the name of each finished item."""
    if not settings.shows_progress:
        yield _ignore
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[last]}", markup=False),
    )
    with Progress(*columns, console=stderr_console(), transient=True) as progress:
        task = progress.add_task(what, total=total, last="")

        def step(name: str) -> None:
            progress.update(task, advance=1, last=printable(name))
            done = progress.tasks[0].completed
            progress.update(task, total=max(total, done))

        yield step


def _ignore(name: str) -> None:
    """Do nothing, because progress is not shown."""
    del name
