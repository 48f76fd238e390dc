"""Charts of points: round ticks, and a line that joins points."""

from __future__ import annotations

import re

import numpy as np
import pytest

from planner.report.page import (
    ChartDot,
    ChartScale,
    scatter,
)
from planner.support.text import significant


@pytest.mark.parametrize("factor", [1.0, 1e-6, 1e3, 2.0**-30])
@pytest.mark.parametrize("width", [1.0, 1.05, 1.6, 4.0, 30.0, 1e5])
def test_ticks_are_round_numbers_of_what_the_axis_shows(factor: float, width: float) -> None:
    rng = np.random.default_rng(int(width * 10))
    for shown in 10.0 ** rng.uniform(-3, 9, 20):
        low = float(shown) / factor
        scale = ChartScale([low, low * width])
        ticks = scale.ticks(factor)
        assert 2 <= len(ticks) <= 14
        assert all(scale.low * (1 - 1e-9) <= t <= scale.high * (1 + 1e-9) for t in ticks)
        for tick in ticks:
            assert float(significant(tick * factor, 3).replace(",", "")) == pytest.approx(
                tick * factor, rel=1e-9
            )


def test_a_grey_line_joins_points_that_have_a_colour_each() -> None:
    dots = [
        ChartDot(x=10.0, y=2.0, name="a", told="one"),
        ChartDot(x=20.0, y=1.0, name="b", told="two"),
    ]
    text = scatter(dots, ["a", "b"], ("x", 1.0), ("y", 1.0), [(10.0, 2.0), (20.0, 1.0)])
    ((points, grey),) = re.findall(r'<polyline points="([^"]*)" style="stroke:([^"]*)"', text)
    places = re.findall(r'<circle cx="(\S+)" cy="(\S+)" .*? stroke="(\S+)"', text)
    assert points.split() == [f"{x},{y}" for x, y, _ in places]
    assert len({colour for *_, colour in places} | {grey}) == 3
