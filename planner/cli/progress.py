"""Live progress of a search on stderr; silent where nobody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from planner.cli.console import Settings, stderr_console

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
    """One line: phase, incumbent, bound, gap, plans priced, seconds."""
    parts = [
        progress.phase,
        f"best {_value(progress.incumbent, objective)}",
        f"bound {_value(progress.bound, objective)}",
    ]
    if progress.gap_ratio is not None:
        parts.append(f"gap {100 * progress.gap_ratio:.2f} %")
    parts += [f"{progress.evaluations:,} plans", f"{progress.seconds:.1f} s"]
    return "   ".join(parts)


def _value(value: float | None, objective: str) -> str:
    from costmodels import units

    if value is None or value == float("inf"):
        return "-"
    return units.format_time(value) if objective == "iteration" else f"{value:.4g}"
