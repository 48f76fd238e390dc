"""Reads YAML and JSON strictly, with the line of every key, and finds shipped files by name.

In YAML these are refused: duplicate keys, tags, aliases that multiply, deep nesting, several
documents. Words are text, except for ``true``, ``false``, ``null`` and decimal or hexadecimal
numbers, whose digits underscores may group. So ``no``, ``on``, ``1:30``, ``010`` and dates stay
text, but ``1e6`` is a number.
"""

import codecs
import csv
import difflib
import functools
import io
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from costmodels.units import MIB, format_bytes
from planner.errors import InvalidInputError, refuse
from planner.support.kinds import path_of

Keys = tuple[str | int, ...]
"""The place of a value, such as ``("tables", 3, "name")``."""

MAX_DEPTH: Final = 32
_TOO_DEEP: Final = f"values are nested deeper than {MAX_DEPTH} levels"
MAX_VALUES: Final = 4_000_000

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STR_TAG: Final = "tag:yaml.org,2002:str"
_WORDS: Final = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
    ".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan,
}  # fmt: skip
_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9_]{0,39})|0x[0-9a-fA-F][0-9a-fA-F_]{0,15}")
_EXPONENT: Final = r"[eE][-+]?[0-9]{1,4}"
_FLOAT: Final = re.compile(
    rf"[-+]?([0-9][0-9_]{{0,39}}(\.[0-9_]{{0,39}}({_EXPONENT})?|{_EXPONENT})"
    rf"|\.[0-9][0-9_]{{0,39}}({_EXPONENT})?)"
)


def dotted(keys: Keys) -> str:
    """The place of a value in words, such as ``tables[3].name``."""
    text = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in keys)
    return text.removeprefix(".")


def parse_scalar(text: str) -> object:
    """The value of one plain word, read as in a file."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text.replace("_", ""), 0)
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text


def parse_yaml(text: str, source: str) -> tuple[object, dict[Keys, int]]:
    """Read one document.

    Args:
        text: the YAML.
        source: the name of the text in messages.

    Returns:
        Plain values (dict, list, str, int, float, bool, None), and the line of each, from 1.

    Raises:
        InvalidInputError: the text is not YAML, or has something that is refused; the message has
            the place.
    """
    reader = _Reader(text, source)
    try:
        value = reader.document()
    except yaml.YAMLError as error:
        raise InvalidInputError(_syntax_error(error, source)) from error
    return value, reader.lines


class _Reader:
    """One pass over the events of a YAML text."""

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.lines: dict[Keys, int] = {}
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self._anchors: dict[str | None, tuple[Any, int]] = {}
        self._num_values = 0

    def document(self) -> object:
        """The value of the only document."""
        value: object = None
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if self.lines:
                    self._fail(event, "a second document begins; keep one per file, without '---'")
                value = self._value(next(self._events), ())
        return value

    def _value(self, event: Any, keys: Keys) -> object:
        if len(keys) > MAX_DEPTH:
            self._fail(event, _TOO_DEEP)
        self.lines.setdefault(keys, event.start_mark.line + 1)
        value, size = None, 1
        if is_alias := isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                told = f"alias '*{event.anchor}' has no anchor '&{event.anchor}' before it"
                self._fail(event, told)
            value, size = self._anchors[event.anchor]
        before, self._num_values = self._num_values, self._num_values + size
        if self._num_values > MAX_VALUES:
            told = f"the file and its aliases stand for more than {MAX_VALUES:,} values"
            self._fail(event, f"{told}; use 'count:' for equal tables")
        if is_alias:
            return value
        if getattr(event, "tag", None) not in (None, "!", _STR_TAG):
            self._fail(event, f"tag {event.tag!r} is not supported; write plain values")
        if isinstance(event, yaml.ScalarEvent):
            is_plain = event.implicit[0] and event.tag is None
            value = parse_scalar(event.value) if is_plain else event.value
        elif isinstance(event, yaml.SequenceStartEvent):
            value = items = list[object]()
            while not isinstance(inner := next(self._events), yaml.SequenceEndEvent):
                items.append(self._value(inner, (*keys, len(items))))
        else:
            value = self._mapping(keys)
        self._anchors[event.anchor] = (value, self._num_values - before)
        return value

    def _mapping(self, keys: Keys) -> dict[str, object]:
        found: dict[str, object] = {}
        merged: dict[str, object] = {}
        while not isinstance((event := next(self._events)), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            if not isinstance(event, yaml.ScalarEvent):
                self._fail(event, "a key must be a word, not a list or mapping")
            key = str(event.value)
            if key in found:
                self._fail(event, f"{dotted((*keys, key))}: key given twice; keep one")
            value = self._value(next(self._events), (*keys, key))
            self.lines[*keys, key] = line
            if key != "<<":
                found[key] = value
                continue
            for part in value if isinstance(value, list) else [value]:
                if not isinstance(part, dict):
                    self._fail(event, "'<<' merges mappings only, such as '<<: *defaults'")
                merged = {**part, **merged}
        return {**merged, **found}

    def _fail(self, event: Any, message: str) -> NoReturn:
        refuse(f"{self.source}:{event.start_mark.line + 1}: {message}")


def _syntax_error(error: yaml.YAMLError, source: str) -> str:
    """One line with the place, what the parser says, and the usual cause."""
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)
    problem = " ".join(problem.split())
    where = f"{source}:{mark.line + 1}" if mark is not None else source
    if "nesting depth" in problem:  # newer versions of the parser have a limit of their own
        return f"{where}: {_TOO_DEEP}"
    hints = read_words("errors")["hints"]
    hint = next((text for key, text in hints.items() if key in problem), "see the line named")
    return f"{where}: not valid YAML: {problem}; {hint}"


_Dumper: Any = type("_Dumper", (getattr(yaml, "CSafeDumper", yaml.SafeDumper),), {})


def _text_node(dumper: Any, text: str) -> Any:
    style = None if parse_scalar(text) == text else '"'
    return dumper.represent_scalar(_STR_TAG, str(text), style)


def _number_node(dumper: Any, value: float) -> Any:
    """The shortest text that reads back as exactly this number."""
    if isinstance(value, int):
        return dumper.represent_scalar("tag:yaml.org,2002:int", f"{value:_}")
    if value.is_integer() and abs(value) < 10**15:
        return dumper.represent_int(int(value))
    return dumper.represent_float(value)


class _Items(list[object]):
    """A list whose items are on lines of their own."""


def _items_node(dumper: Any, items: _Items) -> Any:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=False)


_Dumper.add_representer(_Items, _items_node)
_Dumper.add_representer(str, _text_node)
_Dumper.add_multi_representer(str, _text_node)
_Dumper.add_representer(int, _number_node)
_Dumper.add_representer(float, _number_node)


def yaml_text(value: object, indent: str = "") -> str:
    """A value in YAML's form with brackets, which :func:`parse_yaml` reads back as equal.

    Args:
        value: plain values.
        indent: begins the further lines of a value that is too long for one.
    """
    width = 200 if isinstance(value, dict | list) else 2**20
    text = _dumped(value, width).removesuffix("\n...\n").removesuffix("\n")
    return text.replace("\n", f"\n{indent}")


def yaml_items(values: Iterable[object]) -> list[str]:
    """The items of a list, each as :func:`yaml_text` writes it behind ``- ``.

    A list or mapping that is there several times is written once, with a name (YAML's anchors).
    """
    text = _dumped(_Items(values), 200).removesuffix("\n")
    return re.split(r"\n(?=- )", text)


def _dumped(value: object, width: int) -> str:
    style: dict[str, Any] = {"default_flow_style": True, "sort_keys": False, "allow_unicode": True}
    return str(yaml.dump(value, Dumper=_Dumper, width=width, **style))


MAX_BYTES: Final = 64 * MIB
"""Larger files are refused; workloads and plans are far smaller."""

_LONGEST_VALUE: Final = 60
_DEPTH_ERROR: Final = "values are nested too deeply"


@dataclass(frozen=True, slots=True)
class Document:
    """The plain values of a file, and the line of each key path.

    ``origins`` says where values come from that are not from the file, such as a flag. ``above`` is
    the key path that leads to the value, if it is only a part of the file.
    """

    path: Path
    value: Any
    lines: dict[Keys, int] = field(repr=False)
    origins: dict[Keys, str] = field(repr=False, default_factory=dict)
    above: Keys = ()

    def where(self, keys: Keys) -> str:
        """A key path in words: ``file:line: tables[3].name``.

        If the path has no line, it is the line of the longest part of the path that has one.
        """
        known = keys = (*self.above, *keys)
        while known and known not in self.lines and known not in self.origins:
            known = known[:-1]
        line = self.lines.get(known)
        place = f"{self.path}:{line}" if line else str(self.path)
        place = self.origins.get(known, place)
        return f"{place}: {dotted(keys)}" if keys else place

    def refuse(self, keys: Keys, value: object, rule: str) -> NoReturn:
        """Refuse the value of a key, which breaks a rule.

        Raises:
            InvalidInputError: always.
        """
        refuse(f"{self.where(keys)}: value {show(value)}: {rule}")


def show(value: object) -> str:
    """A value as messages quote it: its text, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


_PIPED: Final[dict[tuple[int, int], bytes]] = {}
"""The bytes that were read from each pipe, by its device and inode."""


def _bytes_of(path: Path) -> bytes:
    """The bytes of a file; of a pipe that is empty by now, those of the first time.

    To open a named pipe waits until some process writes to it. A pipe that was read before is
    opened without waiting.
    """
    if path.is_dir():
        raise IsADirectoryError
    status = path.stat()
    number, is_pipe = (status.st_dev, status.st_ino), path.is_fifo()
    known = _PIPED.get(number, b"") if is_pipe else b""
    with os.fdopen(os.open(path, os.O_RDONLY | (os.O_NONBLOCK if known else 0)), "rb") as file:
        data = file.read(MAX_BYTES + 1) or known
    if is_pipe:
        _PIPED[number] = data
    return data


def read_text(path: Path) -> str:
    """The text of a file of at most 64 MiB: UTF-8, or UTF-16 if a byte order mark says so.

    A pipe gives its bytes only once; a second call returns the same text.

    Raises:
        InvalidInputError: the file is missing, a folder, too large, not readable, or not UTF-8.
    """
    try:
        data = _bytes_of(path)
    except IsADirectoryError:
        refuse(f"{path}: is a folder; name a file in it")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        refuse(f"{path}: cannot be read: {reason}")
    if len(data) > MAX_BYTES:
        refuse(f"{path}: larger than {format_bytes(MAX_BYTES)}, the most that is read")
    is_wide = data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    try:
        return data.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        kind, byte = "UTF-16" if is_wide else "UTF-8", data[error.start]
        refuse(f"{path}:{line}: not {kind} text (byte {byte:#04x}); save it as UTF-8")


def read_yaml(path: Path) -> Document:
    """Read a YAML file that has one mapping.

    Raises:
        InvalidInputError: the file is not well formed, or has something that
            :mod:`planner.io.documents` refuses.
    """
    return as_yaml(path, read_text(path))


def as_yaml(path: Path, text: str) -> Document:
    """The mapping of a YAML file with this text.

    Raises:
        InvalidInputError: as for :func:`read_yaml`.
    """
    value, lines = parse_yaml(text, str(path))
    if value is None:
        refuse(f"{path}: is empty; 'shardplan import tables' writes a file to start from")
    if not isinstance(value, dict):
        refuse(f"{path}: must hold keys and values at the top, such as 'tables:'")
    return Document(path, value, lines)


@functools.cache
def read_words(name: str) -> Any:
    """What other programs call keys and values, or reports their parts: of ``configs/imports``."""
    return read_yaml(configs_folder() / "imports" / f"{name}.yaml").value


def read_json(path: Path) -> Any:
    """Read a JSON file, which may not have NaN, infinity or duplicate keys.

    Raises:
        InvalidInputError: the file is not well formed.
    """
    return parse_json(read_text(path), path)


def parse_json(text: str, path: Path, *, line: int = 1) -> Any:
    """The JSON value that begins at a line of a file, read as by :func:`read_json`.

    Raises:
        InvalidInputError: it is not well formed.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        cut = "; is the file cut off?" if error.pos >= len(text.rstrip()) else ""
        refuse(f"{path}:{line - 1 + error.lineno}: not well-formed JSON: {error.msg}{cut}")
    except (ValueError, RecursionError) as error:
        reason = _DEPTH_ERROR if isinstance(error, RecursionError) else error
        at = f":{line}" if line > 1 else ""
        refuse(f"{path}{at}: not well-formed JSON: {reason}")


def csv_rows(
    path: Path, text: str, *, delimiter: str = ",", first: int = 1
) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header of CSV, and its rows with their lines; blank rows are left out.

    Args:
        path: the file.
        text: of the file, from its line ``first``.
        delimiter: what is between cells.
        first: the line at which the text begins.

    Raises:
        InvalidInputError: it is not well formed.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
    try:
        header = [cell.strip() for cell in next(reader, [])]
        rows = ((reader.line_num + first - 1, row) for row in reader)
        return header, [(line, row) for line, row in rows if any(cell.strip() for cell in row)]
    except csv.Error as error:
        line = reader.line_num + first - 1
        refuse(f"{path}:{line}: not well-formed CSV: {error}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            refuse(f"key {key!r} given twice; keep one")
        values[key] = value
    return values


def _refuse_constant(name: str) -> float:
    refuse(f"{name} is not a number; write a finite one")


PLAN: Final = "a plan"
FILE_KINDS: Final = {
    "WorkloadSchema": "a workload", "SystemSchema": "a system",
    "ConstraintFileSchema": "a file of constraints",
}  # fmt: skip
"""The schemas of whole files, and the kinds of these files."""


def kind_of(value: object) -> str | None:
    """The kind of a document; None if its keys are those of no kind, or of several kinds."""
    values = value if isinstance(value, dict) else {}
    keys = values.keys()
    found = {
        "statistics of 'shardplan profile'": values.get("kind") == "shardplan_stats",
        PLAN: "plan" in keys,
        "a system": {"device", "links"} <= keys or "base" in keys,
        "a workload": "training" in keys,
        "a file of constraints": keys == {"constraints"},
    }
    return next((kind for kind, is_there in found.items() if is_there), None)


def refuse_other_kind(path: Path, value: object, wanted: str) -> None:
    """Refuse a document of another known kind, in one line.

    Raises:
        InvalidInputError: the document is of another kind; the message says which.
    """
    kind = kind_of(value)
    if kind not in (None, wanted):
        refuse(f"{path}: is {kind}, and {wanted} is expected here; name another file")


def with_named_files(paths: Iterable[Path]) -> set[Path]:
    """The files among the paths, and every file beside one of them that it names, also indirectly.

    A text in a file counts as the name of a file if there is such a file. What is neither YAML nor
    JSON names none.

    Args:
        paths: files, or anything else, such as names of shipped systems.

    Returns:
        Paths without symbolic links.
    """
    found: set[Path] = set()
    left = [path.resolve() for path in paths if is_file(path)]
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            beside = (path.parent / name for name in _texts(_content(path)))
            left += [other.resolve() for other in beside if is_file(other)]
    return found


def _content(path: Path) -> Any:
    try:
        return read_json(path) if path.suffix.lower() == ".json" else read_yaml(path).value
    except InvalidInputError:
        return None


def texts_of_yaml(text: str) -> list[str]:
    """All texts in a value that is written in YAML, but its keys; none if it is not well formed."""
    try:
        return list(_texts(parse_yaml(text, "")[0]))
    except InvalidInputError:
        return []


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value but its keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def override_all(document: Document, pairs: Iterable[tuple[str, str]]) -> None:
    """Set values of a document, before it is validated.

    A path has to lead through values that exist, but can begin a section that the file has not.

    Args:
        document: the document, which is changed.
        pairs: a key path, such as ``tables.3.embedding_dim``, and the value as YAML.

    Raises:
        InvalidInputError: there is nothing at a path, or a text is not a YAML value.
    """
    for pair in pairs if isinstance(pairs, list | tuple) else [pairs]:
        if not (isinstance(pair, tuple | list) and [type(part) for part in pair] == [str, str]):
            refuse(
                f"overrides: {pair!r:.60} is no pair of texts; give pairs of a key path and a "
                "value, such as ('tables.3.embedding_dim', '64')"
            )
        _override(document, *pair)


def _override(document: Document, key: str, text: str) -> None:
    where = f"--set {key}={text}"
    value, _ = parse_yaml(text, where)
    try:
        keys: Keys = tuple(int(p) if p.isdecimal() else p for p in key.split("."))
        holder = document.value
        for part, following in itertools.pairwise(keys):
            if isinstance(holder, dict) and part not in holder and isinstance(following, str):
                holder[part] = {}
            # A copy, so that aliases keep the old value.
            inner = holder[part].copy()
            holder[part] = inner
            holder = inner
        if isinstance(holder, dict) != isinstance(keys[-1], str):
            raise TypeError(key)  # noqa: TRY301 - the message is below
        holder[keys[-1]] = value
    except (AttributeError, LookupError, TypeError, ValueError):
        refuse(f"{where}: the file has no such key; give a path such as training.pipeline")
    document.origins[keys] = where


# ------------------------------------------------------------------ shipped files
#
# Found by name, in a wheel or in a checkout.

_PACKAGE = Path(__file__).resolve().parent.parent
_PLACES = (_PACKAGE / "_configs", _PACKAGE.parent / "configs")


def configs_folder() -> Path:
    """The folder of shipped files.

    Raises:
        InvalidInputError: the installation has no such folder.
    """
    found = next((place for place in _PLACES if (place / "systems").is_dir()), None)
    if found is None:
        refuse("the shipped configs folder is missing; install the package again")
    return found


def names(kind: str) -> tuple[str, ...]:
    """Names of shipped files of a kind: ``systems`` or ``workloads``."""
    return tuple(sorted(p.stem for p in (configs_folder() / kind).glob("*.yaml")))


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file can have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def locate(source: str | Path, kind: str) -> Path:
    """The file that a name or a path means.

    A name without folder and ending means a shipped file, unless the working directory has a file
    of this name.

    Raises:
        InvalidInputError: there is no such file; the message lists similar names.
    """
    path = path_of(source, kind[:-1])
    if is_file(path) or path.suffix or len(path.parts) > 1:
        return path
    known = names(kind)
    if str(source) not in known:
        near = difflib.get_close_matches(str(source), known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        other = "workloads" if kind == "systems" else "systems"
        if str(source) in names(other):
            hint = f"it is the name of a shipped {other[:-1]}; "
        listed = ", ".join(known)
        refuse(f"{source}: no such file and no shipped {kind[:-1]}; {hint}known: {listed}")
    return configs_folder() / kind / f"{source}.yaml"


def read_template(name: str = "workload") -> str:
    """A shipped template; that of a workload is what ``shardplan import tables`` writes."""
    return (configs_folder() / "templates" / f"{name}.yaml").read_text(encoding="utf-8")
