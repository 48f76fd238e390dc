"""A study as one HTML file: the recommendation, the setups, what each choice is worth, a table."""

from __future__ import annotations

import math
from typing import Final

from markupsafe import Markup

from planner.report.charts import ChartDot, legend, scatter
from planner.report.page import Block, fill, grid, render_page
from planner.study.compare import (
    Worth,
    described,
    recommendation,
    remarks,
    setups_table,
    space_parts,
    worths,
)
from planner.study.figures import GOALS, Figures
from planner.study.space import SYSTEM, told
from planner.study.study import Study
from planner.support.text import significant

_AXES: Final[dict[str, tuple[str, float]]] = {
    "iteration": ("Iteration (ms)", 1e3),
    "throughput": ("M samples/s", 1e-6),
    "cost": ("USD per 10⁹ samples", 1.0),
    "headroom": ("Free memory (GiB)", 2.0**-30),
}
"""Title and factor of each figure on the page."""

_FIRST: Final = """\
<p class="verdict"><strong>{% if first %}Recommended: {{ first }}.{% else %}Stopped before the \
search of any setup had ended, or nothing fits: there is nothing to compare.{% endif %}</strong></p>
<p>{{ space }}.</p>{% for text in remarks %}<p>{{ text }}.</p>{% endfor %}"""

_CHOICES: Final = """\
<p>How far the best setup with each value is from the recommended one, by {{ goal }}; all bars have
one scale. An empty bar is a bound: no plan with this value comes closer, so that none was searched.
</p>{% for knob, rows in knobs %}<div class="knob"><b>{{ knob }}</b>
{%- for value, css, width, words in rows -%}
<span>{{ value }}</span><span><i class="{{ css }}" style="width:{{ width }}%"></i>
<small>{{ words }}</small></span>
{%- endfor %}</div>{% else %}<p>Nothing was free to choose.</p>{% endfor %}"""


def study_page(study: Study, name: str) -> str:
    """The page as text; it loads nothing from other places.

    Args:
        study: a study, perhaps one that was stopped.
        name: the name of the workload.
    """
    first = recommendation(study)
    space = "; ".join(space_parts(study))
    top = fill(_FIRST, first="; ".join(first), space=space, remarks=remarks(study))
    blocks = [Block(name="summary", title="Summary", body=top)]
    if first:
        systems = [told(SYSTEM, s) for s in study.space.knobs[SYSTEM]]
        chart = fill(
            "<p>Filled: setups that no other beats.</p>{{ legend }}{{ chart }}",
            legend=legend(systems),
            chart=_scatter(study, systems),
        )
        goal = GOALS[study.goals[0]].title
        worth = fill(_CHOICES, goal=goal, knobs=_knobs(study))
        blocks += [
            Block(name="setups", title="Setups that were searched", body=chart, short="Setups"),
            Block(name="choices", title="What each choice is worth", body=worth, short="Choices"),
        ]
    table = setups_table(study, everything=True)
    if table.rows:
        body = grid(table.columns, table.rows, marked=len(study.front))
        blocks.append(Block(name="table", title="Every setup", body=body, short="Table"))
    return render_page(f"Study: {name}", "Setups of a study, best first", blocks)


def _scatter(study: Study, systems: list[str]) -> Markup:
    """The searched setups by the first two goals, or by the only goal and the cost, or memory."""
    done = [r for r in study.results if r.figures is not None]
    across = study.goals[0]
    costs = [GOALS["cost"].figure(r.figures) for r in done if r.figures is not None]
    other = "cost" if all(map(math.isfinite, costs)) and across != "cost" else "headroom"
    up = study.goals[1] if len(study.goals) > 1 else other

    def place(figures: Figures | None) -> tuple[float, float]:
        assert figures is not None
        x, y = (GOALS[goal].figure(figures) for goal in (across, up))
        return max(x, 1e-12), max(y, 1e-12)

    front = {r.setup for r in study.front}
    done = [r for r in done if max(place(r.figures)) < math.inf]
    if not done:
        return Markup("<p>No setup trains: failures and restarts take all of its time.</p>")
    (title_x, factor_x), (title_y, factor_y) = _AXES[across], _AXES[up]
    dots = []
    for result in sorted(done, key=lambda r: r.setup in front):
        x, y = place(result.figures)
        words = described(study, result)
        dots.append(
            ChartDot(
                x=x,
                y=y,
                name=told(SYSTEM, result.setup.get(SYSTEM)),
                told=f"{words}: {title_x} {significant(x * factor_x, 4)}, {title_y} "
                f"{significant(y * factor_y, 4)}",
                is_best=result.setup in front,
            )
        )
    line = sorted((d.x, d.y) for d in dots if d.is_best) if len(study.goals) > 1 else ()
    return scatter(dots, systems, _AXES[across], _AXES[up], line)


def _knobs(study: Study) -> list[tuple[str, list[tuple[str, str, str, str]]]]:
    """A group of bars for each knob; the longest bar of all is full, so that all have one scale."""
    found = worths(study)
    longest = max([*(_shown(row) for rows in found.values() for row in rows), 1e-12])
    return [(knob, [_bar(row, longest) for row in rows]) for knob, rows in found.items()]


def _shown(row: Worth) -> float:
    share = row.bound_ratio if row.loss_ratio is None else row.loss_ratio
    return max(0.0, share or 0.0)


def _bar(row: Worth, longest: float) -> tuple[str, str, str, str]:
    css = "out" if row.loss_ratio is None else ""
    return row.value, css, f"{100 * _shown(row) / longest:.1f}", row.text
