"""Ranks of a job that torchrun started, each of which calls the same function."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torchrec")

from planner.integrations.measure.gloo_ranks import launch_of, rendezvous, run_on_ranks

pytestmark = pytest.mark.slow

JOB = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3")


def met(rank: int, world_size: int, factor: int) -> int:
    """Meet a few times, then answer."""
    for _ in range(5):
        rendezvous()
    return rank * factor + world_size


def fails(rank: int, world_size: int) -> None:
    """One rank has had enough while the others wait for it."""
    if rank == 1:
        message = f"rank {rank} of {world_size} had enough"
        raise RuntimeError(message)
    rendezvous()


def main(folder: Path, what: str) -> None:
    """What torchrun runs on every rank."""
    launch = launch_of()
    assert launch is not None
    if what == "fails":
        run_on_ranks(fails, launch.world_size, launch=launch)
    found = run_on_ranks(met, launch.world_size, 10, launch=launch)
    (folder / f"{launch.rank}.json").write_text(json.dumps(found))


def test_every_rank_gets_the_answers_of_all(tmp_path: Path) -> None:
    command = [sys.executable, *JOB, "-m", __name__, str(tmp_path), "answers"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert found == [[3, 13, 23]] * 3


def test_a_rank_that_fails_ends_the_job(tmp_path: Path) -> None:
    command = [sys.executable, *JOB, "-m", __name__, str(tmp_path), "fails"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert "rank 1 of 3 had enough" in done.stderr
    assert not list(tmp_path.iterdir())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
