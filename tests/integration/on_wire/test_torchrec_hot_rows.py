"""Hot rows on real ranks: the hottest rank receives the bytes of ids that the model says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torchrec")

from tests.integration.on_ranks.ranks import run_ranks

pytestmark = [pytest.mark.torchrec, pytest.mark.slow]


@pytest.mark.parametrize("world", [2, 4])
def test_bytes_of_the_hottest_rank(tmp_path: Path, world: int) -> None:
    """TorchRec's row-wise exchange of given ids, to the byte on every rank."""
    worker = Path(__file__).with_name("hot_rows_worker.py")
    run_ranks(worker, [str(tmp_path)], tmp_path, world=world, timeout_s=300)
    found = [json.loads((tmp_path / f"hot-{r}.json").read_text()) for r in range(world)]
    received = np.array([one["counted"] for one in found]).sum(axis=0)
    assert received.max() > 1.3 * received.mean()
    for one in found:
        np.testing.assert_allclose(one["priced"], received, rtol=1e-9)
