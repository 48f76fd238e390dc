"""Columns that are no multiple of 4: FBGEMM's rule is said, priced, and not HugeCTR's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.workload import Pipeline
from planner import api
from planner.io import load_system, load_workload_file
from planner.io.documents import read_json
from planner.io.importers.hugectr import import_hugectr
from planner.models import pipeline_of
from planner.options.torchrec_rules import odd_tables, widened, width_remarks
from planner.problem import PlanningProblem
from planner.settings import SearchSettings
from planner.support.status import Status
from tests.planner.cli.command_line import Run
from tests.planner.cli.conftest import run  # noqa: F401 - a fixture

DATA = Path(__file__).parent / "data"


def test_init_and_check_name_tables_and_next_widths(run: Run, tmp_path: Path) -> None:  # noqa: F811
    target = tmp_path / "d.yaml"
    for done in (
        run("import", "tables", target, "--list", DATA / "dim10.csv"),
        run("check", target),
    ):
        assert done.code == 0
        told = " ".join(done.err.split())
        assert "'users' (10), 'items' (18)" in told
        assert "embedding_dim 12 for 10, 20 for 18 would allow every sharding type" in told


def test_plan_proves_nothing_for_such_widths() -> None:
    workload = load_workload_file(DATA / "dim10.csv").workload
    topology = load_system("a100_80gb_sxm", gpus=8)
    search = SearchSettings(max_evaluations=300, with_baselines=False)
    result = api.solve(PlanningProblem(workload=workload, topology=topology), search=search)
    assert result.solver.status is Status.OPTIMAL_FOR_WIDTHS
    assert any("only copy them to every rank" in w for w in result.warnings)
    wide = api.solve(PlanningProblem(workload=widened(workload), topology=topology), search=search)
    assert wide.solver.value < 0.02 * result.solver.value
    assert not any("multiple of 4" in w for w in wide.warnings)


def test_hugectr_cuts_tables_of_one_column() -> None:
    path = DATA / "hctr_wide_dim1.json"
    imported = import_hugectr(path, read_json(path))
    assert imported.plan is not None
    workload = imported.workload
    assert "'emb_w' (1)" in width_remarks(workload)[0]
    overlapping = replace(workload, pipeline=Pipeline.HUGECTR)
    assert not odd_tables(overlapping)
    problem = PlanningProblem(workload=overlapping, topology=load_system("v100_32gb_sxm", gpus=8))
    implied = pipeline_of(problem).estimate(imported.plan).time.time_s
    search = SearchSettings(max_evaluations=300, with_baselines=False)
    assert api.solve(problem, search=search).solver.value <= implied * (1 + 1e-9)


@pytest.mark.parametrize(("dim", "told"), [(63, "64 for 63"), (1, "4 for 1"), (8, None)])
def test_every_other_width_is_told(dim: int, told: str | None) -> None:
    workload = load_workload_file(DATA / "dim10.csv").workload
    tables = tuple(replace(t, embedding_dim=dim) for t in workload.tables)
    remarks = width_remarks(replace(workload, tables=tables))
    assert (told is None) == (not remarks)
    assert told is None or told in remarks[0]


def test_plan_prices_the_next_widths(run: Run) -> None:  # noqa: F811
    search = ("--evaluations", 100)
    done = run("plan", DATA / "dim10.csv", "--system", "a100_80gb_sxm", "--gpus", 8, *search)
    assert done.code == 0, done.err
    told = " ".join((done.out + done.err).split())
    assert "proven optimal" not in told
    assert "with embedding_dim 12 for 'users', 20 for 'items', a short search finds" in told
