"""The memory a plan needs, worked out again from the text of ``plan.json`` alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner import api, io

STATE_BYTES = {"rowwise_adagrad": lambda columns: 4.0, "adagrad": lambda columns: 4.0 * columns}
ON_HOST = ("fused_uvm", "fused_uvm_caching")


@pytest.mark.parametrize(
    ("workload", "system", "gpus"),
    [
        ("dlrm_dcnv2_mlperf", "h100_sxm", 16),
        ("dlrm_dcnv2_hugectr", "h100_sxm", 8),
        ("dlrm_criteo_terabyte", "a100_40gb_sxm", 8),
        ("small_demo", "l40s", 2),
    ],
)
def test_weights_and_state_from_the_file_are_the_ledgers(
    tmp_path: Path, workload: str, system: str, gpus: int
) -> None:
    model = io.load_workload(workload)
    topology = io.load_system(system, gpus=gpus)
    result = api.plan(model, topology, time_limit_s=None, max_evaluations=10)
    path = tmp_path / "plan.json"
    io.save_plan(path, result)
    data = json.loads(path.read_text())
    device = [0.0] * gpus
    host = [0.0] * gpus
    state = STATE_BYTES[model.optimizer.value]
    for tables in data["plan"].values():
        for entry in tables.values():
            for shard in entry["shards"]:
                rank = int(shard["placement"].split("/")[0].removeprefix("rank:"))
                rows, columns = shard["shard_sizes"]
                num_bytes = rows * (4.0 * columns + state(columns))
                (host if entry["compute_kernel"] in ON_HOST else device)[rank] += num_bytes
    ledger = data["memory"]["per_rank"]
    for rank in range(gpus):
        kept = ledger[rank]["weights_bytes"] + ledger[rank]["optimizer_bytes"]
        assert kept == pytest.approx(device[rank], rel=1e-9, abs=1.0)
        assert ledger[rank]["host_bytes"] == pytest.approx(host[rank], rel=1e-9, abs=1.0)
        assert ledger[rank]["used_bytes"] <= ledger[rank]["capacity_bytes"]
    assert result.best.memory.fits
