"""Shows progress on stderr, if that is a terminal; otherwise what is told goes nowhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from planner.cli.console import Settings, stderr_console
from planner.support.text import printable

if TYPE_CHECKING:
    from planner.search.base import SearchProgress

Report = Callable[["SearchProgress"], None]


@contextmanager
def status_line(settings: Settings, text: str) -> Iterator[Callable[[str], None]]:
    """A callback that changes one line on stderr."""
    if not settings.shows_progress:
        yield lambda _: None
        return
    from rich.text import Text

    with stderr_console().status(text, spinner="line") as status:
        yield lambda now: status.update(Text(printable(f"{text}: {now}")))


@contextmanager
def live_progress(settings: Settings, objective: str) -> Iterator[Report | None]:
    """A callback that tells how a search goes, or None when progress is not shown."""
    from planner.objectives import objective_class

    in_seconds = objective_class(objective).unit == "s"
    with status_line(settings, "search") as show:
        if settings.shows_progress:
            yield lambda progress: show(progress.line(in_seconds=in_seconds))
        else:
            yield None


@contextmanager
def bars(settings: Settings) -> Iterator[Callable[[str, float, float], None]]:
    """A callback that takes the name of some work, what is done of it, and the whole."""
    with status_line(settings, "working") as show:
        yield lambda what, done, total: show(f"{what} {min(done / max(total, 1e-9), 1.0):.0%}")


@contextmanager
def bar(settings: Settings, what: str, total: int) -> Iterator[Callable[[str], None]]:
    """Progress over at least ``total`` items; call it with the name of each finished item."""
    done = itertools.count(1)
    with status_line(settings, what) as show:
        yield lambda name: show(f"{next(done)} of {total}, {name}")
