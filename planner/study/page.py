"""A study as one HTML file: the recommendation, the setups, what each choice is worth, a table."""

from __future__ import annotations

import math
from html import escape
from typing import Final

from planner.report.charts import Dot, Figure, legend, page, scatter, table
from planner.study.compare import (
    Worth,
    described,
    recommendation,
    remarks,
    space_parts,
    verdict,
    worths,
)
from planner.study.figures import GOALS, Figures
from planner.study.space import SYSTEM, told
from planner.study.study import Study
from planner.study.task import SetupResult
from planner.support.text import significant

_AXES: Final[dict[str, tuple[str, float]]] = {
    "iteration": ("Iteration (ms)", 1e3),
    "throughput": ("M samples/s", 1e-6),
    "cost": ("USD per 10⁹ samples", 1.0),
    "headroom": ("Free memory (GiB)", 2.0**-30),
}
"""Title and factor of each figure on the page."""

_STYLE: Final = """
.first{font-size:17px;color:var(--ink)}
.knob{max-width:900px;display:grid;grid-template-columns:minmax(90px,1fr) minmax(0,2fr);
gap:2px 12px;align-items:center;margin:0 0 14px}
.knob b{grid-column:1/-1;font-weight:600}.knob span{overflow-wrap:anywhere}
.knob i{display:block;height:9px;border-radius:4px;background:#0072b2;min-width:2px}
.knob i.out{background:none;border:1px solid var(--soft);box-sizing:border-box}
.knob small{color:var(--soft)}
"""


def study_page(study: Study, name: str) -> str:
    """The page as text; it loads nothing from other places.

    Args:
        study: a study, perhaps one that was stopped.
        name: the name of the workload.
    """
    first = recommendation(study)
    parts = [f"<style>{_STYLE}</style>"]
    if not first:
        parts.append(
            "<p>Stopped before the search of any setup had ended, or nothing fits: there is "
            "nothing to compare.</p>"
        )
    else:
        parts.append(f'<p class="first">Recommended: {escape("; ".join(first))}.</p>')
    parts.append(f"<p>{escape('; '.join(space_parts(study)))}.</p>")
    parts += [f"<p>{escape(text)}.</p>" for text in remarks(study)]
    systems = [told(SYSTEM, s) for s in study.space.knobs[SYSTEM]]
    if first:
        parts += [
            "<h2>Setups that were searched</h2>",
            f"<p>{legend(systems)}. Those that no other beats are filled.</p>",
            _scatter(study, systems),
            "<h2>What each choice is worth</h2>",
            "<p>How far the best setup with each value is from the recommended one, by "
            f"{escape(GOALS[study.goals[0]].title)}; all bars have one scale. An empty bar is a "
            "bound: no plan with this value comes closer, so that none was searched.</p>",
            *_knobs(study),
        ]
    parts += ["<h2>Every setup</h2>", _table(study)]
    return page(f"Study: {name}", parts)


def _scatter(study: Study, systems: list[str]) -> str:
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
        return "<p>No setup trains: failures and restarts take all of its time.</p>"
    (title_x, factor_x), (title_y, factor_y) = _AXES[across], _AXES[up]
    dots = []
    for result in sorted(done, key=lambda r: r.setup in front):
        x, y = place(result.figures)
        words = described(study, result)
        dots.append(
            Dot(
                x=x,
                y=y,
                name=told(SYSTEM, result.setup.get(SYSTEM)),
                told=f"{words}: {title_x} {significant(x * factor_x, 4)}, {title_y} "
                f"{significant(y * factor_y, 4)}",
                is_best=result.setup in front,
                label=words if result.setup in front and len(words) < 40 else "",
            )
        )
    line = sorted((d.x, d.y) for d in dots if d.is_best) if len(study.goals) > 1 else None
    return scatter(
        f"{title_y} against {title_x}",
        dots,
        systems,
        Figure(title=title_x, factor=factor_x),
        Figure(title=title_y, factor=factor_y),
        joined=line,
    )


def _knobs(study: Study) -> list[str]:
    """A group of bars for each knob; the longest bar of all is full, so that all have one scale."""
    found = worths(study)
    losses = [_shown(row) for rows in found.values() for row in rows]
    longest = max([*losses, 1e-12])
    groups = [
        f'<div class="knob"><b>{escape(knob)}</b>'
        f"{''.join(_bar(row, longest) for row in rows)}</div>"
        for knob, rows in found.items()
    ]
    return groups or ["<p>Nothing was free to choose.</p>"]


def _shown(row: Worth) -> float:
    share = row.bound_ratio if row.loss_ratio is None else row.loss_ratio
    return max(0.0, share or 0.0)


def _bar(row: Worth, longest: float) -> str:
    css = ' class="out"' if row.loss_ratio is None else ""
    return (
        f"<span>{escape(row.value)}</span><span><i{css} "
        f"style='width:{100 * _shown(row) / longest:.1f}%'></i>"
        f"<small>{escape(row.text)}</small></span>"
    )


def _table(study: Study) -> str:
    """Every setup, those of the front first; columns that no setup has are left out."""
    front = {r.setup for r in study.front}
    ordered = sorted(study.results, key=lambda r: (r.setup not in front, study.value(r)))
    knobs = study.space.varying or (SYSTEM,)
    rows = [(r.setup in front, {**_values(r, knobs), **_figures(study, r)}) for r in ordered]
    rows += [
        (False, {**_values(SetupResult(setup=s, status=""), knobs), "Verdict": why})
        for s, why in study.space.impossible.items()
    ]
    titles = list(dict.fromkeys(t for _, r in rows for t, v in r.items() if v not in (None, "")))
    return table(titles, [(mark, [row.get(t) for t in titles]) for mark, row in rows])


def _values(result: SetupResult, knobs: tuple[str, ...]) -> dict[str, float | str | None]:
    values = {k: result.setup.get(k) for k in knobs}
    return {
        k: v if type(v) in (int, float) else told(k, v).removeprefix(f"{k.rpartition('.')[2]} ")
        for k, v in values.items()
    }


def _figures(study: Study, result: SetupResult) -> dict[str, float | str | None]:
    figures, gap = result.figures, result.gap_ratio
    if figures is None:
        return {"Verdict": result.reason or verdict(study, result)}
    every_s = figures.checkpoint_interval_s
    return {
        "Iteration (ms)": figures.time_s * 1e3,
        "Low (ms)": (figures.low_s or 0.0) * 1e3,
        "High (ms)": (figures.high_s or 0.0) * 1e3,
        "Gap (%)": None if gap is None else round(100.0 * gap, 4),
        "M samples/s": figures.samples_per_s * 1e-6,
        "Free (GiB)": figures.free_bytes * 2.0**-30,
        "Training (%)": None if every_s is None else 100.0 * figures.availability_ratio,
        "Checkpoint every (s)": every_s,
        "USD/h": figures.usd_per_hour,
        "USD per 10⁹ samples": figures.usd_per_billion_samples,
        "Waits for most": result.waits_for,
        "Verdict": verdict(study, result),
    }
