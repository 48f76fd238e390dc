"""Every slip of the keyboard: one clear line on stderr, exit code 2, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planner.cli.command_line import Run

PLAN = ("plan", "WORKLOAD", "--system", "SYSTEM", "--gpus", "8")

BAD = {
    "unknown command": (("plann", "WORKLOAD"), "Did you mean one of: 'explain', 'plan'"),
    "unknown command, nothing near": (("zzz",), "No such command 'zzz'"),
    "unknown flag": ((*PLAN, "--gpu-count", "8"), "--gpu-count"),
    "unknown group flag": (("--frobnicate",), "--frobnicate"),
    "no workload": (("plan", "--system", "SYSTEM"), "Missing argument 'WORKLOAD'"),
    "missing file": (("plan", "absent.yaml", *PLAN[2:]), "absent.yaml"),
    "folder as workload": (("plan", ".", *PLAN[2:]), "."),
    "no system": (("plan", "WORKLOAD", "--gpus", "8"), "--system"),
    "unknown system": (("plan", "WORKLOAD", "--system", "h900", "--gpus", "8"), "h900"),
    "zero gpus": ((*PLAN[:4], "--gpus", "0"), "'0' is not a whole number"),
    "negative gpus": ((*PLAN[:4], "--gpus", "-8"), "'-8' is not a whole number"),
    "gpus in words": ((*PLAN[:4], "--gpus", "eight"), "'eight' is not a whole number"),
    "half a gpu": ((*PLAN[:4], "--gpus", "7.5"), "'7.5' is not a whole number"),
    "too many gpus": ((*PLAN[:4], "--gpus", "99999999999"), "65,536"),
    "gpus of thousands of digits": ((*PLAN[:4], "--gpus", "9" * 5000), "is not a whole number"),
    "uneven hosts": ((*PLAN[:4], "--gpus", "12", "--gpus-per-host", "8"), "12"),
    "zero per host": ((*PLAN, "--gpus-per-host", "0"), "'0' is not a whole number"),
    "zero batch": ((*PLAN, "--batch-size", "0"), "'0' is not a whole number"),
    "batch with unit": ((*PLAN, "--batch-size", "4kB"), "'4kB' is not a whole number"),
    "huge batch": ((*PLAN, "--batch-size", "1_000_000_000"), "100,000,000"),
    "both batches": (
        (*PLAN, "--batch-size", "64", "--global-batch-size", "512"),
        "exclude each other",
    ),
    "uneven global batch": ((*PLAN, "--global-batch-size", "1001"), "not a multiple of 8"),
    "small global batch": ((*PLAN, "--global-batch-size", "4"), "not a multiple of 8"),
    "bare reserve": ((*PLAN, "--reserve", "6"), "'6' has no unit; write '6 GiB'"),
    "reserve in metres": ((*PLAN, "--reserve", "6 m"), "'m'"),
    "negative reserve": ((*PLAN, "--reserve", "-1 GiB"), "negative"),
    "bare time limit": ((*PLAN, "--time-limit", "10"), "'10' has no unit; write '10s'"),
    "zero time limit": ((*PLAN, "--time-limit", "0s"), "must be above 0"),
    "time limit in bytes": ((*PLAN, "--time-limit", "10 GiB"), "'GiB'"),
    "infinite time limit": ((*PLAN, "--time-limit", "inf"), "inf"),
    "no evaluations": ((*PLAN, "--evaluations", "0"), "'0' is not a whole number"),
    "evaluations in words": ((*PLAN, "--evaluations", "many"), "'many' is not a whole number"),
    "gap without sign": ((*PLAN, "--require-gap", "0.05"), "'0.05' is not a percentage"),
    "negative gap": ((*PLAN, "--require-gap", "-5%"), "'-5%' is not a percentage"),
    "unknown strategy": ((*PLAN, "--strategy", "magic"), "'magic' is not one of auto"),
    "private strategy": ((*PLAN, "--strategy", "base"), "'base' is not one of"),
    "unknown objective": (
        (*PLAN, "--objective", "speed"),
        "'speed' is not one of iteration, phases",
    ),
    "negative seed": ((*PLAN, "--seed", "-1"), "--seed"),
    "seed in words": ((*PLAN, "--seed", "lucky"), "--seed"),
    "override without value": ((*PLAN, "--set", "tables.0.embedding_dim"), "tables.0"),
    "override of an unknown key": ((*PLAN, "--set", "tabels.0.embedding_dim=3"), "tabels"),
    "override at thousands of digits": (
        (*PLAN, "--set", "tables." + "9" * 5000 + ".embedding_dim=64"),
        "has no such key",
    ),
    "one key set twice": (
        (*PLAN, "--set", "training.pipeline=none", "--set", "training.pipeline=hugectr"),
        "--set training.pipeline: 2 values",
    ),
    "batch set twice": (
        (*PLAN, "--batch-size", "64", "--set", "training.batch_size_per_rank=64"),
        "--batch-size and --set=training.batch_size_per_rank",
    ),
    "reserve set twice": (
        (*PLAN, "--reserve", "1 GiB", "--set", "memory.reserve=2 GiB"),
        "--reserve and --set=memory.reserve",
    ),
    "pipeline set twice": (
        ("study", *PLAN[1:], "--vary", "training.pipeline=none", "--set", "training.pipeline=none"),
        "--set training.pipeline: 2 values",
    ),
    "model set twice": (
        (*PLAN, "--model", "dense=roofline", "--model", "dense=mine.py"),
        "--model dense: 2 values",
    ),
    "lookahead set twice": (
        ("study", *PLAN[1:], "--vary", "training.lookahead=8", "--set", "training.lookahead=4"),
        "--set training.lookahead: 2 values",
    ),
    "override out of range": ((*PLAN, "--set", "tables.99.embedding_dim=64"), "99"),
    "output like a stream": ((*PLAN, "-o", "-"), "'-' names no file"),
    "workload like a stream": (("plan", "-", *PLAN[2:]), "'-' names no file"),
    "output is a file": ((*PLAN, "-o", "WORKLOAD"), "is a file"),
    "output below a file": ((*PLAN, "-o", "WORKLOAD/run"), "is a file"),
    "output holds other files": ((*PLAN, "-o", "."), "--force"),
    "flag without value": ((*PLAN, "--seed"), "--seed"),
    "batches to profile of thousands of digits": (
        ("profile", "WORKLOAD", "--batch-sizes", "9" * 5000),
        "is not a whole number from 1 to",
    ),
    "extra argument": ((*PLAN, "another.yaml"), "another.yaml"),
    "estimate without plan": (("estimate", "WORKLOAD"), "Missing argument 'PLAN'"),
    "estimate of no plan": (("estimate", "WORKLOAD", "WORKLOAD"), "plan"),
    "compare one plan": (("compare", "WORKLOAD", "one.json"), "two or more plans"),
    "compare missing plans": (("compare", "WORKLOAD", "a.json", "b.json"), "a.json"),
    "fail over without sign": (
        ("compare", "WORKLOAD", "a.json", "b.json", "--fail-over", "0.03"),
        "'0.03' is not a percentage",
    ),
    "negative fail over": (
        ("compare", "WORKLOAD", "a.json", "b.json", "--fail-over", "-3%"),
        "'-3%' is not a percentage",
    ),
    "check of both": (("check", "WORKLOAD", "--schema", "plan"), "either FILE or --schema"),
    "schema of nothing": (("check", "--schema", "model"), "--schema"),
    "check of an absent file": (("check", "absent.yaml"), "absent.yaml"),
    "init over a file": (("import", "tables", "WORKLOAD"), "exists"),
    "unknown system to show": (("systems", "show", "h900"), "h900"),
    "unknown subcommand": (("systems", "delete", "h100_sxm"), "delete"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_flags(
    name: str, run: Run, workload_file: Path, system_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workload_file.parent)
    args, expected = BAD[name]
    before = {path: path.read_bytes() for path in Path.cwd().iterdir()}
    files = {"WORKLOAD": workload_file.name, "SYSTEM": system_file.name}
    done = run(
        *(
            arg.replace("WORKLOAD", files["WORKLOAD"]).replace("SYSTEM", files["SYSTEM"])
            for arg in args
        )
    )
    assert done.code == 2, done
    assert done.out == ""
    assert expected in done.err
    assert "Traceback" not in done.err
    first, *more = done.err.splitlines()
    assert ": error: " in first
    assert all(line.startswith("  ") for line in more)
    assert {path: path.read_bytes() for path in Path.cwd().iterdir()} == before
