"""Commands that ask for no size, on systems whose differing ranks are beyond the first host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.planner.cli.command_line import Run


@pytest.mark.parametrize(
    "entry",
    [
        "different_ranks: [{ranks: [9, 2], speed: 0.5}]",
        "different_hosts: [{hosts: [3], ddr_capacity: 1 TB}]",
    ],
)
def test_a_system_is_read_at_a_size_that_has_its_ranks(
    run: Run, tmp_path: Path, entry: str
) -> None:
    """It was refused at the size of one host, whose flags these commands do not have."""
    system = tmp_path / "box.yaml"
    system.write_text(f"base: h100_sxm\nname: my_box\n{entry}\n")
    checked = run("check", system)
    assert (checked.code, checked.err) == (0, "")
    assert "system: 8 x my_box per host, 80 GiB each" in " ".join(checked.out.split())
    assert run("systems", "show", system).out == system.read_text()
    table = tmp_path / "gemm.csv"
    table.write_text("M,K,N,dtype\n1024,1024,1024,bf16\n")
    alike = run("predict", "dense", table, "--system", "h100_sxm").out
    assert run("predict", "dense", table, "--system", system).out == alike


def test_a_rank_that_no_job_has_is_refused(run: Run, tmp_path: Path) -> None:
    system = tmp_path / "box.yaml"
    system.write_text("base: h100_sxm\ndifferent_ranks: [{ranks: [70000], speed: 0.5}]\n")
    done = run("check", system)
    assert done.code == 2
    assert "different_ranks.ranks: value 70000: must be 0..65535" in " ".join(done.err.split())


@pytest.fixture
def two_hosts(tmp_path: Path) -> Path:
    """A system that names a rank of its second host."""
    path = tmp_path / "box.yaml"
    path.write_text("base: h100_sxm\nname: my_box\ndifferent_ranks: [{ranks: [9], speed: 0.5}]\n")
    return path


def test_a_study_lists_sizes_without_the_ranks_that_a_system_names(
    run: Run, workload_file: Path, two_hosts: Path
) -> None:
    """One such size, or none, ended the study."""
    asked = ("study", workload_file, "--system", two_hosts, "--evaluations", 5, "--workers", 1)
    asked += ("--grid",)
    done = run(*asked, "--gpus", "8,16", "--json")
    assert done.code == 0, done.err
    status = {p["gpus"]: (p["status"], p["reason"]) for p in json.loads(done.out)["setups"]}
    assert status[16][0] == "done"
    assert status[8][0] == "failed"
    assert "value 9: must be 0..7 at this size" in status[8][1]
    assert run(*asked, "--gpus", "8").code == 2


def test_size_begins_where_a_system_has_the_ranks_it_names(
    run: Run, workload_file: Path, two_hosts: Path
) -> None:
    asked = ("study", workload_file, "--system", two_hosts, "--evaluations", 5, "--json")
    done = run(*asked, "--smallest-for", 1, "--max-gpus", 24)
    assert done.code == 0, done.err
    assert json.loads(done.out)["answers"][0]["answer"]["gpus"] == 16
    short = run(*asked, "--smallest-for", 1, "--max-gpus", 8)
    assert short.code == 2
    assert f"less than the 2 hosts that {two_hosts} names" in " ".join(short.err.split())


def test_a_budget_pays_for_sizes_that_have_the_ranks_it_names(
    run: Run, workload_file: Path, two_hosts: Path
) -> None:
    effort = ("--trials", 1, "--evaluations", 3, "--json", "--workers", 1)
    price = ("--price", "4.5 USD/h", "--budget")
    asked = ("study", workload_file, "--system", two_hosts, *effort, *price)
    done = run(*asked, "100 USD/h")
    assert done.code == 0, done.err
    assert json.loads(done.out)["setup"]["gpus"] == 16
    poor = run(*asked, "40 USD/h")
    assert poor.code == 2
    assert "pays for none of" in poor.err
    assert "x 16 (72 USD/h)" in poor.err
