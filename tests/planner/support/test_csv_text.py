"""No cell of any CSV is run by a spreadsheet, and numbers stay numbers."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.measured.curves import Collective, CollectiveCurve
from planner.io.plan.plan_file import shards_csv
from planner.io.system.collective_curves import CurveRecord, curves_text, read_curves
from planner.predict.operations import predicted_text, read_table
from planner.support.files import csv_text, guarded, unguarded
from tests.planner.report.report_samples import make_result

ROOT = Path(__file__).resolve().parents[3]
EVIL = "=cmd|' /C calc'!A0"

RUN = re.compile("[\\s\u00a0]*[=+@\uff1d\uff0b\uff0d\uff20-]")
NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?%?|[-+]?inf|-")


def is_run(cell: str) -> bool:
    """Whether a spreadsheet takes a cell for a formula: what this has to keep out."""
    return cell[:1] in set("\t\r\n") or (
        RUN.match(cell) is not None and NUMBER.fullmatch(cell.strip()) is None
    )


def cells(text: str) -> list[str]:
    return [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]


@pytest.mark.parametrize(
    "text",
    [EVIL, "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "\uff1d1", "--1", "-x", "=",
     "+", "@", "-1e", "'=1", "''=1"],
)  # fmt: skip
def test_texts_that_are_run_are_marked(text: str) -> None:
    assert guarded(text) == f"'{text}"
    assert unguarded(f"'{text}") == text
    assert not any(map(is_run, cells(csv_text([text], [[text]]))))


@pytest.mark.parametrize(
    "text", ["-1", "+1.5", "-1e-9", "-.5", "+3%", "-", "", "a=b", "x", "'", "1-1", "-inf", "-1_000"]
)
def test_numbers_and_plain_texts_stay(text: str) -> None:
    assert guarded(text) == text


@given(st.text(alphabet="=+-@'\t\r\n 19ae.x\uff1d", max_size=8))
def test_a_mark_can_be_taken_off(text: str) -> None:
    marked = guarded(text)
    assert isinstance(marked, str)
    assert unguarded(marked) == text
    assert not is_run(marked)


@given(st.lists(st.floats() | st.integers(), min_size=1, max_size=3))
def test_values_that_are_no_texts_are_left_alone(values: list[float]) -> None:
    assert [guarded(value) for value in values] == values


# ------------------------------------------------------------------ every file


def test_shards() -> None:
    plan = make_result().plan
    first, *others = plan.placements
    text = shards_csv(replace(plan, placements=(replace(first, table=EVIL), *others)))
    assert not any(map(is_run, cells(text)))


def test_predictions(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text(f'M,"{EVIL}"\n1,@x\n-2,3\n')
    text = predicted_text(read_table(path, ("M",)), ["=no"] * 2)
    assert not any(map(is_run, cells(text)))
    assert {"-2", "'@x", "'=no", f"'{EVIL}"} <= set(cells(text))


def test_curves_are_read_back_as_they_were(tmp_path: Path) -> None:
    curve = CollectiveCurve(
        collective=Collective.ALL_REDUCE, ranks=8, domains=1, size_bytes=(1e3, 1e6),
        time_s=(1e-5, 1e-3), network_bytes_per_s=0.0, version="+1", source=EVIL,
    )  # fmt: skip
    record = CurveRecord(
        set_name="-s", role="validate", nodes=1, curve=curve, device="@d", network="'=n",
        library="nccl", harness="h", licence="", notes="'quoted'",
    )  # fmt: skip
    (tmp_path / "c.csv").write_text(curves_text([record]), encoding="utf-8")
    assert not any(map(is_run, cells((tmp_path / "c.csv").read_text())))
    (found,) = read_curves(tmp_path / "c.csv")
    assert found == replace(record, curve=replace(curve, time_s=found.curve.time_s))


def test_no_other_file_writes_csv() -> None:
    writers = [
        str(path.relative_to(ROOT))
        for package in ("planner", "costmodels")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"csv\.(writer|DictWriter)\(", path.read_text())
    ]
    assert writers == ["planner/support/files.py"]
