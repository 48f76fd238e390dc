"""Explanations of drawn plans, and the faults that were found in them once."""

from __future__ import annotations

import pytest

from planner.search.improve.single_changes import BestPlace
from tests.differential.drawing.problems import draw, draw_dense, draw_unusual
from tests.differential.named import named
from tests.differential.questions.explaining import explain_faults
from tests.planner.cases import first


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
    honest = BestPlace.best

    def cheaper(self: BestPlace, *given: object, **more: object) -> object:
        for placed in (found := honest(self, *given, **more)):  # type: ignore[arg-type]
            if placed is not None:
                placed.value *= 0.999
        return found

    monkeypatch.setattr(BestPlace, "best", cheaper)
    assert any("priced" in line for line in explain_faults(draw(500_002), 500_002))
