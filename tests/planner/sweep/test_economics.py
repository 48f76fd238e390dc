"""What a point costs, with checkpoints and failures."""

from __future__ import annotations

import math

import pytest

from planner.sweep import Operation
from planner.sweep.economics import economics, with_checkpoints
from tests.planner.report.report_samples import make_result


def test_cost_counts_failures_as_young_and_daly_do() -> None:
    """One hour of 8 GPUs at 3 USD for a billion samples, then with failures."""
    plain = economics(
        Operation(), samples_per_s=1e9 / 3600, checkpoint_bytes=1e10, hosts=2, ranks=8,
        usd_per_device_hour=3.0,
    )  # fmt: skip
    assert plain.usd_per_billion_samples == pytest.approx(24.0)
    operation = Operation(
        mtbf_s=20_000.0, restart_s=100.0, snapshot_bytes_per_s=1e9, persist_bytes_per_s=1e9
    )
    failing = economics(
        operation, samples_per_s=1e9 / 3600, checkpoint_bytes=1e10, hosts=2, ranks=8,
        usd_per_device_hour=3.0,
    )  # fmt: skip
    interval = math.sqrt(2 * 10.0 * 10_000.0)
    lost = 10.0 / interval + (interval / 2 + 100.0) / 10_000.0
    assert failing.checkpoint_interval_s == pytest.approx(interval)
    assert failing.availability_ratio == pytest.approx(1 - lost)
    assert failing.usd_per_billion_samples == pytest.approx(24.0 / (1 - lost))


def test_a_plan_says_how_often_to_write_checkpoints() -> None:
    result = make_result()
    saved = max(r.weights_bytes + r.optimizer_bytes for r in result.best.memory.ranks)
    hosts = result.problem.topology.num_hosts
    found = with_checkpoints(result, 1e9 * hosts).checkpoint_interval_s
    stall_s = saved / Operation().snapshot_bytes_per_s
    assert found == pytest.approx(math.sqrt(2 * stall_s * 1e9))
