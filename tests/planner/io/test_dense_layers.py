"""``dense.layers``, ``dense.operators`` and ``dense.ops`` of a workload file."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodels.dense.base import dense_operators
from costmodels.layers.dcn import Dcn
from costmodels.layers.mlp import Mlp
from costmodels.workload import Workload
from planner import io
from planner.errors import InvalidInputError
from planner.io.workload.workload_file import workload_text

HEAD = """
name: w
training: {batch_size_per_rank: 64}
memory: {reserve: 1 GiB}
"""
TABLES = """
tables:
  - {name: t, num_embeddings: 100, embedding_dim: 8, distribution: {kind: uniform}}
"""
LAYERS = """
dense:
  num_dense_features: 13
  layers:
    - {kind: mlp, name: bottom, before_tables: true, sizes: [16, 8]}
    - {kind: dcn, num_layers: 2, low_rank: 4}
    - {kind: mlp, name: top, sizes: [4, 1]}
"""
OPERATORS = """
batch_size_per_rank: 64
source: a test
before_tables:
  - {name: b, kind: matmul, shape: [1, 64, 13, 8], num_parameters: 112, parameter_bytes: 448}
after_tables:
  - {name: n, kind: norm, shape: [64, 16], read_bytes: 4096, written_bytes: 4096, num_repeats: 24}
"""


def load(folder: Path, text: str) -> Workload:
    """The workload of a text."""
    path = folder / "w.yaml"
    path.write_text(HEAD + text, encoding="utf-8")
    return io.load_workload(path)


def refused(folder: Path, text: str) -> list[str]:
    """The problems of a text."""
    with pytest.raises(InvalidInputError) as caught:
        load(folder, text)
    return caught.value.problems


def test_layers_are_read_and_written(tmp_path: Path) -> None:
    workload = load(tmp_path, LAYERS + TABLES)
    assert workload.dense.layers == (
        Mlp(name="bottom", before_tables=True, sizes=(16, 8)),
        Dcn(num_layers=2, low_rank=4),
        Mlp(name="top", sizes=(4, 1)),
    )
    again = tmp_path / "again.yaml"
    again.write_text(workload_text(workload), encoding="utf-8")
    assert io.load_workload(again) == workload


def test_operators_are_read_and_written(tmp_path: Path) -> None:
    inside = "\n".join(f"    {line}" for line in OPERATORS.strip().splitlines())
    workload = load(tmp_path, f"dense:\n  operators:\n{inside}\n{TABLES}")
    before, after = dense_operators(workload)
    assert before[0].shape == (1, 64, 13, 8)
    assert after[0].num_repeats == 24
    again = tmp_path / "again.yaml"
    again.write_text(workload_text(workload), encoding="utf-8")
    assert io.load_workload(again) == workload
    (tmp_path / "ops.yaml").write_text(OPERATORS, encoding="utf-8")
    assert load(tmp_path, f"dense: {{ops: ops.yaml}}\n{TABLES}") == workload


def test_a_workload_without_tables_is_read_and_written(tmp_path: Path) -> None:
    workload = load(tmp_path, LAYERS)
    assert workload.tables == ()
    again = tmp_path / "again.yaml"
    again.write_text(workload_text(workload), encoding="utf-8")
    assert io.load_workload(again) == workload


def test_neither_tables_nor_a_dense_part_is_refused(tmp_path: Path) -> None:
    assert "at least one table or a dense part" in refused(tmp_path, "")[0]


@pytest.mark.parametrize(
    ("layer", "place", "rule"),
    [
        ("{sizes: [1]}", "dense.layers[0]", "key 'kind' is missing; add it"),
        (
            "{kind: mpl, sizes: [1]}",
            "dense.layers[0].kind",
            "must be one of attention_pooling, dcn",
        ),
        ("{kind: mlp}", "dense.layers[0]", "key 'sizes' is missing; add it"),
        ("{kind: mlp, size: [1]}", "dense.layers[0].size", "unknown key; did you mean 'sizes'?"),
        ("{kind: mlp, sizes: 4}", "dense.layers[0].sizes", "must be a list, such as [a, b]"),
        ("{kind: mlp, sizes: [4.5]}", "dense.layers[0].sizes[0]", "must be a whole number"),
        ("{kind: mlp, sizes: [0]}", "dense.layers[0]", "sizes must be 1..1e6, got (0,)"),
        ("{kind: mlp, sizes: [4], before_tables: 1}", "before_tables", "must be true or false"),
        ("{kind: dcn, num_layers: x, low_rank: 1}", "num_layers", "must be a whole number"),
        ("{kind: mlp, sizes: [4], name: ''}", "name", "must not be empty"),
        (
            "{kind: dlrm, bottom_mlp: [4], top_mlp: [1], interaction: dott}",
            "dense.layers[0].interaction",
            "must be one of dot, cat, dcn",
        ),
    ],
)
def test_broken_entries_are_named(tmp_path: Path, layer: str, place: str, rule: str) -> None:
    problems = refused(tmp_path, f"dense:\n  num_dense_features: 3\n  layers:\n    - {layer}\n")
    assert any(place in line and rule in line and "w.yaml:" in line for line in problems), problems


@pytest.mark.parametrize(
    ("dense", "rule"),
    [
        ("{top_mlp: [1], layers: [{kind: dot}]}", "given twice, by bottom_mlp and top_mlp and by"),
        ("{interaction: cat, layers: [{kind: dot}]}", "given twice, by interaction and by layers"),
        ("{bottom_mlp: [8], interaction: cat}", "interaction cat needs a top_mlp"),
        ("{top_mlp: [1], dcn_num_layers: 2}", "got interaction dot with (2, 0)"),
        (
            "{layers: [{kind: dlrm, bottom_mlp: [8], top_mlp: [1], dcn_low_rank_dim: 4}]}",
            "got interaction dot with (0, 4)",
        ),
        (
            "{operators: {batch_size_per_rank: 64, after_tables: "
            "[{name: a, kind: norm, shape: [3], shared_bytes: 8}]}}",
            "unknown key",
        ),
        ("{layers: [{kind: mlp, sizes: [3]}]}", "nothing reaches it"),
        ("{ops: missing.yaml}", "missing.yaml: cannot be read"),
        ("{operators: {batch_size_per_rank: 32}}", "are for 32 samples per rank, the batch is 64"),
        (
            "{ops: x.yaml, operators: {batch_size_per_rank: 64}}",
            "operators and ops both list the operators",
        ),
        (
            "{operators: {batch_size_per_rank: 64, after_tables: "
            "[{name: a, kind: matmul, shape: [3]}]}}",
            "the shape of kind matmul must have 4 numbers, got (3,)",
        ),
    ],
)
def test_broken_dense_parts_are_named(tmp_path: Path, dense: str, rule: str) -> None:
    problems = refused(tmp_path, f"dense: {dense}\n")
    assert any(rule in line for line in problems), problems
