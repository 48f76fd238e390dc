"""Units: what is read, what is refused, and that printing and reading agree."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels import units
from costmodels.errors import UnitError
from costmodels.units import (
    DIMENSIONS,
    format_bytes,
    format_count,
    format_rate,
    format_time,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80 GiB", "bytes", 80 * 2**30),
        ("80GiB", "bytes", 80 * 2**30),
        ("  80   GB ", "bytes", 80e9),
        ("1_000 B", "bytes", 1000),
        ("0 B", "bytes", 0),
        ("1.5 TiB", "bytes", 1.5 * 2**40),
        ("1.5e2 MB", "bytes", 150e6),
        ("64 kB", "bytes", 64e3),
        ("64 KB", "bytes", 64e3),
        ("64 KiB", "bytes", 65536),
        ("3.35 TB/s", "bytes_per_s", 3.35e12),
        ("450 GB/s", "bytes_per_s", 450e9),
        ("5 us", "s", 5e-6),
        ("5 µs", "s", 5e-6),
        ("+5 us", "s", 5e-6),
        ("2 ms", "s", 2e-3),
        ("10 ns", "s", 1e-8),
        ("1.5 min", "s", 90),
        ("2 h", "s", 7200),
        ("989 TFLOP/s", "flops_per_s", 989e12),
        ("98.32 USD/h", "usd_per_hour", 98.32),
    ],
)
def test_quantities_are_read_as_si(text: str, dimension: str, value: float) -> None:
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("bare", [80, 80.0, True, None, [80], b"80 GiB"])
def test_what_is_no_text_has_no_unit(bare: object) -> None:
    with pytest.raises(UnitError, match="has no unit; write it with one, such as '80 GiB'"):
        parse_quantity(bare, "bytes")


@pytest.mark.parametrize(
    "text", ["80", "1e5", "1,000 B", "", "GiB", "a GiB", "80 G iB", ".5 GiB", "1.2.3 GiB", "- 1 B"]
)
def test_text_without_number_and_unit_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="is not a number with a unit, such as"):
        parse_quantity(text, "bytes")


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("80 Gb", "bytes"),
        ("80 gib", "bytes"),
        ("80 GB", "s"),
        ("80 GB", "bytes_per_s"),
        ("5 sec", "s"),
        ("80 GB/s", "bytes"),
        ("1 USD", "usd_per_hour"),
    ],
)
def test_units_of_another_dimension_are_refused_with_the_known_ones(
    text: str, dimension: str
) -> None:
    with pytest.raises(UnitError, match="is not known here; use one of ") as caught:
        parse_quantity(text, dimension)
    assert all(unit in str(caught.value) for unit in DIMENSIONS[dimension])


@pytest.mark.parametrize("text", ["-1 B", "1e999 B", "-0.5 GiB"])
def test_negative_and_infinite_quantities_are_refused(text: str) -> None:
    with pytest.raises(UnitError, match="must be finite and not negative"):
        parse_quantity(text, "bytes")


@given(st.sampled_from(sorted(DIMENSIONS)), st.floats(0, 1e15), st.data())
def test_every_unit_scales(dimension: str, number: float, data: st.DataObject) -> None:
    unit, factor = data.draw(st.sampled_from(sorted(DIMENSIONS[dimension].items())))
    assert parse_quantity(f"{number!r} {unit}", dimension) == number * factor


# ------------------------------------------------------------------ printing


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (format_bytes(0), "0 B"),
        (format_bytes(512), "512 B"),
        (format_bytes(1000), "1,000 B"),
        (format_bytes(1023), "1,023 B"),
        (format_bytes(1024), "1 KiB"),
        (format_bytes(41.2 * 2**30), "41.2 GiB"),
        (format_bytes(1023 * 2**20), "1,023 MiB"),
        (format_bytes(999.7 * 2**20), "1,000 MiB"),
        (format_bytes(-3 * 2**30), "-3 GiB"),
        (format_bytes(math.inf), "inf"),
        (format_rate(450e9), "450 GB/s"),
        (format_rate(3.35e12), "3.35 TB/s"),
        (format_rate(999.7e6), "1,000 MB/s"),
        (format_time(3.123e-3), "3.12 ms"),
        (format_time(999.9e-6), "1,000 us"),
        (format_time(0), "0 ns"),
        (format_time(0.4e-9), "0.4 ns"),
        (format_time(7200), "7,200 s"),
        (format_time(math.nan), "nan"),
        (format_count(21_100_000), "21.1 M"),
        (format_count(999), "999"),
        (format_count(0), "0"),
    ],
)
def test_people_read_three_digits(printed: str, expected: str) -> None:
    assert printed == expected


@pytest.mark.parametrize(
    ("render", "dimension"),
    [(format_bytes, "bytes"), (format_rate, "bytes_per_s"), (format_time, "s")],
)
@given(value=st.floats(1e-9, 1e15))
def test_what_is_printed_can_be_read(
    render: Callable[[float], str], dimension: str, value: float
) -> None:
    text = render(value)
    if "e-" in text:  # parts of a byte have no unit
        return
    assert re.fullmatch(r"[0-9,.]+ \S+", text)
    assert parse_quantity(text.replace(",", ""), dimension) == pytest.approx(value, rel=0.006)


def test_constants_agree_with_the_units() -> None:
    assert parse_quantity("1 GiB", "bytes") == units.GIB
    assert parse_quantity("1 MiB", "bytes") == units.MIB
    assert parse_quantity("1 KiB", "bytes") == units.KIB
    assert parse_quantity("1 GB", "bytes") == units.GB
    assert parse_quantity("1 us", "s") == units.US
    assert parse_quantity("1 ms", "s") == units.MS
