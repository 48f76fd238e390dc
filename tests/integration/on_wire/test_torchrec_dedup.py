"""Distinct indices on real ranks: the bytes that TorchRec exchanges are those of the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torchrec")

from tests.integration.on_ranks.ranks import run_ranks

pytestmark = [pytest.mark.torchrec, pytest.mark.slow]


def test_bytes_of_distinct_indices(tmp_path: Path) -> None:
    """To the byte for given data; within 3 % where the model knows the law alone."""
    run_ranks(Path(__file__).with_name("dedup_worker.py"), [str(tmp_path)], tmp_path, timeout_s=300)
    for rank in range(2):
        found = json.loads((tmp_path / f"dedup-{rank}.json").read_text())
        assert len(found) == 9
        for name, bytes_ in found.items():
            expected = pytest.approx(bytes_["predicted"], rel=0.03 if "law" in name else 1e-9)
            assert bytes_["counted"] == expected, name
            assert any(b > 0 for b in bytes_["counted"]), name
        for kind in ("table_wise", "column_wise", "row_wise"):
            every, once = (found[f"{kind} {dedup}"] for dedup in (False, True))
            assert once["counted"][0] < every["counted"][0]
            assert once["losses"] == pytest.approx(every["losses"], rel=1e-5)
