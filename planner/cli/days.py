"""Files with data: the readers of their formats, the day that they are of, and their order."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final

from costmodels.errors import require
from planner.cli.flags import refuse

if TYPE_CHECKING:
    from planner.profiling.readers import AbstractReader

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


def day_file(text: str) -> DayFile:
    """A value such as ``FILE``, ``12=FILE`` or ``2026-11-20=FILE``.

    Raises:
        ValueError: there is no such file.
    """
    before, equals, after = text.partition("=")
    before, day, is_date = before.strip(), None, True
    try:
        day = float(date.fromisoformat(before).toordinal())
    except ValueError:
        is_date = False
        if before.isascii() and before.isdecimal() and float(before) < _MOST_DAYS:
            day = float(before)
    named = bool(equals) and day is not None
    path = Path(after if named else text)
    hint = "; DAY is a number or a date such as 2026-11-20" if equals and not named else ""
    require(path.exists(), f"{str(path)!r} does not exist{hint}")
    return DayFile(path=path, day=day, is_date=is_date) if named else DayFile(path=path)


def ordered(files: tuple[DayFile, ...]) -> tuple[DayFile, ...]:
    """The files sorted by day.

    Raises:
        UsageError: there are several files, of which one has no day, two have the same day,
            or some have dates and others numbers.
    """
    for file in files if len(files) > 1 else ():
        needs = f"--stats {file.path}: several statistics need their days, such as --stats 1=FILE"
        refuse(file.day is None, needs)
    mixed = "--stats: some days are dates and others numbers; give all days in one way"
    refuse(len({f.is_date for f in files}) > 1, mixed)
    twice = "--stats: two files are of the same day; give every day once"
    refuse(len({f.day for f in files}) < len(files), twice)
    return tuple(sorted(files, key=lambda f: f.day or 0.0))


def all_readers(*, empty_is_zero: bool = True) -> tuple[AbstractReader, ...]:
    """A reader for each format; the one that needs torch imports it only when it meets a file.

    Args:
        empty_is_zero: whether an empty category of Criteo's files is id 0, or is left out.
    """
    from planner.integrations.measure.torch_indices import TorchReader
    from planner.profiling.readers import READERS, CriteoTsvReader

    others = (reader for reader in READERS if not isinstance(reader, CriteoTsvReader))
    return (TorchReader(), CriteoTsvReader(empty_is_zero=empty_is_zero), *others)
