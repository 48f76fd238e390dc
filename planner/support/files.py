"""Files in and out: written whole or not at all, read once per version, named where they go."""

import csv
import errno
import gzip
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar
from uuid import uuid4

from planner.errors import reading, refuse

# ------------------ file errors
#
# Adds the file name to errors of writing; the system gives it only if it cannot open a file.


PLAN_FILE: Final = "plan.json"
HTML_FILE: Final = "report.html"
RESHARD_FILE: Final = "reshard.json"
TRACE_FOLDER: Final = "trace"
RUN_FILES: Final = frozenset({PLAN_FILE, HTML_FILE, RESHARD_FILE, TRACE_FOLDER})
"""The names of all files that a run can leave in its folder."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A context in which an ``OSError`` without a file name, such as a full disk, gets ``path``.

    Raises:
        OSError: an error of the same kind, with a file name.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def is_gzip(path: Path) -> bool:
    """Whether a file is compressed with gzip, whatever its name."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def read_unpacked(path: Path, size: int = -1) -> bytes:
    """The first bytes of a file, decompressed; all of them by default.

    Raises:
        InvalidInputError: the file cannot be read.
    """
    with (
        reading(f"{path}: cannot be read"),
        (gzip.open if is_gzip(path) else open)(path, "rb") as file,
    ):
        return file.read(size)


# ------------------ csv text
#
# Writes CSV that is safe to open in spreadsheets, even with names from unknown sources.
#
# A spreadsheet runs a cell that begins with ``=``, ``+``, ``-`` or ``@`` as a formula, also behind
# a tab or line break. Such texts get a quotation mark in front, which every spreadsheet reads as
# "this is text" (OWASP, CSV injection). Numbers stay numbers.

_MARK: Final = "'"
_RUN: Final = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""First characters of formulas; the last four are the wide forms of the first four."""
_BLANKS: Final = " \u00a0"
_SUSPECT: Final = _RUN | set(_BLANKS) | {_MARK}
"""First characters of texts that need a closer check."""
_NUMBER: Final = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?%?|[-+]?inf")


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A header and rows, each ended by a line feed; None is an empty cell."""
    # Python quotes a cell with a line break only if rows end with the same characters.
    lines: list[str] = []
    writer = csv.writer(SimpleNamespace(write=lines.append), lineterminator="\r\n")
    writer.writerow([guarded(name) for name in header])
    writer.writerows([guarded(value) for value in row] for row in rows)
    return "".join(f"{line[:-2]}\n" for line in lines)


def guarded(value: object) -> object:
    """The value for a cell: a text that a spreadsheet would run gets a mark in front."""
    if isinstance(value, str) and value[:1] in _SUSPECT and _wants_mark(value):
        return f"{_MARK}{value}"
    return value


def unguarded(text: str) -> str:
    """The text of a cell without its mark; the inverse of :func:`guarded`."""
    return text[1:] if text[:1] == _MARK and _wants_mark(text[1:]) else text


def _wants_mark(text: str) -> bool:
    """Whether a text needs a mark: it would be run, or looks as if it had its mark already."""
    inner = text.lstrip(_MARK).lstrip(_BLANKS)
    return inner[:1] in _RUN and inner not in ("", "-") and _NUMBER.fullmatch(inner) is None


# ------------------ places
#
# Finds where an output goes: the file behind a link, or something that is not a file.


def is_stream(path: Path) -> bool:
    """Whether the path is something to write into, such as a pipe, a terminal, ``/dev/null``."""
    return path.exists() and not path.is_file() and not path.is_dir()


def behind_links(path: Path) -> Path:
    """The absolute path of the file that ``path`` leads to; it need not exist yet."""
    return Path(os.path.realpath(path))


# ------------------ atomic
#
# Writes files completely or not at all.


def write_text_atomic(path: Path, text: str) -> None:
    """Write ``text`` beside ``path`` and move it into place, as :func:`write_texts_atomic` does.

    Raises:
        InvalidInputError: the folder is missing or not writable, or the disk is full; nothing is
            left behind.
    """
    write_texts_atomic({path: text})


def write_texts_atomic(texts: Mapping[Path, str]) -> None:
    """Write several files as :func:`write_all` does.

    Raises:
        InvalidInputError: one of the files cannot be written; then none of them is.
    """
    # Names of files that are no text are written by their numbers.
    write_all({at: text.encode("utf-8", "backslashreplace") for at, text in texts.items()})


def write_all(contents: Mapping[Path, bytes]) -> None:
    """Write several files, each under another name beside its place, and then move all of them.

    A symbolic link stays, and the file that it leads to is replaced. Something that is not a file,
    such as a pipe or ``/dev/stdout``, cannot be replaced; the bytes are written into it.

    Raises:
        InvalidInputError: one of the files cannot be written; then none of them is.
    """
    staged: dict[Path, Path] = {}
    try:
        for at, data in contents.items():
            if at.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if is_stream(at):
                continue
            place = behind_links(at)
            place.parent.mkdir(parents=True, exist_ok=True)
            staged[at] = place.with_name(f".shardplan.{uuid4().hex}.tmp")
            staged[at].write_bytes(data)
        for at, data in contents.items():
            if at in staged:
                staged[at].replace(behind_links(at))
                del staged[at]
            else:
                at.write_bytes(data)
    except OSError as error:
        refuse(f"{at}: cannot be written: {error.strerror}")
    finally:
        for left in staged.values():
            left.unlink(missing_ok=True)


def write_files(
    folder: Path, files: Mapping[str, bytes], *, last: str = "", stale: Collection[str] = ()
) -> None:
    """Write the files of a folder as :func:`write_all` does.

    Args:
        folder: where to write; other files in it stay.
        files: contents by name. ``a/b`` is file b of folder a, which keeps no other files.
        last: the file that is replaced after all others.
        stale: names of files that are removed where they are not among those written.
    """
    write_all({folder / name: files[name] for name in sorted(files, key=last.__eq__)})
    for name in {*stale, *(name.partition("/")[0] for name in files)}:
        for path in (folder / name, *(folder / name).glob("*")):
            if path.is_file() and path.relative_to(folder).as_posix() not in files:
                path.unlink()


# ------------------ versions
#
# Reads a file once per version: what was read is kept until the file changes.

_Content = TypeVar("_Content")
_Read = Callable[[Any], _Content]


def once_per_version(*, num_kept: int) -> Callable[[_Read[_Content]], _Read[_Content]]:
    """Decorate a function that reads a file, so that it reads each version of it once.

    A file is another version if its size, or the time when it was written or its entry changed,
    is another one. Where there is no such file, the function is called, and says what is wrong.

    Args:
        num_kept: the most results that are kept; the one not asked for longest goes first.
    """

    def decorate(read: _Read[_Content]) -> _Read[_Content]:
        @lru_cache(maxsize=num_kept)
        def read_version(path: str | Path, *version: int) -> _Content:
            del version
            return read(path)

        @wraps(read)
        def kept(path: str | Path) -> _Content:
            try:
                stat = Path(path).stat()
            except (OSError, ValueError):
                return read(path)
            return read_version(path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

        return kept

    return decorate
