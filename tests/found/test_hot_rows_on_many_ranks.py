"""MLPerf's DLRMv4 on 32 ranks: hot rows ended the job of its all-row-wise plan, and cost memory.

One rank's exchange buffers grew to 81.5 GiB there; ``album_id`` and ``artist_id`` by columns cured
it (mlcommons/training, recommendation).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from planner.cli.run import run

TABLES = {
    "item_id": (9_390_624, 1.367, 0.024),
    "artist_id": (1_293_395, 1.579, 0.006),
    "album_id": (3_367_692, 1.432, 0.015),
    "uid": (1_000_001, 1.1, None),
    "user_x_artist": (100_000_000, 1.1, None),
    "user_x_album": (40_000_000, 1.1, None),
    "user_x_hour": (24_000_000, 1.1, None),
    "item_x_hour": (40_000_000, 1.1, None),
    "artist_x_hour": (32_000_000, 1.1, None),
    "user_x_is_organic": (2_000_000, 1.1, None),
    "user_x_artist_x_hour": (40_000_000, 1.1, None),
}
"""Rows, exponent of the law, and the distinct share of a batch where it is published."""
HOT = ("album_id", "artist_id")
TRAINED = """\
name: dlrm_v4
training:
  batch_size_per_rank: 1024
  optimizer: rowwise_adagrad
  dense_optimizer: adam
  gradient_dtype: fp32
  communication: {forward: fp16, backward: fp16}
memory: {reserve: RESERVE}
dense:
  dtype: bf16
  layers:
    - {kind: hstu, layers: 3, hidden: 512, heads: 4, seq: 4096, qk_width: 128, value_width: 128,
       input_width: 1536, causal: true, fused_attention: true, kernel: triton, lengths: [2630]}
    - {kind: mlp, name: head, sizes: [512, 512, 1]}
tables:
"""


def case(path: Path, reserve: str, constraints: str = "") -> str:
    """The workload as a file, with the same constraints of every table."""
    lines = [TRAINED.replace("RESERVE", reserve)]
    for name, (rows, exponent, distinct) in TABLES.items():
        keys = f"name: {name}, num_embeddings: {rows}, embedding_dim: 512, pooling: none"
        keys += f", distribution: {{kind: zipf, exponent: {exponent}}}"
        if distinct:
            keys += f", pooling_factor: 2627, distinct_per_batch: {distinct}"
        lines.append(f"  - {{{keys}{constraints}}}\n")
    # a small table, because the positions of a history are as wide as three of its vectors
    lines.append("  - {name: pad, num_embeddings: 1000, embedding_dim: 512, pooling: none}\n")
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


def asked(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    """What a command answers on 32 ranks: its JSON document, or its error."""
    assert run([*words, "--system", "mi355x", "--gpus", "32", "--json"]) == code
    out, err = capsys.readouterr()
    return err if code else json.loads(out)


def test_hot_tables_are_not_cut_by_rows_and_columns_have_their_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = case(tmp_path / "v4.yaml", "28 GiB"), str(tmp_path / "run")
    found = asked(capsys, "plan", path, "--evaluations", "20", "-o", folder)
    (placed,) = found["plan"].values()
    kinds = {name: placed[name]["sharding_type"] for name in HOT}
    assert set(kinds.values()) <= {"column_wise", "data_parallel"}
    tables = [word for name in HOT for word in ("--table", name)]
    answer = asked(capsys, "explain", path, f"{folder}/plan.json", *tables)
    for table in answer["tables"]:
        best_s = {
            kind: min(  # an option that does not fit has no time
                o["plan_time_s"] or math.inf
                for o in table["options"]
                if o["option"].startswith(kind)
            )
            for kind in ("column_wise", "row_wise")
        }
        assert answer["plan_time_s"] <= best_s["column_wise"] * (1 + 1e-9) < math.inf
        assert best_s["row_wise"] > 1.3 * answer["plan_time_s"], "the hottest row costs nothing"


def test_all_tables_by_rows_are_refused_for_memory_or_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ", constraints: {sharding_types: [row_wise], kernels: [fused]}"
    path = case(tmp_path / "rows.yaml", "28 GiB", rows)
    told = json.dumps(asked(capsys, "plan", path, "--evaluations", "20"))
    assert "is taken to hold the hottest row of table 'artist_id'" in told
    assert "cut by columns (column_wise), or replicated (data_parallel)" in told
    path = case(tmp_path / "full.yaml", "40 GiB", rows)
    assert "nothing fits" in asked(capsys, "plan", path, "--evaluations", "20", code=3)
