"""A heat map of many ranks: a row for each host, a cell for each rank, darker for larger values."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from costmodels import units
from costmodels.topology import Topology
from planner.report.html._svg import NARROW, Bar, Lane, lanes_chart
from planner.report.html.base import Number

FEWEST_RANKS = 32
"""With at least this many ranks, a heat map is drawn instead of a bar for each rank."""
_SHADES = 9
_MOST_ROWS = 48
_ROW_OF_LONE_RANKS = 8
_VALUE_WIDTH = 76


def heat_map(
    label: str, topology: Topology, times_s: Sequence[float], *, quantity: str, source: str
) -> tuple[Markup, tuple[Number, ...], int]:
    """The map, with hosts sorted by their largest rank, and ranks of a host in their order.

    Args:
        label: what the map shows.
        topology: hosts and ranks.
        times_s: seconds of each rank.
        quantity: name of the numbers.
        source: source of the numbers.

    Returns:
        The map, its numbers, and how many hosts it leaves out.
    """
    local = topology.local_world_size
    size = local if local > 1 else _ROW_OF_LONE_RANKS
    rows = [range(s, min(s + size, len(times_s))) for s in range(0, len(times_s), size)]
    rows.sort(key=lambda ranks: (-max(times_s[r] for r in ranks), ranks.start))
    shown = rows[:_MOST_ROWS]
    least, most = min(times_s), max(times_s)
    numbers: list[Number] = []
    lanes = []
    for ranks in shown:
        name = f"host {ranks.start // size}" if local > 1 else f"ranks {ranks[0]}-{ranks[-1]}"
        bars = []
        for place, rank in enumerate(ranks):
            number = Number(
                entity=f"rank {rank}", quantity=quantity, value=times_s[rank], unit="s",
                source=source,
            )  # fmt: skip
            numbers.append(number)
            bars.append(
                Bar(
                    start_ratio=place / size,
                    width_ratio=1.0 / size,
                    css=f"h{_shade(times_s[rank], least, most)}",
                    number=number,
                    title=f"rank {rank}: {units.format_time(times_s[rank])}",
                    strong=times_s[rank] == most > least,
                )
            )
        told = units.format_time(max(times_s[r] for r in ranks))
        lanes.append(Lane(label=name, bars=tuple(bars), value=told))
    chart = lanes_chart(label, lanes, axis=(), value_width=_VALUE_WIDTH, min_width=NARROW)
    return chart, tuple(numbers), len(rows) - len(shown)


def _shade(value: float, least: float, most: float) -> int:
    """A shade from 0 for the least value to 8 for the largest; the middle if all are equal."""
    if most <= least:
        return _SHADES // 2
    return round((_SHADES - 1) * (value - least) / (most - least))
