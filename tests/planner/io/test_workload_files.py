"""From a workload file to the nouns: every key arrives where it belongs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.shard_work.wire import exchanged_indices
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.training.communication import Codec, Codecs, Communication, Precision
from costmodels.training.optimizers import RowUpdate
from costmodels.workload import DataType, Interaction, Optimizer, Pipeline, Pooling
from planner.errors import InvalidInputError
from planner.io import load_workload, load_workload_file
from planner.io.workload.workload_file import workload_text
from planner.options.torchrec_rules import legal_types_and_kernels
from tests.planner.io.files import WORKLOAD, changed, refused, write


def test_every_section_arrives(tmp_path: Path) -> None:
    file = load_workload_file(write(tmp_path, "workload.yaml", WORKLOAD))
    workload = file.workload
    assert workload.name == "tiny"
    assert workload.batch_size_per_rank == 512
    assert workload.optimizer is Optimizer.ADAGRAD
    assert workload.output_dtype is DataType.FP16
    assert workload.pipeline is Pipeline.SPARSE_DIST
    assert workload.reserved_bytes == 2**30
    assert workload.dense.interaction is Interaction.CAT
    assert workload.dense.bottom_mlp == (16, 8)
    assert [t.name for t in workload.tables] == ["user", "item", "hour_0", "hour_1", "hour_2"]
    user, item, hour = workload.tables[:3]
    assert user.num_embeddings == 40_000
    assert user.distribution == Zipf(num_embeddings=40_000, exponent=1.05)
    assert [(f.name, f.pooling_factor) for f in user.features] == [("user", 1.0)]
    assert [(f.name, f.pooling_factor) for f in item.features] == [("clicked", 20), ("bought", 4.5)]
    assert hour.distribution == Uniform(num_embeddings=24)
    assert hour.features[0].name == "hour_0"


def test_constraints_arrive(tmp_path: Path) -> None:
    constraints = load_workload_file(write(tmp_path, "workload.yaml", WORKLOAD)).constraints
    own, pattern = constraints.tables
    assert own.matches("item")
    assert own.sharding_types == (ShardingType.ROW_WISE, ShardingType.COLUMN_WISE)
    assert own.min_column_width == 8
    assert pattern.pattern == "hour_*"
    assert pattern.sharding_types == (ShardingType.DATA_PARALLEL,)


def test_what_is_assumed_is_said(tmp_path: Path) -> None:
    text = changed(WORKLOAD, "memory: {reserve: 1 GiB}\n", "")
    warnings = load_workload_file(write(tmp_path, "workload.yaml", text)).warnings
    assert warnings == (
        "4 tables have no distribution: every row is taken as equally likely",
        "no memory.reserve: nothing is kept for framework, allocator and NCCL",
    )


def test_codecs_arrive_and_what_they_rule_out_is_said(tmp_path: Path) -> None:
    """A table's own entry replaces that of the training; int8 keeps rows together."""
    text = changed(WORKLOAD, "output_dtype: fp16", "communication: {forward: int8, backward: bf16}")
    own = "communication: {reduce_scatter: {forward: fp16}}\n    constraints:"
    file = load_workload_file(
        write(tmp_path, "workload.yaml", changed(text, "constraints: {sh", own + " {sh"))
    )
    told = {t.name: t.communication for t in file.workload.tables}
    fp16 = Codecs(forward=Codec(precision=Precision.FP16))
    assert told["item"] == Communication(reduce_scatter=fp16)
    assert told["user"] == Communication.of(Precision.INT8, Precision.BF16)
    assert any("pooled tables are not cut by rows" in w for w in file.warnings)
    user, item = file.workload.tables[:2]
    assert ShardingType.ROW_WISE not in legal_types_and_kernels(user)
    assert ShardingType.ROW_WISE in legal_types_and_kernels(item)


def test_unpooled_tables_may_exchange_distinct_indices(tmp_path: Path) -> None:
    """All of them by one key, which says that it leaves pooled tables out; or table by table."""
    text = WORKLOAD.replace("training:", "training:\n  deduplicate_indices: true", 1)
    assert "deduplicate_indices" in text
    sequence = "\n  - {name: seq, num_embeddings: 9, embedding_dim: 4, pooling: none}"
    path = write(tmp_path, "workload.yaml", text.replace("\ntables:", "\ntables:" + sequence, 1))
    file = load_workload_file(path)
    found = {t.name: t.deduplicates_indices for t in file.workload.tables}
    assert found.pop("seq")
    assert not any(found.values())
    assert any(f"{len(found)} pooled tables" in w for w in file.warnings)
    own = load_workload_file(path, overrides=(("tables.0.deduplicate_indices", "false"),))
    assert not own.workload.tables[0].deduplicates_indices
    refused(
        lambda: load_workload_file(path, overrides=(("tables.1.deduplicate_indices", "true"),)),
        path,
        "deduplicate_indices needs pooling none",
    )


def test_all_optional_keys(tmp_path: Path) -> None:
    text = """
name: all
training:
  batch_size_per_rank: 8
  embedding_dtype: fp16
  gradient_dtype: bf16
  row_update: per_index
  pipeline: prefetch_sparse_dist
  index_bytes: 4
  cuda_graph: true
  input_samples_per_s: 2_000_000
tables:
  - name: a*b
    num_embeddings: 0x10
    embedding_dim: 4
    dtype: int8
    pooling: none
    is_weighted: true
    module: model.embeddings
    features: [f]
    count: 2
    distribution: {kind: zipf, exponent: 1, shift: 2.5, scattered: false, ids_per_draw: 3}
    constraints:
      kernels: [fused_uvm_caching]
      ranks: [0, 1]
      hosts: [0]
      cache_load_factors: [0.1, 0.5]
"""
    file = load_workload_file(write(tmp_path, "workload.yaml", text))
    workload, table = file.workload, file.workload.tables[1]
    assert workload.index_bytes == 4
    assert workload.cuda_graph
    assert workload.gradient_dtype is DataType.BF16
    assert workload.input_samples_per_s == 2e6
    assert (table.name, table.module, table.pooling) == ("a*b_1", "model.embeddings", Pooling.NONE)
    assert table.dtype is DataType.INT8
    assert table.is_weighted
    assert table.row_update is RowUpdate.PER_INDEX
    assert table.features[0].name == "f_1"
    assert table.distribution == Zipf(
        num_embeddings=16, exponent=1.0, shift=2.5, scattered=False, ids_per_draw=3
    )
    first, second = file.constraints.tables
    assert first.matches("a*b_0")
    assert not first.matches("aXb_0")
    assert second.kernels == (ComputeKernel.FUSED_UVM_CACHING,)
    assert second.cache_load_factors == (0.1, 0.5)
    assert (second.ranks, second.hosts) == ((0, 1), (0,))


def test_aliases_and_merges(tmp_path: Path) -> None:
    text = """
name: shared
training: {batch_size_per_rank: 8}
tables:
  - &first
    {name: a, num_embeddings: 10, embedding_dim: 4, distribution: &law {kind: zipf, exponent: 1}}
  - {<<: *first, name: b, num_embeddings: 20}
  - {name: c, num_embeddings: 30, embedding_dim: 8, distribution: *law}
"""
    path = write(tmp_path, "workload.yaml", text)
    tables = load_workload(path).tables
    assert [(t.name, t.num_embeddings, t.embedding_dim) for t in tables] == [
        ("a", 10, 4),
        ("b", 20, 4),
        ("c", 30, 8),
    ]
    assert all(isinstance(t.distribution, Zipf) for t in tables)
    over = (("tables.0.distribution.exponent", "0.5"),)
    laws = [t.distribution for t in load_workload_file(path, overrides=over).workload.tables]
    assert [law.exponent for law in laws if isinstance(law, Zipf)] == [0.5, 1.0, 1.0]


def test_byte_order_mark_and_windows_lines(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + WORKLOAD.replace("\n", "\r\n").encode()
    assert len(load_workload_file(write(tmp_path, "workload.yaml", text)).workload.tables) == 5


# ------------------------------------------------------------------ --set


@pytest.mark.parametrize(
    ("key", "text", "attribute", "value"),
    [
        ("training.batch_size_per_rank", "1_024", "batch_size_per_rank", 1024),
        ("training.pipeline", "none", "pipeline", Pipeline.NONE),
        ("training.cuda_graph", "true", "cuda_graph", True),
        ("memory.reserve", "2 GiB", "reserved_bytes", 2**31),
        ("name", "other", "name", "other"),
    ],
)
def test_overrides(tmp_path: Path, key: str, text: str, attribute: str, value: object) -> None:
    path = write(tmp_path, "workload.yaml", WORKLOAD)
    workload = load_workload_file(path, overrides=((key, text),)).workload
    assert getattr(workload, attribute) == value


def test_an_override_may_begin_a_section(tmp_path: Path) -> None:
    text = changed(WORKLOAD, "memory: {reserve: 1 GiB}\n", "")
    path = write(tmp_path, "workload.yaml", text)
    over = (("memory.reserve", "3 GiB"), ("tables.0.constraints.ranks", "[0, 1]"))
    file = load_workload_file(path, overrides=over)
    assert file.workload.reserved_bytes == 3 * 2**30
    assert file.constraints.tables[0].ranks == (0, 1)


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("tabels.0.embedding_dim", "3", "no such key"),
        ("tables.99.embedding_dim", "3", "no such key"),
        ("tables.-1.embedding_dim", "3", "no such key"),
        ("tables.x.embedding_dim", "3", "no such key"),
        ("tables.9", "3", "no such key"),
        ("name.first", "3", "no such key"),
        ("3", "3", "no such key"),
        ("", "3", "unknown key"),
        ("tables.0.embedding_dim", "x", "whole number"),
        ("tables.0.embedding_dims", "4", "did you mean 'embedding_dim'?"),
        ("training.pipline", "none", "did you mean 'pipeline'?"),
        ("dense", "[", "bracket"),
        ("memory.reserve", "5", "with a unit"),
    ],
)
def test_bad_overrides(tmp_path: Path, key: str, text: str, expected: str) -> None:
    path = write(tmp_path, "workload.yaml", WORKLOAD)
    with pytest.raises(InvalidInputError) as caught:
        load_workload_file(path, overrides=((key, text),))
    (line,) = caught.value.problems
    assert line.startswith(f"--set {key}={text}")
    assert expected in line


# ------------------------------------------------------------------ CSV


def test_csv_list(tmp_path: Path) -> None:
    text = (
        "name,rows,dim,pooling_factor,zipf_exponent,dtype,count\r\n"
        "user,40_000,64,3.5,1.05,fp16,\r\n"
        "\r\n"
        "7,24,16,,,,2\r\n"
    )
    path = write(tmp_path, "tables.csv", text)
    file = load_workload_file(path, overrides=(("training.batch_size_per_rank", "64"),))
    user, seven, _ = file.workload.tables
    assert file.workload.name == "tables"
    assert file.workload.batch_size_per_rank == 64
    assert user.distribution == Zipf(num_embeddings=40_000, exponent=1.05)
    assert (user.pooling_factor, user.dtype) == (3.5, DataType.FP16)
    assert (seven.name, seven.pooling_factor, seven.dtype) == ("7_0", 1.0, DataType.FP32)
    assert "training.batch_size_per_rank" not in file.assumed
    bare = load_workload_file(path)
    assert bare.workload.batch_size_per_rank == 4096
    assert "training.batch_size_per_rank" in bare.assumed
    assert bare.assumed["tables.pooling_factor"] == ("7_0", "7_1")


HEADER = "name,num_embeddings,embedding_dim"
BAD_LISTS: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "empty": ("", ("no tables",)),
    "no rows": (HEADER, ("no tables",)),
    "cell missing": (f"{HEADER}\na,1\n", (":2: 2 cells", "3 columns")),
    "cell too many": (f"{HEADER}\na,1,2,3\n", (":2: 4 cells",)),
    "column twice": ("name,rows,num_embeddings\na,1,2\n", (":1: column 'num_embeddings'", "twice")),
    "unknown column": (f"{HEADER},colour\na,1,2,red\n", (":1: column 'colour': unknown",)),
    "no dimension": ("name,rows\na,1\n", (":1: ", "'embedding_dim' is missing")),
    "rows in words": (f"{HEADER}\na,1,4\nb,many,4\n", (":3: tables[1].num_embeddings", "'many'")),
    "quote open": (f'{HEADER}\n"a,1,4\n', ("not well-formed CSV",)),
    "name twice": (f"{HEADER}\na,1,4\na,1,4\n", (":3: tables[1].name", "'a'", "2 tables")),
    "not utf-8": (b"name,rows,dim\n\xff,1,4\n", (":2: not UTF-8",)),
}


@pytest.mark.parametrize("name", BAD_LISTS)
def test_bad_lists(name: str, tmp_path: Path) -> None:
    text, expected = BAD_LISTS[name]
    path = write(tmp_path, "tables.csv", text)
    refused(lambda: load_workload(path), path, *expected)


# ------------------------------------------------------------------ statistics


def test_measured_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The law and, where the file says none, the pooling factors come from the statistics."""
    law = Zipf(num_embeddings=40_000, exponent=0.7)

    class Measured:
        features: dict[str, object] = {}  # noqa: RUF012
        is_undersampled = False

        class pooling:  # noqa: N801
            mean = 2.5

        def distribution(self, num_embeddings: int) -> Zipf:
            assert num_embeddings == 40_000
            return law

        def next_batch_ratio(self, *, distinct: bool) -> float:
            return 0.75 if distinct else 0.5

    class Statistics:
        def table(self, name: str, features: tuple[str, ...]) -> Measured:
            assert (name, features) == ("user", ("user",))
            return Measured()

    monkeypatch.setattr("planner.io.workload.workload_file.load_stats", lambda path: Statistics())
    write(tmp_path, "stats.json", json.dumps({}))
    text = changed(WORKLOAD, "{kind: zipf, exponent: 1.05}", "{stats: stats.json}")
    table = load_workload_file(write(tmp_path, "workload.yaml", text)).workload.tables[0]
    assert table.distribution == law
    assert table.pooling_factor == 2.5
    assert table.next_batch_ratio is None
    unpooled = changed(text, "{stats: stats.json}", "{stats: stats.json}\n    pooling: none")
    assert (
        load_workload_file(write(tmp_path, "workload.yaml", unpooled))
        .workload.tables[0]
        .next_batch_ratio
        == 0.5
    )


def test_the_share_of_the_next_batch_is_held_against_its_limits_at_its_key(tmp_path: Path) -> None:
    shared = "distribution: {kind: zipf, exponent: 1.05}"
    text = changed(WORKLOAD, shared, f"{shared}\n    next_batch_ratio: 1.5")
    with pytest.raises(InvalidInputError, match=r"next_batch_ratio: .* must be at most 1"):
        load_workload_file(write(tmp_path, "workload.yaml", text))


def test_statistics_that_are_none(tmp_path: Path) -> None:
    write(tmp_path, "stats.json", json.dumps({"a": 1}))
    text = changed(WORKLOAD, "{kind: zipf, exponent: 1.05}", "{stats: stats.json}")
    path = write(tmp_path, "workload.yaml", text)
    refused(lambda: load_workload(path), path, "tables[0]", "stats.json")


def test_half_a_sample_per_rank_is_read_written_and_refused_without_a_partner(
    tmp_path: Path,
) -> None:
    """Two ranks that share layers have one sample together."""
    layer = "{kind: transformer, layers: 2, hidden: 64, heads: 4, ffn: 256, seq: 16}"
    path = tmp_path / "half.yaml"
    text = (
        "name: half\n"
        "training: {batch_size_per_rank: 0.5, tensor_parallel: 2}\n"
        f"dense: {{num_dense_features: 1024, layers: [{layer}]}}\n"
    )
    path.write_text(text, encoding="utf-8")
    assert load_workload(path).batch_size_per_rank == 0.5
    path.write_text(text.replace(", tensor_parallel: 2", ""), encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"batch_size_per_rank must be 1..1e8, got 0.5"):
        load_workload(path)


REPEATING = """\
name: users
training: {{batch_size_per_rank: 1024, deduplicate_indices: true}}
tables:
  - {{name: artist, num_embeddings: 1293395, embedding_dim: 512, pooling_factor: 2627,
     pooling: none, distinct_per_batch: {given}, distribution: {law}}}
"""


@pytest.mark.parametrize("given", ["0.006", "[[100000, 2000], [2690048, 16140.288]]"])
@pytest.mark.parametrize("law", ["{kind: zipf, exponent: 1.05}", "{kind: uniform}"])
def test_repetition_in_a_batch_beside_popularity(tmp_path: Path, given: str, law: str) -> None:
    text = REPEATING.format(given=given, law=law)
    path = write(tmp_path, "workload.yaml", text)
    workload = load_workload(path)
    (table,) = workload.tables
    indices = 1024 * 2627
    plain = re.sub(r"distinct_per_batch: .*, dist", "dist", text)
    popular = load_workload(write(tmp_path, "plain.yaml", plain)).tables[0].distribution
    assert table.distribution.expected_unique_rows(indices) == pytest.approx(0.006 * indices)
    assert exchanged_indices(table, 1024) == pytest.approx(0.006 * indices)
    assert table.distribution.access_share(10) == pytest.approx(popular.access_share(10))
    assert table.distribution.hottest_share(8) == pytest.approx(popular.hottest_share(8))
    written = write(tmp_path, "again.yaml", workload_text(workload))
    assert load_workload(written) == workload


@pytest.mark.parametrize(
    ("given", "law", "words"),
    [
        ("0.006", "{kind: zipf, exponent: 1.05, scattered: false}", "scattered: false"),
        ("0.006", "{kind: zipf, exponent: 1.05, ids_per_draw: 3}", "ids_per_draw above 1"),
        (
            "0.006",
            "{kind: bins, rows: [1293395], probability: [7.731590117481203e-07], "
            "unique_rows: [[10, 5]]}",
            "unique_rows",
        ),
        ("0.9", "{kind: zipf, exponent: 1.4}", "by the distribution there are"),
        ("[[10, 5], [20, 4]]", "{kind: uniform}", "must ascend"),
        ("0", "{kind: uniform}", "distinct_per_batch"),
    ],
)
def test_repetition_that_contradicts_the_law(
    tmp_path: Path, given: str, law: str, words: str
) -> None:
    path = write(tmp_path, "workload.yaml", REPEATING.format(given=given, law=law))
    refused(lambda: load_workload(path), path, words)


def test_a_list_of_tables_may_have_the_share_of_distinct_ids(tmp_path: Path) -> None:
    text = "name,rows,dim,pooling_factor,zipf,distinct_per_batch\na,1000000,64,100,1.05,0.02\n"
    (table,) = load_workload(write(tmp_path, "tables.csv", text)).tables
    assert table.distribution.expected_unique_rows(409_600) == pytest.approx(0.02 * 409_600)
