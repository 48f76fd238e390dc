"""``shardplan drift``: figures, exit codes, days, raw data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from planner.cli.run import run as run_command_line
from planner.profiling.profiler import profile_files
from planner.profiling.statistics import ProfileOptions
from tests.planner.cli.command_line import SYSTEM_TEXT, Run
from tests.planner.profiling.samples import write_npy, zipf_ids

WORKLOAD = """\
name: w
training: {batch_size_per_rank: 65536}
memory: {reserve: 1 GiB}
tables:
  - {name: cat_0, num_embeddings: 6000, embedding_dim: 256, distribution: {kind: zipf, exponent: 0.4}}
  - {name: cat_1, num_embeddings: 4000, embedding_dim: 256, distribution: {kind: zipf, exponent: 1.3}}
"""  # noqa: E501


def day(folder: Path, seen: int, exponent: float) -> Path:
    """Raw indices of a day: two columns with one index per sample, ids below ``seen``."""
    columns = [zipf_ids(seen, exponent, 0.0, 4_000, i) for i in range(2)]
    folder.mkdir()
    return write_npy(folder / "day_0_sparse.npy", np.stack(columns, axis=1))


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Statistics of three days, and raw data with ids that no table has."""
    folder = tmp_path_factory.mktemp("days")
    stats = []
    for number in range(3):
        raw = day(folder / f"raw{number}", 1_000 * (number + 1), 1.3 - 0.4 * number)
        stats.append(folder / f"{number}.json")
        profile_files([raw], stats[-1], ProfileOptions(batch_sizes=(512,)))
    return (*stats, day(folder / "large", 4_500, 0.1))


@pytest.fixture(scope="module")
def pinned_plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a plan with both tables on rank 0."""
    folder = tmp_path_factory.mktemp("pinned")
    workload, pinned, system = (folder / f"{name}.yaml" for name in ("w", "pinned", "box"))
    workload.write_text(WORKLOAD)
    pinned.write_text("constraints: [{tables: '*', ranks: [0], sharding_types: [table_wise]}]\n")
    system.write_text(SYSTEM_TEXT)
    words = ("--system", system, "-o", folder / "run", "-q", "--evaluations", 10)
    asked = ("plan", workload, "--constraints", pinned, *words)
    assert run_command_line([str(word) for word in asked]) == 0
    return (folder / "run" / "plan.json").read_text()


@pytest.fixture
def made(pinned_plan: str, tmp_path: Path) -> tuple[Path, Path]:
    """The workload, and that plan of it."""
    workload, plan = tmp_path / "w.yaml", tmp_path / "run" / "plan.json"
    workload.write_text(WORKLOAD)
    plan.parent.mkdir()
    plan.write_text(pinned_plan)
    return workload, plan


def test_a_drifted_plan_ends_with_exit_code_1(
    run: Run, made: tuple[Path, Path], system_file: Path, days: tuple[Path, ...], tmp_path: Path
) -> None:
    asked = ("drift", *made, "--system", system_file, "--evaluations", 8)
    done = run(*asked, "--stats", days[0], "-o", tmp_path / "new.json")
    assert done.code == 1, done.err
    assert "Plan again" in done.out
    assert done.out.count("--threshold") == 1
    small = run(*asked, "--stats", days[0], "--threshold", "0.01%")
    assert "above 0.01 % (--threshold)" in " ".join(small.out.split())
    assert "of training" in done.out
    assert "cat_0" in done.out
    new = json.loads((tmp_path / "new.json").read_text())
    kept = run(*asked, "--stats", days[0], "--threshold", "99%", "--json")
    assert kept.code == 0, kept.err
    (told,) = json.loads(kept.out)["days"]
    assert told["new_s"] == new["predicted"]["iteration_time_s"]
    assert told["new_s"] < told["now_s"]
    assert told["payback_s"] > 0
    assert {t["table"] for t in told["tables"]} == {"cat_0", "cat_1"}
    limited = run(*asked, "--stats", days[0], "--json", "--max-moved-bytes", "0 GiB")
    assert json.loads(limited.out)["days"][0]["move"]["moved_bytes"] == 0


def test_what_was_found_is_printed_where_the_new_plan_cannot_be_written(
    run: Run,
    made: tuple[Path, Path],
    system_file: Path,
    days: tuple[Path, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The place was fine before the search, and is not any more."""
    monkeypatch.setattr("planner.cli.commands.drift.check_output", lambda *_: None)
    (tmp_path / "file").write_text("x")
    asked = ("drift", *made, "--system", system_file, "--evaluations", 8, "--stats", days[0])
    done = run(*asked, "-o", tmp_path / "file" / "new.json")
    assert done.code == 2
    assert "new.json" in done.err
    assert "Plan again" in done.out


def test_a_plan_beyond_the_memory_that_constraints_leave_is_due(
    run: Run, made: tuple[Path, Path], system_file: Path, days: tuple[Path, ...], tmp_path: Path
) -> None:
    """Rank 0 holds both tables, and is left a little less than that takes."""
    rules, memory = tmp_path / "rules.yaml", json.loads(made[1].read_text())["memory"]
    used_mib = memory["per_rank"][0]["used_bytes"] / 2**20
    rules.write_text(f"constraints: [{{device_memory: {used_mib - 1:.3f} MiB, ranks: [0]}}]\n")
    asked = ("drift", *made, "--system", system_file, "--evaluations", 8, "--threshold", "99%")
    assert run(*asked, "--stats", days[0]).code == 0
    done = run(*asked, "--stats", days[0], "--constraints", rules)
    assert done.code == 1, done.err
    assert "does not fit in memory" in done.out
    assert "once over the links" in done.out
    told = " ".join(done.err.split())
    assert "breaks these constraints: rank 0 is 1,024 KiB over device_memory" in told


def test_several_days_make_a_trend_and_tell_of_the_rows_they_need(
    run: Run, made: tuple[Path, Path], system_file: Path, days: tuple[Path, ...]
) -> None:
    asked = ("drift", *made, "--system", system_file, "--evaluations", 8)
    given = [f"--stats=2026-11-{20 + i}={path}" for i, path in enumerate(days[:3])]
    done = run(*asked, *reversed(given), "--json", "--threshold", "99%")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert [d["file"] for d in told["days"]] == [str(p) for p in days[:3]]
    assert len(told["trend"]["lasts_days"]) == 3
    needed = [
        next(r["num_rows_needed"] for r in d["rows"] if r["table"] == "cat_0") for d in told["days"]
    ]
    assert needed == pytest.approx([1_000, 2_000, 3_000], rel=0.05)
    assert "Day by day" in run(*asked, *given).out


def test_raw_data_and_tables_that_are_too_small(
    run: Run, made: tuple[Path, Path], system_file: Path, days: tuple[Path, ...]
) -> None:
    asked = ("drift", *made, "--system", system_file, "--evaluations", 8, "--threshold", "99%")
    done = run(*asked, "--stats", days[3])
    assert done.code == 1, done.err
    assert "Too small" in done.out
    assert "cat_1: ids need 4," in done.out
    assert "beyond the rows of cat_1" in done.err


def test_the_statistics_of_then_can_be_named(
    run: Run, tmp_path: Path, system_file: Path, days: tuple[Path, ...]
) -> None:
    """The plan was made with them, and its file predicts what they say."""
    bare = WORKLOAD.replace(", distribution: {kind: zipf, exponent: 0.4}", "")
    workload = tmp_path / "w.yaml"
    workload.write_text(bare.replace(", distribution: {kind: zipf, exponent: 1.3}", ""))
    on = ("--system", system_file, "--evaluations", 8)
    assert run("plan", workload, *on, "--stats", days[1], "-o", tmp_path / "run").code == 0
    asked = ("drift", workload, tmp_path / "run" / "plan.json", *on, "--threshold", "99%")
    same = run(*asked, "--before", days[1], "--stats", days[1], "--json")
    told = json.loads(same.out)
    assert told["days"][0]["tables"] == []
    assert told["days"][0]["before_s"] == told["days"][0]["now_s"]
    assert not any("was made for other" in text for text in told["warnings"])
    assert "no distribution" not in same.err
    for before in ((), ("--before", days[2])):
        assert "was made for other" in run(*asked, "--stats", days[1], *before).err


@pytest.mark.parametrize(
    ("stats", "words"),
    [
        (("a.json",), "does not exist"),
        (("monday=0.json",), "DAY is a number"),
        ((f"{'9' * 20}={{0}}", "1={1}"), "DAY is a number"),
        (("{0}", "{1}"), "need their days"),
        (("1={0}", "1={1}"), "of the same day"),
        (("2026-11-20={0}", "2={1}"), "some days are dates and others numbers"),
    ],
)
def test_bad_days_are_refused(
    run: Run, made: tuple[Path, Path], days: tuple[Path, ...], stats: tuple[str, ...], words: str
) -> None:
    given = [f"--stats={text.format(*days)}" for text in stats]
    done = run("drift", *made, *given)
    assert done.code == 2
    assert words in done.err


def test_outputs_that_cannot_be_are_refused_before_the_search(
    run: Run, made: tuple[Path, Path], system_file: Path, days: tuple[Path, ...], tmp_path: Path
) -> None:
    """Also what the new plan would be written over."""
    asked = ("drift", *made, "--system", system_file, "--stats", days[0], "-o")
    folder = tmp_path / "raw"
    folder.mkdir()
    shutil.copy(days[0], folder / "day.json")
    asked = (*asked[:-1], "--stats", f"2={folder}", "-o")
    for output in (*made, system_file, days[0], folder / "day.json"):
        done = run(*asked, output)
        assert (done.code, done.out) == (2, "")
        assert "is read by this command and would be lost" in done.err
    (tmp_path / "file").touch()
    for output, words in (
        (tmp_path / "file" / "plan.json", "is a file, not a folder"),
        (Path("/proc/plan.json"), "cannot be written in /proc"),
    ):
        done = run(*asked, output)
        assert (done.code, done.out) == (2, "")
        assert words in done.err
