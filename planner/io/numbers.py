"""Reads numbers of files: text with a unit, and with the source of the number behind it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from costmodels.estimates import Source
from costmodels.units import DIMENSIONS, parse_quantity

_SOURCED: Final = re.compile(
    r"\s*(?P<value>[^()]+?)\s*"
    r"(?:\(\s*(?P<source>[A-Za-z]+)\s*(?:[,:]\s*(?P<reference>.+?))?\s*\))?\s*",
    re.DOTALL,
)
_MOST_CHARACTERS: Final = 1000
_DIGITS: Final = r"^\s*[+-]?[0-9][0-9_]*(\.[0-9]*)?([eE][+-]?[0-9]+)?"


@dataclass(frozen=True, slots=True)
class Sourced:
    """A number in SI units, its text in the file, and its source."""

    value: float
    text: str
    source: Source
    reference: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Marks a float that is written with its unit: ``Annotated[float, Unit(...)]``.

    Args:
        dimension: one of :data:`costmodels.units.DIMENSIONS`.
        example: shown by editors.
    """

    dimension: str
    example: str

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """A validator that turns text into a number in SI units."""
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The JSON Schema of text that ends in a unit."""
        return {
            "type": "string",
            "pattern": _quantity_pattern(self.dimension),
            "examples": [self.example],
        }

    def _read(self, value: object) -> float:
        return parse_quantity(value, self.dimension)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Marks a number with a source: ``Annotated[Sourced, Origin(...)]``.

    In ``2.97 TB/s (measured, BabelStream triad)`` there are value, unit, kind of source, and
    reference. A number without parentheses is the user's own.

    Args:
        dimension: one of :data:`costmodels.units.DIMENSIONS`; None for a number without unit.
        example: shown by editors.
        low: least allowed value in SI units.
        high: largest allowed value in SI units.
        is_whole: whether the number has to be whole.
    """

    dimension: str | None
    example: str
    low: float = 0.0
    high: float = 1e30
    is_whole: bool = False

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """A validator that turns text into a :class:`Sourced`."""
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The JSON Schema: text with a number and its unit; or a number, if there is no unit."""
        pattern = f"{_DIGITS}\\s*(\\(|$)"
        if self.dimension is not None:
            pattern = _quantity_pattern(self.dimension).removesuffix("$") + "(\\(|$)"
        text = {
            "type": "string",
            "pattern": pattern,
            "examples": [f"{self.example} (datasheet, where it is from)"],
        }
        return text if self.dimension is not None else {"anyOf": [text, {"type": "number"}]}

    def _read(self, written: object) -> Sourced:
        if self.dimension is None and isinstance(written, int | float):
            written = str(written)
        text, source, reference = split_source(written, self.example)
        value = _plain(text) if self.dimension is None else parse_quantity(text, self.dimension)
        if not self.low <= value <= self.high:
            msg = f"must be {self.low:g}..{self.high:g} in SI units, got {value:g}"
            raise ValueError(msg)
        if self.is_whole and not value.is_integer():
            msg = f"must be a whole number, got {value:g}"
            raise ValueError(msg)
        return Sourced(value, text, source, reference)


def split_source(written: object, example: str) -> tuple[str, Source, str]:
    """Split text such as ``"80 GiB (datasheet, H100)"`` into value, source and reference.

    Raises:
        ValueError: it is not such a text, or its source is not a known kind.
    """
    short = isinstance(written, str) and len(written) <= _MOST_CHARACTERS
    match = _SOURCED.fullmatch(str(written)) if short else None
    if match is None:
        msg = (
            "must be a number with its unit, then its source in parentheses if known, such as "
            f"'{example} (datasheet, H100)'"
        )
        raise ValueError(msg)
    kind = match["source"] or Source.USER.value
    if kind not in list(Source):
        msg = f"source {kind!r} is not one of {', '.join(Source)}; write '(source, reference)'"
        raise ValueError(msg)
    return match["value"], Source(kind), match["reference"] or ""


def _plain(text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        msg = f"{text!r} is not a number"
        raise ValueError(msg) from error
    if not math.isfinite(value):
        msg = f"{text!r} must be finite"
        raise ValueError(msg)
    return value


def _quantity_pattern(dimension: str) -> str:
    units = "|".join(re.escape(unit) for unit in DIMENSIONS[dimension])
    return f"{_DIGITS}\\s*({units})\\s*$"
