from __future__ import annotations

from pathlib import Path

import pytest

from tests.planner.cli.command_line import FakeApi, Run
from tests.planner.report.page_reader import read_page

pytestmark = pytest.mark.usefixtures("fake_api")


@pytest.fixture
def plan_file(run: Run, workload_file: Path, system_file: Path, tmp_path: Path) -> Path:
    """A plan of the small workload on eight ranks."""
    folder = tmp_path / "made"
    done = run("plan", workload_file, "--system", system_file, "--gpus", 8, "-o", folder)
    assert done.code == 0, done.err
    return folder / "plan.json"


def test_plan_writes_a_page(
    run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    done = run("plan", workload_file, "--system", system_file, "--gpus", 8, "-o", folder)
    assert done.code == 0, done.err
    page = read_page((folder / "report.html").read_text())
    assert "Sharding plan of small" in page.words
    assert len(page.shown) > 60


def test_compare_writes_a_page(
    run: Run, fake_api: FakeApi, workload_file: Path, plan_file: Path, system_file: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    folder = tmp_path / "difference"
    args = ("compare", workload_file, plan_file, plan_file, "--system", system_file)
    done = run(*args, "-o", folder, "--json")
    assert done.code == 0, done.err
    assert {p.name for p in folder.iterdir()} == {"compare.html"}
    page = read_page((folder / "compare.html").read_text())
    times = [
        float(s.value) for s in page.shown if (s.section, s.quantity) == ("plans", "iteration")
    ]
    assert times == list(fake_api.times_s[:2])
    assert "Plans of small compared" in page.words


def test_compare_leaves_a_folder_of_other_things_alone(
    run: Run, workload_file: Path, plan_file: Path, system_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "notes.txt").write_text("keep")
    args = ("compare", workload_file, plan_file, plan_file, "--system", system_file)
    done = run(*args, "-o", folder)
    assert done.code == 2
    assert "notes.txt" in done.err
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("name", "words"),
    [("plan.json", "plan.json in it is a folder"), ("trace", "trace in it is a file")],
)
def test_what_cannot_be_replaced_leaves_the_folder_as_it_was(
    name: str, words: str, run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """Some files were replaced before the others failed."""
    args = ("plan", workload_file, "--system", system_file, "--gpus", 8, "-o", tmp_path / "run")
    assert run(*args).code == 0
    for path in [*(tmp_path / "run").rglob("*")]:
        if path.is_file():
            path.write_text("of an earlier run")
    (tmp_path / "run" / name).rename(tmp_path / "aside")
    if name == "trace":
        (tmp_path / "run" / name).write_text("")
    else:
        (tmp_path / "run" / name).mkdir()
    done = run(*args, "--force")
    assert done.code == 2
    assert words in done.err
    assert (tmp_path / "run" / "report.html").read_text() == "of an earlier run"


def test_links_to_folders_that_are_not_there_yet_are_followed(
    run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "real")
    asked = ("plan", workload_file, "--system", system_file, "--evaluations", 5, "-o")
    assert run(*asked, tmp_path / "link").code == 0
    assert (tmp_path / "deep" / "real" / "plan.json").exists()
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "pair").symlink_to(tmp_path / "two")
    plan = tmp_path / "link" / "plan.json"
    compared = ("compare", workload_file, plan, plan, "--system", system_file, "-o")
    assert run(*compared, tmp_path / "pair").code == 0
    assert (tmp_path / "two" / "compare.html").exists()
