"""The kinds of values of flags: each is read from its text by one function.

Names and files are completed for the shell. It waits for the answer at every press of the tab key,
so that folders are listed directly, and nothing is imported that reads or checks files.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

import click
from click.shell_completion import CompletionItem

from costmodels import discovery, units
from costmodels.errors import require

Names = Callable[[], tuple[str, ...]]

MAX_RANKS: Final = 65_536
_MAX_SAMPLES: Final = 100_000_000
_WORKLOAD_FILES: Final = frozenset({".yaml", ".yml", ".csv", ".tsv"})
_UNITS: Final = {
    "s": ("time", "s"),
    "bytes": ("bytes", " GiB"),
    "usd_per_hour": ("price", " USD/h"),
}
"""The name of each dimension, and what a bare number of it lacks."""


class Parsed(click.ParamType[Any]):
    """A value that a function reads from its text; a ``ValueError`` says what is wrong with it."""

    def __init__(self, name: str, read: Callable[[str], Any], names: Names | None = None) -> None:
        """Keep the arguments; ``names`` are the values that a shell completes."""
        self.name = name
        self.read = read
        self.names = names

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Read a text; what was read already passes through."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, _ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names that begin with what was typed; files if there are none."""
        if self.names is None:
            return []
        return matching(self.names(), incomplete) or [CompletionItem(incomplete, type="file")]


def quantity(dimension: str, *, positive: bool = False) -> Parsed:
    """A number with its unit in SI units; ``dimension`` is one of :mod:`costmodels.units`."""
    name, missing = _UNITS.get(dimension, (dimension, " ..."))

    def read(text: str) -> float:
        bare = f"{text!r} has no unit; write {text.strip() + missing!r}"
        require(_number(text) is None, bare)
        number = units.parse_quantity(text, dimension)
        require(number > 0 or not positive, f"{text!r} must be above 0")
        return number

    return Parsed(name, read)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def count(maximum: int, name: str = "count") -> Parsed:
    """A whole number from 1 to a limit, which protects from typing errors that fill the memory."""
    return Parsed(name, lambda text: _count(text, maximum))


def _count(text: str, maximum: int) -> int:
    """Underscores may group the digits; ``int`` fails on thousands of them."""
    text = text.strip()
    digits = text.replace("_", "")
    is_whole = digits.isascii() and digits.isdigit() and 1 <= float(digits) <= maximum
    require(is_whole, f"{text!r} is not a whole number from 1 to {maximum:,}")
    return int(float(digits))


def _batch(text: str) -> int:
    """A number of samples; ``32k`` is 32,768."""
    found = re.fullmatch(r"\s*([0-9]{1,9})[kK]\s*", text)
    return _count(text if found is None else str(1024 * int(found[1])), _MAX_SAMPLES)


def _samples(text: str) -> float:
    """Samples per rank: a whole number, or such a part of one as 0.5."""
    part = re.fullmatch(r"[0-9]{0,9}\.[0-9]{1,9}", text.strip())
    return _batch(text) if part is None else float(text)


def _percent(text: str) -> float:
    """``3%`` is 0.03; without the sign, 0.03 could mean 3 % or 0.03 %."""
    text = text.strip()
    found = _number(text.removesuffix("%")) if text.endswith("%") else None
    number = math.inf if found is None else found
    require(0 <= number < math.inf, f"{text!r} is not a percentage such as '3%'")
    return number / 100


@dataclass(frozen=True, slots=True)
class Share:
    """A part, 0..1, of something that is known later."""

    ratio: float


def _reserve(text: str) -> float | Share:
    """An amount of memory such as ``6 GiB``, or a share of each device's such as ``10%``."""
    if not text.strip().endswith("%"):
        read: float = quantity("bytes").read(text)
        return read
    ratio = _percent(text)
    require(0 < ratio < 1, f"{text!r} must be above 0% and below 100%")
    return Share(ratio)


def _price(text: str) -> tuple[str, float]:
    """``h100_sxm=2.10`` for one system, or ``2.10 USD/h`` for all, whose name is empty."""
    system, equals, amount = text.partition("=")
    if not equals:
        return "", quantity("usd_per_hour", positive=True).read(text)
    number = _number(amount.strip().removesuffix("USD/h")) or 0.0
    require(
        bool(system.strip()) and 0 < number < 1e6,
        f"{text!r} is not like 'h100_sxm=2.10', a system and USD per GPU and hour, which are above "
        "0 and below 1,000,000",
    )
    return system.strip(), number


def _rate(text: str) -> float:
    """Samples per second: ``20e6``, ``20_000_000`` or ``20M``."""
    digits = text.strip().replace("_", "")
    factor = {"k": 1e3, "M": 1e6, "G": 1e9}.get(digits[-1:], 1.0)
    number = (_number(digits[:-1] if factor > 1 else digits) or 0.0) * factor
    like = "a rate above 0 and below 1e15 samples/s, such as 20e6 or 20M"
    require(0 < number < 1e15, f"{text!r} is not {like}")
    return number


def name_of(known: Names) -> Parsed:
    """A name out of a list, which is made only when the flag is read."""

    def read(text: str) -> str:
        require(text in known(), f"{text!r} is not one of {', '.join(known())}")
        return text

    return Parsed("name", read, known)


class Several(click.ParamType[tuple[Any, ...]]):
    """Values with commas between them, each of which another type reads."""

    def __init__(self, one: click.ParamType[Any]) -> None:
        """Keep the type that reads a single value."""
        self.one = one
        self.name = f"{one.name} list"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        """Refuse an empty list, and values that the other type refuses; equal values count once."""
        if isinstance(value, tuple):
            return value
        texts = [text.strip() for text in str(value).split(",")]
        if not all(texts):
            self.fail(f"{value!r} has an empty entry between its commas", param, ctx)
        return tuple(dict.fromkeys(self.one.convert(text, param, ctx) for text in texts))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The completions of the other type for what follows the last comma."""
        before, comma, last = incomplete.rpartition(",")
        found = self.one.shell_complete(ctx, param, last)
        return [CompletionItem(f"{before}{comma}{item.value}", type=item.type) for item in found]


# ------------------------------------------------------------------ files


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
        here = (path.name for path in sorted(Path().iterdir()) if path.suffix in _WORKLOAD_FILES)
        found = matching((*shipped("workloads"), *here), incomplete)
        return found or super().shell_complete(ctx, param, incomplete)


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


FILE: Final = AnyFile()
RANKS: Final = count(MAX_RANKS)
PERCENT: Final = Parsed("percent", _percent)
SYSTEM: Final = Parsed("text", str, lambda: shipped("systems"))
OBJECTIVE: Final = name_of(lambda: import_module("planner.objectives").objective_names())
_BATCH: Final = Parsed("samples", _batch)


# ------------------------------------------------------------------ fields that flags set


# The type of a flag says how its value is read, then what the help shows for it, then its names.

File = Annotated[Path | None, FILE, "FILE"]
Output = Annotated[File, "-o --output"]
Folder = Annotated[Path | None, FILE, "DIR", "-o --output"]
Text = Annotated[str | None, click.STRING]
Texts = Annotated[tuple[str, ...], click.STRING]
Overrides = Annotated[Texts, "KEY=VALUE", "--set"]
Models = Annotated[Texts, "FAMILY=NAME|FILE.py", "--model"]
Scenarios = Annotated[tuple[Path, ...], FILE, "FILE", "--scenario"]
Robust = Annotated[str | None, click.Choice(("worst", "mean"))]
System = Annotated[str | None, SYSTEM, "NAME|FILE"]
Number = Annotated[int | None, RANKS, "N"]
Numbers = Annotated[tuple[int, ...], Several(RANKS), "N,N"]
Tables = Annotated[int | None, count(100_000), "N"]
Evaluations = Annotated[int | None, count(10**12), "N", "--evaluations"]
Batch = Annotated[int | None, _BATCH, "N"]
Batches = Annotated[tuple[int, ...], Several(_BATCH), "N,N"]
Samples = Annotated[float | None, Parsed("samples", _samples), "N"]
Seed = Annotated[int, click.IntRange(min=0, max=2**31 - 1), "N"]
Bytes = Annotated[float | None, quantity("bytes"), "SIZE"]
Reserve = Annotated[float | Share | None, Parsed("bytes", _reserve), "SIZE"]
Rate = Annotated[float | None, Parsed("rate", _rate), "RATE"]
Duration = Annotated[float | None, quantity("s", positive=True), "TIME"]
TimeLimit = Annotated[Duration, "--time-limit"]
Seconds = Annotated[float, quantity("s"), "TIME"]
Percent = Annotated[float, PERCENT, "PERCENT"]
MaybePercent = Annotated[float | None, PERCENT, "PERCENT"]
Price = Annotated[float | None, quantity("usd_per_hour", positive=True), "PRICE"]
Prices = Annotated[tuple[tuple[str, float], ...], Parsed("price", _price), "PRICE", "--price"]
Strategy = Annotated[
    str, name_of(lambda: tuple(discovery.names(import_module("planner.search")))), "NAME"
]
Objective = Annotated[str, OBJECTIVE, "NAME"]
