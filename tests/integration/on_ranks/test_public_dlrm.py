"""The training script of the public DLRM repository, with one name swapped, trains alike.

The script is fetched when the test runs, and is no part of this project. ``DLRM_REPOSITORY`` may
name a checkout or another address; the test is skipped where the repository cannot be reached.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrec", reason="trains with torchrec, which is not installed")

from tests.integration.on_ranks.public_dlrm_worker import RUNS
from tests.integration.on_ranks.ranks import run_ranks

pytestmark = [pytest.mark.torchrec, pytest.mark.slow]

REPOSITORY = os.environ.get("DLRM_REPOSITORY", "https://github.com/facebookresearch/dlrm")
WORLD = 2


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("dlrm")
    checkout = folder / "checkout"
    try:
        subprocess.run(
            ["git", "clone", "--quiet", "--depth", "1", REPOSITORY, str(checkout)],
            check=True,
            capture_output=True,
            timeout=120,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        pytest.skip(f"{REPOSITORY} cannot be reached; set DLRM_REPOSITORY to a checkout")
    worker = Path(__file__).with_name("public_dlrm_worker.py")
    run_ranks(worker, [str(folder), str(checkout)], folder, world=WORLD)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(WORLD)]


@pytest.mark.parametrize("name", RUNS)
def test_losses_of_the_public_script_are_the_same(answers: list[Any], name: str) -> None:
    for answer in answers:
        losses, plans = answer[name]["losses"], answer[name]["plans"]
        assert len(losses["ours"]) == 10, "steps of training and of the two evaluations"
        assert len(set(losses["ours"][:6])) == 6, "nothing is learnt"
        assert losses["ours"] == pytest.approx(losses["theirs"], rel=0, abs=1e-5)
        assert plans["ours"] != plans["theirs"], "one plan is compared with itself"
