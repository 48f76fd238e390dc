"""Units: the only file that knows 1e9 from 1024**3, or that a microsecond is 1e-6.

In memory everything is SI: bytes, seconds, bytes per second, FLOP per second. In files the unit
stands in the value ("3.35 TB/s", "80 GiB", "5 us"). GB is 10**9 bytes, GiB is 2**30, always.
"""

import math
import re
from typing import Final

from costmodels.errors import UnitError

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3
GB: Final = 10**9
US: Final = 1e-6
MS: Final = 1e-3

_DECIMAL: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY: Final = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}

_BYTES: Final = {f"{p}B": f for p, f in {**_DECIMAL, **_BINARY}.items()}
_TIMES: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_KINDS: Final[dict[str, tuple[dict[str, float], str]]] = {
    "bytes": (_BYTES, "80 GiB"),
    "bytes_per_s": ({f"{u}/s": f for u, f in _BYTES.items()}, "450 GB/s"),
    "s": (_TIMES, "5 us"),
    "flops_per_s": ({f"{p}FLOP/s": f for p, f in _DECIMAL.items()}, "989 TFLOP/s"),
    "usd_per_hour": ({"USD/h": 1.0}, "98.32 USD/h"),
}
"""Dimensions: their units, and an example of a quantity."""
DIMENSIONS: Final = {name: units for name, (units, _) in _KINDS.items()}
"""The units of each dimension, and what one of them is in SI."""
_QUANTITY: Final = re.compile(
    r"^\s*((?>[+-]?[0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?))\s*(\S+)\s*$"
)


def parse_quantity(text: object, dimension: str) -> float:
    """Read "80 GiB" as a float in SI.

    Args:
        text: what stood in the file or on the command line.
        dimension: one of ``DIMENSIONS``: bytes, bytes_per_s, s, flops_per_s, usd_per_hour.

    Raises:
        UnitError: bare number, unknown unit, or a value that is not finite and non-negative.
    """
    known, example = _KINDS[dimension]
    if isinstance(text, bool) or not isinstance(text, str):
        msg = f"{text!r} has no unit; write it with one, such as {example!r}"
        raise UnitError(msg)
    match = _QUANTITY.match(text)
    if match is None:
        msg = f"{text!r} is not a number with a unit, such as {example!r}"
        raise UnitError(msg)
    number, unit = match.groups()
    if unit not in known:
        shown = ", ".join(sorted(known, key=lambda u: (known[u], u)))
        msg = f"unit {unit!r} in {text!r} is not known here; use one of {shown}"
        raise UnitError(msg)
    value = float(number.replace("_", "")) * known[unit]
    if not math.isfinite(value) or value < 0:
        msg = f"{text!r} must be finite and not negative"
        raise UnitError(msg)
    return value


def format_bytes(num_bytes: float) -> str:
    """Bytes for people: ``41.2 GiB``."""
    return _scaled(num_bytes, _BYTES, ("TiB", "GiB", "MiB", "KiB", "B"))


def format_rate(bytes_per_s: float) -> str:
    """Bandwidth for people: ``450 GB/s``."""
    units = ("TB/s", "GB/s", "MB/s", "kB/s", "B/s")
    return _scaled(bytes_per_s, DIMENSIONS["bytes_per_s"], units)


def format_time(seconds: float) -> str:
    """Seconds for people: ``3.12 ms``."""
    return _scaled(seconds, _TIMES, ("s", "ms", "us", "ns"))


def format_long_time(seconds: float) -> str:
    """Seconds that may be hours, for people: ``2.5 hours``, else as :func:`format_time`."""
    hours = seconds / 3600
    return f"{hours:.2g} hours" if hours >= 0.1 else format_time(seconds)


def format_count(number: float) -> str:
    """Counts and rates for people: ``21.1 M``."""
    return _scaled(number, _DECIMAL, ("G", "M", "k", "")).strip()


def _scaled(value: float, known: dict[str, float], units: tuple[str, ...]) -> str:
    """The value in the largest of the units that it is not below, else in the last one."""
    if not math.isfinite(value):
        return str(value)
    unit = next((u for u in units if abs(value) >= known[u]), units[-1])
    return f"{_three_digits(value / known[unit])} {unit}"


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
