"""How commands that read a plan take the constraints of its workload."""

from __future__ import annotations

import json
from pathlib import Path

from tests.planner.cli.command_line import Run
from tests.planner.io.files import write


def test_constraints_that_a_plan_breaks_are_said(
    run: Run, system_file: Path, tmp_path: Path
) -> None:
    free = """
        name: two
        training: {batch_size_per_rank: 16}
        tables:
          - {name: a, num_embeddings: 100000, embedding_dim: 64}
          - {name: b, num_embeddings: 1000, embedding_dim: 64}
        """
    rules = """
        constraints:
          - {tables: [a], sharding_types: [column_wise]}
          - {tables: [b], ranks: [7]}
          - {device_memory: 1 MiB}
          - {device_memory: 1 GiB, ranks: [0, 9]}
          - {host_memory: 1 GiB, hosts: [3]}
        """
    on = ("--system", system_file, "--gpus", 8)
    made = run(
        "plan", write(tmp_path, "free.yaml", free), *on, "-o", tmp_path / "run", "--evaluations", 20
    )
    assert made.code == 0, made.err
    ruled = write(tmp_path, "rules.yaml", free + rules)
    asked = run("estimate", ruled, tmp_path / "run" / "plan.json", "--system", system_file)
    said = " ".join(asked.out.split())
    assert "is priced as it is, but breaks the workload's constraints: table 'a' is" in said
    assert "table 'b' lies on rank" in said
    assert "over device_memory 1 MiB" in said
    assert "device_memory 1 GiB on ranks 0, 9 is outside ranks 0..7" in said
    assert "host_memory 1 GiB on hosts 3 is outside hosts 0..1" in said


def test_memory_that_a_rule_limits_is_the_same_in_every_command(
    run: Run, system_file: Path, tmp_path: Path
) -> None:
    """``estimate`` and ``compare`` showed the whole device, and other inputs than ``plan``."""
    text = """
        name: one
        training: {batch_size_per_rank: 16}
        tables: [{name: a, num_embeddings: 100000, embedding_dim: 64}]
        constraints: [{device_memory: 100 MiB}]
        """
    ruled, plan = write(tmp_path, "ruled.yaml", text), tmp_path / "run" / "plan.json"
    on = ("--system", system_file)
    made = run("plan", ruled, *on, "--evaluations", 9, "-o", tmp_path / "run", "--json")
    again = run("estimate", ruled, plan, *on, "--json")
    assert (made.code, again.code) == (0, 0)
    first, second = json.loads(made.out), json.loads(again.out)
    for key in ("memory", "inputs_hash", "system_hash", "predicted"):
        assert first[key] == second[key], key
    assert second["memory"]["per_rank"][0]["capacity_bytes"] == 100 * 2**20
    small = write(tmp_path, "small.yaml", text.replace("100 MiB", "1 MiB"))
    assert run("estimate", small, plan, *on).code == 1
    priced = json.loads(run("compare", small, plan, plan, *on, "--json").out)
    assert [entry["fits"] for entry in priced["plans"]] == [False, False]
