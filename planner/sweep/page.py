"""The sweep as one HTML file: a chart of cost over throughput with its front, and every point."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from planner.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Dot,
    Figure,
    Place,
    Scale,
    axes,
    colour,
    legend,
    open_chart,
    page,
    scatter,
    table,
    written,
)
from planner.support.digits import significant
from planner.sweep.growth import lines as lines_of
from planner.sweep.growth import slowdowns
from planner.sweep.outcome import PointResult, PointStatus, pareto

_COLUMNS: Final[tuple[tuple[str, Callable[[PointResult], float | str | None]], ...]] = (
    ("System", lambda r: r.point.system),
    ("Pipeline", lambda r: r.point.pipeline.value if r.point.pipeline else ""),
    ("GPUs", lambda r: r.point.gpus),
    ("Batch per rank", lambda r: r.local_batch_size or None),
    ("Iteration (ms)", lambda r: _scaled(r.iteration_time_s, 1e3)),
    ("Low (ms)", lambda r: _scaled(r.low_s, 1e3)),
    ("High (ms)", lambda r: _scaled(r.high_s, 1e3)),
    ("Gap (%)", lambda r: None if r.gap_ratio is None else round(100.0 * r.gap_ratio, 4)),
    ("M samples/s", lambda r: _scaled(r.trained_samples_per_s, 1e-6)),
    ("Free (GiB)", lambda r: _scaled(r.headroom_bytes, 2.0**-30)),
    ("Training (%)", lambda r: _scaled(r.availability_ratio, 100.0)),
    ("Checkpoint every (s)", lambda r: r.checkpoint_interval_s),
    ("USD/h", lambda r: r.price_usd_per_hour),
    ("USD per 10⁹ samples", lambda r: r.usd_per_billion_samples),
    ("Waits for most", lambda r: r.bottleneck or r.reason or r.status.value.replace("_", " ")),
)

_MOST_SIZES: Final = 10
"""Up to this many numbers of GPUs are all written on the axis; if there are more, round ones."""


def sweep_page(name: str, results: Sequence[PointResult]) -> str:
    """The page as text; it loads nothing from other places."""
    front = pareto(results)
    done = [r for r in results if r.status is PointStatus.DONE]
    systems = list(dict.fromkeys(r.point.system for r in results))
    title = f"What if: {name}"
    parts = [
        f"<p>{len(results)} points, {len(done)} with a plan that fits, {len(front)} that no other "
        "beats in throughput and cost per sample at once; each keeps its reserve free.</p>",
        f"<p>{legend(systems)}</p>",
        "<h2>Cost against throughput</h2>",
        "<p>Points that no other beats are filled and named by GPUs and samples per rank; a pale "
        "bar is the interval that holds the true value with 90 % probability.</p>",
        _scatter(done, front, systems),
        "<h2>Throughput against size</h2>",
        "<p>A line is one system and, where several were asked for, one batch and pipeline; pale "
        "bars are 90 % intervals.</p>",
        _lines(done, systems),
        *(f"<p>{escape(slowdown.text)}.</p>" for slowdown in slowdowns(results)),
        "<h2>Every point</h2>",
        _table(results, set(front)),
        "<p>Prices are list prices of the system files or of --price; the interval is 90 %. "
        "Training is the share of paid time left after checkpoints and failures; samples are "
        "those of a second of paid time.</p>",
    ]
    return page(title, parts)


def _scatter(
    done: Sequence[PointResult], front: Sequence[PointResult], systems: Sequence[str]
) -> str:
    """Throughput to the right, cost upwards, both on log scales; the front is joined."""
    priced = [r for r in done if r.usd_per_billion_samples]
    if not priced:
        return "<p>No point has a price; give one with --price.</p>"
    joined = [r for r in front if r in priced]
    dots = [
        Dot(
            x=r.trained_samples_per_s or 0.0,
            y=r.usd_per_billion_samples or 0.0,
            name=r.point.system,
            told=f"{r.point.name}: {significant((r.trained_samples_per_s or 0.0) / 1e6)} M/s, "
            f"{significant(r.usd_per_billion_samples or 0.0)} USD per 10⁹",
            is_best=r in joined,
            label=_label(r) if r in joined else "",
            ends=_ends(r) if r in joined else None,
        )
        for r in priced
    ]
    return scatter(
        "Cost per sample against throughput",
        dots,
        systems,
        Figure(title="M samples/s", factor=1e-6),
        Figure(title="USD per 10⁹ samples"),
        joined=[
            (r.trained_samples_per_s or 0.0, r.usd_per_billion_samples or 0.0)
            for r in _cheapest(joined)
        ],
    )


def _label(result: PointResult) -> str:
    """GPUs, samples per rank, and the pipeline if the sweep sets it."""
    pipeline = f" {result.point.pipeline.value}" if result.point.pipeline else ""
    return f"{result.point.gpus} x {result.local_batch_size:,}{pipeline}"


def _ends(result: PointResult) -> tuple[Place, Place] | None:
    """Throughput and cost at both ends of the iteration's interval; one rises, the other falls."""
    rate, cost = result.trained_samples_per_s, result.usd_per_billion_samples
    if not rate or not cost:
        return None
    low, high = _rates(result)
    return (low, cost * rate / low), (high, cost * rate / high)


def _cheapest(front: Sequence[PointResult]) -> list[PointResult]:
    """The points of the front, fastest first, that are cheaper than every faster one."""
    kept: list[PointResult] = []
    least = math.inf
    for r in front:
        if (r.usd_per_billion_samples or math.inf) < least:
            least = r.usd_per_billion_samples or math.inf
            kept.append(r)
    return kept


def _lines(done: Sequence[PointResult], systems: Sequence[str]) -> str:
    """A chart of throughput over GPUs, with a line for each system, batch and pipeline."""
    if not done:
        return "<p>Nothing fits.</p>"
    done = [r for r in done if r.trained_samples_per_s]
    if not done:
        return "<p>No point trains: failures and restarts take all of its time.</p>"
    x = Scale([float(r.point.gpus) for r in done], LEFT, WIDTH - RIGHT)
    spans = {r: _rates(r) for r in done}
    y = Scale([rate for span in spans.values() for rate in span], HEIGHT - BOTTOM, TOP)
    lines = [open_chart("Throughput against number of GPUs")]
    sizes = sorted({float(r.point.gpus) for r in done})
    few = sizes if len(sizes) <= _MOST_SIZES else None
    lines += axes(x, y, "GPUs", "M samples/s", y_factor=1e-6, x_ticks=few)
    labels, dots = [], []
    for ordered in lines_of(done):
        points = [(x(r.point.gpus), y(r.trained_samples_per_s or 0.0), r) for r in ordered]
        fill = colour(systems, ordered[0].point.system)
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b, _ in points)
        lines.append(f'<polyline fill="none" stroke="{fill}" points="{path}"/>')
        lines += [
            f'<line class="interval" x1="{a:.1f}" x2="{a:.1f}" y1="{y(spans[r][0]):.1f}" '
            f'y2="{y(spans[r][1]):.1f}" stroke="{fill}"/>'
            for a, _, r in points
        ]
        labels.append((points[-1][:2], _series_label(ordered[-1])))
        dots += [(a, b) for a, b, _ in points]
        lines += [
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" fill="{fill}" tabindex="0"><title>'
            f"{escape(r.point.name)}: {significant((r.trained_samples_per_s or 0.0) / 1e6)} M/s"
            "</title></circle>"
            for a, b, r in points
        ]
    return "\n".join([*lines, *written(labels, dots), "</svg>"])


def _rates(result: PointResult) -> tuple[float, float]:
    """Samples per second at both ends of the iteration's interval."""
    rate, seconds = result.trained_samples_per_s or 0.0, result.iteration_time_s or 1.0
    return rate * seconds / (result.high_s or seconds), rate * seconds / (result.low_s or seconds)


def _series_label(result: PointResult) -> str:
    """The batch and the pipeline that the points of a line share, if the sweep sets them."""
    p = result.point
    parts = [f"{p.batch_size:,} per rank"] if p.batch_size else []
    parts += [f"{p.global_batch_size:,} in all"] if p.global_batch_size else []
    return ", ".join([*parts, *([p.pipeline.value] if p.pipeline else [])])


def _table(results: Sequence[PointResult], front: set[PointResult]) -> str:
    columns = [
        (title, value)
        for title, value in _COLUMNS
        if any(value(r) not in (None, "") for r in results) or not results
    ]
    rows = [(r in front, [value(r) for _, value in columns]) for r in results]
    return table([title for title, _ in columns], rows)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


__all__ = ["sweep_page"]
