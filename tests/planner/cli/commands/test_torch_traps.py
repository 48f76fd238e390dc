"""Traps of TorchRec installations and jobs, as the doctor tells them."""

from __future__ import annotations

from collections.abc import Mapping

from planner.cli.commands import check as env
from planner.cli.commands.check import OK, WARN, Check, check_torch

PAIR = {
    "torch": "2.13.0+cpu",
    "torchrec": "1.8.0",
    "fbgemm-gpu": "1.8.0",
    "fbgemm-gpu-cpu": "1.8.0",
}


def traps(
    found: Mapping[str, str],
    *,
    owner: str = "fbgemm-gpu-cpu",
    nvml: bool = False,
) -> dict[str, Check]:
    checks = check_torch(found.get, lambda name: name == owner, lambda: nvml)
    return {check.subject: check for check in checks if check.level != OK}


def test_a_matching_cpu_set_has_none() -> None:
    assert traps(PAIR) == {}


def test_the_stand_in_hides_a_gpu() -> None:
    check = traps(PAIR, nvml=True)["fbgemm-gpu"]
    assert check.level == WARN
    assert "stand-in" in check.finding
    assert traps(PAIR, owner="fbgemm-gpu", nvml=True) == {}


def test_generations_are_not_mixed() -> None:
    check = traps({**PAIR, "torchrec": "1.9.2"})["torchrec / fbgemm"]
    assert check.level == WARN
    assert "torchrec==1.8.*" in check.fix


def test_an_untried_torchrec_is_named() -> None:
    newer = {"torch": "2.15.0+cpu", "torchrec": "1.10.0", "fbgemm-gpu-cpu": "1.10.0"}
    check = traps(newer)["torchrec version"]
    assert check.level == WARN
    assert "1.8, 1.9" in check.finding
    assert "torch==2.14.*" in check.fix


def test_no_repair_names_a_release_that_is_not_there() -> None:
    found = {"torch": "2.15.0", "torchrec": "1.9.2", "fbgemm-gpu-cpu": "1.9.0"}
    checks = env.check_torch(found.get, lambda n: n == "fbgemm-gpu-cpu", lambda: False)
    (pair,) = [c for c in checks if c.subject == "torch / fbgemm-gpu-cpu"]
    assert pair.fix == "pip install 'torch==2.14.*'"
