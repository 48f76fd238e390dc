"""Lookups and matrix products, row by row."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from costmodels.dense.roofline import product_s
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.lookup.fbgemm import DEFAULTS
from costmodels.operators import Product
from costmodels.units import US
from costmodels.workload import DataType
from planner.errors import InvalidInputError
from planner.io import load_system
from planner.predict.operations import (
    DENSE_COLUMNS,
    LOOKUP_COLUMNS,
    LookupCall,
    Predicted,
    lookup_call,
    named_law,
    predict_lookups,
    predict_products,
    predicted_text,
    read_table,
)
from tests.planner.cli.command_line import Run
from tests.planner.cli.conftest import run  # noqa: F401 - a fixture

BASE = {
    "phase": "forward",
    "rows_per_table": "1000000",
    "dim": "128",
    "batch_per_table": "8192",
    "pooling_factor": "10",
    "index_distribution": "uniform",
}
H100 = load_system("h100_sxm")


def written(path: Path, *rows: dict[str, str]) -> Path:
    columns = list(dict.fromkeys(c for row in rows for c in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def times(path: Path, *changes: dict[str, str]) -> list[float]:
    table = read_table(written(path, *({**BASE, **c} for c in changes)), LOOKUP_COLUMNS)
    found = predict_lookups(table, H100)
    assert all(isinstance(p, Predicted) for p in found)
    return [p.time_s for p in found if isinstance(p, Predicted)]


def test_more_work_takes_longer(tmp_path: Path) -> None:
    one, tables, host, both = times(
        tmp_path / "a.csv",
        {},
        {"num_tables": "4"},
        {"location": "uvm"},
        {"phase": "forward+backward"},
    )
    assert one < tables < 4 * one
    assert one < host
    assert one < both


def test_an_eval_forward_waits_for_the_host(tmp_path: Path) -> None:
    train, alone = times(tmp_path / "a.csv", {}, {"phase": "eval forward"})
    assert alone - train == pytest.approx(8 * H100.host.eager_call_s)


def test_distinct_rows_that_were_counted_replace_the_law(tmp_path: Path) -> None:
    back = {"phase": "backward+optimizer", "optimizer": "adam"}
    of_law, half, many = times(
        tmp_path / "a.csv",
        back,
        {**back, "lookups_unique": "40000"},
        {**back, "lookups_unique": "81000"},
    )
    assert half < of_law < many


def test_the_kernel_of_the_update_may_be_said(tmp_path: Path) -> None:
    """Without the sort what remains is shorter; an update per index is longer where rows repeat."""
    back = {"phase": "backward", "index_distribution": "zipf 1.2", "num_tables": "8"}
    default, bare, each = times(
        tmp_path / "a.csv",
        back,
        {**back, "update": "deduplicated_without_sort"},
        {**back, "update": "per_index"},
    )
    assert bare < default
    assert bare < each


def test_counts_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    given = written(tmp_path / "a.csv", {**BASE, "lookups_total": "90000"})
    assert predict_lookups(read_table(given, LOOKUP_COLUMNS), H100)
    wrong = written(tmp_path / "b.csv", {**BASE, "lookups_total": "1000"})
    with pytest.raises(InvalidInputError, match=r":2: lookups_total 1000 is not .* = 81920; "):
        predict_lookups(read_table(wrong, LOOKUP_COLUMNS), H100)


def test_a_small_call_takes_at_least_a_kernel(tmp_path: Path) -> None:
    one, two = times(tmp_path / "a.csv", {"batch_per_table": "1"}, {"batch_per_table": "2"})
    assert DEFAULTS.forward_floor_s < one < two < 1.6 * DEFAULTS.forward_floor_s


def test_a_cache_needs_its_size(tmp_path: Path) -> None:
    known = {"location": "uvm_caching", "cache_load_factor": "0.1"}
    assert times(tmp_path / "a.csv", known)[0] > times(tmp_path / "b.csv", {})[0]
    answer = lookup_call({**BASE, "location": "uvm_caching"})
    assert answer == "cache_load_factor not given"


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("uniform", Uniform(num_embeddings=9)),
        ("alpha 1.0 (uniform)", Uniform(num_embeddings=9)),
        ("distinct keys (bench)", Uniform(num_embeddings=9)),
        ("Zipf 1.2", Zipf(num_embeddings=9, exponent=1.2)),
        ("power law alpha 1.05 (bench)", Zipf(num_embeddings=9, exponent=1.05, shift=0.5)),
        ("production", None),
        ("zipf", None),
    ],
)
def test_laws_by_name(text: str, law: object) -> None:
    assert named_law(text, 9) == law


def test_an_unknown_law_needs_the_distinct_rows() -> None:
    answer = lookup_call({**BASE, "index_distribution": "production"})
    assert isinstance(answer, str)
    assert "not understood" in answer
    counted = {**BASE, "index_distribution": "production", "lookups_unique": "5000"}
    call = lookup_call(counted)
    assert isinstance(call, LookupCall)
    assert call.shards.tables.tables[0].distribution.expected_unique_rows(81920) == pytest.approx(
        5000, rel=1e-6
    )


@pytest.mark.parametrize(
    ("change", "unique"),
    [
        ({"index_distribution": "zipf 2", "lookups_unique": "5000"}, 5000),
        # The share of one table is rounded to a little more than its indices.
        ({"num_tables": "3", "batch_per_table": "1024", "pooling_factor": "2.7"}, 2764.8),
    ],
)
def test_counted_rows_hold_however_far_they_are_from_the_law(
    change: dict[str, str], unique: float
) -> None:
    call = lookup_call({**BASE, "lookups_unique": "8294.400000000001", **change})
    assert isinstance(call, LookupCall)
    found = call.shards.tables.tables[0].distribution.expected_unique_rows(
        float(call.shards.num_indices[0])
    )
    assert found == pytest.approx(unique, rel=3e-3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kernel": "HierarchicalKV hash table"}, "kernel"),
        ({"kernel": "FBGEMM nbit TBE (HIP)"}, "kernel"),
        ({"rows_per_table": " "}, "rows_per_table not given"),
        ({"batch_per_table": ""}, "lookups_total not given"),
    ],
)
def test_rows_that_no_model_covers_say_why(change: dict[str, str], reason: str) -> None:
    answer = lookup_call({**BASE, **change})
    assert isinstance(answer, str)
    assert reason in answer


BAD = [
    {"phase": "sideways"},
    {"dim": "many"},
    {"num_tables": "1.5"},
    {"location": "disk"},
    {"optimizer": "magic"},
    {"update": "sometimes"},
    {"weight_dtype": "fp5"},
    {"lookups_unique": "90000"},
]


def test_all_bad_rows_are_listed(tmp_path: Path) -> None:
    path = written(tmp_path / "bad.csv", BASE, *({**BASE, **change} for change in BAD))
    with pytest.raises(InvalidInputError) as error:
        predict_lookups(read_table(path, LOOKUP_COLUMNS), H100)
    text = str(error.value)
    for line, change in enumerate(BAD, start=3):
        assert f"{path}:{line}: {next(iter(change))}" in text


def test_the_command_writes_reasons(tmp_path: Path, run: Run) -> None:  # noqa: F811
    path = written(tmp_path / "a.csv", BASE, {**BASE, "kernel": "hash table"})
    done = run("predict", "lookup", path, "--system", "h100_sxm")
    assert done.code == 0
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert float(rows[0]["low_us"]) < float(rows[0]["predicted_us"]) < float(rows[0]["high_us"])
    assert rows[0]["source"] == "calibrated"
    assert rows[0]["reason"] == ""
    assert rows[1]["predicted_us"] == ""
    assert "hash table" in rows[1]["reason"]
    answer = json.loads(run("predict", "lookup", path, "--system", "h100_sxm", "--json").out)
    found = answer if isinstance(answer, list) else answer["rows"]
    assert found[1]["predicted_s"] is None
    assert found[0]["predicted_s"] == pytest.approx(float(rows[0]["predicted_us"]) * US, rel=1e-5)


def test_nothing_is_written_when_a_row_is_bad(tmp_path: Path, run: Run) -> None:  # noqa: F811
    path = written(tmp_path / "a.csv", BASE, {**BASE, "dim": "x"})
    out = tmp_path / "out.csv"
    done = run("predict", "lookup", path, "--system", "h100_sxm", "-o", out)
    assert done.code == 2
    assert f"{path}:3" in done.err
    assert not out.exists()


# ------------------------------------------------------------------ dense


def test_products_are_those_of_the_dense_model(tmp_path: Path) -> None:
    rows = [
        {"M": "2048", "K": "1024", "N": "512", "batch": "", "dtype": "bf16"},
        {"M": "27", "K": "128", "N": "27", "batch": "2048", "dtype": ""},
        {"M": "27", "K": "", "N": "27", "batch": "", "dtype": ""},
    ]
    table = read_table(written(tmp_path / "a.csv", *rows), DENSE_COLUMNS)
    first, second, third = predict_products(table, H100)
    assert isinstance(first, Predicted)
    assert isinstance(second, Predicted)
    expected = product_s(Product(m=2048, k=1024, n=512), DataType.BF16, H100.device)
    assert first.time_s == expected
    many = Product(m=27, k=128, n=27, count=2048)
    assert second.time_s == product_s(many, DataType.FP32, H100.device)
    assert third == "K not given"
    assert predicted_text(table, (first, second, third)).endswith("K not given\n")


def test_products_without_a_rate_of_their_type_have_no_time(tmp_path: Path) -> None:
    """fp32's rate is not that of int8; only tf32 runs as fp32 where a device does not have it."""
    kinds = ("fp16", "bf16", "int8", "tf32", "fp32")
    rows = [{"M": "64", "K": "64", "N": "64", "dtype": kind} for kind in kinds]
    table = read_table(written(tmp_path / "a.csv", *rows), DENSE_COLUMNS)
    half, brain, integer, tf32, single = predict_products(table, load_system("v100_32gb_sxm"))
    assert isinstance(half, Predicted)
    assert brain == "V100-SXM3-32GB lists no rate for products in bf16"
    assert isinstance(integer, str)
    assert tf32 == single


def test_the_dense_command(tmp_path: Path, run: Run) -> None:  # noqa: F811
    good = {"M": "64", "K": "64", "N": "64", "dtype": "fp16"}
    done = run("predict", "dense", written(tmp_path / "a.csv", good), "--system", "v100_32gb_sxm")
    assert done.code == 0
    assert "calibrated" in done.out
    bad = written(tmp_path / "b.csv", {**good, "dtype": "fp5"}, {**good, "M": "0"})
    done = run("predict", "dense", bad, "--system", "v100_32gb_sxm")
    assert done.code == 2
    assert ":2: dtype" in done.err
    assert ":3: M must" in done.err


@pytest.mark.parametrize("text", ["zipf -1", "zipf 1e9", "power law alpha = -0.5", "zipf nan"])
def test_a_law_with_an_exponent_that_none_has_is_not_taken_for_another(text: str) -> None:
    """Only the first digits of it were read."""
    assert named_law(text, 9) is None
    assert named_law("zipf 1.2e0", 9) == Zipf(num_embeddings=9, exponent=1.2)
    assert named_law("zipf-1.2", 9) == Zipf(num_embeddings=9, exponent=1.2)


def test_indices_without_a_bag_that_could_hold_them_are_refused() -> None:
    """They were taken for a million bags each."""
    given = {"phase": "forward", "rows_per_table": "9", "dim": "4", "lookups_total": "100"}
    with pytest.raises(ValueError, match="no bag holds an index"):
        lookup_call({**given, "pooling_factor": "0"})
    assert not isinstance(lookup_call({**given, "lookups_total": "0"}), str)
