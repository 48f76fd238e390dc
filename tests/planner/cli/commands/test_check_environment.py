from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from planner.cli.commands import check as env
from planner.cli.commands.check import FAIL, OK, WARN, Check
from tests.planner.cli.command_line import Run

REQUIREMENTS = ["numpy<3,>=2.0.2", "click<9,>=8.1.7", 'torch==2.13.*; extra == "torchrec"']


def versions(**found: str) -> Callable[[str], str | None]:
    return lambda name: found.get(name.replace("-", "_"))


def owners(*names: str) -> Callable[[str], bool]:
    return lambda name: name in names


def stack(
    found: dict[str, str], builds: tuple[str, ...] = (), *, nvml: bool = True
) -> dict[str, Check]:
    checks = env.check_torch(versions(**found), owners(*builds), lambda: nvml)
    return {check.subject: check for check in checks}


@pytest.mark.parametrize(
    ("torch", "fbgemm", "level"),
    [
        ("2.13.0+cpu", "1.8.0", OK),
        ("2.14.1", "1.9.0", OK),
        ("2.13.0", "1.9.0", FAIL),
        ("2.14.0", "1.8.0", FAIL),
        ("2.15.0", "1.9.0", FAIL),
        ("2.3.0", "1.8.0", FAIL),
        ("3.0.0", "1.8.0", WARN),
        ("2.13.0", "2.0.0", WARN),
        ("nightly", "1.8.0", WARN),
    ],
)
def test_fbgemm_fits_torch_by_the_minor_number(torch: str, fbgemm: str, level: str) -> None:
    found = {"torch": torch, "torchrec": "1.8.0", "fbgemm_gpu_cpu": fbgemm}
    check = stack(found, ("fbgemm-gpu-cpu",))["torch / fbgemm-gpu-cpu"]
    assert check.level == level
    assert (check.fix != "") is (level == FAIL)


def test_a_wrong_pair_names_both_repairs() -> None:
    found = {"torch": "2.13.0", "torchrec": "1.9.2", "fbgemm_gpu_cpu": "1.9.0"}
    check = stack(found, ("fbgemm-gpu-cpu",))["torch / fbgemm-gpu-cpu"]
    assert "built for torch 2.14" in check.finding
    assert "torch==2.14.*" in check.fix
    assert "fbgemm-gpu-cpu==1.8.*" in check.fix


def test_nothing_of_torch_is_fine() -> None:
    assert [c.level for c in stack({}).values()] == [OK]


def test_two_builds_of_fbgemm_are_a_hazard() -> None:
    found = {
        "torch": "2.13.0",
        "torchrec": "1.8.0",
        "fbgemm_gpu": "1.8.0",
        "fbgemm_gpu_cpu": "1.8.0",
    }
    both = stack(found, ("fbgemm-gpu", "fbgemm-gpu-cpu"))
    assert both["fbgemm"].level == WARN
    assert "overwrite" in both["fbgemm"].finding
    stand_in = stack(found, ("fbgemm-gpu-cpu",))
    assert "fbgemm" not in stand_in


def test_a_cuda_build_needs_the_driver() -> None:
    found = {"torch": "2.13.0", "torchrec": "1.8.0", "fbgemm_gpu": "1.8.0"}
    check = stack(found, ("fbgemm-gpu",), nvml=False)["nvidia driver"]
    assert check.level == FAIL
    assert "libnvidia-ml" in check.finding
    assert "nvidia driver" not in stack(found, ("fbgemm-gpu",), nvml=True)


def test_torchrec_without_fbgemm() -> None:
    check = stack({"torch": "2.14.0", "torchrec": "1.9.2"})["fbgemm"]
    assert check.level == FAIL
    assert "fbgemm-gpu==1.9.*" in check.fix
    assert "fbgemm-gpu==1.9.*" in stack({"torchrec": "1.9.2"})["fbgemm"].fix


def test_fbgemm_without_torch_and_torchrec() -> None:
    checks = stack({"fbgemm_gpu_cpu": "1.8.0"}, ("fbgemm-gpu-cpu",))
    assert checks["torch / fbgemm-gpu-cpu"].level == FAIL
    assert checks["torchrec"].level == WARN


def test_packages_are_held_against_their_limits() -> None:
    found = versions(numpy="1.26.4", click="8.5.1")
    checks = {c.subject: c for c in env.check_packages(found, REQUIREMENTS)}
    assert set(checks) == {"numpy", "click"}
    assert checks["click"].level == OK
    assert checks["numpy"].level == FAIL
    assert checks["numpy"].fix == "pip install 'numpy<3,>=2.0.2'"
    missing = {c.subject: c for c in env.check_packages(versions(), REQUIREMENTS)}
    assert missing["click"].finding == "not installed"


@pytest.mark.parametrize(
    ("version", "limits", "fits"),
    [
        ("2.0.2", ">=2.0.2,<3", True),
        ("3.0", ">=2.0.2,<3", False),
        ("2.0.1", ">=2.0.2", False),
        ("10.0", ">=9.15", True),
        ("1.0", "!=1.0", True),
        ("1.0", "", True),
    ],
)
def test_limits(version: str, limits: str, fits: bool) -> None:
    assert env.satisfies(version, limits) is fits


def test_metadata_of_what_is_not_installed() -> None:
    assert env.installed_version("no-such-distribution") is None
    assert not env.owns_fbgemm_files("no-such-distribution")
    assert isinstance(env.has_nvml(), bool)


def test_an_environment_without_packages_and_files(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = "import sys; sys.modules |= dict.fromkeys(('yaml', 'numpy', 'pydantic'))\n"
    program = f"{alone}from planner.cli.run import run\nsys.exit(run(['check']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "systems shipped" in done.stdout, done.stderr
    monkeypatch.setattr("planner.cli.spec.shipped", lambda _: {})
    missing = run("check")
    assert (missing.code, "fail configs" in missing.out) == (1, True)


def test_the_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    good = Check(level=OK, subject="python", finding="3.11")
    bad = Check(level=FAIL, subject="torch", finding="wrong", fix="do this")
    monkeypatch.setattr(env, "check_packages", lambda: [good])
    monkeypatch.setattr(env, "check_torch", list)
    done = run("check")
    assert done.code == 0
    assert "all checks passed" in done.out
    monkeypatch.setattr(env, "check_torch", lambda: [bad])
    done = run("check")
    assert done.code == 1
    assert "fail torch" in done.out
    assert "fix: do this" in done.out
    quiet = run("check", "-q")
    assert "python" not in quiet.out
    assert "torch" in quiet.out
    data = json.loads(run("check", "--json").out)
    assert data["ok"] is False
    assert {"level": "fail", "subject": "torch", "finding": "wrong", "fix": "do this"} in data[
        "checks"
    ]
