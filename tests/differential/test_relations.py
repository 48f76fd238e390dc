"""Problems that must agree, rare problems, and small problems planned in the ways of large ones."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodels.distribution.empirical import Empirical
from costmodels.distribution.zipf import Zipf
from planner.errors import InfeasibleError
from tests.differential import relations
from tests.differential.as_large import LOWERED, as_large, owner_of
from tests.differential.asking import Answer, Run
from tests.differential.case import Case
from tests.differential.check import EVALUATIONS, assert_answers
from tests.differential.drawing.problems import draw, draw_larger, draw_rare
from tests.differential.drawing.small_cases import case_of
from tests.differential.stored import load, save
from tests.planner.cases import first

pytestmark = pytest.mark.usefixtures("no_process_beside")


# ------------------------------------------------------------------ rare problems


@pytest.mark.parametrize("seed", first(range(100), 3))
def test_rare_problems(seed: int) -> None:
    assert_answers(draw_rare(seed))


@pytest.mark.parametrize("seeds", first([(15, 23, 25, 33, 35), range(40)], 1))
def test_rare_problems_have_what_others_lack(tmp_path: Path, seeds: Sequence[int]) -> None:
    cases = [draw_rare(seed) for seed in seeds]
    workloads = [c.workload for c in cases]
    laws = [t.distribution for w in workloads for t in w.tables]
    assert any(c.topology.whole for c in cases)
    assert any(c.topology.compute_device == "cpu" for c in cases)
    assert any(w.dense.operators for w in workloads)
    assert any(d.batch_share_ratio for c in cases for d in c.scenarios)
    assert any(d.pipeline is not c.workload.pipeline for c in cases for d in c.scenarios)
    assert any(law.ids_per_draw > 1 for law in laws if isinstance(law, Zipf))
    assert any(law.num_unique_curve for law in laws if isinstance(law, Empirical))
    keys = ("tables", "together", "apart", "counts", "memory")
    assert max(sum(len(getattr(c.constraints, key)) for key in keys) for c in cases) > 3
    assert max(len(w.tables) for w in workloads) > 64
    for case in cases[:: max(1, len(cases) // 8)]:
        save(case, tmp_path / "case.json", ["nothing"])
        assert load(tmp_path / "case.json") == case


# ------------------------------------------------------------------ the ways of large problems


@pytest.mark.parametrize("seed", first([0, *range(3, 60), 1, 2], 2))
def test_small_problems_planned_as_large_ones(seed: int) -> None:
    with as_large(seed):
        assert_answers(draw(seed))


def test_limits_are_put_back() -> None:
    before = _limits()
    for seed in range(4):
        with as_large(seed):
            assert _limits() != before
        assert _limits() == before


def _limits() -> list[float]:
    return [getattr(owner_of(module), name) for module, name, _ in LOWERED]


# ------------------------------------------------------------------ problems that must agree


@pytest.mark.parametrize("seed", first([10, *range(10), *range(11, 30)], 1))
def test_relatives_agree(seed: int) -> None:
    """The first has relatives of every kind but days, and takes little time."""
    _agree(draw(seed), seed)


@pytest.mark.parametrize("seed", first([5, 12, *(s for s in range(30) if s not in (5, 12))], 2))
def test_relatives_of_rare_problems_agree(seed: int) -> None:
    """The second has days that can be left out."""
    _agree(draw_rare(seed), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_relatives_of_larger_problems_agree(seed: int) -> None:
    _agree(draw_larger(seed), seed)


def _agree(case: Case, seed: int) -> None:
    found = relations.disagreements(case, seed, run=Run.USERS, max_evaluations=EVALUATIONS)
    assert not found, "\n".join(found)


def test_the_plan_found_keeps_every_rule_that_is_drawn_from_it() -> None:
    """Every maker makes something of a problem that has everything it needs."""
    case = case_of(2, 2, 16, 32)
    answer = relations.ask(case, Run.USERS, max_evaluations=EVALUATIONS)
    made = {
        make: list(make(np.random.default_rng(0), case, answer))
        for make in (
            relations._in_another_order,
            relations._under_other_names,
            relations._the_same_day,
            relations._with_more_memory,
            relations._with_obeyed_rules,
        )
    }
    assert all(made.values())
    assert len(made[relations._with_obeyed_rules]) > 5


def test_answers_that_cannot_both_be_right_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound too high, a worse plan called optimal, and a false refusal of looser problems."""
    case = case_of(1, 2, 16, 32)
    honest = functools.cache(relations.ask)
    lied_about = (relations._with_more_memory, relations._on_better_machines)
    monkeypatch.setattr(relations, "ask", honest)
    monkeypatch.setattr(relations, "MAKERS", lied_about)
    assert _found(case) == []

    def lying(changes: dict[str, object]) -> None:
        def told(asked: Case, run: Run, *, max_evaluations: int) -> Answer:
            answer = honest(asked, run, max_evaluations=max_evaluations)
            is_looser = asked.topology != case.topology
            return replace(answer, **changes) if is_looser else answer  # type: ignore[arg-type]

        monkeypatch.setattr(relations, "ask", told)

    value = honest(case, Run.USERS, max_evaluations=EVALUATIONS).value
    lying({"bound": 1.01 * value})
    assert any("above a plan" in line for line in _found(case))
    lying({"bound": 0.0, "value": 1.01 * value, "is_optimal": True})
    assert any("is called optimal" in line for line in _found(case))
    refusal = InfeasibleError("nothing fits", shortfall_bytes=1.0)
    lying({"plan": None, "bound": None, "error": refusal, "text": "nothing fits"})
    assert any("but: nothing fits" in line for line in _found(case))


def test_a_file_that_says_something_else_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(1, 2, 16)
    honest = relations.workload_text

    def wrong(workload: relations.Workload, constraints: relations.Constraints) -> str:
        return honest(replace(workload, batch_size_per_rank=1), replace(constraints, kernels=()))

    assert _files(case) == []
    monkeypatch.setattr(relations, "workload_text", wrong)
    found = _files(case)
    assert any("batch_size_per_rank" in line for line in found)


def _files(case: Case) -> list[str]:
    return list(relations._files(case))


def _found(case: Case) -> list[str]:
    return relations.disagreements(case, 0, run=Run.USERS, max_evaluations=EVALUATIONS)
