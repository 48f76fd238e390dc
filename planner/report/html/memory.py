"""What fills each device and each host, against its limit."""

from __future__ import annotations

from typing import ClassVar, final

from costmodels.estimates import MemoryLedger, RankMemory
from costmodels.units import GIB
from planner.report.base import format_gib
from planner.report.html._evidence import Evidence, View
from planner.report.html._groups import rank_groups
from planner.report.html._svg import NARROW, Bar, Lane, Tick, axis, lanes_chart
from planner.report.html.base import AbstractHtmlSection, Block, Number

_MOST_RANKS = 64
_VALUE_WIDTH = 92

PURPOSES: dict[str, str] = {
    "weights": "weights",
    "optimizer": "optimizer state",
    "gradients": "gradients",
    "cache": "cache",
    "buffers": "buffers",
    "dense": "dense part",
    "reserved": "reserve",
}
"""Fields of the ledger, without ``_bytes``, and their words."""


@final
class MemorySection(AbstractHtmlSection):
    """One bar per rank, or the fullest rank of each host; hosts below if tables live there."""

    title: ClassVar[str] = "Memory"
    short: ClassVar[str] = "Memory"
    order: ClassVar[int] = 40

    def build(self, evidence: Evidence) -> Block:
        """The chosen plan."""
        body, numbers = draw(evidence.view)
        return Block(name="memory", title=self.title, body=body, numbers=numbers)


def draw(view: View) -> tuple[str, tuple[Number, ...]]:
    """Charts and their numbers for one plan."""
    ledger, numbers = view.plan.memory, list[Number]()
    shown = _shown(view)
    end = 1.02 * max(max(r.capacity_bytes, r.used_bytes) for _, r in shown)
    lanes = [_lane(name, rank, end, numbers) for name, rank in shown]
    ticks = [*axis(end / GIB, lambda v: f"{v:,.0f} GiB" if v >= 1 else f"{v:g} GiB")]
    capacities = {r.capacity_bytes for _, r in shown}
    reserves = {r.reserved_bytes for _, r in shown}
    if len(capacities) == 1 and len(reserves) == 1:
        capacity, reserve = capacities.pop(), reserves.pop()
        ticks.append(Tick(at_ratio=capacity / end, label="", css="limit"))
        ticks.append(Tick(at_ratio=(capacity - reserve) / end, label="", css="reserve"))
    groups = rank_groups(view.topology, most=_MOST_RANKS)
    whole = "each host" if groups[0].name.startswith("host") else "each group of hosts"
    which = "each rank" if groups[0].is_rank else f"the fullest rank of {whole}"
    intro = (
        f"<p>Device memory of {which}. The solid line is the limit of the device, the dashed line "
        "the limit less the reserve: what the planner may fill. The reserve is hatched.</p>"
    )
    chart = lanes_chart(
        "Device memory", lanes, axis=ticks, value_width=_VALUE_WIDTH, min_width=NARROW
    )
    body = intro + _legend(shown) + chart + _hosts(ledger, numbers)
    return body, tuple(numbers)


def _shown(view: View) -> list[tuple[str, RankMemory]]:
    ranks = view.plan.memory.ranks
    found = []
    for group in rank_groups(view.topology, most=_MOST_RANKS):
        fullest = min((ranks[i] for i in group.ranks), key=lambda r: (r.headroom_bytes, r.rank))
        name = group.name if group.is_rank else f"{group.name}, rank {fullest.rank}"
        found.append((name, fullest))
    return found


def purposes_bytes(rank: RankMemory) -> dict[str, float]:
    """Bytes by purpose, the reserve last."""
    return {name: float(getattr(rank, f"{name}_bytes")) for name in PURPOSES}


def _lane(name: str, rank: RankMemory, end: float, numbers: list[Number]) -> Lane:
    bars, at = [], 0.0
    for purpose, value in purposes_bytes(rank).items():
        number = Number(
            entity=name,
            quantity=f"{purpose}_bytes",
            value=value,
            unit="B",
            source="computed" if purpose != "reserved" else "input",
        )
        numbers.append(number)
        if value <= 0:
            continue
        if purpose == "reserved":
            at = max(at, rank.capacity_bytes - value)
        bars.append(
            Bar(
                start_ratio=at / end,
                width_ratio=min(value, end - at) / end,
                css=f"m-{purpose}",
                number=number,
                title=f"{name}: {PURPOSES[purpose]}, {format_gib(value)} GiB",
            )
        )
        at += value
    for quantity, value in (("capacity_bytes", rank.capacity_bytes),
                            ("headroom_bytes", rank.headroom_bytes)):  # fmt: skip
        numbers.append(
            Number(entity=name, quantity=quantity, value=value, unit="B", source="computed")
        )
    free = rank.headroom_bytes
    value_text = f"{format_gib(free)} GiB free" if free >= 0 else f"{format_gib(-free)} GiB over"
    return Lane(label=name, bars=tuple(bars), value=value_text)


def _legend(shown: list[tuple[str, RankMemory]]) -> str:
    used = {p for _, rank in shown for p, value in purposes_bytes(rank).items() if value > 0}
    keys = "".join(
        f'<li><i class="key c-m-{p}"></i>{words}</li>' for p, words in PURPOSES.items() if p in used
    )
    return f'<ul class="legend">{keys}</ul>'


def _hosts(ledger: MemoryLedger, numbers: list[Number]) -> str:
    used = [h for h in ledger.hosts if h.used_bytes > 0]
    if not used:
        return "<p>No table lives in host memory.</p>"
    end = 1.02 * max(max(h.capacity_bytes, h.used_bytes) for h in used)
    lanes = []
    for host in sorted(used, key=lambda h: h.host):
        name = f"host {host.host}"
        pair = (("host_used_bytes", host.used_bytes), ("host_capacity_bytes", host.capacity_bytes))
        found = [
            Number(entity=name, quantity=q, value=v, unit="B", source="computed") for q, v in pair
        ]
        numbers += found
        told = f"{format_gib(host.used_bytes)} of {format_gib(host.capacity_bytes)} GiB"
        bar = Bar(
            start_ratio=0.0,
            width_ratio=host.used_bytes / end,
            css="m-weights",
            number=found[0],
            title=f"{name}: {told}",
        )
        limit = Bar(
            start_ratio=host.capacity_bytes / end,
            width_ratio=0.003,
            css="m-limit",
            number=found[1],
            title=f"{name}: limit {format_gib(host.capacity_bytes)} GiB",
        )
        free = f"{format_gib(host.capacity_bytes - host.used_bytes)} GiB free"
        lanes.append(Lane(label=name, bars=(bar, limit), value=free))
    ticks = axis(end / GIB, lambda v: f"{v:,.0f} GiB")
    chart = lanes_chart(
        "Host memory", lanes, axis=ticks, value_width=_VALUE_WIDTH, min_width=NARROW
    )
    return f"<h3>Host memory</h3>{chart}"
