"""Rows in, rows with times out."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from costmodels.units import US
from planner.errors import InvalidInputError
from planner.io import load_system
from planner.predict.operations import predict_collectives, predicted_text, read_table
from tests.planner.cli.command_line import Run
from tests.planner.cli.conftest import run  # noqa: F401 - a fixture

ROWS = """\
collective,nodes,gpus_per_node,ranks,size_bytes,note
all_reduce,1,8,8,16777216,"a, b"
AllToAll,1.0,,8,1024,
all_gather,2,8,,1e9,
reduce-scatter,,4,4,1048576,
all_to_all,1,6,6,1048576,
"""


@pytest.fixture
def table_file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(ROWS, encoding="utf-8")
    return path


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def predicted(path: Path, system: str = "h100_sxm") -> list[dict[str, str]]:
    table = read_table(path, ("collective", "size_bytes"))
    found, _ = predict_collectives(
        table, lambda gpus, per_host: load_system(system, gpus=gpus, gpus_per_host=per_host)
    )
    return rows_of(predicted_text(table, found))


def test_predictions_are_appended_to_the_rows(table_file: Path) -> None:
    rows = predicted(table_file)
    assert list(rows[0])[-4:] == ["predicted_us", "low_us", "high_us", "source"]
    assert rows[0]["note"] == "a, b"
    assert [r["source"] for r in rows] == [
        "measured",
        "measured",
        "calibrated",
        "measured",
        "extrapolated",
    ]
    for row in rows:
        low, time, high = (float(row[c]) for c in ("low_us", "predicted_us", "high_us"))
        assert 0 < low < time < high


def test_a_system_without_curves_answers_from_its_links(table_file: Path) -> None:
    rows = predicted(table_file, "a40")
    assert {r["source"] for r in rows} == {"analytic"}


def test_predicting_twice_replaces_the_columns(table_file: Path, tmp_path: Path) -> None:
    table = read_table(table_file, ("collective",))
    found, _ = predict_collectives(
        table, lambda gpus, per_host: load_system("h100_sxm", gpus=gpus, gpus_per_host=per_host)
    )
    again = tmp_path / "again.csv"
    again.write_text(predicted_text(table, found), encoding="utf-8")
    assert predicted(again) == predicted(table_file)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("broadcast,1,8,8,1024,", "collective 'broadcast' is not one of"),
        ("all_reduce,1,8,8,big,", "size_bytes 'big' is not a number"),
        ("all_reduce,1,8,8,-1,", "size_bytes must be a number from 0"),
        ("all_reduce,1,8,8,nan,", "size_bytes must be a number from 0"),
        ("all_reduce,1,8,9,1024,", "9 ranks are not 1 nodes of 8 GPUs"),
        ("all_reduce,3,,8,1024,", "8 ranks are not 3 nodes of 2 GPUs"),
        ("all_reduce,,8,,1024,", "needs ranks, or nodes and gpus_per_node"),
        ("all_reduce,1.5,,8,1024,", "nodes must be a whole number"),
        ("all_reduce,1,8,8", "4 cells, the header has 6"),
    ],
)
def test_bad_rows_are_listed_with_their_lines(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"{ROWS}{row}\n", encoding="utf-8")
    with pytest.raises(InvalidInputError) as caught:
        predicted(path)
    assert message in str(caught.value)
    assert f"{path}:7: " in str(caught.value)


def test_all_bad_rows_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("collective,ranks,size_bytes\nx,8,1\ny,8,1\n", encoding="utf-8")
    with pytest.raises(InvalidInputError) as caught:
        predicted(path)
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "column 'collective' is missing"),
        ("ranks,size_bytes\n8,1\n", "column 'collective' is missing"),
        ("collective,size_bytes,size_bytes\nx,1,1\n", "'size_bytes' twice"),
        ("collective,size_bytes\n", "no rows"),
        ('collective,size_bytes\n"x,1\n', "unexpected end"),
        ("collective,size_bytes,rank\nx,1,8\n", "'rank' is not known; did you mean 'ranks'?"),
        ("collective,size_bytes,Ranks,rank\nx,1,8\n", "3 cells, the header has 4"),
    ],
)
def test_a_bad_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInputError) as caught:
        read_table(path, ("collective", "size_bytes"), ("ranks",))
    assert message in str(caught.value)


def test_the_command_prints_or_writes(run: Run, table_file: Path, tmp_path: Path) -> None:  # noqa: F811
    command = ("predict", "collective", table_file, "--system", "h100_sxm")
    shown = run(*command)
    assert shown.code == 0, shown.err
    assert len(rows_of(shown.out)) == 5
    as_json = json.loads(run(*command, "--json").out)
    assert as_json[0]["predicted_s"] == pytest.approx(
        float(rows_of(shown.out)[0]["predicted_us"]) * US, rel=1e-4
    )
    target = tmp_path / "out.csv"
    written = run(*command, "-o", target)
    assert written.out == ""
    assert "5 rows written" in written.err
    assert target.read_text(encoding="utf-8") == shown.out
    assert run("predict", "collective", table_file).code == 2
    lost = run(*command, "-o", table_file)
    assert lost.code == 2
    assert "is read by this command and would be lost" in lost.err
    assert run(*command, "-o", tmp_path / "a\nb.csv").err.endswith("a\\nb.csv\n")


def test_limits_are_told_with_all_digits_and_cells_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"collective,ranks,size_bytes\nall_reduce,8,{'9' * 300}\n")
    with pytest.raises(InvalidInputError) as caught:
        predicted(path)
    assert f"from 0 to 1125899906842624, got {'9' * 40}" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_nothing_of_an_earlier_prediction_is_left_beside_a_new_one(
    run: Run,  # noqa: F811
    tmp_path: Path,
) -> None:
    """A reason why there was none stayed, and JSON told old microseconds beside new seconds."""
    path, again = tmp_path / "products.csv", tmp_path / "again.csv"
    path.write_text("M,K,N,dtype\n64,64,64,bf16\n64,64,64,fp32\n", encoding="utf-8")
    asked = ("predict", "dense")
    assert run(*asked, path, "--system", "v100_32gb_sxm", "-o", again).code == 0
    assert rows_of(again.read_text(encoding="utf-8"))[0]["reason"]
    for old in (path, again):
        told = run(*asked, old, "--system", "h100_sxm", "--json").out
        assert told == run(*asked, path, "--system", "h100_sxm", "--json").out
        assert run(*asked, old, "--system", "h100_sxm").out.splitlines()[0] == (
            "M,K,N,dtype,predicted_us,low_us,high_us,source"
        )
