"""Plans side by side: time per stage, memory, what moved, and what moving it costs.

The terminal prints :func:`difference_sections`; ``compare.html`` shows them too, and the charts of
each plan.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType, TablePlacement
from costmodels.workload import Workload
from planner.replan import reshard
from planner.report import figures
from planner.report.base import (
    Column,
    Fact,
    Kind,
    Section,
    format_confidence,
    format_factor,
    format_interval,
    format_share,
    laid_out,
)
from planner.report.evidence import durations_s, view_of
from planner.report.page import Block, fill, plain_body, render_page
from planner.report.sections.base import parts
from planner.report.sections.stages import length_s
from planner.result import Candidate
from planner.rules.placement_rules import received_bytes
from planner.support.result_frames import ranks_held

_MOST_ROWS = 30
_FACTOR = 2.0
"""From this ratio on, a difference is told as a factor: 80 % faster one way is 400 % slower the
other way, which is hard to see."""
_SAME_RATIO = 5e-5
"""Smaller differences are called none: they are below a tenth of the last printed digit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementChange:
    """One table that two plans treat differently.

    ``received_bytes`` is what ranks have to receive to go from the first plan to the second one:
    weights and optimizer state of the cells that a rank holds under the second plan only.
    """

    table: str
    before: TablePlacement
    after: TablePlacement
    received_bytes: float

    @property
    def changed_type(self) -> bool:
        """Whether the type, kernel or cache has changed, and not only the place."""
        return _kind(self.before) != _kind(self.after)


def changes(workload: Workload, before: Plan, after: Plan) -> tuple[PlacementChange, ...]:
    """The tables that two plans treat differently; those with the most bytes to move come first."""
    found = []
    for table in workload.tables:
        old, new = before.placement(table.name), after.placement(table.name)
        if _kind(old) == _kind(new) and set(old.shards) == set(new.shards):
            continue
        received = received_bytes(old, new, table, workload)
        found.append(
            PlacementChange(table=table.name, before=old, after=new, received_bytes=received)
        )
    return tuple(sorted(found, key=lambda c: (-c.received_bytes, c.table)))


def regression_ratio(base: Candidate, other: Candidate) -> float:
    """How much longer ``other`` takes than ``base``: 0.03 is 3 % slower, below 0 faster."""
    before = base.estimate.time.time_s
    return other.estimate.time.time_s / before - 1.0 if before > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Plans of one workload; the first one is the reference.

    ``confidences`` holds, for each other plan, the probability (0..1) that it is faster.
    """

    pipeline: CostPipeline
    plans: tuple[Candidate, ...]
    confidences: tuple[float, ...]


def difference_sections(comparison: Comparison) -> tuple[Section, ...]:
    """The first plan beside each other one, the time per stage, what moved, and the moves."""
    plans, workload = comparison.plans, comparison.pipeline.workload
    moved = (moves_section(workload, plans[0], other) for other in plans[1:])
    overview = _overview(plans, comparison.confidences)
    return (overview, _stages(plans), *moved, _reshards(comparison))


def difference_data(comparison: Comparison) -> dict[str, object]:
    """The comparison as plain values for JSON: seconds, bytes, ratios."""
    workload, plans = comparison.pipeline.workload, comparison.plans
    base = plans[0]
    sure = dict(zip((plan.name for plan in plans[1:]), comparison.confidences, strict=False))
    return {
        "plans": [
            {
                "name": plan.name,
                "iteration_time_s": plan.estimate.time.time_s,
                "low_s": plan.estimate.time.low_s,
                "high_s": plan.estimate.time.high_s,
                "samples_per_s": plan.estimate.samples_per_s,
                "change_ratio": regression_ratio(base, plan),
                "confidence_faster_ratio": sure.get(plan.name),
                "exposed_communication_s": plan.estimate.exposed_communication_s,
                "fullest_rank_bytes": plan.memory.fullest.used_bytes,
                "fits": plan.memory.fits,
                "stages_s": {s.name: max(s.duration_s, default=0.0) for s in plan.estimate.stages},
            }
            for plan in plans
        ],
        "moves": [
            {
                "from": base.name,
                "to": other.name,
                "reshard_bytes": sum(change.received_bytes for change in moved),
                "tables": [
                    {
                        "table": c.table,
                        **dict(zip(("before", "after"), _described(c), strict=True)),
                        "changed_type": c.changed_type,
                        "received_bytes": c.received_bytes,
                    }
                    for c in moved
                ],
            }
            for other in plans[1:]
            for moved in (changes(workload, base.plan, other.plan),)
        ],
    }


def _overview(plans: tuple[Candidate, ...], confidences: tuple[float, ...]) -> Section:
    base = plans[0]
    columns, rows = laid_out(
        plans,
        (
            (Column("plan"), lambda p: p.name),
            (
                Column("change", Kind.SHARE),
                lambda p: None if p is base else regression_ratio(base, p),
            ),
            *figures.PLAN_CELLS,
        ),
    )
    known = (*confidences, *(None for _ in plans[1 + len(confidences) :]))
    facts = tuple(
        Fact(label="Verdict", parts=_verdict(base, other, confidence))
        for other, confidence in zip(plans[1:], known, strict=True)
    )
    unfit = tuple(f"{plan.name} does not fit in memory" for plan in plans if not plan.memory.fits)
    notes = (f"Sharding: {figures.abbreviations(plan.plan for plan in plans)}", *unfit)
    return Section(title="Plans", facts=facts, columns=columns, rows=rows, notes=notes)


def _change(ratio: float, base: str) -> str:
    """A difference in time in words; a large one as a factor, which is the same from both sides."""
    factor = 1.0 + ratio if ratio > 0 else 1.0 / (1.0 + ratio)
    if factor >= _FACTOR:
        shown = format_factor(factor)
        return f"takes {shown} as long as {base}" if ratio > 0 else f"is {shown} as fast as {base}"
    return f"is {format_share(abs(ratio))} {'slower' if ratio > 0 else 'faster'} than {base}"


def _verdict(base: Candidate, other: Candidate, faster: float | None) -> tuple[str, ...]:
    ratio = regression_ratio(base, other)
    times = (base.estimate.time, other.estimate.time)
    (before, _), (after, _) = (format_interval(t.time_s, t.low_s, t.high_s) for t in times)
    if abs(ratio) < _SAME_RATIO:
        return (f"{other.name} takes as long as {base.name} ({after})",)
    word = "slower" if ratio > 0 else "faster"
    change = f"{other.name} {_change(ratio, base.name)} ({before} -> {after})"
    if faster is None:
        return (change,)
    sure = format_confidence(1.0 - faster if ratio > 0 else faster)
    return change, f"confidence that it is {word}: {sure}"


def _stages(plans: tuple[Candidate, ...]) -> Section:
    """Each stage on its slowest rank, with buckets added up, and the change from the first plan."""
    found = [
        {n: max(times) for n, times in durations_s(p.estimate, figures.merged_name).items()}
        for p in plans
    ]
    columns = (
        Column("stage (slowest rank)"),
        *(Column(plan.name, Kind.TIME) for plan in plans),
        *(
            Column(f"change {i}" if len(plans) > 2 else "change", Kind.DELTA, optional=True)
            for i in range(2, len(plans) + 1)
        ),
    )
    rows = tuple(
        (
            name,
            *(times.get(name) for times in found),
            *(times.get(name, 0.0) - found[0].get(name, 0.0) for times in found[1:]),
        )
        for name in dict.fromkeys(name for times in found for name in times)
    )
    return Section(title="Time per stage", columns=columns, rows=rows)


def moves_section(
    workload: Workload, base: Candidate, other: Candidate, *, most: int | None = _MOST_ROWS
) -> Section:
    """The tables that differ between two plans, at most ``most`` of them; None for all."""
    moved = changes(workload, base.plan, other.plan)
    retyped = sum(change.changed_type for change in moved)
    columns = (Column("table"), Column("before"), Column("after"), Column("to move", Kind.BYTES))
    rows = tuple((c.table, *_described(c), c.received_bytes) for c in moved[:most])
    parts = (
        f"{len(moved)} of {len(workload.tables)} tables differ",
        f"{retyped} changed type or kernel",
    )
    hidden = len(moved) - len(rows)
    return Section(
        title=f"From {base.name} to {other.name}",
        facts=(Fact(label="Moved", parts=parts),),
        columns=columns,
        rows=rows,
        notes=(f"{hidden} tables with less to move left out.",) if hidden else (),
    )


def _kind(placement: TablePlacement) -> tuple[object, ...]:
    return placement.sharding_type, placement.kernel, placement.cache_load_factor_ratio


def _described(change: PlacementChange) -> tuple[str, str]:
    """How a table is placed in both plans; a whole table that only changed its type shows both."""
    before, after = _describe(change.before), _describe(change.after)
    if before == after and change.before.sharding_type is not change.after.sharding_type:
        return (
            f"{before}, run as {change.before.sharding_type}",
            f"{after}, run as {change.after.sharding_type}",
        )
    return before, after


def _describe(placement: TablePlacement) -> str:
    short = figures.short_name(placement)
    kernel = placement.kernel.value.removeprefix("fused_")
    suffix = "" if kernel in ("fused", "dense") else f" {kernel}"
    if placement.sharding_type is ShardingType.DATA_PARALLEL:
        return f"{short}{suffix}"
    return f"{short}{suffix} on {figures.rank_ranges(ranks_held(placement))}"


def _reshards(comparison: Comparison) -> Section:
    """Bytes and seconds of the move from the first plan to each other one."""
    base, pipeline = comparison.plans[0], comparison.pipeline
    moves = [
        (
            plan.name,
            reshard(
                base.plan,
                plan.plan,
                pipeline.workload,
                pipeline.topology,
                before_s=base.estimate.time.time_s,
                after_s=plan.estimate.time.time_s,
            ),
        )
        for plan in comparison.plans[1:]
    ]
    columns, rows = laid_out(
        moves,
        (
            (Column("to"), lambda move: move[0]),
            (Column("tables", Kind.COUNT), lambda move: move[1].moved_tables),
            (Column("moved", Kind.BYTES), lambda move: move[1].moved_bytes),
            (Column("most to a rank", Kind.BYTES), lambda move: move[1].most_received_bytes),
            (Column("time", Kind.TIME), lambda move: move[1].time_s),
            (
                Column("pays back after iterations", Kind.COUNT),
                lambda move: move[1].payback_iterations,
            ),
        ),
    )
    return Section(title=f"Re-sharding from {base.name}", columns=columns, rows=rows)


# ------------------------------------------------------------------ the page

_VERDICTS = """\
{% for verdict in verdicts %}<p class="verdict">{{ verdict }}.</p>{% endfor %}{{ rest }}"""


def render_compare(comparison: Comparison) -> str:
    """The page."""
    pipeline = comparison.pipeline
    names = ", ".join(plan.name for plan in comparison.plans)
    subtitle = f"{names} on {figures.cluster(pipeline.topology)}; the first is the reference"
    title = f"Plans of {pipeline.workload.name} compared"
    return render_page(title, subtitle, compare_blocks(comparison))


def compare_blocks(comparison: Comparison) -> tuple[Block, ...]:
    """Differences, then the charts of each plan."""
    plans = comparison.plans
    overview, slowest, *_, reshards = difference_sections(comparison)
    verdicts = ["; ".join(fact.parts) for fact in overview.facts]
    rest = plain_body(replace(overview, facts=()))
    body = fill(_VERDICTS, verdicts=verdicts, rest=rest)
    blocks = [
        Block(name="plans", title=overview.title, body=body, short="Verdict"),
        *(_moved(comparison, i) for i in range(1, len(plans))),
        _plain("reshard", "Re-shard", reshards),
        _plain("stages", "Stages", slowest),
    ]
    alone = [view_of(comparison.pipeline, plan) for plan in plans]
    longest_s = max(length_s(view) for view in alone)
    views = [replace(view, scale_s=longest_s) for view in alone]
    for (name, part), (i, view) in itertools.product(parts(), enumerate(views, 1)):
        if drawn := part.draw_view(view):
            plan = view.plan.name
            title, short = f"{part.title}: {plan}", f"{part.short}: {plan}"
            blocks.append(Block(name=f"{name}-{i}", title=title, body=drawn, short=short))
    return tuple(blocks)


def _plain(name: str, short: str, section: Section) -> Block:
    return Block(name=name, title=section.title, body=plain_body(section), short=short)


def _moved(comparison: Comparison, index: int) -> Block:
    """Every table that differs; the terminal shows only the largest of them."""
    base, other = comparison.plans[0], comparison.plans[index]
    section = moves_section(comparison.pipeline.workload, base, other, most=None)
    if not section.rows:
        section = replace(section, facts=(), notes=("No table moved or changed its type.",))
    return _plain(f"moved-{index + 1}", f"Moved: {other.name}", section)
