"""``stats.json``: strict, the same text for the same numbers, and a law for any table it fits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner import io
from planner.errors import InvalidInputError
from planner.io.workload.table_list import parse_table_map
from planner.profiling.profiler import build_table_map, profile_files
from planner.profiling.readers import NpyReader, Source
from planner.profiling.statistics import ProfileOptions
from planner.profiling.stats import load_stats, stats_text
from tests.index_laws import range_share
from tests.planner.profiling.samples import write_npy, zipf_ids

WORKLOAD = """
name: small
training: {{batch_size_per_rank: 512}}
tables:
  - {{name: {table}, num_embeddings: {rows}, embedding_dim: 16, distribution: {distribution}}}
"""


@pytest.fixture(scope="module")
def stats_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stats")
    ids = zipf_ids(3_000, 1.1, 0.0, 20_000)
    path = write_npy(folder / "day_0_sparse.npy", np.stack([ids, ids // 2], axis=1))
    profile_files([path], folder / "stats.json", ProfileOptions(batch_sizes=(512,)))
    return folder / "stats.json"


@pytest.fixture
def data(stats_file: Path) -> Any:
    return json.loads(stats_file.read_text())


def test_round_trip(stats_file: Path) -> None:
    assert stats_text(load_stats(stats_file)) == stats_file.read_text()


CHANGES: list[tuple[tuple[str | int, ...], object, str]] = [
    (("kind",), "other", "kind: Input should be 'shardplan_stats'"),
    (("schema_version",), 1, "schema_version: Input should be 2"),
    (("tables", "cat_0", "num_samples"), "many", r"tables\.cat_0\.num_samples: .*integer"),
    (("tables", "cat_0", "num_samples"), -1, "greater than or equal to 0"),
    (("tables", "cat_0", "num_samples"), 1.5, "integer"),
    (("tables", "cat_0", "colour"), "red", r"tables\.cat_0\.colour: Extra inputs"),
    (("tables", "cat_0", "zipf", "exponent"), None, "exponent"),
    (("tables", "cat_0", "law", "rows"), [1.0], "equal length"),
    (("tables", "cat_0", "histogram", "rows"), [1], "equal length"),
    (("tables", "cat_0", "unseen_mass_ratio"), 1.5, "less than or equal to 1"),
    (("tables", "cat_0", "ranges", "rows"), [[[9_999, 1.0]]], "names bin 9999"),
]


@pytest.mark.parametrize(("path", "value", "message"), CHANGES)
def test_bad_files(
    data: Any, tmp_path: Path, path: tuple[str | int, ...], value: object, message: str
) -> None:
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file = tmp_path / "stats.json"
    file.write_text(json.dumps(data))
    with pytest.raises(InvalidInputError, match=message) as caught:
        load_stats(file)
    assert all(str(file) in line for line in caught.value.problems)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "Invalid JSON"),
        (b"{", "Invalid JSON"),
        (b"[" * 200_000, "Invalid JSON"),
        (b"[]", "should be an object"),
        (b"\xff\xfe", "cannot be read"),
        (b'{"kind": "shardplan_stats", "schema_version": 2, "tables": {}}', "source: Field req"),
    ],
)
def test_other_files(tmp_path: Path, text: bytes, message: str) -> None:
    file = tmp_path / "stats.json"
    file.write_bytes(text)
    with pytest.raises(InvalidInputError, match=message):
        load_stats(file)


def test_one_error_says_that_a_file_is_of_another_version(data: Any, tmp_path: Path) -> None:
    file = tmp_path / "stats.json"
    file.write_text(json.dumps(data | {"schema_version": 1, "colour": "red"}))
    with pytest.raises(InvalidInputError) as caught:
        load_stats(file)
    assert caught.value.problems == [f"{file}: schema_version: Input should be 2"]


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be read: No such file"):
        load_stats(tmp_path / "none.json")
    with pytest.raises(InvalidInputError, match="cannot be read: Is a directory"):
        load_stats(tmp_path)


def test_many_problems_are_cut_short(data: Any, tmp_path: Path) -> None:
    for table in data["tables"].values():
        for key in list(table)[:8]:
            del table[key]
    file = tmp_path / "stats.json"
    file.write_text(json.dumps(data))
    with pytest.raises(InvalidInputError, match="and 8 more"):
        load_stats(file)


def test_a_law_for_another_size(stats_file: Path) -> None:
    table = load_stats(stats_file).tables["cat_0"]
    rows = table.highest_index + 1
    law = table.distribution(10**6)
    assert law.num_embeddings == 10**6
    assert law.expected_unique_rows(4_096) == pytest.approx(
        table.distribution(rows).expected_unique_rows(4_096), rel=1e-3
    )
    assert range_share(law, rows, 10**6 - rows) == pytest.approx(0.0, abs=1e-6)
    with pytest.raises(InvalidInputError, match=f"ids up to {rows - 1}.*--max-ind-range 10"):
        table.distribution(10)
    hashed = table.model_copy(update={"ids_are_hashes": True, "highest_index": 2**31})
    assert hashed.distribution(rows).num_embeddings == rows
    with pytest.raises(InvalidInputError, match="distinct ids"):
        hashed.distribution(10)


def test_tables_are_found_by_name_or_feature(stats_file: Path) -> None:
    stats = load_stats(stats_file)
    assert stats.table("cat_1") is stats.tables["cat_1"]
    assert stats.table("items", ("cat_1",)) is stats.tables["cat_1"]
    with pytest.raises(InvalidInputError, match="no statistics of table 'items'; there are cat_0"):
        stats.table("items", ("cat_0", "cat_1"))


def test_a_workload_takes_its_laws_from_the_file(stats_file: Path) -> None:
    folder = stats_file.parent
    path = folder / "workload.yaml"
    path.write_text(WORKLOAD.format(table="cat_0", rows=3_000, distribution="{stats: stats.json}"))
    (table,) = io.load_workload(path).tables
    assert table.distribution == load_stats(stats_file).tables["cat_0"].distribution(3_000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"table": "other"}, "no statistics of table 'other'"),
        ({"rows": 10}, "--max-ind-range 10"),
        ({"distribution": "{stats: none.json}"}, "none.json"),
        (
            {"distribution": "{stats: stats.json, kind: zipf, exponent: 1.0}"},
            "unknown key; known here: stats",
        ),
    ],
)
def test_workloads_that_do_not_fit_the_file(
    stats_file: Path, changes: dict[str, Any], message: str
) -> None:
    values = {"table": "cat_0", "rows": 3_000, "distribution": "{stats: stats.json}", **changes}
    path = stats_file.parent / "bad.yaml"
    path.write_text(WORKLOAD.format(**values))
    with pytest.raises(InvalidInputError, match=message):
        io.load_workload(path)


# ------------------------------------------------------------------ table maps


def table_map(names: Sequence[str], wanted: Sequence[str], by_feature: Any) -> Any:
    source = Source(Path("x.npy"), NpyReader(), tuple(names), 1)
    return build_table_map(source, wanted, by_feature)


def test_table_maps(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.yaml"
    pairs.write_text("cat_0: user\ncat_1: item\n")
    workload = tmp_path / "workload.yaml"
    workload.write_text(
        "name: w\ntables:\n"
        "  - {name: user, num_embeddings: 10, features: [cat_0]}\n"
        "  - {name: cat_3}\n"
    )
    names = [f"cat_{i}" for i in range(4)]
    found = table_map(names, (), parse_table_map([str(pairs), "cat_2=item"]))
    assert list(found.items()) == [
        ("user", ("cat_0",)),
        ("item", ("cat_1", "cat_2")),
        ("cat_3", ("cat_3",)),
    ]
    by_feature = parse_table_map([str(workload)])
    assert by_feature is not None
    assert by_feature.num_embeddings["user"] == 10
    assert table_map(names, ("cat_0",), by_feature) == {"user": ("cat_0",)}
    assert parse_table_map([]) is None
    assert table_map(names, (), None)["cat_0"] == ("cat_0",)


def test_a_table_map_reads_a_workload_as_a_plan_does(tmp_path: Path) -> None:
    """Words that other readers of YAML take for truth or times are names; ``count`` counts."""
    workload = tmp_path / "workload.yaml"
    workload.write_text(
        "name: w\ntables:\n"
        "  - {name: no, features: [on, 1:30, 2020-99-99]}\n"
        "  - {name: tag, num_embeddings: 1_000, features: [x, y], count: 2}\n"
        "  - {name: alone, count: 2}\n"
    )
    found = parse_table_map([str(workload)])
    assert found is not None
    assert found.tables == {
        **dict.fromkeys(("on", "1:30", "2020-99-99"), "no"),
        **{"x_0": "tag_0", "y_0": "tag_0", "x_1": "tag_1", "y_1": "tag_1"},
        **{"alone_0": "alone_0", "alone_1": "alone_1"},
    }
    assert found.num_embeddings == {"tag_0": 1000, "tag_1": 1000}
    workload.write_text("no: a\nno: b\n")
    with pytest.raises(InvalidInputError, match="key given twice"):
        parse_table_map([str(workload)])


BAD_MAPS = [
    ("[1, 2]", "must hold keys and values"),
    ("a: [", "not valid YAML"),
    ("a: 3", "'tables' is missing"),
    ("tables: [{features: [a]}]", r"tables\[0\]: key 'name' is missing"),
    ("tables: [{name: a, features: b}]", r"tables\[0\]\.features: value 'b': must be a list"),
    (
        "tables: [{name: a, num_embeddings: many}]",
        "num_embeddings: value 'many': must be a whole number",
    ),
    ("tables: [3]", r"tables\[0\]: value 3: must hold keys and values"),
    ("tables: [{name: a, count: 0}]", r"tables\[0\]\.count: value 0: must be at least 1"),
    ("[" * 3000, "nested deeper"),
    ("tables: [{name: a, features: [x]}, {name: b, features: [x]}]", "in two tables"),
]


@pytest.mark.parametrize(("text", "message"), BAD_MAPS)
def test_bad_table_maps(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        parse_table_map([str(path)])


def test_table_maps_that_do_not_fit_the_data() -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_table_map(["=x", "none.yaml", "a=b", "a=c"])
    assert len(caught.value.problems) == 3
    with pytest.raises(InvalidInputError) as caught:
        table_map(["a", "b"], ["z"], parse_table_map(["y=t"]))
    assert caught.value.problems == [
        "--features: the data has no z; it has a, b",
        "--table-map: the data has no y; it has a, b",
    ]
