"""``plan --survive``: files, the table, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner import io
from tests.planner.cli.command_line import Done, Run

QUICK = ("--evaluations", "8", "-q")


@pytest.fixture
def plan(run: Run, workload_file: Path, system_file: Path) -> Run:
    """``shardplan plan`` of the small workload on three hosts of one rank."""
    where = ("--system", system_file, "--gpus-per-host", 1, "--gpus", 3)

    def once(*args: object) -> Done:
        return run("plan", workload_file, *where, *args)

    return once


def test_a_family_is_printed_and_written(plan: Run, tmp_path: Path, workload_file: Path) -> None:
    folder = tmp_path / "run"
    done = plan(*QUICK, "--survive", 2, "--mtbf", "100h", "-o", folder)
    assert done.code == 0, done.err
    assert "When hosts are lost" in done.out
    assert "sqrt(2 C M)" in done.out
    assert "1 GB/s per rank" in done.out
    text = json.loads((folder / "plan.json").read_text())
    assert [m["hosts"] for m in text["family"]["members"]] == [3, 2, 1]
    assert [len(m["losses"]) for m in text["family"]["members"]] == [0, 3, 2]
    assert all(m["checkpoint_interval_s"] > 0 for m in text["family"]["members"])
    workload = io.load_workload(workload_file)
    for member in text["family"]["members"]:
        hosts = member["hosts"]
        name = "plan.json" if hosts == 3 else f"plan-{hosts}-hosts.json"
        saved = io.load_plan(folder / name, workload)
        assert saved.world_size == member["world_size"] == hosts
        assert saved.batch_size_per_rank == member["batch_size_per_rank"] == -(-512 * 3 // hosts)
    for report in ("report.md", "report.html"):
        assert "When hosts are lost" in (folder / report).read_text()
    again = plan(*QUICK, "--survive", 1, "--keep-batch", "rank", "--json", "-o", folder)
    assert again.code == 0, again.err
    found = json.loads(again.out)["family"]
    assert [m["batch_size_per_rank"] for m in found["members"]] == [512, 512]
    assert found["members"][0]["checkpoint_interval_s"] is None
    assert "every rank has 512 samples" in found["notes"][0]
    assert {p.name for p in folder.glob("plan*.json")} == {"plan.json", "plan-2-hosts.json"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--mtbf", "100h"), "need --survive"),
        (("--survive", 3), "needs at least 4 hosts"),
        (("--survive", 1, "--strategy", "random"), "--strategy random exclude each other"),
        (("--survive", 1, "--objective", "memory"), "--objective memory exclude each other"),
        (("--survive", 1, "--restore-rate", "5 GB"), "'5 GB'"),
    ],
)
def test_what_families_refuse(plan: Run, flags: tuple[object, ...], words: str) -> None:
    done = plan(*QUICK, *flags)
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err


def test_a_plan_in_use_stays_within_its_limit(plan: Run, tmp_path: Path) -> None:
    first = plan(*QUICK, "--strategy", "size_greedy", "-o", tmp_path / "a")
    assert first.code == 0, first.err
    use = tmp_path / "a" / "plan.json"
    done = plan(
        *QUICK, "--from", use, "--max-moved-bytes", "0 GiB", "--survive", 1, "--json"
    )  # fmt: skip
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["reshard"]["moved_bytes"] == 0
    assert [m["hosts"] for m in found["family"]["members"]] == [3, 2]


def test_a_plan_is_kept_where_nothing_fits_on_fewer_hosts(
    plan: Run, tmp_path: Path, workload_file: Path
) -> None:
    """It was lost after its search."""
    text = (
        workload_file.read_text().replace("100_000", "70_000_000").replace("50_000", "70_000_000")
    )
    workload_file.write_text(text + "constraints: [{tables: '*', kernels: [fused]}]\n")
    done = plan(*QUICK, "--survive", 2, "-o", tmp_path / "run")
    assert done.code == 3
    assert "with 1 host left: nothing fits" in done.err
    assert "Predicted" in done.out
    assert "When hosts are lost" not in done.out
    saved = io.load_plan(
        tmp_path / "run" / "plan.json", io.load_workload_file(workload_file).workload
    )
    assert saved.world_size == 3
