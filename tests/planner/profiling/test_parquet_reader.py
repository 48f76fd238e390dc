"""Parquet files as data of features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.errors import InvalidInputError
from planner.profiling.profiler import find_sources
from planner.profiling.readers import READERS, ParquetReader
from tests.planner.profiling.samples import (
    halves,
    read_bags,
)

RNG = np.random.default_rng(7)


@pytest.fixture
def arrow() -> Any:
    """The module pyarrow, with its part for Parquet files."""
    pytest.importorskip("pyarrow.parquet")
    return pytest.importorskip("pyarrow")


def test_parquet(arrow: Any, tmp_path: Path) -> None:
    count = 5_000
    bags = [RNG.integers(0, 99, RNG.integers(0, 6)).tolist() for _ in range(count)]
    scalars = [None if i % 7 == 0 else i for i in range(count)]
    table = arrow.table(
        {
            "label": arrow.array([0] * count),
            "price": arrow.array([0.5] * count),
            "user": arrow.array(scalars, arrow.int32()),
            "clicked_items": arrow.array(
                [None if i % 9 == 0 else bag for i, bag in enumerate(bags)],
                arrow.list_(arrow.int64()),
            ),
            "pair": arrow.array(
                [None if i % 5 == 0 else [i, i + 1] for i in range(count)],
                arrow.list_(arrow.int64(), 2),
            ),
        }
    )
    path = tmp_path / "part-0.parquet"
    arrow.parquet.write_table(table, path, row_group_size=700)
    reader = ParquetReader()
    expected = {
        "user": [[] if v is None else [v] for v in scalars],
        "clicked_items": [[] if i % 9 == 0 else bag for i, bag in enumerate(bags)],
        "pair": [[] if i % 5 == 0 else [i, i + 1] for i in range(count)],
    }
    assert read_bags(reader, path) == expected
    assert read_bags(reader, path, halves(reader, path, 3)) == expected
    assert read_bags(reader, path, [slice(695, 705)])["user"] == expected["user"][695:705]
    assert reader.look(path).num_samples == count
    assert reader.look(path).left_out == ("label: int64", "price: double")


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(InvalidInputError, match=r"shardplan\[data\]"):
        ParquetReader().look(tmp_path / "x.parquet")


def test_parquet_lists_are_features_whatever_their_name(arrow: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = arrow.table({"label": [0, 1], "clicked": [[3, 4], [5]], "click": [1, 0]})
    arrow.parquet.write_table(table, path)
    assert ParquetReader().look(path).names == ("clicked",)
    assert ParquetReader().look(path).left_out == ("label: int64", "click: int64")


def test_parquet_columns_of_one_name_are_refused(arrow: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    columns = [arrow.array([1, 2]), arrow.array([3, 4])]
    arrow.parquet.write_table(arrow.Table.from_arrays(columns, names=["a", "a"]), path)
    with pytest.raises(InvalidInputError, match="has several columns of the name 'a'"):
        ParquetReader().look(path)


def test_a_parquet_column_may_be_called_like_the_inside_of_another(
    arrow: Any, tmp_path: Path
) -> None:
    path = tmp_path / "x.parquet"
    arrow.parquet.write_table(arrow.table({"a": [[1], [2]], "a.list": [3, 4]}), path)
    (chunk,) = ParquetReader().read(path, slice(0, None), ["a.list"])
    assert chunk.batch.to_pydict() == {"a.list": [3, 4]}


def test_parquet_names_that_are_no_text_are_refused(arrow: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    arrow.parquet.write_table(arrow.table({"qqqqqqqq": [1, 2]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"qqqqqqqq", b"qqqq\xffqqq"))
    with pytest.raises(InvalidInputError, match="not a whole parquet file"):
        ParquetReader().look(path)


def test_bad_parquet_columns(arrow: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    arrow.parquet.write_table(arrow.table({"price": [0.5]}), path)
    with pytest.raises(InvalidInputError, match="no column of integers"):
        ParquetReader().look(path)
    arrow.parquet.write_table(arrow.table({"user": arrow.array([], arrow.int64())}), path)
    with pytest.raises(InvalidInputError, match="has no rows"):
        find_sources([path], READERS)
    arrow.parquet.write_table(arrow.table({"user": [[1, None]]}), path)
    with pytest.raises(InvalidInputError, match="missing index"):
        read_bags(ParquetReader(), path)
