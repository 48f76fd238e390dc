"""Commands that ask for no size, on systems whose differing ranks are beyond the first host."""

from __future__ import annotations

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
