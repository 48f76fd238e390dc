"""The GPU scripts run on a CPU, at tiny sizes."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.torchrec]


@pytest.mark.parametrize("with_fbgemm", [True, False])
def test_all_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_fbgemm: bool) -> None:
    from benchmarks.gpu import lookups
    from benchmarks.gpu.measure import main

    if not with_fbgemm:
        monkeypatch.setattr(lookups, "SplitTableBatchedEmbeddingBagsCodegen", None)
    main(["--out", str(tmp_path), "--device", "cpu", "--quick"])
    found = {
        p.name: list(csv.DictReader(p.read_text(encoding="utf-8").splitlines()))
        for p in tmp_path.iterdir()
    }
    assert set(found) == {"basics.csv", "dense.csv", "lookups.csv", "mixed.csv"}
    assert len(found["lookups.csv"]) == 12
    kernels = {r["kernel"] for r in found["lookups.csv"]}
    assert kernels == {lookups.FBGEMM if with_fbgemm else lookups.FALLBACK}
    for row in found["lookups.csv"]:
        assert 0 < int(row["lookups_unique"]) <= int(row["lookups_total"])


def test_lookups_are_rows_that_predict_reads(tmp_path: Path) -> None:
    pytest.importorskip("fbgemm_gpu")
    from benchmarks.gpu.measure import main
    from planner.io import load_system
    from planner.predict.operations import LOOKUP_COLUMNS, Predicted, predict_lookups, read_table

    main(["--out", str(tmp_path), "--device", "cpu", "--quick"])
    table = read_table(tmp_path / "lookups.csv", LOOKUP_COLUMNS)
    found = predict_lookups(table, load_system("h100_sxm"))
    assert all(isinstance(p, Predicted) for p in found)


def test_no_block_starts_after_the_deadline(tmp_path: Path) -> None:
    from benchmarks.gpu.measure import main

    main(["--out", str(tmp_path), "--device", "cpu", "--quick", "--minutes", "0"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("skew", [0.0, 1.0, 1.2])
def test_indices_follow_the_law(skew: float) -> None:
    from benchmarks.gpu.lookups import TableCase, drawn_indices
    from costmodels.distribution.zipf import Zipf

    torch.manual_seed(0)
    case = TableCase(rows=10_000, dim=4, pooling=1, skew=skew)
    ids = drawn_indices(case, 50_000, torch.device("cpu"))
    assert 0 <= int(ids.min()) <= int(ids.max()) < case.rows
    expected = Zipf(
        num_embeddings=case.rows, exponent=skew, shift=0.5 if skew else 0.0
    ).expected_unique_rows(50_000)
    assert len(ids.unique()) == pytest.approx(expected, rel=0.02)


def test_drawn_calls_stay_within_their_limits() -> None:
    from benchmarks.gpu.lookups import FULL, drawn_case

    rng = random.Random(1)
    for mixed in (False, True):
        for _ in range(50):
            batch, tables = drawn_case(rng, FULL, mixed=mixed)
            assert sum(4.0 * t.rows * t.dim for t in tables) <= FULL.table_bytes
            assert sum(batch * t.pooling for t in tables) <= FULL.indices
            assert mixed or len(set(tables)) == 1
