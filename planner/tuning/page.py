"""A study as one HTML file: the setups of the front, what each knob is worth, and all setups."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import Final

from planner.report.charts import Dot, Figure, legend, page, scatter, table
from planner.support.digits import significant
from planner.tuning.effects import KNOBS, Worth, told_value, varying, worths
from planner.tuning.goals import GOALS, Facts
from planner.tuning.known import Look
from planner.tuning.study import Study

_AXES: Final[dict[str, tuple[str, float]]] = {
    "iteration": ("Iteration (ms)", 1e3),
    "throughput": ("M samples/s", 1e-6),
    "cost": ("USD per 10⁹ samples", 1.0),
    "headroom": ("Free memory (GiB)", 2.0**-30),
}
"""Title and factor of each figure on the page."""

_MOST_SHOWN: Final = 0.5
"""A loss of this share, or more, makes the bar of a knob's value full."""

_WORTH_SAYING: Final = 0.05
"""The page names the bound of a value if it is better than what was found by this share."""

_STYLE: Final = """
.knob{max-width:900px;display:grid;grid-template-columns:minmax(90px,1fr) minmax(0,2fr);
gap:2px 12px;align-items:center;margin:0 0 14px}
.knob b{grid-column:1/-1;font-weight:600}.knob span{overflow-wrap:anywhere}
.knob i{display:block;height:9px;border-radius:4px;background:#0072b2;min-width:2px}
.knob i.out{background:none;border:1px solid var(--soft);box-sizing:border-box}
.knob small{color:var(--soft)}
"""


def study_page(study: Study, name: str, told: Sequence[str]) -> str:
    """The page as text; it loads nothing from other places.

    Args:
        study: a study with at least one plan, perhaps of a search that was stopped.
        name: the name of the workload.
        told: lines that say how much of the space was searched, and what is proven.
    """
    front, looks = study.front, [x for x in study.looks if x.facts is not None]
    if not front:
        parts = [
            f"<style>{_STYLE}</style>",
            f"<p>{escape('; '.join(told))}.</p>",
            "<p>Stopped before the search of any setup had ended: there is nothing to compare, and "
            "plan.json has the best plan so far of the first one.</p>",
        ]
        return page(f"Tuned: {name}", parts)
    names = list(dict.fromkeys(s.cluster for s in study.space.setups))
    across, up = _axes_of(study)
    several = len(study.goals) > 1
    best = ", ".join(_AXES[goal][0].partition(" (")[0] for goal in study.goals)
    parts = [
        f"<style>{_STYLE}</style>",
        f"<p>{escape('; '.join(told))}.</p>",
        f"<p>Best by {escape(best)}: {escape(_described(front[0], study))}.</p>",
        f"<h2>{'Setups that no other beats' if several else 'Setups that were searched'}</h2>",
        f"<p>{legend(names)}</p>",
        _scatter(looks, front, names, across, up, joined=several),
        "<h2>What each choice is worth</h2>",
        "<p>How far the best setup found with each value is from the best of all, by "
        f"{escape(_AXES[study.goals[0]][0].partition(' (')[0])}. An empty bar is a bound: no plan "
        "with this value comes closer, so that none was searched.</p>",
        *_knobs(study),
        "<h2>Every setup that was searched</h2>",
        table([title for title, _ in _columns(study)], _rows(study)),
    ]
    return page(f"Tuned: {name}", parts)


def _axes_of(study: Study) -> tuple[str, str]:
    """The two figures of the chart: the first two goals, or the only goal and the cost.

    Free memory takes the place of the cost if some setup has no price, or if cost is the goal.
    """
    goals = study.goals
    if len(goals) > 1:
        return goals[0], goals[1]
    costs = [GOALS["cost"].figure(x.facts) for x in study.looks if x.facts is not None]
    priced = all(math.isfinite(cost) for cost in costs)
    return goals[0], "cost" if priced and goals[0] != "cost" else "headroom"


def _described(look: Look, study: Study) -> str:
    knobs = varying(study.space) or ("pipeline",)
    return ", ".join(f"{KNOBS[k]} {told_value(k, getattr(look.setup, k))}" for k in knobs)


def _scatter(
    looks: Sequence[Look],
    front: Sequence[Look],
    names: Sequence[str],
    across: str,
    up: str,
    *,
    joined: bool,
) -> str:
    """A chart of every searched setup; those of the front are filled, and joined if ``joined``."""

    def figures(facts: Facts) -> tuple[float, float]:
        return max(GOALS[across].figure(facts), 1e-12), max(GOALS[up].figure(facts), 1e-12)

    points = [(*figures(x.facts), x) for x in looks if x.facts is not None]
    points = [p for p in points if p[1] < float("inf")]
    if not points:
        return "<p>There is no price to draw.</p>"
    (title_x, factor_x), (title_y, factor_y) = _AXES[across], _AXES[up]
    on_front = {look.number for look in front}
    dots = [
        Dot(
            x=a,
            y=b,
            name=look.setup.cluster,
            told=f"{look.setup.cluster}, {look.setup.pipeline.value}, batch "
            f"{look.setup.batch_size:,}: {title_x} {significant(a * factor_x, 4)}, {title_y} "
            f"{significant(b * factor_y, 4)}",
            is_best=look.number in on_front,
            label=f"batch {look.setup.batch_size:,}" if look.number in on_front else "",
        )
        for a, b, look in sorted(points, key=lambda p: p[2].number in on_front)
    ]
    return scatter(
        f"{title_y} against {title_x}",
        dots,
        names,
        Figure(title=title_x, factor=factor_x),
        Figure(title=title_y, factor=factor_y),
        joined=sorted((d.x, d.y) for d in dots if d.is_best) if joined else None,
    )


def _knobs(study: Study) -> list[str]:
    """A group of bars for each knob: the loss of the best setup with each value."""
    goal = study.goals[0]
    facts = study.front[0].facts
    assert facts is not None
    best = GOALS[goal].value(facts)
    groups = []
    for knob, rows in worths(study, goal).items():
        bars = "".join(_bar(row, goal, best) for row in rows)
        groups.append(f'<div class="knob"><b>{escape(KNOBS[knob])}</b>{bars}</div>')
    return groups or ["<p>Nothing was free to choose.</p>"]


def _bar(row: Worth, goal: str, best: float) -> str:
    sign = -1.0 if GOALS[goal].large_is_good else 1.0

    def loss(figure: float) -> float:
        return max(0.0, (sign * figure - best) / abs(best)) if best else 0.0

    if row.best is not None:
        share, css = loss(row.best), ""
        told = "the best" if share < 5e-4 else f"{significant(100 * share)} % worse"
        least = share if row.bound is None else loss(row.bound)
        if share - least > _WORTH_SAYING:
            to = f"{significant(100 * least)} % worse" if least >= 5e-4 else "the best"
            told += f"; more searches may bring it to {to}"
    elif row.bound is not None:
        share, css = loss(row.bound), ' class="out"'
        told = (
            f"ruled out: at least {significant(100 * share)} % worse" if share else "not searched"
        )
    else:
        share, css = 0.0, ' class="out"'
        told = "no plan that fits" if row.searched else "not searched"
    width = 100 * min(share / _MOST_SHOWN, 1.0)
    return (
        f"<span>{escape(row.value)}</span><span><i{css} style='width:{width:.1f}%'></i>"
        f"<small>{escape(told)}</small></span>"
    )


def _columns(study: Study) -> list[tuple[str, Callable[[Look], float | str | None]]]:
    """Titles and values of the table's columns: the knobs, and the figures that some setup has."""
    knobs = varying(study.space) or ("pipeline",)
    return [
        *((KNOBS[knob].capitalize(), partial(_value, knob=knob)) for knob in knobs),
        *((title, partial(_figure, goal=g, factor=f)) for g, (title, f) in _AXES.items()),
    ]


def _value(look: Look, *, knob: str) -> float | str:
    value = getattr(look.setup, knob)
    return value if isinstance(value, int) else told_value(knob, value)


def _figure(look: Look, *, goal: str, factor: float) -> float | None:
    figure = None if look.facts is None else GOALS[goal].figure(look.facts)
    return None if figure is None or figure == float("inf") else figure * factor


def _rows(study: Study) -> list[tuple[bool, list[float | str | None]]]:
    """The rows of the table, those of the front first."""
    on_front = {look.number for look in study.front}
    goal = GOALS[study.goals[0]]
    looks = sorted(
        study.looks,
        key=lambda x: (
            x.number not in on_front,
            float("inf") if x.facts is None else goal.value(x.facts),
        ),
    )
    columns = _columns(study)
    return [(x.number in on_front, [value(x) for _, value in columns]) for x in looks]


__all__ = ["study_page"]
