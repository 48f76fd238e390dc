"""Every sharding type and kernel that runs on the CPU, on 2 and 4 real ranks, on 1 and 2 hosts.

The plan does not change the maths, and a checkpoint written under one plan goes on under another.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrec")

from tests.integration.on_ranks.ranks import run_ranks
from tests.integration.on_ranks.sharding_worker import HALF, KERNELS

pytestmark = [pytest.mark.torchrec, pytest.mark.slow]

WORKER = Path(__file__).with_name("sharding_worker.py")
TYPES = (
    *("data_parallel", "table_wise", "column_wise", "row_wise"),
    *("table_column_wise", "table_row_wise", "grid_shard"),
)
JOBS = {"2 ranks": (2, 2), "4 ranks": (4, 4), "2 hosts of 2 ranks": (4, 2)}

Answers = list[dict[str, Any]]


@pytest.fixture(scope="module", params=JOBS, ids=list(JOBS))
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Answers of the ranks: of the whole training, and of new processes that resumed it."""
    world, local = JOBS[request.param]
    folder = tmp_path_factory.mktemp("job")
    stages = []
    for stage in ("all", "resume"):
        arguments = [str(folder), str(local), stage]
        run_ranks(WORKER, arguments, folder, world=world, timeout_s=400)
        files = [folder / f"{stage}-{r}.json" for r in range(world)]
        stages.append([json.loads(f.read_text()) for f in files])
    return tuple(stages)


def test_every_type_and_kernel_trains_to_the_same_losses(job: tuple[Answers, Answers]) -> None:
    trained, _ = job
    names = {*TYPES, *(f"mixed, {k}" for k in KERNELS), "searched", "forced"}
    for answer in trained:
        assert set(answer["losses"]) == names
        expected = answer["losses"]["table_wise"]
        assert len(expected) == 12
        assert expected[6] < expected[2], "nothing is learnt"
        for name, losses in answer["losses"].items():
            assert losses == pytest.approx(expected, rel=0, abs=1e-5), name


def test_plans_use_what_they_say(job: tuple[Answers, Answers]) -> None:
    types = job[0][0]["types"]
    for name in TYPES:
        assert types[name] == [name]
    for kernel in KERNELS:
        assert types[f"mixed, {kernel}"] == sorted(TYPES)
    assert types["forced"] == sorted(TYPES)


def test_a_checkpoint_goes_on_under_another_plan(job: tuple[Answers, Answers]) -> None:
    trained, resumed = job
    for before, after in zip(trained, resumed, strict=True):
        expected = before["losses"]["forced"][HALF:]
        assert before["forced"] not in after["plans"].values()
        for name, losses in after["losses"].items():
            assert losses == pytest.approx(expected, rel=0, abs=1e-5), name
