"""Drawn models train to the same losses under TorchRec's plan and under ours, on two ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrec", reason="trains with torchrec, which is not installed")

from tests.integration.on_ranks.ranks import run_ranks

pytestmark = [pytest.mark.torchrec, pytest.mark.slow]

WORKER = Path(__file__).parents[1] / "on_ranks" / "swap_worker.py"
SEEDS = tuple(str(seed) for seed in range(10))
"""Tables, constraints, reservations and optimizers follow from the seed."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the first rank saw, by seed."""
    folder = tmp_path_factory.mktemp("drawn")
    run_ranks(WORKER, [str(folder), "2", *SEEDS], folder)
    found: dict[str, Any] = json.loads((folder / "rank-0.json").read_text())
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_losses_of_a_drawn_model_are_the_same(answers: dict[str, Any], seed: str) -> None:
    losses = answers[seed]["losses"]
    assert len(set(losses["ours"])) == 4, "nothing is learnt"
    assert losses["ours"] == pytest.approx(losses["theirs"], rel=0, abs=1e-6)
    assert answers[seed]["checkpoint"]["differing"] == []


def test_most_of_the_plans_are_others(answers: dict[str, Any]) -> None:
    """Equal plans would have equal losses whatever the planner does."""
    plans = [answers[seed]["plans"] for seed in SEEDS]
    assert sum(p["ours"] != p["theirs"] for p in plans) > len(SEEDS) / 2
