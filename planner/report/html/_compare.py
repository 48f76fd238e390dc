"""compare.html: first the differences between several plans, then the charts of each plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from costmodels import units
from costmodels.pipeline import CostPipeline
from planner.replan import reshard
from planner.report import _difference as difference
from planner.report import _figures as figures
from planner.report.base import Cell, Column, Fact, Kind, Section, format_share
from planner.report.html import _stages
from planner.report.html._evidence import View, view_of
from planner.report.html._groups import Group, rank_groups
from planner.report.html._page import render_page
from planner.report.html._plain import TALL_ROWS, plain_block
from planner.report.html._templates import fill
from planner.report.html.base import Block, Field, Number, grid
from planner.report.sections import memory, stages, timeline, traffic
from planner.result import Candidate

_MOST_GROUPS = 64
_SAME_S = 1e-12
_DRAWINGS: tuple[tuple[str, str, Callable[[View], tuple[Markup, tuple[Number, ...]]]], ...] = (
    ("timeline", "Timeline of one iteration", timeline.draw),
    ("rank-stages", "Stages, rank by rank", stages.draw),
    ("memory", "Memory", memory.draw),
    ("traffic", "Traffic, all to all", traffic.draw),
)


_VERDICTS = """\
{% for verdict in verdicts %}<p class="verdict">{{ verdict }}.</p>{% endfor -%}
{{ rest }}"""

_DELTAS = """\
{% for heading, table in parts -%}
<h3>{{ heading }}</h3>
{%- if table is none %}<p>Every stage takes as long on every rank.</p>
{%- else %}{{ table }}
{%- endif %}
{% endfor %}"""

_INTRODUCED = "<p>{{ intro }}</p>{{ table }}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Plans of one workload; the first one is the reference.

    ``confidences`` holds, for each other plan, the probability (0..1) that it is faster.
    """

    pipeline: CostPipeline
    plans: tuple[Candidate, ...]
    confidences: tuple[float, ...]


def difference_sections(comparison: Comparison) -> tuple[Section, ...]:
    """The sections of the terminal, and the time of the move."""
    found = difference.build_difference(
        comparison.pipeline.workload, comparison.plans, comparison.confidences
    )
    return (*found, _reshards(comparison))


def compare_blocks(comparison: Comparison) -> tuple[Block, ...]:
    """Differences, then the charts of each plan."""
    plans = comparison.plans
    overview, *_ = difference_sections(comparison)
    first = plain_block("plans", replace(overview, facts=()))
    verdicts = ["; ".join(fact.parts) for fact in overview.facts]
    body = fill(_VERDICTS, verdicts=verdicts, rest=first.body)
    blocks = [
        replace(first, body=body, short="Verdict"),
        *(_moved(comparison, i) for i in range(1, len(plans))),
        replace(plain_block("reshard", _reshards(comparison)), short="Re-shard"),
        _slowest(comparison),
        _stage_deltas(comparison),
        _memory_deltas(comparison),
    ]
    alone = [view_of(comparison.pipeline, plan) for plan in plans]
    longest_s = max(timeline.length_s(view) for view in alone)
    views = [replace(view, scale_s=longest_s) for view in alone]
    for name, title, draw in _DRAWINGS:
        for i, view in enumerate(views, 1):
            body, numbers = draw(view)
            if body:
                block = Block(
                    name=f"{name}-{i}",
                    title=f"{title}: {view.name}",
                    body=body,
                    numbers=numbers,
                    short=f"{title.split()[0].strip(',')}: {view.name}",
                )
                blocks.append(block)
    return tuple(blocks)


def render_compare(comparison: Comparison, blocks: Sequence[Block]) -> str:
    """The page."""
    pipeline = comparison.pipeline
    names = ", ".join(plan.name for plan in comparison.plans)
    subtitle = f"{names} on {figures.cluster(pipeline.topology)}; the first is the reference"
    return render_page(f"Plans of {pipeline.workload.name} compared", subtitle, blocks)


def _slowest(comparison: Comparison) -> Block:
    """Each stage on its slowest rank, with buckets added up, and the change from the first plan."""
    plans = comparison.plans
    found = [
        {name: max(times) for name, (_, times) in _stages.merged_durations_s(p.estimate).items()}
        for p in plans
    ]
    fields = [Field(plan.name, f"slowest_{i}_s", Kind.TIME, "s") for i, plan in enumerate(plans, 1)]
    fields += [
        Field(f"{plan.name} less {plans[0].name}", f"slowest_delta_{i}_s", Kind.DELTA, "s")
        for i, plan in enumerate(plans[1:], 2)
    ]
    rows: list[tuple[str, list[Cell]]] = []
    for name in dict.fromkeys(name for times in found for name in times):
        base_s = found[0].get(name, 0.0)
        deltas = [times.get(name, 0.0) - base_s for times in found[1:]]
        rows.append((name, [*(times.get(name) for times in found), *deltas]))
    table, numbers = grid("stage", fields, rows, css="delta")
    body = fill(_INTRODUCED, intro="Each stage on its slowest rank.", table=table)
    return Block(
        name="stages",
        title="Time per stage",
        body=body,
        numbers=numbers,
        short="Stages",
    )


def _stage_deltas(comparison: Comparison) -> Block:
    """For each rank and stage, the time of a later plan minus that of the first plan."""
    groups = rank_groups(comparison.pipeline.topology, most=_MOST_GROUPS)
    base = _stages.merged_durations_s(comparison.plans[0].estimate)
    parts: list[tuple[str, Markup | None]] = []
    numbers: list[Number] = []
    for i, plan in enumerate(comparison.plans[1:], 2):
        theirs = _stages.merged_durations_s(plan.estimate)
        names = list(dict.fromkeys([*base, *theirs]))
        deltas = {n: [_mean(theirs, n, g) - _mean(base, n, g) for g in groups] for n in names}
        kept = [n for n in names if any(abs(d) > _SAME_S for d in deltas[n])]
        heading = f"{plan.name} less {comparison.plans[0].name}"
        if not kept:
            parts.append((heading, None))
            continue
        fields = [
            Field(title=n, quantity=f"delta_{i}_{n.replace(' ', '_')}_s", kind=Kind.DELTA, unit="s")
            for n in kept
        ]
        rows = [(g.name, [deltas[n][k] for n in kept]) for k, g in enumerate(groups)]
        table, found = grid("where", fields, rows, css="delta", tall=len(rows) > TALL_ROWS)
        parts.append((heading, table))
        numbers += found
    return Block(
        name="stage-deltas",
        title="Stage times, rank by rank",
        body=fill(_DELTAS, parts=parts),
        numbers=tuple(numbers),
        short="Stage deltas",
    )


def _mean(stages_s: dict[str, tuple[str, list[float]]], name: str, group: Group) -> float:
    if name not in stages_s:
        return 0.0
    return sum(stages_s[name][1][r] for r in group.ranks) / len(group.ranks)


def _memory_deltas(comparison: Comparison) -> Block:
    groups = rank_groups(comparison.pipeline.topology, most=_MOST_GROUPS)
    used = [
        [max(plan.memory.ranks[r].used_bytes for r in g.ranks) for g in groups]
        for plan in comparison.plans
    ]
    fields = [
        Field(title=plan.name, quantity=f"used_{i}_bytes", kind=Kind.BYTES, unit="B")
        for i, plan in enumerate(comparison.plans, 1)
    ]
    fields += [
        Field(
            title=f"{plan.name} less {comparison.plans[0].name}",
            quantity=f"delta_{i}_bytes",
            kind=Kind.DELTA_BYTES,
            unit="B",
        )
        for i, plan in enumerate(comparison.plans[1:], 2)
    ]
    rows: list[tuple[str, list[Cell]]] = []
    for k, group in enumerate(groups):
        values = [bytes_[k] for bytes_ in used]
        rows.append((group.name, [*values, *(v - values[0] for v in values[1:])]))
    table, numbers = grid("where", fields, rows, css="delta", tall=len(rows) > TALL_ROWS)
    intro = "Device memory in use, the reserve included; of a host, its fullest rank."
    return Block(
        name="memory-deltas",
        title="Memory differences",
        body=fill(_INTRODUCED, intro=intro, table=table),
        numbers=numbers,
        short="Memory deltas",
    )


def _moved(comparison: Comparison, index: int) -> Block:
    """Every table that differs; the terminal shows only the largest of them."""
    base, other = comparison.plans[0], comparison.plans[index]
    section = difference.moves_section(comparison.pipeline.workload, base, other, most=None)
    block = replace(plain_block(f"moved-{index + 1}", section), short=f"Moved: {other.name}")
    if not section.rows:
        return replace(block, body=Markup("<p>No table moved or changed its type.</p>"))
    return block


def _reshards(comparison: Comparison) -> Section:
    """Bytes and seconds of the move from the first plan to each other one."""
    base, pipeline = comparison.plans[0], comparison.pipeline
    rows: list[tuple[Cell, ...]] = []
    facts = []
    for plan in comparison.plans[1:]:
        move = reshard(
            base.plan,
            plan.plan,
            pipeline.workload,
            pipeline.topology,
            before_s=base.estimate.time.time_s,
            after_s=plan.estimate.time.time_s,
        )
        rows.append(
            (
                plan.name,
                move.moved_tables,
                move.moved_bytes,
                move.most_received_bytes,
                move.time_s,
                move.payback_iterations,
            )
        )
        if move.payback_iterations is not None and move.before_s > 0:
            gain = format_share(move.saved_s / move.before_s)
            parts = (f"{units.format_time(move.time_s)} once", f"saves {gain} of each iteration")
            facts.append(Fact(label=plan.name, parts=parts))
    columns = (
        Column(title="to"),
        Column(title="tables", kind=Kind.COUNT),
        Column(title="moved", kind=Kind.BYTES),
        Column(title="most to a rank", kind=Kind.BYTES),
        Column(title="time", kind=Kind.TIME),
        Column(title="pays back after iterations", kind=Kind.COUNT),
    )
    return Section(
        title=f"Re-sharding from {base.name}", facts=tuple(facts), columns=columns, rows=tuple(rows)
    )
