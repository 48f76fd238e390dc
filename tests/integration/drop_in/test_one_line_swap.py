"""Models of many kinds train to the same losses under TorchRec's planner and under ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrec", reason="trains with torchrec, which is not installed")

from tests.integration.on_ranks.ranks import run_ranks
from tests.integration.on_ranks.swaps import SWAPS

pytestmark = [pytest.mark.torchrec, pytest.mark.slow]

JOBS = {"2 ranks": (2, 2, tuple(SWAPS)), "2 hosts of 2 ranks": (4, 2, ("DLRM", "every kind"))}
CASES = [(job, name) for job, (_, _, names) in JOBS.items() for name in names]
SAME_PLAN = ("sequences", "weighted means")
"""Models for which both planners find one plan on 2 ranks; for the others they differ."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Any]]:
    """Answers of the ranks, by job and model."""
    found = {}
    for job, (world, local, names) in JOBS.items():
        folder = tmp_path_factory.mktemp("job")
        worker = Path(__file__).parents[1] / "on_ranks" / "swap_worker.py"
        run_ranks(worker, [str(folder), str(local), *names], folder, world=world)
        ranks = [json.loads((folder / f"rank-{r}.json").read_text()) for r in range(world)]
        found |= {(job, name): [answer[name] for answer in ranks] for name in names}
    return found


@pytest.mark.parametrize(("job", "name"), CASES)
def test_losses_are_the_same(
    answers: dict[tuple[str, str], list[Any]], job: str, name: str
) -> None:
    for answer in answers[job, name]:
        losses = answer["losses"]
        assert len(losses["ours"]) == 4
        assert len(set(losses["ours"])) == 4, "nothing is learnt"
        assert losses["ours"] == pytest.approx(losses["theirs"], rel=0, abs=1e-5)
        assert (answer["plans"]["ours"] == answer["plans"]["theirs"]) == (name in SAME_PLAN)


@pytest.mark.parametrize(("job", "name"), CASES)
def test_a_checkpoint_of_one_plan_is_read_under_the_other(
    answers: dict[tuple[str, str], list[Any]], job: str, name: str
) -> None:
    """The losses of both planners are the same by then, so the weights written are compared."""
    kept = answers[job, name][0]["checkpoint"]
    assert kept["weights"] > 0
    assert kept["differing"] == []
