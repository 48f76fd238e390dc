"""``shardplan fit``: times and traces in, errors and a system file out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner import load_system, load_workload, plan
from planner.io import save_plan
from tests.planner.cli.command_line import SYSTEM_TEXT, WORKLOAD_TEXT, Run
from tests.planner.trace.h200_runs import NAMES, row_of, trace_of, workload_text
from tests.planner.trace.test_cpu_ranks import profile as gloo_profile

H200 = tuple[str, Path, Path]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two plans that load the box differently."""
    folder = tmp_path_factory.mktemp("plans")
    (folder / "small.yaml").write_text(WORKLOAD_TEXT)
    (folder / "box.yaml").write_text(SYSTEM_TEXT)
    workload, system = load_workload(folder / "small.yaml"), load_system(folder / "box.yaml")
    found = []
    for name in ("size_greedy", "random"):
        result = plan(workload, system, strategy=name, max_evaluations=5, with_baselines=False)
        save_plan(folder / f"{name}.json", result)
        found.append(folder / f"{name}.json")
    return found


def test_times_become_a_system(
    run: Run, tmp_path: Path, workload_file: Path, system_file: Path, plans: list[Path]
) -> None:
    output = tmp_path / "mine.yaml"
    priced = ("estimate", workload_file, plans[0], "--json", "--system")
    before_s = json.loads(run(*priced, system_file).out)["predicted"]["iteration_time_s"]
    given = [f"--run={plan}={1.5e3 * before_s:.6f}ms" for plan in plans]
    asked = ("fit", workload_file, "--system", system_file, "-o", output)
    done = run(*asked, given[0], given[0])
    assert done.code == 0, done.err
    assert "a single run" in done.err  # the same plan twice is one run
    after_s = json.loads(run(*priced, output).out)["predicted"]["iteration_time_s"]
    assert after_s == pytest.approx(1.5 * before_s, rel=0.02)
    copy = plans[0].with_name("copy.json")
    copy.write_bytes(plans[0].read_bytes())
    twice = " ".join(run(*asked, given[0], f"--run={copy}={2e3 * before_s:.6f}ms").err.split())
    assert "a single run" in twice
    assert f"{plans[0]}, {copy}: one plan, whose 2 times" in twice
    both = run(*asked, *given)
    assert both.code == 0, both.err
    for words in ("lookup", "collective", "Left out", "of 4 factors", "90 % from"):
        assert words in both.out
    told = json.loads(run(*asked, *given, "--json").out)
    assert [r["name"] for r in told["runs"]] == [str(plan) for plan in plans]
    assert set(told["factors"]) == {"lookup", "collective", "dense", "host"}


@pytest.mark.parametrize(("time", "words"), [("50s", "as long"), ("1ns", "as short")])
def test_a_time_that_no_system_explains_is_doubted(
    run: Run, workload_file: Path, system_file: Path, plans: list[Path], time: str, words: str
) -> None:
    """A unit slips easily."""
    asked = ("fit", workload_file, "--system", system_file, f"--run={plans[0]}={time}")
    assert f"{words} as predicted: is its unit right" in " ".join(run(*asked).err.split())


def test_a_system_that_could_not_be_read_is_not_written(
    run: Run, tmp_path: Path, workload_file: Path, system_file: Path, plans: list[Path]
) -> None:
    """A factor beyond those that a file may hold comes from a wrong unit."""
    output = tmp_path / "mine.yaml"
    asked = ("fit", workload_file, "--system", system_file, "-o", output, "--run")
    done = run(*asked, f"{plans[0]}=60s")
    assert done.code == 2
    for words in ("are the units of their times right?", "fitted.", "must be 0.001..1000"):
        assert words in done.err
    assert not output.exists()


def test_a_model_that_a_system_file_cannot_name_is_named_to_the_user(
    run: Run, tmp_path: Path, workload_file: Path, system_file: Path, plans: list[Path]
) -> None:
    asked = ("fit", workload_file, "--system", system_file, f"--run={plans[0]}=5ms")
    asked = (*asked, "-o", tmp_path / "mine.yaml")
    assert "cannot name" not in run(*asked).err
    assert "--model dense=roofline" in run(*asked, "--model", "dense=roofline").err


def test_traces_of_ones_own_prediction_change_nothing(
    run: Run, tmp_path: Path, workload_file: Path, system_file: Path, plans: list[Path]
) -> None:
    folder = tmp_path / "traces"
    exported = ("export", "trace", workload_file, plans[0], "--system", system_file, "-o", folder)
    assert run(*exported).code == 0
    asked = ("fit", workload_file, "--system", system_file, "--json", "--run")
    done = run(*asked, f"{plans[0]}={folder}")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert list(told["factors"].values()) == pytest.approx([1.0] * 4, abs=1e-3)
    assert told["error_before_ratio"] < 1e-3
    assert any("profiler's own" in text for text in told["warnings"])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("plan.json", "PLAN=TRACE or PLAN=TIME"),
        ("plan.json=5.2", "no time"),
        ("plan.json=none.json", "is no file"),
        ("{plan}=0ms", "above 0"),
        ("{plan}=1e-300s", "above 0"),
        ("{plan}=1e300s", "1 ns to 1000 hours"),
        ("{plan}={folder}", "holds no traces"),
    ],
)
def test_bad_runs_are_refused(
    run: Run, tmp_path: Path, workload_file: Path, system_file: Path, plans: list[Path],
    given: str, words: str,
) -> None:  # fmt: skip
    (tmp_path / "empty").mkdir()
    text = given.format(plan=plans[0], folder=tmp_path / "empty")
    done = run("fit", workload_file, "--system", system_file, "--run", text)
    assert done.code == 2
    assert words in done.err


def test_profiles_of_gloo_ranks_are_read_and_their_limits_said(
    run: Run, tmp_path: Path, workload_file: Path
) -> None:
    on = ("--system", "cpu_gloo", "--gpus", "2")
    searched = ("--strategy", "size_greedy", "-o", tmp_path / "run")
    assert run("plan", workload_file, *on, *searched).code == 0
    plan, folder = tmp_path / "run" / "plan.json", tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        (folder / f"{rank}.json").write_text(json.dumps(gloo_profile(rank=rank)))
    output = tmp_path / "mine.yaml"
    given = (f"--run={plan}={folder}", f"--run={plan}=0.1ms", "-o", output)
    done = run("fit", workload_file, *on, *given)
    assert done.code == 0, done.err
    assert "correct constants measured on other cores" in done.err
    assert output.with_suffix(".calibration.json").is_file()
    compared = run("validate", "trace", workload_file, plan, folder / "0.json", "--system", output)
    assert compared.code == 0, compared.err
    assert "other than those of lookups hold the profiler's own work" in compared.err


def test_the_system_is_not_written_over_what_is_read(
    run: Run, workload_file: Path, system_file: Path, plans: list[Path]
) -> None:
    asked = ("fit", workload_file, "--system", system_file, f"--run={plans[0]}=5ms", "-o")
    for output in (workload_file, system_file, plans[0]):
        before = output.read_bytes()
        done = run(*asked, output)
        assert done.code == 2
        assert "is read by this command and would be lost" in done.err
        assert output.read_bytes() == before


@pytest.fixture(scope="module", params=NAMES)
def h200(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> H200:
    """A model that was profiled on one H200, and a plan of it."""
    folder = tmp_path_factory.mktemp(str(request.param))
    model, path = folder / "model.yaml", folder / "plan.json"
    model.write_text(workload_text(request.param))
    workload, system = load_workload(model), load_system("h200_sxm", gpus=1)
    save_plan(path, plan(workload, system, strategy="size_greedy", with_baselines=False))
    return str(request.param), model, path


def _predicted_s(told: dict[str, Any], kind: str) -> float:
    return sum(row["predicted_s"] for row in told["rows"] if row["kind"] == kind)


def test_a_trace_of_a_gpu_says_which_stage_is_off_and_corrects_it(
    run: Run, tmp_path: Path, h200: H200
) -> None:
    """With the system that is written, each kind takes the time that its kernels took."""
    name, model, path = h200
    on, given = ("--system", "h200_sxm", "--gpus", "1"), f"--run={path}={trace_of(name)}"
    done = run("fit", model, *on, given, "--json", "-o", tmp_path / "mine.yaml")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["factors"]["collective"], told["absent"]) == (1.0, ["collective"])
    assert told["settled_ratio"]["collective"] == 0.0
    (before,) = told["traces"].values()
    (rank,) = before["ranks"]
    assert (rank["device"], rank["host_bound"]) == ("NVIDIA H200", True)
    again = ("validate", "trace", model, path, trace_of(name), "--json", "--system")
    after = json.loads(run(*again, tmp_path / "mine.yaml").out)
    measured = {row["kind"]: row["measured_s"] for row in after["rows"]}
    assert measured == {row["kind"]: row["measured_s"] for row in before["rows"]}
    for kinds in (
        ("lookup forward", "lookup backward"),
        ("dense forward", "dense backward", "dense optimizer"),
        ("host",),
        ("iteration",),
    ):
        predicted_s = sum(_predicted_s(after, kind) for kind in kinds)
        assert predicted_s == pytest.approx(sum(measured[k] for k in kinds), rel=0.05), kinds


def test_what_is_printed_of_a_trace_names_pace_stages_and_kernels(run: Run, h200: H200) -> None:
    name, model, path = h200
    on, given = ("--system", "h200_sxm", "--gpus", "1"), f"--run={path}={trace_of(name)}"
    out = " ".join(run("fit", model, *on, given).out.split())
    assert "Rank 0, NVIDIA H200, median of 3 steps" in out
    assert "Pace host-bound: the host takes" in out
    for words in ("- embedding kernels", "- sort and encode", "not in these runs", "Off most"):
        assert words in out


def test_a_time_without_the_profiler_tells_how_much_the_profiler_slows_the_host(
    run: Run, h200: H200
) -> None:
    name, model, path = h200
    wall_us = row_of(name)["wall_us"]
    asked = ("fit", model, "--system", "h200_sxm", "--gpus", "1", "--json")
    asked = (*asked, f"--run={path}={trace_of(name)}")
    profiled = json.loads(run(*asked).out)
    both = json.loads(run(*asked, f"--run={path}={wall_us}us").out)
    (rank,) = next(iter(both["traces"].values()))["ranks"]
    assert both["factors"]["lookup"] == pytest.approx(profiled["factors"]["lookup"], rel=0.1)
    # Dispatches of a slower host are capped, so that its factor grows by more than its time.
    expected = profiled["factors"]["host"] * 1e-6 * wall_us / rank["iteration_s"]
    assert 0.6 * expected < both["factors"]["host"] < 1.1 * expected
    assert profiled["runs"][0]["fitted_s"] == pytest.approx(rank["iteration_s"], rel=0.05)
    assert both["runs"][0]["fitted_s"] == pytest.approx(1e-6 * wall_us, rel=0.05)


def test_a_damaged_trace_is_one_error(run: Run, tmp_path: Path, h200: H200) -> None:
    name, model, path = h200
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(trace_of(name).read_bytes()[:40_000])
    on = ("--system", "h200_sxm", "--gpus", "1")
    for asked in (("fit", model, f"--run={path}={cut}"), ("validate", "trace", model, path, cut)):
        done = run(*asked, *on)
        assert (done.code, done.out) == (2, "")
        assert " ".join(done.err.split()).count("ended before") == 1
