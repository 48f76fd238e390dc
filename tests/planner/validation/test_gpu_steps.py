"""Walls of one H200 from its eager call and pass; and the files that such calls are written to."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodels.calibration.device import EAGER_CALL, EAGER_PASS, HostCalls, fit_rates
from planner import io
from planner.errors import InvalidInputError
from planner.io.documents import configs_folder
from planner.io.system.system_writer import write_host_calls
from planner.validation.cases import summarize
from planner.validation.steps import HOST_ONLY, h200_steps

CALLS = HostCalls(eager_call_s=24e-6, eager_pass_s=360e-6, machine="host of a GPU")


def test_the_host_of_the_h200_predicts_its_steps() -> None:
    """With the kernels that were measured, so that only the host can be wrong."""
    every, bound = h200_steps()
    counts = {"dense": 31, "dlrm": 20, "pipe": 10, "extra dlrm": 11, "extra pipe": 6}
    errors = {key[0]: summarize(found)[HOST_ONLY] for key, found in every.groups.items()}
    assert {name: error.count for name, error in errors.items()} == counts
    for name in ("dense", "dlrm", "pipe"):
        assert errors[name].mean_error_ratio < 0.12, name
    extra = [error for name, error in errors.items() if name.startswith("extra")]
    total = sum(host.count * host.mean_error_ratio for host in extra)
    assert total / sum(host.count for host in extra) < 0.15
    for found in bound.groups.values():
        assert summarize(found)[HOST_ONLY].rms_log_ratio < 0.2


def test_calls_count_where_both_were_measured() -> None:
    row = {"block": "ceilings", "what": EAGER_CALL, "wall_us": 20.0}
    assert "eager_call_s" not in fit_rates({}, [row])
    rates = fit_rates({}, [row, row | {"what": EAGER_PASS, "wall_us": 300.0}])
    assert (rates["eager_call_s"], rates["eager_pass_s"]) == pytest.approx((2e-5, 3e-4))


def test_calls_replace_those_of_a_system_file(tmp_path: Path) -> None:
    """Twice: the first adds a key, the second finds both. Other lines stay."""
    shipped = (configs_folder() / "systems" / "h200_sxm.yaml").read_text(encoding="utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(shipped, encoding="utf-8")
    for _ in range(2):
        write_host_calls(path, CALLS)
        host = io.load_system(path, gpus=1).host
        assert (host.eager_call_s, host.eager_pass_s) == pytest.approx((24e-6, 360e-6))
    kept = [line for line in path.read_text().splitlines() if "eager_" not in line]
    assert kept == [line for line in shipped.splitlines() if "eager_" not in line]


def test_a_file_without_a_host_block_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    with pytest.raises(InvalidInputError, match="cannot be read: No such file"):
        write_host_calls(path, CALLS)
    path.write_text("host: {ddr_capacity: 1 TB}\n")
    with pytest.raises(InvalidInputError, match="no block 'host:'"):
        write_host_calls(path, CALLS)
