"""Charts of points: round ticks, labels that hide nothing, intervals on the axes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from planner.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    WIDTH,
    Dot,
    Figure,
    Scale,
    axes,
    scatter,
    written,
)
from planner.support.text import significant


@pytest.mark.parametrize("factor", [1.0, 1e-6, 1e3, 2.0**-30])
@pytest.mark.parametrize("width", [1.0, 1.05, 1.6, 4.0, 30.0, 1e5])
def test_ticks_are_round_numbers_of_what_the_axis_shows(factor: float, width: float) -> None:
    rng = np.random.default_rng(int(width * 10))
    for shown in 10.0 ** rng.uniform(-3, 9, 20):
        low = float(shown) / factor
        scale = Scale([low, low * width], 0.0, 100.0)
        ticks = scale.ticks(factor)
        assert 2 <= len(ticks) <= 14
        assert all(scale.low * (1 - 1e-9) <= t <= scale.high * (1 + 1e-9) for t in ticks)
        for tick in ticks:
            assert float(significant(tick * factor, 3).replace(",", "")) == pytest.approx(
                tick * factor, rel=1e-9
            )


def _boxes(lines: list[str]) -> list[tuple[float, float, float, float]]:
    found = []
    for line in lines:
        match = re.fullmatch(r'<text class="at" x="(\S+)" y="(\S+)">(.*)</text>', line)
        assert match is not None
        left, up = float(match[1]), float(match[2])
        found.append((left, up - 10.0, left + 6.0 * len(match[3]), up + 2.0))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_labels_cover_no_dot_and_no_other_label_and_stay_inside(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = (3, 10, 40, 120, 400)[seed]
    across = rng.uniform(LEFT, WIDTH, count)
    up = rng.uniform(0, HEIGHT - BOTTOM, count)
    dots = list(zip(across.tolist(), up.tolist(), strict=True))
    boxes = _boxes(written([(d, f"{8 * i} x 8,192") for i, d in enumerate(dots)], dots))
    assert boxes
    for i, (left, top, right, bottom) in enumerate(boxes):
        assert left >= LEFT
        assert right <= WIDTH
        assert bottom <= HEIGHT - BOTTOM + 1
        assert not any(left < a < right and top < b < bottom for a, b in dots)
        for other in boxes[i + 1 :]:
            apart = left >= other[2] or other[0] >= right or top >= other[3] or other[1] >= bottom
            assert apart


def test_an_interval_is_drawn_inside_the_axes() -> None:
    dot = Dot(
        x=10.0, y=2.0, name="a", told="", is_best=True, label="8", ends=((5.0, 4.0), (40.0, 0.5))
    )
    text = scatter("c", [dot], ["a"], Figure(title="x"), Figure(title="y"))
    line = re.search(r'class="interval" x1="(\S+)" y1="(\S+)" x2="(\S+)" y2="(\S+)"', text)
    assert line is not None
    x1, y1, x2, y2 = (float(v) for v in line.groups())
    assert LEFT < x1 < x2 < WIDTH
    assert 0 < y1 < y2 < HEIGHT - BOTTOM


def test_sizes_stand_on_the_axis_where_they_are_few() -> None:
    x, y = Scale([8.0, 64.0], 0, 100), Scale([1.0, 9.0], 100, 0)
    labels = re.findall(r">([\d,.]+)<", "".join(axes(x, y, "GPUs", "M", x_ticks=[8, 24, 64])))
    assert labels[:3] == ["8", "24", "64"]
