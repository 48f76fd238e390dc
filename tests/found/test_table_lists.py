"""Lists of tables as spreadsheets, pandas and other programs write them."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from costmodels.workload import DataType, Pooling, Workload
from planner.errors import InvalidInputError
from planner.io.workload.starter import read_any_list, workload_from_dataframe
from planner.io.workload.workload_file import load_workload_file, workload_file_of

DATA = Path(__file__).parent / "data"


def read(path: Path, dim: int | None = None) -> Workload:
    return workload_file_of(read_any_list(path, dim=dim)).workload


def written(tmp_path: Path, text: str | bytes, name: str = "list.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def shapes(workload: Workload) -> list[tuple[str, int, int]]:
    return [(t.name, t.num_embeddings, t.embedding_dim) for t in workload.tables]


def test_semicolons() -> None:
    assert shapes(read(DATA / "semicolon.csv")) == [("u", 1000, 16), ("v", 2000, 16)]


def test_a_file_of_tabs_is_a_workload_by_its_name(tmp_path: Path) -> None:
    path = written(tmp_path, "name\trows\tdim\nu\t1000\t16\n", "tables.tsv")
    assert shapes(load_workload_file(path).workload) == [("u", 1000, 16)]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize(
    "header",
    ["name rows dim", "table_name vocab_size embedding_size", "Table Num_Embeddings Embedding-Dim",
     "feature cardinality emb_dim"],
)  # fmt: skip
def test_separators_and_usual_names(separator: str, header: str, tmp_path: Path) -> None:
    text = f"{separator.join(header.split())}\nu{separator}1000{separator}16\n"
    assert shapes(read(written(tmp_path, text))) == [("u", 1000, 16)]


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbfsep=;\r\nname;rows;dim;pooling\r\nu;40.000.000;16;2,5\r\n",
        "name\trows\tdim\tpooling\nu\t40,000,000\t16\t2.5\n".encode("utf-16"),
        b"name;rows;dim;pooling\nu;40000000.0;16;2.5\n",
    ],
)
def test_what_spreadsheets_write(data: bytes, tmp_path: Path) -> None:
    (table,) = read(written(tmp_path, data)).tables
    assert (table.num_embeddings, table.embedding_dim) == (40_000_000, 16)
    assert table.pooling_factor == 2.5


def test_several_features_in_a_cell() -> None:
    item, city = read(DATA / "shared_features.csv").tables
    found = [(f.name, f.pooling_factor) for f in item.features]
    assert found == [("history", 50.0), ("target", 1.0)]
    assert [f.name for f in city.features] == ["city"]


@pytest.mark.parametrize("cell", ['"history,target"', "history|target", "history;target",
                                  "\"['history', 'target']\"", "history target"])  # fmt: skip
def test_ways_to_write_two_features(cell: str, tmp_path: Path) -> None:
    text = f"name,rows,dim,features,avg_pooling\nitem,9,8,{cell},50|1\n"
    (item,) = read(written(tmp_path, text)).tables
    assert [(f.name, f.pooling_factor) for f in item.features] == [("history", 50), ("target", 1)]


def test_a_row_for_each_feature_of_a_table(tmp_path: Path) -> None:
    text = "feature,table,rows,dim,hotness\nhistory,item,9,8,50\ntarget,item,9,8,1\nc,c,5,8,1\n"
    item, city = read(written(tmp_path, text)).tables
    assert [(f.name, f.pooling_factor) for f in item.features] == [("history", 50), ("target", 1)]
    assert city.features[0].name == "c"


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "table_name": ["u", "v"],
            "vocab_size": [1e6, 2e6],
            "embedding_dim": [64, 128],
            "avg_pooling": [3.5, float("nan")],
            "dtype": ["float16", "torch.float32"],
            "combiner": ["SUM", "PoolingType.MEAN"],
        }
    )


@pytest.mark.parametrize("keep_index", [True, False])
def test_pandas_writes_what_is_read(keep_index: bool, tmp_path: Path) -> None:
    path = tmp_path / "tables.csv"
    frame().to_csv(path, index=keep_index)
    for workload in (read(path), workload_from_dataframe(frame(), batch_size_per_rank=4096)):
        assert shapes(workload) == [("u", 1_000_000, 64), ("v", 2_000_000, 128)]
        assert [t.pooling_factor for t in workload.tables] == [3.5, 1.0]
        assert [t.dtype for t in workload.tables] == [DataType.FP16, DataType.FP32]
        assert [t.pooling for t in workload.tables] == [Pooling.SUM, Pooling.MEAN]


def test_an_index_of_names(tmp_path: Path) -> None:
    path = tmp_path / "tables.csv"
    frame().set_index("table_name").rename_axis(None).to_csv(path)
    assert [t.name for t in read(path).tables] == ["u", "v"]


def test_one_message_for_each_column(tmp_path: Path) -> None:
    rows = "\n".join(f"t{i},{i + 5},8,x,y" for i in range(300))
    with pytest.raises(InvalidInputError) as caught:
        read(written(tmp_path, f"name,rows,width,owner,notes\n{rows}\n"))
    problems = caught.value.problems
    assert len(problems) == 4
    for column in ("'width'", "'owner'", "'notes'", "'embedding_dim' is missing"):
        assert sum(column in p for p in problems) == 1
    assert all(":1: column" in p for p in problems)
    assert "num_embeddings" in problems[0]


FUXICTR = {
    "dataset_id": "x", "num_fields": 3, "total_features": 5000, "input_length": 52,
    "features": [
        {"price": {"source": "", "type": "numeric"}},
        {"item": {"type": "categorical", "padding_idx": 0, "vocab_size": 4000}},
        {"history": {"type": "sequence", "vocab_size": 4000, "max_len": 50,
                     "share_embedding": "item"}},
        {"city": {"type": "categorical", "vocab_size": 900, "embedding_dim": 8}},
    ],
}  # fmt: skip
NVIDIA = """\
channel_spec:
  categorical: [cat_0.bin, cat_1.bin]
  numerical: numerical
feature_spec:
  cat_0.bin: {cardinality: 100000, dtype: int32}
  cat_1.bin: {cardinality: 39060, dtype: uint16, hotness: 3}
  num_0: {dtype: float16}
metadata: {}
"""
EASYREC = """\
# TorchEasyRec
data_config { batch_size: 8192 dataset_type: ParquetDataset }
feature_configs {
    id_feature { feature_name: "user_id" expression: "user:user_id" hash_bucket_size: 100000
                 embedding_dim: 16 }
}
feature_configs { raw_feature { feature_name: "price" } }
feature_configs { raw_feature { feature_name: "age" boundaries: [1, 2, 3] embedding_dim: 8 } }
feature_configs {
    sequence_feature {
        sequence_name: "click"
        sequence_length: 50
        features { id_feature { feature_name: "cate" num_buckets: 500 embedding_dim: 16
                                embedding_name: "cate_emb" pooling: "sum" } }
    }
}
feature_configs { id_feature { feature_name: "cate_id" num_buckets: 500 embedding_dim: 16
                               embedding_name: "cate_emb" pooling: "sum" } }
"""


def test_fuxictr(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps(FUXICTR), "feature_map.json")
    with pytest.raises(InvalidInputError, match=r"2 features have no embedding dim.*add --dim"):
        read(path)
    workload = read(path, dim=16)
    assert shapes(workload) == [("item", 4000, 16), ("city", 900, 8)]
    assert [(f.name, f.pooling_factor) for f in workload.tables[0].features] == [
        ("item", 1.0),
        ("history", 50.0),
    ]


def test_nvidia_feature_spec(tmp_path: Path) -> None:
    workload = read(written(tmp_path, NVIDIA, "feature_spec.yaml"), dim=128)
    assert shapes(workload) == [("cat_0.bin", 100_000, 128), ("cat_1.bin", 39_060, 128)]
    assert [t.pooling_factor for t in workload.tables] == [1.0, 3.0]


def test_torcheasyrec(tmp_path: Path) -> None:
    workload = read(written(tmp_path, EASYREC, "pipeline.config"))
    assert shapes(workload)[:3] == [
        ("user_id", 100_000, 16),
        ("age", 4, 8),
        ("cate_emb", 500, 16),
    ]
    assert workload.batch_size_per_rank == 8192
    assert [f.pooling_factor for f in workload.tables[2].features] == [50, 1]
    with pytest.raises(InvalidInputError, match="groups are not closed"):
        read(written(tmp_path, EASYREC[:-4], "cut.config"))
