"""Models without tables: the commands that price and size them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodels.memory import dense_bytes
from planner import api, io
from planner.errors import InfeasibleError
from tests.planner.cli.command_line import Run
from tests.planner.profiling.samples import write_npy

TEXT = """
name: small_gpt
training: {batch_size_per_rank: 4}
memory: {reserve: 1 GiB}
dense:
  dtype: bf16
  layers:
    - {kind: transformer, layers: 4, hidden: 256, heads: 4, ffn: 1024, seq: 128, vocabulary: 1000}
"""
SYSTEM = ("--system", "h100_sxm")


@pytest.fixture
def transformer(tmp_path: Path) -> Path:
    """A plain transformer."""
    path = tmp_path / "gpt.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_check_says_what_is_there(run: Run, transformer: Path) -> None:
    done = run("check", transformer)
    assert done.code == 0
    by_hand = 1128 * 256 + 4 * (12 * 256**2 + 13 * 256) + 2 * 256
    said = f"no tables, {by_hand:,} dense parameters, 4 samples per rank"
    assert said in " ".join(done.out.split())


def test_plan_and_estimate_agree_and_need_no_search(
    run: Run, transformer: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    planned = run("plan", transformer, *SYSTEM, "--gpus", "16", "-o", folder, "--json")
    assert planned.code == 0, planned.err
    answer = json.loads(planned.out)
    assert answer["solver"]["status"] == "optimal"
    assert answer["solver"]["bound"] == answer["solver"]["value"]
    bare = run("estimate", transformer, *SYSTEM, "--gpus", "16", "--json")
    saved = run("estimate", transformer, folder / "plan.json", "--json")
    for done in (bare, saved):
        assert done.code == 0, done.err
        assert json.loads(done.out)["predicted"] == answer["predicted"]


def test_a_reduction_of_gradients_is_all_that_more_gpus_add(transformer: Path) -> None:
    workload = io.load_workload(transformer)
    alone, many = (api.plan(workload, io.load_system("h100_sxm", gpus=n)).estimate for n in (1, 16))
    added = {s.name for s in many.stages} - {s.name for s in alone.stages}
    assert added == {"last gradient all-reduce"}
    assert alone.time.time_s < many.time.time_s
    assert many.exposed_communication_s > 0


def test_grids_and_smallest_clusters(run: Run, transformer: Path) -> None:
    swept = run(
        "study", transformer, *SYSTEM, "--gpus", "8,16", "--batch-size", "64,512", "--grid",
        "--workers", "1", "--json",
    )  # fmt: skip
    assert swept.code == 0, swept.err
    points = json.loads(swept.out)["setups"]
    assert [p["status"] for p in points] == ["done"] * 4
    assert len({p["iteration_time_s"] for p in points}) == 4
    sized = run("study", transformer, *SYSTEM, "--smallest-for", "20000", "--json")
    assert sized.code == 0, sized.err


def test_a_global_batch_is_that_of_a_step_with_all_its_micro_batches(
    run: Run, transformer: Path
) -> None:
    """4 micro-batches on 8 ranks share 2,048 samples: 64 each; 16 samples are too few."""
    accumulates = (*SYSTEM, "--set", "training.gradient_accumulation=4", "--json")
    whole = ("--global-batch-size", "2048")
    planned = run("plan", transformer, *accumulates, *whole, "--gpus", "8")
    told = json.loads(planned.out)
    assert told["batch_size_per_rank"] == 64
    predicted = told["predicted"]
    trained = predicted["samples_per_s"] * predicted["iteration_time_s"]
    assert trained == pytest.approx(2048)
    swept = run("study", transformer, *accumulates, *whole, "--gpus", "8", "--workers", "1")
    assert json.loads(swept.out)["result"]["batch_size_per_rank"] == 64
    sized = ("study", transformer, *accumulates, "--smallest-for", "1e14", "--max-gpus", "64")
    told = json.loads(run(*sized, "--global-batch-size", "512").out)
    failed = {row["gpus"] for row in told["setups"] if row["status"] == "failed"}
    assert set(range(8, 65, 8)) - failed == {8, 16, 32, 64}
    refused = run("plan", transformer, *accumulates, "--global-batch-size", "16", "--gpus", "8")
    assert refused.code == 2
    assert "8 ranks times 4 micro-batches" in refused.err


def test_what_does_not_fit_is_refused_with_its_bytes(run: Run, transformer: Path) -> None:
    done = run("plan", transformer, *SYSTEM, "--gpus", "8", "--batch-size", "100000")
    assert done.code == 3
    assert "the dense part and the reserve alone exceed a device by" in done.err
    assert "activations" in done.err


def test_the_smallest_device_counts(transformer: Path) -> None:
    """Every rank trains a copy, so what fits the largest device alone does not fit."""
    workload = io.load_workload(transformer)
    topology = io.load_system("h100_sxm", gpus=8)
    need = dense_bytes(workload) + workload.reserved_bytes
    assert need < topology.hbm_capacities().min()
    small = replace(topology.device, hbm_capacity_bytes=need - 1.0)
    with pytest.raises(InfeasibleError, match="exceed a device"):
        api.plan(workload, replace(topology, device=small))


@pytest.mark.parametrize("objective", ["torchrec", "torchrec-critical-path"])
def test_objectives_about_tables_are_refused(run: Run, transformer: Path, objective: str) -> None:
    done = run("plan", transformer, *SYSTEM, "--gpus", "8", "--objective", objective)
    assert done.code == 2
    assert "is about tables, and the workload 'small_gpt' has none" in done.err


def test_a_workload_with_tables_needs_its_plan(run: Run, workload_file: Path) -> None:
    done = run("estimate", workload_file, *SYSTEM, "--gpus", "8")
    assert done.code == 2
    assert "has tables, so name a plan after it" in done.err


def test_parallel_configurations_of_a_dense_model(run: Run, transformer: Path) -> None:
    """Which of them is best is what the study answers."""
    done = run(
        *("study", transformer, *SYSTEM, "--gpus", "8", "--grid", "--json", "--workers", "1"),
        *("--vary", "training.tensor_parallel=1,2"),
        *("--vary", "training.dense_parallelism=ddp,fsdp"),
    )
    assert done.code == 0, done.err
    told = json.loads(done.out)
    rows = {
        (s["training.tensor_parallel"], s["training.dense_parallelism"]): s["iteration_time_s"]
        for s in told["setups"]
    }
    assert set(rows) == {(1, "ddp"), (1, "fsdp"), (2, "ddp"), (2, "fsdp")}
    best = told["setup"]["training.tensor_parallel"], told["setup"]["training.dense_parallelism"]
    assert len(set(rows.values())) > 1
    assert best in rows


def test_a_study_has_pipelines_to_try(run: Run, transformer: Path) -> None:
    done = run("study", transformer, *SYSTEM, "--gpus", "8", "--trials", "2")
    assert done.code == 0, done.err


def test_explain_says_what_the_iteration_waits_for(run: Run, transformer: Path) -> None:
    """No plan is needed, as for estimate, and no table can change."""
    done = run("explain", transformer, *SYSTEM)
    assert done.code == 0, done.err
    assert "What the iteration of" in done.out
    assert "Best change" not in done.out
    wrong = run("explain", transformer, *SYSTEM, "--table", "user")
    assert wrong.code == 2
    assert "the workload has no tables" in wrong.err


def test_statistics_are_refused_in_words(run: Run, transformer: Path, tmp_path: Path) -> None:
    """For a plan and for drift alike; the line told of tables called "nothing"."""
    stats, folder = tmp_path / "stats.json", tmp_path / "out"
    write_npy(tmp_path / "day_0_sparse.npy", np.zeros((9, 2), dtype=np.int64))
    assert run("profile", tmp_path / "day_0_sparse.npy", "-o", stats).code == 0
    assert run("plan", transformer, *SYSTEM, "-o", folder).code == 0
    for words in (
        ("plan", transformer, *SYSTEM, "--stats", stats),
        ("drift", transformer, folder / "plan.json", "--stats", stats),
    ):
        done = run(*words)
        assert done.code == 2
        assert "are about tables, and the workload 'small_gpt' has none" in done.err


def test_limits_on_tables_that_there_are_not_are_refused_and_stop_no_price(
    run: Run, transformer: Path, tmp_path: Path
) -> None:
    """Every search refuses them; a plan that is there breaks no rule about where tables lie."""
    assert run("plan", transformer, *SYSTEM, "-o", tmp_path / "out").code == 0
    text = transformer.read_text()
    for rule, words in (
        ("max_shards_per_host: 4", "matches no table"),
        ("device_memory: 1 GiB, ranks: [9]", "ranks [9] are outside 0..7"),
    ):
        transformer.write_text(f"{text}\nconstraints: [{{{rule}}}]\n")
        for command in ("plan", "study", "explain"):
            done = run(command, transformer, *SYSTEM)
            assert (done.code, words in done.err) == (2, True), (command, done)
        priced = run("estimate", transformer, tmp_path / "out" / "plan.json")
        assert priced.code == 0, priced.err
