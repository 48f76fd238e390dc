"""The sweep as one HTML file: cost against throughput with the front drawn, and every point."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from planner.sweep.outcome import PointResult, PointStatus, pareto

_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""Okabe and Ito's palette: told apart by colour-blind readers, on light and dark ground."""
_WIDTH: Final = 760
_HEIGHT: Final = 420
_LEFT: Final = 70
_RIGHT: Final = 20
_TOP: Final = 16
_BOTTOM: Final = 46

_STYLE: Final = """
:root{--ink:#1b1f24;--soft:#667085;--line:#d9dee5;--ground:#fff;--mark:#eef2f7}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#98a2b3;--line:#344054;
--ground:#14171c;--mark:#1f242c}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--ground);margin:0 auto;
max-width:1360px;padding:24px 16px 64px;font-variant-numeric:tabular-nums}
h1{font-size:22px;margin:0 0 4px}h2{font-size:16px;margin:32px 0 8px}
p{margin:4px 0;color:var(--soft)}
svg{width:100%;max-width:900px;height:auto;display:block}svg text{fill:var(--soft);font-size:12px}
svg .axis{stroke:var(--line)}svg .front{fill:none;stroke:var(--soft);stroke-dasharray:4 4}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{padding:5px 8px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{white-space:normal;vertical-align:bottom}
th:nth-child(-n+2),td:nth-child(-n+2){text-align:left}
th button{all:unset;cursor:pointer;font-weight:600}th button:focus-visible{outline:2px solid}
tr.front td{background:var(--mark);font-weight:600}
.key{display:inline-block;width:10px;height:10px;border-radius:5px;margin:0 4px 0 14px}
@media (max-width:700px){table,thead,tbody,tr,td{display:block}thead tr{display:flex;
flex-wrap:wrap;gap:4px 12px}th{padding:2px 0;border:0}tbody tr{border-bottom:2px solid var(--line);
padding:8px 0}td,td:nth-child(-n+2){display:flex;justify-content:space-between;gap:12px;border:0;
padding:2px 4px;text-align:right;white-space:normal}td:empty{display:none}
td::before{content:attr(data-l);color:var(--soft);text-align:left;font-weight:400}
svg text{font-size:20px}}
@media print{body{max-width:none;padding:0}tr.front td{font-weight:700}}
"""

_SCRIPT: Final = """
document.querySelectorAll('th button').forEach((button,column)=>{let up=false;
button.onclick=()=>{up=!up;const body=document.querySelector('tbody');
const value=row=>row.children[column].dataset.v??row.children[column].textContent;
const rows=[...body.rows].sort((a,b)=>{const x=value(a),y=value(b),
d=(x===''?Infinity:+x)-(y===''?Infinity:+y);return(isNaN(d)?x.localeCompare(y):d)*(up?1:-1)});
body.append(...rows)}});
"""

_COLUMNS: Final[tuple[tuple[str, Callable[[PointResult], float | str | None]], ...]] = (
    ("System", lambda r: r.point.system),
    ("Pipeline", lambda r: r.point.pipeline.value if r.point.pipeline else ""),
    ("GPUs", lambda r: r.point.gpus),
    ("Batch per rank", lambda r: r.local_batch_size),
    ("Iteration (ms)", lambda r: _scaled(r.iteration_time_s, 1e3)),
    ("Low (ms)", lambda r: _scaled(r.low_s, 1e3)),
    ("High (ms)", lambda r: _scaled(r.high_s, 1e3)),
    ("M samples/s", lambda r: _scaled(r.samples_per_s, 1e-6)),
    ("Free (GiB)", lambda r: _scaled(r.headroom_bytes, 2.0**-30)),
    ("Training (%)", lambda r: _scaled(r.availability_ratio, 100.0)),
    ("USD/h", lambda r: r.price_usd_per_hour),
    ("USD per 10⁹ samples", lambda r: r.usd_per_billion_samples),
    ("Waits for most", lambda r: r.bottleneck or r.reason or r.status.value.replace("_", " ")),
)


def sweep_page(name: str, results: Sequence[PointResult]) -> str:
    """The page as text; it loads nothing from anywhere."""
    front = pareto(results)
    done = [r for r in results if r.status is PointStatus.DONE]
    systems = list(dict.fromkeys(r.point.system for r in results))
    title = f"What if: {name}"
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f"<p>{len(results)} points, {len(done)} with a plan that fits, {len(front)} that no other "
        "beats in throughput and cost per sample at once; each keeps its reserve free.</p>",
        f"<p>{_legend(systems)}</p>",
        "<h2>Cost against throughput</h2>",
        _scatter(done, front, systems),
        "<h2>Throughput against size</h2>",
        _lines(done, systems),
        "<h2>Every point</h2>",
        _table(results, set(front)),
        "<p>Prices are list prices of the system files or of --price; the interval is 90 %. "
        "Training is the share of paid time left after checkpoints and failures.</p>",
        f"<script>{_SCRIPT}</script></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _legend(systems: Sequence[str]) -> str:
    return " ".join(
        f'<span class="key" style="background:{_colour(systems, s)}"></span>{escape(s)}'
        for s in systems
    )


def _colour(systems: Sequence[str], system: str) -> str:
    return _COLOURS[systems.index(system) % len(_COLOURS)]


def _scatter(
    done: Sequence[PointResult], front: Sequence[PointResult], systems: Sequence[str]
) -> str:
    """Throughput to the right, cost upwards, both on log scales; the front is joined."""
    priced = [r for r in done if r.usd_per_billion_samples]
    if not priced:
        return "<p>No point has a price; give one with --price.</p>"
    x = _Scale([r.samples_per_s or 0.0 for r in priced], _LEFT, _WIDTH - _RIGHT)
    y = _Scale([r.usd_per_billion_samples or 0.0 for r in priced], _HEIGHT - _BOTTOM, _TOP)
    lines = [_open("Cost per sample against throughput")]
    lines += _axes(x, y, "M samples/s", "USD per 10⁹ samples", x_factor=1e-6)
    joined = [r for r in front if r in priced]
    path = " ".join(
        f"{x(r.samples_per_s or 0):.1f},{y(r.usd_per_billion_samples or 0):.1f}"
        for r in _cheapest(joined)
    )
    lines.append(f'<polyline class="front" points="{path}"/>')
    for r in priced:
        best = r in joined
        cost, speed = r.usd_per_billion_samples or 0.0, r.samples_per_s or 0.0
        told = f"{r.point.name}: {speed / 1e6:.3g} M/s, {cost:,.1f} USD per 10⁹"
        colour = _colour(systems, r.point.system)
        lines.append(
            f'<circle cx="{x(speed):.1f}" cy="{y(cost):.1f}" r="{7 if best else 5}" '
            f'fill="{colour if best else "none"}" stroke="{colour}" stroke-width="2" tabindex="0">'
            f"<title>{escape(told)}</title></circle>"
        )
    return "\n".join([*lines, "</svg>"])


def _cheapest(front: Sequence[PointResult]) -> list[PointResult]:
    """Those of the front, fastest first, that are cheaper than every faster one."""
    kept: list[PointResult] = []
    least = math.inf
    for r in front:
        if (r.usd_per_billion_samples or math.inf) < least:
            least = r.usd_per_billion_samples or math.inf
            kept.append(r)
    return kept


def _lines(done: Sequence[PointResult], systems: Sequence[str]) -> str:
    """Throughput over GPUs; a line per system, batch and pipeline."""
    if not done:
        return "<p>Nothing fits.</p>"
    x = _Scale([float(r.point.gpus) for r in done], _LEFT, _WIDTH - _RIGHT)
    y = _Scale([r.samples_per_s or 0.0 for r in done], _HEIGHT - _BOTTOM, _TOP)
    lines = [_open("Throughput against number of GPUs")]
    lines += _axes(x, y, "GPUs", "M samples/s", y_factor=1e-6)
    series: dict[tuple[object, ...], list[PointResult]] = {}
    for r in done:
        p = r.point
        series.setdefault((p.system, p.batch_size, p.global_batch_size, p.pipeline), []).append(r)
    for members in series.values():
        ordered = sorted(members, key=lambda r: r.point.gpus)
        points = [(x(r.point.gpus), y(r.samples_per_s or 0.0), r) for r in ordered]
        colour = _colour(systems, ordered[0].point.system)
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b, _ in points)
        lines.append(f'<polyline fill="none" stroke="{colour}" points="{path}"/>')
        lines += [
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" fill="{colour}" tabindex="0"><title>'
            f"{escape(r.point.name)}: {(r.samples_per_s or 0) / 1e6:.3g} M/s</title></circle>"
            for a, b, r in points
        ]
    return "\n".join([*lines, "</svg>"])


def _open(label: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">'


class _Scale:
    """A logarithmic axis over the values with some air around them."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low = min(values) / 1.15
        self.high = max(max(values) * 1.15, self.low * 1.5)
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """1, 2 and 5 of every decade; the decades alone, or more, as there is room."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
            found = [s * 10.0**e for e in range(first, last + 1) for s in steps]
            found = [t for t in found if self.low <= t <= self.high]
            if len(found) >= 4:
                return found
        return found


def _axes(
    x: _Scale,
    y: _Scale,
    x_label: str,
    y_label: str,
    *,
    x_factor: float = 1.0,
    y_factor: float = 1.0,
) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    lines = []
    for tick in x.ticks():
        a = x(tick)
        lines.append(f'<line class="axis" x1="{a:.1f}" x2="{a:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        text = f"{tick * x_factor:g}"
        lines.append(f'<text x="{a:.1f}" y="{bottom + 18}" text-anchor="middle">{text}</text>')
    for tick in y.ticks():
        b = y(tick)
        lines.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{b:.1f}" y2="{b:.1f}"/>')
        text = f"{tick * y_factor:g}"
        lines.append(f'<text x="{_LEFT - 8}" y="{b + 4:.1f}" text-anchor="end">{text}</text>')
    lines.append(f'<text x="{right}" y="{_HEIGHT - 8}" text-anchor="end">{escape(x_label)}</text>')
    lines.append(
        f'<text transform="translate(14 {_TOP}) rotate(-90)" text-anchor="end">'
        f"{escape(y_label)}</text>"
    )
    return lines


def _table(results: Sequence[PointResult], front: set[PointResult]) -> str:
    columns = [
        (title, value)
        for title, value in _COLUMNS
        if any(value(r) not in (None, "") for r in results) or not results
    ]
    head = "".join(f"<th><button>{escape(title)}</button></th>" for title, _ in columns)
    rows = []
    for r in results:
        cells = "".join(_cell(title, value(r)) for title, value in columns)
        rows.append(f'<tr class="front">{cells}</tr>' if r in front else f"<tr>{cells}</tr>")
    body = "\n".join(rows)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _cell(title: str, value: float | str | None) -> str:
    """A cell with its column's title, which narrow screens show beside it."""
    label = f'data-l="{escape(title)}"'
    if isinstance(value, str):
        return f"<td {label}>{escape(value)}</td>"
    if value is None:
        return f'<td {label} data-v=""></td>'
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    return f'<td {label} data-v="{value:.9g}">{text}</td>'


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


__all__ = ["sweep_page"]
