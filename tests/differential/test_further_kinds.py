"""Interrupted searches, plans in use under rules, measured cores, hot rows; all kinds at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from costmodels.workload import DataType
from tests.differential.as_large import as_large
from tests.differential.asking import Run
from tests.differential.check import EVALUATIONS, assert_sound, check
from tests.differential.drawing.problems import (
    draw,
    draw_calibrated,
    draw_hot,
    draw_replanned,
    draw_together,
)
from tests.differential.stored import load, save
from tests.planner.cases import first

pytestmark = pytest.mark.usefixtures("no_process_beside")


@pytest.mark.parametrize("seed", first(range(60), 3))
def test_interrupted_searches(seed: int) -> None:
    with as_large(seed):
        verdict = check(draw(seed), runs=(Run.CUT,), max_evaluations=EVALUATIONS)
    assert not verdict.faults, "\n".join(map(str, verdict.faults))


# ------------------------------------------------------------------ plans in use under rules


@pytest.mark.parametrize("seed", first(range(60), 4))
def test_plans_in_use_under_rules(seed: int) -> None:
    verdict = check(draw_replanned(seed), max_evaluations=EVALUATIONS)
    assert not verdict.faults, "\n".join(map(str, verdict.faults))


@pytest.mark.parametrize("seeds", first([(23, 29), range(40)], 1))
def test_plans_in_use_meet_every_kind_of_rule(seeds: Sequence[int]) -> None:
    cases = [draw_replanned(seed) for seed in seeds]
    rules = [c.constraints for c in cases]
    assert all(any(getattr(r, key) for r in rules) for key in ("together", "apart", "counts"))
    assert any(table.ranks for r in rules for table in r.tables)
    moves = [c.moves for c in cases if c.moves is not None]
    assert any(m.max_tables is not None for m in moves)
    assert any(m.max_bytes is not None for m in moves)


# ------------------------------------------------------------------ calibrated machines


@pytest.mark.parametrize("seed", first(range(60), 4))
def test_calibrated_machines(seed: int) -> None:
    assert_sound(draw_calibrated(seed), seed)


def test_calibrated_machines_differ_and_are_stored(tmp_path: Path) -> None:
    cases = [draw_calibrated(seed) for seed in range(4)]
    files = [Path(c.topology.calibration).read_text(encoding="utf-8") for c in cases]
    assert len(set(files)) == 4
    assert any('"points_ratio":[[' in "".join(text.split()) for text in files)
    save(cases[1], tmp_path / "case.json", ["nothing"])
    assert str(tmp_path.parent) not in (tmp_path / "case.json").read_text(encoding="utf-8")
    assert load(tmp_path / "case.json") == cases[1]


# ------------------------------------------------------------------ hot rows


@pytest.mark.parametrize("seed", first(range(60), 3))
def test_hot_rows_repeated_ids_and_unequal_domains(seed: int) -> None:
    assert_sound(draw_hot(seed), seed)


@pytest.mark.parametrize("seeds", first([(0, 1, 2, 3, 4), range(60)], 1))
def test_hot_rows_are_what_is_drawn(tmp_path: Path, seeds: Sequence[int]) -> None:
    cases = [draw_hot(seed) for seed in seeds]
    laws = [t.distribution for c in cases for t in c.workload.tables]
    assert any(law.hottest_share(4) > 0.5 for law in laws if law.scattered)
    assert any(getattr(law, "num_unique_curve", ()) for law in laws)
    systems = [c.topology for c in cases]
    assert any(s.domain_size < s.world_size and s.num_hosts > 2 for s in systems)
    for case in cases[::10]:
        save(case, tmp_path / "case.json", ["nothing"])
        assert load(tmp_path / "case.json") == case


# ------------------------------------------------------------------ all kinds together


@pytest.mark.parametrize("seed", first([0, 2, 3, 1, *range(4, 80)], 3))
def test_kinds_met_together(seed: int) -> None:
    assert_sound(draw_together(seed), seed)


def test_no_table_that_is_drawn_holds_fp4() -> None:
    """Two of these drawings ended with an error, because products alone may be in fp4."""
    for seed in (5, 6):
        types = {t.dtype for t in draw_together(seed).workload.tables}
        assert types
        assert DataType.FP4 not in types


@pytest.mark.parametrize("seeds", first([(20, 25, 45), range(60)], 1))
def test_kinds_met_together_have_what_others_lack(tmp_path: Path, seeds: Sequence[int]) -> None:
    cases = [draw_together(seed) for seed in seeds]
    tables = [t for c in cases for t in c.workload.tables]
    readers = [[f for t in c.workload.tables for f in t.features] for c in cases]
    assert any(c.topology.world_size > 4 for c in cases)
    assert any(t.num_embeddings == 1 for t in tables)
    assert any(t.embedding_dim == 1 for t in tables)
    assert any(len(set(read)) < len(read) for read in readers)
    assert any(c.collective == "hierarchical" for c in cases)
    assert any(c.moves for c in cases)
    assert any(c.topology.calibration for c in cases)
    for case in cases[::10]:
        save(case, tmp_path / "case.json", ["nothing"])
        assert load(tmp_path / "case.json") == case
