"""Reads ``--stats DAY=FILE``: statistics of a day, from ``stats.json`` or from raw data."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import click

from planner.errors import InvalidInputError
from planner.support.cores import usable_cores

if TYPE_CHECKING:
    from costmodels.workload import Workload
    from planner.profiling.stats import Stats

_STATS_SUFFIX: Final = ".json"
_MOST_DAYS: Final = 1e9
"""Days are counted from any origin, but none is millions of years away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DayFile:
    """A file or folder with data, and their day.

    The day counts from any origin; None if it is not given. ``is_date`` says that it was written as
    a date, so that its origin is that of the calendar.
    """

    path: Path
    day: float | None = None
    is_date: bool = False

    @property
    def files(self) -> tuple[Path, ...]:
        """The file, or all of the folder."""
        return tuple(self.path.iterdir()) if self.path.is_dir() else (self.path,)

    @property
    def name(self) -> str:
        """The file and day as given, for messages."""
        return str(self.path)


class DayFileType(click.ParamType[DayFile]):
    """A value such as ``FILE``, ``12=FILE`` or ``2026-11-20=FILE``."""

    name = "day=file"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> DayFile:
        """Read the path, and the day before the equals sign if there is one."""
        if isinstance(value, DayFile):
            return value
        before, equals, after = str(value).partition("=")
        text = before.strip()
        date_day = _day_of_date(text)
        day = _day_number(text) if date_day is None else date_day
        found = DayFile(path=Path(str(value)))
        if equals and day is not None:
            found = DayFile(path=Path(after), day=day, is_date=date_day is not None)
        if not found.path.exists():
            hint = (
                "; DAY is a number or a date such as 2026-11-20" if equals and day is None else ""
            )
            self.fail(f"{found.name!r} does not exist{hint}", param, ctx)
        return found


def _day_of_date(text: str) -> float | None:
    try:
        return float(date.fromisoformat(text).toordinal())
    except ValueError:
        return None


def _day_number(text: str) -> float | None:
    is_day = text.isascii() and text.isdecimal() and float(text) < _MOST_DAYS
    return float(text) if is_day else None


def ordered(files: tuple[DayFile, ...]) -> tuple[DayFile, ...]:
    """The files sorted by day.

    Raises:
        InvalidInputError: there are several files, of which one has no day, two have the same day,
            or some have dates and others numbers.
    """
    bare = [f.name for f in files if f.day is None]
    if len(files) > 1 and bare:
        message = f"--stats {bare[0]}: several statistics need their days, such as --stats 1=FILE"
        raise InvalidInputError(message)
    if len({f.is_date for f in files}) > 1:
        message = "--stats: some days are dates and others numbers; give all days in one way"
        raise InvalidInputError(message)
    days = [f.day for f in files]
    if len(set(days)) < len(days):
        message = "--stats: two files are of the same day; give every day once"
        raise InvalidInputError(message)
    return tuple(sorted(files, key=lambda f: f.day or 0.0))


def stats_of(path: Path, workload: Workload) -> Stats:
    """Statistics from ``stats.json``, or counted in a file or folder of raw data.

    Raises:
        InvalidInputError: it is neither, or no feature of the data belongs to the workload.
    """
    from planner.profiling.profiler import ByFeature, ProfileOptions, find_sources, profile_files
    from planner.profiling.stats import load_stats, some_names

    if path.suffix == _STATS_SUFFIX:
        return load_stats(path)
    readers = _readers()
    names = {name for source in find_sources([path], readers) for name in source.names}
    tables = {f.name: t.name for t in workload.tables for f in t.features if f.name in names}
    by_name = {t.name: t.name for t in workload.tables if t.name in names}
    if not tables and not by_name:
        message = (
            f"{path}: has the features {some_names(sorted(names))}, and none of them is a feature "
            "or table of the workload; profile it with 'shardplan profile --table-map'"
        )
        raise InvalidInputError(message)
    options = ProfileOptions(
        features=tuple(sorted({*tables, *by_name})),
        by_feature=ByFeature({**by_name, **tables}),
        batch_sizes=(int(workload.batch_size_per_rank),),
        jobs=usable_cores(),
    )
    with TemporaryDirectory(prefix="shardplan-") as folder:
        output = Path(folder) / "stats.json"
        return profile_files([path], output, options, readers=readers)


def _readers() -> tuple[Any, ...]:
    from planner.integrations.measure.torch_indices import TorchReader
    from planner.profiling.readers import READERS

    return (TorchReader(), *READERS)
