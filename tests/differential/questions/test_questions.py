"""Questions beside that for a plan, on drawn problems, and the faults that they found once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.explain.placing import Placer
from planner.search.bounds.quick import Floor
from planner.tuning import Pricer
from tests.differential.drawing.problems import draw, draw_dense, draw_unusual
from tests.differential.named import named
from tests.differential.questions.explaining import explain_faults
from tests.differential.questions.tuned import tuned_faults
from tests.planner.cases import first

# ------------------------------------------------------------------ explain


@pytest.mark.parametrize("seed", [500_002, 500_046])
def test_options_with_few_places_are_tried_in_every_way(seed: int) -> None:
    """One was said not to fit, one was 0.2 % slower than on other places.

    Pieces of 8, 8, 4 and 4 columns were placed one after the other on two ranks, so that both had a
    wide piece and neither was left to the narrow ones. Pieces that have to share a host went to the
    host on which the first of them alone was cheapest.
    """
    assert explain_faults(named(f"explained-{seed}"), seed) == []


@pytest.mark.parametrize("seed", first(range(60), 3))
def test_explanations_are_true(seed: int) -> None:
    drawing = (draw, draw_unusual, draw_dense)[seed % 3]
    found = explain_faults(drawing(seed), seed)
    assert not found, "\n".join(found)


def test_an_explanation_with_wrong_figures_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Placer._priced

    def cheaper(self: Placer, *given: object) -> object:
        for placed in honest(self, *given):  # type: ignore[arg-type]
            yield replace(placed, value=0.999 * placed.value)

    monkeypatch.setattr(Placer, "_priced", cheaper)
    assert any("priced" in line for line in explain_faults(draw(500_002), 500_002))


# ------------------------------------------------------------------ tune

STUDIED = [0, 6, 24, 5, 10, 15, 25, 30, 39, 42, 43, 50, 51, 54, 58]
"""Drawn problems with few enough setups and plans to price them all, and setups that are ruled out.

Others have no study.
"""


@pytest.mark.parametrize("seed", first(STUDIED, 2))
def test_studies_prove_what_is_true(seed: int) -> None:
    found = tuned_faults(draw(seed), seed)
    assert not found, "\n".join(found)


def test_a_bound_of_a_study_above_a_plan_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Pricer.floor

    def raised(self: Pricer, *given: Any) -> Floor:
        floor = honest(self, *given)
        return replace(floor, value=1.5 * floor.value)

    monkeypatch.setattr(Pricer, "floor", raised)
    lines = [line for seed in STUDIED[:2] for line in tuned_faults(draw(seed), seed)]
    assert any("optimum" in line for line in lines)
