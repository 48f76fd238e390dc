"""Numbers that people read: digits, and no exponents."""

from __future__ import annotations

import pytest

from planner.support.text import counted, format_gap, significant, unsigned_zero


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (4.5, 3, "4.5"),
        (0.0123456, 3, "0.0123"),
        (999.4, 3, "999"),
        (999.6, 3, "1,000"),
        (12_874.4, 3, "12,874"),
        (9_999.6, 4, "10,000"),
        (1_234.5, 6, "1,234.5"),
        (-52_500.0, 3, "-52,500"),
        (0.0000387, 3, "0.0000387"),
        (99.7, 2, "100"),
        (0.0, 3, "0"),
    ],
)
def test_no_number_has_an_exponent(value: float, digits: int, text: str) -> None:
    assert significant(value, digits) == text


@pytest.mark.parametrize(
    ("gap_ratio", "text"), [(0.0, "0 %"), (1e-9, "0 %"), (7e-4, "0.07 %"), (0.997, "100 %")]
)
def test_a_gap_is_written_in_percent(gap_ratio: float, text: str) -> None:
    assert format_gap(gap_ratio) == text


def test_zero_has_no_sign() -> None:
    shown = [f"{unsigned_zero(v, 1):+.1f}" for v in (-0.04, -0.06, 0.04, -0.0)]
    assert shown == ["+0.0", "-0.1", "+0.0", "+0.0"]


def test_one_thing_is_not_plural() -> None:
    assert [counted(n, "table") for n in (0, 1, 2_000)] == ["0 tables", "1 table", "2,000 tables"]
