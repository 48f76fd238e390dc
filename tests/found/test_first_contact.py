"""What people type first: it works, or it says in one line what to type instead."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pandas as pd
import pytest

from costmodels.units import format_time
from planner import load_problem, load_system, load_workload, plan, solve, workload_from_dataframe
from planner.cli.run import run
from planner.errors import InvalidInputError
from planner.models import chosen_models
from planner.result import PlanningResult
from planner.settings import SearchSettings

GIB = 2**30
ASKED = ("plan", "small_demo", "--system", "h100_sxm", "--evaluations", "50")


@pytest.fixture
def result() -> PlanningResult:
    rows = pd.DataFrame({"name": ["a", "b"], "rows": [10_000, 500], "dim": [64, 32]})
    workload = workload_from_dataframe(rows, batch_size_per_rank=512)
    return plan(workload, load_system("h100_sxm", gpus=8), max_evaluations=20)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert run([*ASKED, *words, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run([*ASKED, *words]) == 2
    return capsys.readouterr().err


def test_a_result_prints_as_one_line(result: PlanningResult) -> None:
    """It was 1.95 MB for a large plan."""
    assert str(result).startswith("<PlanningResult: <Candidate 'auto': ")
    assert "2 tables> on 8 ranks, gap " in str(result)
    assert len(repr(result)) < 400
    assert repr(result.best).startswith("<Candidate ")
    assert len(repr(result.best)) < 200


def test_a_result_is_saved_and_shown_from_python(result: PlanningResult, tmp_path: Path) -> None:
    written = result.save(tmp_path / "run")
    assert {path.name for path in written} == {"plan.json", "report.html", "trace"}
    assert (tmp_path / "run" / "report.html").read_text() == result.to_html()
    assert result.save(str(tmp_path / "run")) == written  # the same run again
    assert (tmp_path / "run" / "trace").is_dir()


def test_the_first_pages_show_dataframes() -> None:
    root = Path(__file__).parents[2]
    assert "workload_from_dataframe" in (root / "docs" / "index.md").read_text("utf-8")


def test_a_run_of_another_model_is_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert run([*ASKED, "-o", str(folder), "-q"]) == 0
    assert run([*ASKED, "--gpus", "8", "--batch-size", "64", "-o", str(folder), "-q"]) == 0
    before = (folder / "plan.json").read_bytes()
    capsys.readouterr()
    other = ["plan", "dlrm_dcnv2_mlperf", *ASKED[2:], "-o", str(folder), "-q"]
    assert run(other) == 2
    assert "holds a plan of another model (small_demo)" in capsys.readouterr().err
    assert (folder / "plan.json").read_bytes() == before
    assert run([*other, "--force"]) == 0


def test_hosts_count_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "--hosts", "2")["world_size"] == 16
    assert told(capsys, "--hosts", "3", "--gpus-per-host", "4")["world_size"] == 12
    assert "--hosts and --gpus exclude each other" in refused(
        capsys, "--hosts", "2", "--gpus", "16"
    )


def test_a_reserve_may_be_a_share(capsys: pytest.CaptureFixture[str]) -> None:
    memory = told(capsys, "--reserve", "10%")["memory"]
    text = json.dumps(memory)
    assert str(int(8 * GIB)) in text  # of 80 GiB
    assert "must be above 0% and below 100%" in refused(capsys, "--reserve", "100%")
    assert "has no unit" in refused(capsys, "--reserve", "10")


def test_k_is_1024_samples(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "--batch-size", "2k")["batch_size_per_rank"] == 2048
    whole = told(capsys, "--gpus", "8", "--global-batch-size", "32k")
    assert whole["batch_size_per_rank"] == 4096
    assert "is not a whole number" in refused(capsys, "--batch-size", "2kk")
    assert run(["plan", "--help"]) == 0
    assert "32k is 32,768" in " ".join(capsys.readouterr().out.split())


def test_a_fitted_system_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    box = tmp_path / "box.yaml"
    ratios = "{lookup: 1.1, collective: 0.9, dense: 1.0, host: 1.0}"
    box.write_text(f"base: h100_sxm\nname: box\nfitted: {ratios}\n")
    words = ["plan", "small_demo", "--system", str(box), "--evaluations", "20"]
    assert run(words) == 0, capsys.readouterr().err
    assert "8 x box (1 host), fitted to measured runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "half_a_model",
            "from costmodels.collective.base import AbstractCollectiveModel as Base\n"
            "class Half(Base):\n    def fixed_s(self, topology, **_):\n        return 0.0\n",
            "class Half lacks all_to_all, reduce_scatter",
        ),
        (
            "no_model",
            "class Mine:\n    def all_to_all(self):\n        return 1\n",
            "class Mine does not extend costmodels.collective.base.AbstractCollectiveModel and "
            "lacks fixed_s, reduce_scatter",
        ),
    ],
)
def test_a_class_is_told_which_methods_it_lacks(
    name: str, text: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=words):
        chosen_models(load_system("h100_sxm", gpus=8), {"collective": str(path)})


def test_failures_give_the_interval_of_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    """Young and Daly: sqrt(2 x writing x mean time between failures of the job)."""
    assert run([*ASKED, "--hosts", "2", "--mtbf", "500h"]) == 0
    line = next(t for t in capsys.readouterr().out.splitlines() if t.startswith("Checkpoints"))
    assert line == "Checkpoints   every 345 s loses the least time (Young and Daly)"


def test_no_system_has_a_price_without_a_source(capsys: pytest.CaptureFixture[str]) -> None:
    """Five clouds had that of the bare H100, called their list price; its own had no source."""
    assert run(["systems", "--json"]) == 0
    systems = json.loads(capsys.readouterr().out)
    assert len(systems) > 30
    assert {row["price_usd_per_hour"] for row in systems.values()} == {None}
    assert run([*ASKED]) == 0
    assert "USD" not in capsys.readouterr().out
    assert run([*ASKED, "--price", "12.29 USD/h"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "8 GPUs at 12.29 USD/h (user, --price)" in said


def test_systems_shows_price_and_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["systems"]) == 0
    out = capsys.readouterr().out
    assert "network" in out
    assert "USD/h" in out
    line = next(text for text in out.splitlines() if " h100_sxm " in text)
    assert {"43", "-"} <= set(line.split())


def test_review_compares_two_different_plans() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "review.md").read_text("utf-8")
    assert "-o today" in page
    assert "--strategy size_greedy" in page
    workload, system = load_workload("small_demo"), load_system("h100_sxm", gpus=8)
    ours = plan(workload, system, max_evaluations=200)
    theirs = plan(workload, system, strategy="size_greedy")
    assert ours.plan != theirs.plan


def test_a_short_study_shows_one_gap(capsys: pytest.CaptureFixture[str]) -> None:
    """The host decides: gaps of 81 % stood beside a proof of 0.01 %."""
    asked = ["study", "small_demo", "--system", "h100_sxm", "--gpus", "2,8", "--workers", "1"]
    assert run([*asked, "--evaluations", "20", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    for setup in told["setups"]:
        assert setup["bound_s"] == pytest.approx(setup["iteration_time_s"], rel=0.01)
    assert told["space"]["possible_gain_ratio"] < 0.01


def test_a_study_counts_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["study", "small_demo", "--workers", "1", "--grid", "--evaluations", "20", "--json"]
    assert run([*asked, "--system", "h100_sxm", "--hosts", "1,2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["gpus"] for row in found["setups"]] == [8, 16]
    assert run([*asked, "--system", "h100_sxm", "--hosts", "1", "--gpus", "8"]) == 2
    assert "--hosts and --gpus exclude each other" in capsys.readouterr().err
    assert run([*asked, "--system", "h100_sxm,gb200", "--hosts", "2"]) == 2
    assert "GPUs per host differ (8 on h100_sxm, 4 on gb200)" in capsys.readouterr().err


def test_the_example_of_a_model_says_what_each_price_is(capsys: pytest.CaptureFixture[str]) -> None:
    """It printed four prices of one thing, without a word on which was which."""
    root = Path(__file__).parents[2]
    runpy.run_path(str(root / "examples" / "04_add_a_cost_model.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()[1:]
    quiet, congested = ([float(t) for t in re.findall(r"([\d.]+) ms", line)] for line in lines)
    assert lines[0].startswith("on the quiet network")
    assert quiet[0] < quiet[1]
    assert congested[1] < congested[0]
    assert max(quiet) < min(congested)


def test_a_notebook_can_show_how_a_search_goes(capsys: pytest.CaptureFixture[str]) -> None:
    """``progress=True`` redraws one line, without a terminal and without a callback."""
    problem = load_problem("small_demo", "h100_sxm", gpus=8)
    search = SearchSettings(max_evaluations=50)
    result = solve(problem, search=search, progress=True)
    shown = capsys.readouterr().err
    assert "\n" not in shown
    assert f"best {format_time(result.solver.value)}" in shown.split("\r")[-1]
    solve(problem, search=search, progress=False)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["study", "--system", "gb200", "--system", "b300"], "put the values into one, as in A,B"),
        (["plan", "--system", "h100_sxm", "--gpus", "8", "--gpus=16"], "--gpus is given 2 times"),
        (["import", "tables", "--list", "a", "--list", "b"], "--list is given 2 times"),
    ],
)
def test_a_flag_that_is_given_twice_is_refused(
    asked: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last one counted, and the first was dropped without a word."""
    assert run([*asked, "small_demo"]) == 2
    assert told in capsys.readouterr().err
