"""What words of a file mean, and the lines that values are on."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import InvalidInputError
from planner.io.documents import dotted, parse_scalar, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-7", -7),
        ("+7", 7),
        ("40_000_000", 40_000_000),
        ("0x1F", 31),
        ("1.5", 1.5),
        ("5.", 5.0),
        (".5", 0.5),
        ("1e6", 1e6),
        ("1_0.5e-3", 0.0105),
        ("-.inf", -math.inf),
        ("true", True),
        ("False", False),
        ("null", None),
        ("", None),
        ("~", None),
        ("yes", "yes"),
        ("off", "off"),
        ("010", "010"),
        ("1:30", "1:30"),
        ("2026-01-31", "2026-01-31"),
        ("1e", "1e"),
        ("1.2.3", "1.2.3"),
        ("-", "-"),
        (".", "."),
        ("0o7", "0o7"),
        ("inf", "inf"),
    ],
)
def test_scalars(text: str, value: object) -> None:
    found = parse_scalar(text)
    assert found == value
    assert type(found) is type(value)


def test_not_a_number() -> None:
    value = parse_scalar(".nan")
    assert isinstance(value, float)
    assert math.isnan(value)


def test_quoted_words_stay_text() -> None:
    value, _ = parse_yaml("- \"1\"\n- 'true'\n- !!str 2\n- |-\n  3\n", "f")
    assert value == ["1", "true", "2", "3"]


def test_lines() -> None:
    value, lines = parse_yaml("a: 1\nb:\n  - c: 2\n  -\n    d: 3\n", "f")
    assert value == {"a": 1, "b": [{"c": 2}, {"d": 3}]}
    assert lines[("a",)] == 1
    assert lines[("b",)] == 2
    assert lines[("b", 0, "c")] == 3
    assert lines[("b", 1, "d")] == 5


def test_merges() -> None:
    text = "x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\nz: {<<: [*x, *y], c: 3}\n"
    value, _ = parse_yaml(text, "f")
    assert isinstance(value, dict)
    assert value["z"] == {"a": 1, "b": 1, "c": 3}


def test_nothing_is_nothing() -> None:
    assert parse_yaml("", "f") == (None, {})


def test_too_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.io.documents.MAX_VALUES", 10)
    with pytest.raises(InvalidInputError, match="more than 10 values"):
        parse_yaml("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]", "f")


def test_dotted() -> None:
    assert dotted(("tables", 3, "name")) == "tables[3].name"
    assert dotted(()) == ""


def problem(text: str) -> str:
    """What is wrong with a text; empty if nothing is."""
    try:
        parse_yaml(text, "f")
    except InvalidInputError as error:
        return str(error)
    return ""


@given(st.text(max_size=200) | st.text(alphabet="ab:-[]{},&*!<|>'\"# \n\t0.1e~%@", max_size=60))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    message = problem(text)
    assert "\n" not in message
    assert not message or message.startswith("f:")
