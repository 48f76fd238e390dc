"""A rank that dies or is late while a plan is made ends the wait of the others with an error.

That of the rank that plans is in ``test_torchrec_training``, whose ranks have TorchRec loaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrec")

from tests.integration.on_ranks.lost_rank_worker import GROUP_TIMEOUT_S
from tests.integration.on_ranks.ranks import run_ranks

pytestmark = [pytest.mark.torchrec, pytest.mark.slow]

WORKER = Path(__file__).with_name("lost_rank_worker.py")


def answers(folder: Path, case: str, codes: list[int]) -> list[dict[str, Any] | None]:
    run_ranks(WORKER, [str(folder), case], folder, codes=codes)
    files = [folder / f"rank-{r}.json" for r in range(2)]
    return [json.loads(f.read_text()) if f.exists() else None for f in files]


def test_a_waiting_rank_that_dies_does_not_hang_the_others(tmp_path: Path) -> None:
    planning, waiting = answers(tmp_path, "late", [0, 3])
    assert waiting is None
    assert planning is not None
    assert "one of them died" in planning.get("error", "one of them died")
    assert planning["seconds"] < GROUP_TIMEOUT_S["late"]


def test_a_planning_rank_that_is_too_late_is_reported(tmp_path: Path) -> None:
    planning, waiting = answers(tmp_path, "slow", [0, 0])
    assert planning is not None
    assert waiting is not None
    assert "plans for longer than the group's timeout" in waiting["error"]
    assert waiting["seconds"] < 3 * GROUP_TIMEOUT_S["slow"]


def test_the_search_ends_before_the_group_gives_up(tmp_path: Path) -> None:
    planning, waiting = answers(tmp_path, "cut short", [0, 0])
    assert planning is not None
    assert waiting is not None
    assert planning["planned"] == waiting["planned"] == ["sparse.bags"]
    assert planning["limit_s"] == pytest.approx(0.8 * GROUP_TIMEOUT_S["cut short"])
