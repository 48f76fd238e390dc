"""Workload files with one slip each: one clean error that names file, key, value and rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.io import load_workload
from tests.planner.io.files import WORKLOAD, changed, refused, write

BATCH = "batch_size_per_rank: 512"
USER = "name: user"
ROWS = "num_embeddings: 40_000"
LAW = "{kind: zipf, exponent: 1.05}"
POOLING = "[20, 4.5]"
TYPES = "[row_wise, column_wise]"
RESERVE = "1 GiB"

# name: (what is replaced, by what, what one line of the error must contain)
SLIPS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "no input": (BATCH, f"{BATCH}\n  input_samples_per_s: -1", ("input_samples_per_s", "above 0")),
    # missing and unknown keys
    "no name": ("name: tiny\n", "", ("'name' is missing", "add it")),
    "no batch": (f"  {BATCH}\n", "", (":2: training: key 'batch_size_per_rank' is missing",)),
    "no rows": (f"    {ROWS}\n", "", ("tables[0]: key 'num_embeddings' is missing",)),
    "no kind": (LAW, "{exponent: 1}", ("tables[0].distribution", "'kind' is missing")),
    "unknown key": (USER, f"{USER}\n    rows: 5", ("tables[0].rows", "value 5", "unknown key")),
    "misspelt key": (
        ROWS,
        f"{ROWS}\n    num_embedings: 3",
        (":11: tables[0].num_embedings", "value 3", "did you mean 'num_embeddings'?"),
    ),
    "misspelt section": ("memory:", "memry:", ("memry", "did you mean 'memory'?", "known here")),
    "unknown key of dense": ("interaction: cat", "depth: 3", ("dense.depth", "3", "bottom_mlp")),
    "unknown key of a law": (
        LAW,
        "{kind: uniform, alpha: 1}",
        ("distribution.alpha", "unknown key", "scattered"),
    ),
    "key twice": (USER, f"{USER}\n    {USER}", ("tables[0].name", "given twice")),
    # whole numbers
    "batch as text": (BATCH, "batch_size_per_rank: '512'", ("'512'", "must be a number")),
    "batch in parts": (BATCH, "batch_size_per_rank: 512.5", ("512.5", "whole number")),
    "batch as bool": (BATCH, "batch_size_per_rank: true", ("value True", "must be a number")),
    "batch empty": (BATCH, "batch_size_per_rank:", ("value None", "must be a number")),
    "shares beside a pipeline": (
        BATCH,
        f"{BATCH}\n  batch_shares: [1, 2]\n  pipeline: hugectr",
        ("batch_shares contradict pipeline hugectr",),
    ),
    "shares beside codecs": (
        BATCH,
        f"{BATCH}\n  batch_shares: proportional\n  communication: {{forward: fp16}}",
        ("batch_shares contradict communication",),
    ),
    "batch zero": (BATCH, "batch_size_per_rank: 0", ("value 0", "above 0")),
    "batch negative": (BATCH, "batch_size_per_rank: -4", ("value -4", "above 0")),
    "batch huge": (BATCH, "batch_size_per_rank: 1_000_000_000", ("value 1000000000", "at most")),
    "batch a list": (BATCH, "batch_size_per_rank: [512]", ("[512]", "must be a number")),
    "batch octal": (BATCH, "batch_size_per_rank: 0512", ("'0512'", "must be a number")),
    "rows with suffix": (ROWS, "num_embeddings: 40M", ("tables[0].num_embeddings", "'40M'")),
    "rows with commas": (ROWS, "num_embeddings: 40,000", ("'40,000'", "whole number")),
    "rows beyond memory": (ROWS, "num_embeddings: 999999999999999999999", ("at most",)),
    "rows infinite": (ROWS, "num_embeddings: .inf", ("inf", "whole number")),
    "dim zero": ("embedding_dim: 64", "embedding_dim: 0", ("embedding_dim", "value 0")),
    "dim too wide": ("embedding_dim: 64", "embedding_dim: 70000", ("70000", "at most 16384")),
    "count zero": ("count: 3", "count: 0", ("tables[2].count", "value 0", "at least 1")),
    "count huge": ("count: 3", "count: 1_000_000", ("tables[2].count", "at most 100000")),
    "layer of zero": ("[16, 8]", "[16, 0]", ("dense.bottom_mlp[1]", "value 0", "at least 1")),
    "layer as text": ("[16, 8]", "[16, x]", ("dense.bottom_mlp[1]", "'x'", "whole number")),
    "index bytes": (BATCH, f"{BATCH}\n  index_bytes: 2", ("training.index_bytes", "value 2", "4")),
    # other numbers
    "pooling as text": (POOLING, "many", ("tables[1].pooling_factor", "'many'", "number")),
    "pooling as bool": (POOLING, "yes", ("tables[1].pooling_factor", "'yes'")),
    "pooling negative": (POOLING, "[20, -1]", ("pooling_factor[1]", "value -1", "at least 0")),
    "pooling nan": (POOLING, "[20, .nan]", ("pooling_factor[1]", "nan", "finite")),
    "pooling too short": (
        POOLING,
        "[20]",
        (":17: tables[1].pooling_factor", "[20.0]", "2 entries"),
    ),
    "exponent negative": (LAW, "{kind: zipf, exponent: -1}", ("exponent", "-1", "at least 0")),
    "exponent large": (
        LAW,
        "{kind: zipf, exponent: 11}",
        ("distribution.exponent", "11", "at most 10"),
    ),
    "exponent overflows": (LAW, "{kind: zipf, exponent: 1e999}", ("exponent", "inf")),
    "exponent missing": (
        LAW,
        "{kind: zipf}",
        (":12: tables[0].distribution", "'exponent' is missing"),
    ),
    "exponent of uniform": (
        LAW,
        "{kind: uniform, exponent: 1}",
        ("distribution.exponent", "value 1", "unknown key"),
    ),
    "shift negative": (LAW, "{kind: zipf, exponent: 1, shift: -1}", ("shift", "-1")),
    "scattered as text": (LAW, "{kind: uniform, scattered: no}", ("scattered", "'no'", "true or")),
    "input rate zero": (BATCH, f"{BATCH}\n  input_samples_per_s: 0", ("value 0", "above 0")),
    "load factor above one": (
        "min_column_width: 8",
        "cache_load_factors: [1.5]",
        ("tables[1].constraints.cache_load_factors[0]", "1.5", "below 1"),
    ),
    # quantities
    "reserve without unit": (RESERVE, "6", ("memory.reserve", "value 6", "'80 GiB'")),
    "reserve in seconds": (RESERVE, "6 s", ("memory.reserve", "'6 s'", "GiB")),
    "reserve negative": (RESERVE, "-1 GiB", ("memory.reserve", "'-1 GiB'", "not negative")),
    "reserve in words": (RESERVE, "plenty", ("memory.reserve", "'plenty'", "unit")),
    "reserve empty": (RESERVE, "null", ("memory.reserve", "value None", "number with its unit")),
    # words
    "optimizer unknown": (
        "optimizer: adagrad",
        "optimizer: adagrat",
        (":4: training.optimizer", "'adagrat'", "did you mean 'adagrad'?"),
    ),
    "optimizer a number": ("optimizer: adagrad", "optimizer: 3", ("value 3", "must be one of")),
    "dtype unknown": ("output_dtype: fp16", "output_dtype: float16", ("'float16'", "fp16")),
    "codec unknown": (
        "output_dtype: fp16",
        "communication: {forward: int4}",
        ("training.communication.forward", "'int4'", "int8"),
    ),
    "pair of two types": (
        "min_column_width: 8",
        "pairs: [[row_wise, table_wise]]",
        ("pairs[0]", "'table_wise'", "fused"),
    ),
    "interaction unknown": ("interaction: cat", "interaction: sum", ("'sum'", "dot, cat, dcn")),
    "cross network without layers": ("interaction: cat", "interaction: dcn", ("dcn_num_layers",)),
    "law unknown": (LAW, "{kind: gauss}", ("distribution.kind", "'gauss'", "zipf")),
    "type unknown": (TYPES, "[rowwise]", ("sharding_types[0]", "'rowwise'", "'row_wise'?")),
    "type not a list": (TYPES, "row_wise", ("sharding_types", "'row_wise'", "list")),
    "kernel unknown": ("min_column_width: 8", "kernels: [fast]", ("kernels[0]", "'fast'")),
    # names
    "name empty": (USER, "name: ''", ("tables[0].name", "''", "empty")),
    "name of blanks": (USER, "name: ' '", ("tables[0].name", "' '")),
    "name a number": (USER, "name: 7", ("tables[0].name", "value 7", "text")),
    "name taken": (USER, "name: item", ("tables[0].name", "'item'", "2 tables have this name")),
    "name of a repeat taken": (USER, "name: hour_1", ("'hour_1'", "2 tables")),
    "feature twice": ("[clicked, bought]", "[bought, bought]", ("features", "'bought'", "twice")),
    "no features": ("[clicked, bought]", "[]", ("tables[1].features", "at least 1")),
    "pattern without table": ('"hour_*"', '"day_*"', (":21: constraints[0].tables", "'day_*'")),
    "rank negative": ("min_column_width: 8", "ranks: [-1]", ("ranks[0]", "value -1", "at least 0")),
    # shape of the file
    "tables a mapping": ("tables:\n  - name: user\n    num", "tables:\n    num", ("YAML",)),
    "training a list": ("memory: {reserve: 1 GiB}", "memory: []", ("memory", "keys and values")),
    "dense a word": (
        "memory: {reserve: 1 GiB}",
        "memory: none",
        ("memory", "'none'", "keys and values"),
    ),
    "stats missing": (LAW, "{stats: none.json}", ("tables[0]", "none.json", "cannot be read")),
    "stats and law": (
        LAW,
        "{stats: a.json, kind: zipf}",
        ("distribution.kind", "'zipf'", "unknown key", "stats"),
    ),
    "tab": ("  optimizer", "\toptimizer", (":4", "spaces, not tabs")),
    "colon in text": ("name: tiny", "name: my: model", (":1", "quotes")),
    "bracket open": ("[16, 8]", "[16, 8", (":6", "bracket")),
    "quote open": (USER, "name: 'user", ("quotes are not closed",)),
    "bad indent": ("  output_dtype", " output_dtype", ("indentation",)),
    "tag": (USER, "name: !!python/name:os.system x", (":9", "tag")),
    "unknown alias": (USER, "name: *nobody", (":9", "'*nobody'")),
    "two documents": ("memory:", "---\nmemory:", (":7", "second document")),
    "list as key": (USER, "[a]: b", ("key must be a word",)),
    "merge of a word": (LAW, "{<<: zipf}", ("merges mappings only",)),
}


@pytest.mark.parametrize("name", SLIPS)
def test_slip(name: str, tmp_path: Path) -> None:
    old, new, expected = SLIPS[name]
    path = write(tmp_path, "workload.yaml", changed(WORKLOAD, old, new))
    refused(lambda: load_workload(path), path, *expected)


WHOLE: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "empty": ("", ("is empty",)),
    "comments only": ("# nothing\n", ("is empty",)),
    "a list": ("- 1\n- 2\n", ("keys and values at the top",)),
    "a word": ("hello", ("keys and values at the top",)),
    "not utf-8": ("name: caf\xe9\n".encode("latin-1"), (":1: not UTF-8", "0xe9")),
    "utf-16 without its mark": ("name: tiny\n".encode("utf-16-le"), ("control characters",)),
    "binary": (bytes(range(1, 9)) * 9, ("control characters",)),
    "zero byte": ("name: a\x00b", ("control characters",)),
    "deep": ("a: " + "[" * 200 + "]" * 200, ("nested deeper than 32",)),
    "deeper than the stack": ("[" * 100_000, ("nested deeper than 32",)),
    "recursive alias": ("a: &a [*a]", ("'*a'",)),
    "no tables": (
        "name: a\ntraining: {batch_size_per_rank: 1}\ntables: []\n",
        ("at least one table or a dense part",),
    ),
    "a system": ("name: a\ndevice: {}\nhost: {}\n", ("device", "unknown key")),
    "too many repeats": (
        "name: a\ntraining: {batch_size_per_rank: 1}\ntables:\n"
        + "".join(
            f"  - {{name: t{i}, num_embeddings: 1, embedding_dim: 4, count: 90_000}}\n"
            for i in range(2)
        ),
        ("180,000 tables", "at most 100,000"),
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_file(name: str, tmp_path: Path) -> None:
    content, expected = WHOLE[name]
    path = write(tmp_path, "workload.yaml", content)
    refused(lambda: load_workload(path), path, *expected)


def test_alias_bomb(tmp_path: Path) -> None:
    levels = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 10)]
    path = write(tmp_path, "bomb.yaml", "\n".join(["l0: &l0 [a, a, a, a, a]", *levels]))
    refused(lambda: load_workload(path), path, "aliases stand for more than 4,000,000 values")


def test_all_problems_at_once(tmp_path: Path) -> None:
    text = changed(WORKLOAD, BATCH, "batch_size_per_rank: 0")
    text = changed(text, RESERVE, "6")
    text = changed(text, "embedding_dim: 64", "embedding_dim: x")
    path = write(tmp_path, "workload.yaml", changed(text, USER, "nam: user"))
    lines = refused(lambda: load_workload(path), path)
    assert [line.split(": ")[1] for line in lines] == [
        "training.batch_size_per_rank",
        "memory.reserve",
        "tables[0]",
        "tables[0].embedding_dim",
        "tables[0].nam",
    ]


def test_very_many_problems_are_cut(tmp_path: Path) -> None:
    rows = "".join(f"  - {{name: t{i}, num_embeddings: 0, embedding_dim: 4}}\n" for i in range(500))
    text = f"name: a\ntraining: {{batch_size_per_rank: 1}}\ntables:\n{rows}"
    path = write(tmp_path, "workload.yaml", text)
    lines = refused(lambda: load_workload(path), path, "and 400 more")
    assert len(lines) == 101


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    path = write(tmp_path, "workload.yaml", changed(WORKLOAD, RESERVE, "x" * 10_000))
    (line,) = refused(lambda: load_workload(path), path, "memory.reserve")
    assert "..." in line
    assert len(line) < 700


def test_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "workload.yaml"
    folder.mkdir()
    refused(lambda: load_workload(folder), folder, "is a folder")


def test_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "absent.yaml"
    refused(lambda: load_workload(path), path, "No such file")


def test_a_file_too_large(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as file:
        file.truncate(64 * 1024**2 + 1)
    refused(lambda: load_workload(path), path, "larger than 64 MiB")


def test_an_unknown_name(tmp_path: Path) -> None:
    path = Path("dlrm_dcnv2_mlperv")
    lines = refused(lambda: load_workload("dlrm_dcnv2_mlperv"), path, "known:")
    assert "did you mean dlrm_dcnv2_mlperf" in lines[0]
    refused(lambda: load_workload("zzz"), Path("zzz"), "known: dlrm_criteo_terabyte")


def test_a_number_below_its_limit_is_not_asked_to_be_a_list(tmp_path: Path) -> None:
    """A pooling factor may be a number or a list; one message says what is wrong with this one."""
    path = tmp_path / "tables.csv"
    path.write_text("name,rows,dim,pooling\na,100,64,-1\n")
    (line,) = refused(lambda: load_workload(path), path, "pooling_factor", "at least 0")
    assert "list" not in line
