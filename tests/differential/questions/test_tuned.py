"""Studies of drawn problems, where all setups and plans can be priced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.search.bounds.proofs import Floor
from planner.study import trials
from tests.differential.drawing.problems import draw
from tests.differential.questions.tuned import tuned_faults
from tests.planner.cases import first

STUDIED = [0, 6, 24, 5, 10, 15, 25, 30, 39, 42, 43, 50, 51, 54, 58]
"""Drawn problems with few enough setups and plans to price them all, and setups that are ruled out.

Others have no study.
"""


@pytest.mark.parametrize("seed", first(STUDIED, 2))
def test_studies_prove_what_is_true(seed: int) -> None:
    found = tuned_faults(draw(seed), seed)
    assert not found, "\n".join(found)


def test_a_bound_of_a_study_above_a_plan_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = trials.api.floor

    def raised(*given: Any, **hooks: Any) -> Floor:
        floor = honest(*given, **hooks)
        return replace(floor, value=1.5 * floor.value)

    monkeypatch.setattr(trials.api, "floor", raised)
    lines = [line for seed in STUDIED[:2] for line in tuned_faults(draw(seed), seed)]
    assert any("optimum" in line for line in lines)
