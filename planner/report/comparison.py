"""Plans side by side: time per stage, memory, what moved, and what moving it costs.

The terminal prints :func:`difference_sections`; ``compare.html`` shows them too, and the charts of
each plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType, TablePlacement
from costmodels.workload import Workload
from planner.io.plan.result_json import predicted_json
from planner.replan import reshard
from planner.report import base, figures
from planner.report.base import Column, Fact, Kind, Section, by_field
from planner.report.page import Block, plain_body, render_page
from planner.report.sections.base import parts
from planner.report.sections.one_plan import length_s
from planner.result import Candidate, Reshard, ranks_held
from planner.rules.placement_rules import received_bytes

_MOST_ROWS = 30
_FACTOR = 2.0
"""From this ratio on, a difference is told as a factor: 80 % faster one way is 400 % slower the
other way, which is hard to see."""
_SAME_RATIO = 5e-5
"""Smaller differences are called none: they are below a tenth of the last printed digit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementChange:
    """One table that two plans treat differently.

    Attributes:
        table: its name.
        before, after: how it is placed, in words.
        changed_type: whether the type, kernel or cache has changed, and not only the place.
        received_bytes: what ranks have to receive to go from the first plan to the second one:
            weights and optimizer state of the cells that a rank holds under the second plan only.
    """

    table: str
    before: str
    after: str
    changed_type: bool
    received_bytes: float


def changes(workload: Workload, before: Plan, after: Plan) -> tuple[PlacementChange, ...]:
    """The tables that two plans treat differently; those with the most bytes to move come first."""
    found = []
    for table in workload.tables:
        old, new = before.placement(table.name), after.placement(table.name)
        changed_type = _kind(old) != _kind(new)
        if changed_type or set(old.shards) != set(new.shards):
            first, second = _describe(old), _describe(new)
            if first == second and old.sharding_type is not new.sharding_type:
                first, second = (f"{first}, run as {p.sharding_type}" for p in (old, new))
            found.append(
                PlacementChange(
                    table=table.name,
                    before=first,
                    after=second,
                    changed_type=changed_type,
                    received_bytes=received_bytes(old, new, table, workload),
                )
            )
    return tuple(sorted(found, key=lambda c: (-c.received_bytes, c.table)))


def _kind(placement: TablePlacement) -> tuple[object, ...]:
    return placement.sharding_type, placement.kernel, placement.cache_load_factor_ratio


def _describe(placement: TablePlacement) -> str:
    short = figures.short_name(placement)
    kernel = placement.kernel.value.removeprefix("fused_")
    suffix = "" if kernel in ("fused", "dense") else f" {kernel}"
    if placement.sharding_type is ShardingType.DATA_PARALLEL:
        return f"{short}{suffix}"
    return f"{short}{suffix} on {figures.rank_ranges(ranks_held(placement))}"


def regression_ratio(first: Candidate, other: Candidate) -> float:
    """How much longer ``other`` takes than ``first``: 0.03 is 3 % slower, below 0 faster."""
    return figures.speedup(first, other) - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Plans of one workload; the first one is the reference.

    ``confidences`` holds, for each other plan, the probability (0..1) that it is faster.
    """

    pipeline: CostPipeline
    plans: tuple[Candidate, ...]
    confidences: tuple[float, ...]

    def moved(self, other: Candidate) -> tuple[PlacementChange, ...]:
        """The tables that the reference and another plan treat differently."""
        return changes(self.pipeline.workload, self.plans[0].plan, other.plan)

    def move(self, other: Candidate) -> Reshard:
        """The move from the reference to another plan."""
        first, pipeline = self.plans[0], self.pipeline
        before_s, after_s = (p.estimate.time.time_s for p in (first, other))
        systems = pipeline.workload, pipeline.topology
        return reshard(first.plan, other.plan, *systems, before_s=before_s, after_s=after_s)


def difference_sections(
    comparison: Comparison, most: int | None = _MOST_ROWS
) -> tuple[Section, ...]:
    """The first plan beside each other one, the time per stage, what moved, and the moves.

    ``most`` is how many tables are listed for each move; None for all.
    """
    moved = (_moves(comparison, other, most) for other in comparison.plans[1:])
    return (_overview(comparison), _stages(comparison.plans), *moved, _reshards(comparison))


def difference_data(comparison: Comparison) -> dict[str, object]:
    """The comparison as plain values for JSON: seconds, bytes, ratios."""
    first, *others = comparison.plans
    sure = (None, *comparison.confidences)
    return {
        "plans": [
            {
                "name": plan.name,
                **predicted_json(plan.estimate),
                "change_ratio": regression_ratio(first, plan),
                "confidence_faster_ratio": faster,
                "fullest_rank_bytes": plan.memory.fullest.used_bytes,
                "fits": plan.memory.fits,
                "stages_s": {s.name: max(s.duration_s, default=0.0) for s in plan.estimate.stages},
            }
            for plan, faster in zip(comparison.plans, sure, strict=True)
        ],
        "moves": [
            {"to": p.name, "reshard": comparison.move(p), "tables": comparison.moved(p)}
            for p in others
        ],
    }


def _overview(comparison: Comparison) -> Section:
    first, *others = comparison.plans
    facts = tuple(
        Fact("Verdict", verdict(first, other, sure))
        for other, sure in zip(others, comparison.confidences, strict=True)
    )
    plans = comparison.plans
    unfit = tuple(f"{plan.name} does not fit in memory" for plan in plans if not plan.memory.fits)
    notes = (f"Sharding: {figures.abbreviations(plan.plan for plan in plans)}", *unfit)
    return Section.of(
        "Plans",
        comparison.plans,
        {
            Column("plan"): lambda p: p.name,
            Column("change", Kind.SHARE): lambda p: (
                None if p is first else regression_ratio(first, p)
            ),
            **figures.PLAN_CELLS,
        },
        facts=facts,
        notes=notes,
    )


def verdict(first: Candidate, other: Candidate, faster: float) -> tuple[str, ...]:
    """How another plan compares with the first; a large difference as a factor.

    A factor is the same from both sides. ``faster`` is the probability that the other one is.
    """
    ratio = regression_ratio(first, other)
    times = (first.estimate.time, other.estimate.time)
    (before, _), (after, _) = (base.format_interval(t.time_s, t.low_s, t.high_s) for t in times)
    if abs(ratio) < _SAME_RATIO:
        return (f"{other.name} takes as long as {first.name} ({after})",)
    word, sure = ("slower", 1.0 - faster) if ratio > 0 else ("faster", faster)
    factor = 1.0 + ratio if ratio > 0 else 1.0 / (1.0 + ratio)
    change = f"is {base.format_share(abs(ratio))} {word} than"
    if factor >= _FACTOR:
        shown = base.format_factor(factor)
        change = f"takes {shown} as long as" if ratio > 0 else f"is {shown} as fast as"
    return (
        f"{other.name} {change} {first.name} ({before} -> {after})",
        f"confidence that it is {word}: {base.format_confidence(sure)}",
    )


def _stages(plans: tuple[Candidate, ...]) -> Section:
    """Each stage on its slowest rank, with buckets added up, and the change from the first plan."""
    first, *others = (
        {n: max(s) for n, s in figures.durations_s(p.estimate, figures.merged_name).items()}
        for p in plans
    )

    def change(times: dict[str, float]) -> Callable[[str], float]:
        return lambda name: times.get(name, 0.0) - first.get(name, 0.0)

    numbers = range(2, len(plans) + 1) if len(plans) > 2 else ("",)
    return Section.of(
        "Time per stage",
        dict.fromkeys(name for times in (first, *others) for name in times),
        {
            Column("stage (slowest rank)"): lambda name: name,
            **{
                Column(plan.name, Kind.TIME): times.get
                for plan, times in zip(plans, (first, *others), strict=True)
            },
            **{
                Column(f"change {number}".strip(), Kind.DELTA, optional=True): change(times)
                for number, times in zip(numbers, others, strict=True)
            },
        },
    )


def _moves(comparison: Comparison, other: Candidate, most: int | None) -> Section:
    """The tables that differ between the reference and another plan."""
    moved, total = comparison.moved(other), len(comparison.pipeline.workload.tables)
    retyped = sum(change.changed_type for change in moved)
    parts = (f"{len(moved)} of {total} tables differ", f"{retyped} changed type or kernel")
    hidden = len(moved) - len(moved[:most])
    return Section.of(
        f"From {comparison.plans[0].name} to {other.name}",
        moved[:most],
        by_field("table", "before", "after", "to move=received_bytes"),
        facts=(Fact("Moved", parts),),
        notes=(f"{hidden} tables with less to move left out.",) if hidden else (),
    )


def _reshards(comparison: Comparison) -> Section:
    """Bytes and seconds of the move from the first plan to each other one."""
    first, *others = comparison.plans
    rows = [{"to": plan.name, **asdict(comparison.move(plan))} for plan in others]
    sizes = ("tables=moved_tables", "moved_bytes", "most to a rank=most_received_bytes", "time_s")
    cells = by_field("to", *sizes, "pays back after iterations=payback_iterations")
    return Section.of(f"Re-sharding from {first.name}", rows, cells)


# ------------------------------------------------------------------ the page


def render_compare(comparison: Comparison) -> str:
    """The page: differences, with every table that moved, then the charts of each plan."""
    pipeline = comparison.pipeline
    names = ", ".join(plan.name for plan in comparison.plans)
    subtitle = f"{names} on {figures.cluster(pipeline.topology)}; the first is the reference"
    title = f"Plans of {pipeline.workload.name} compared"
    overview, slowest, *moves, reshards = difference_sections(comparison, most=None)
    moved = {f"moved-{i}": section for i, section in enumerate(moves, 2)}
    shown = {"plans": overview, **moved, "reshard": reshards, "stages": slowest}
    longest_s = max(length_s(plan.estimate) for plan in comparison.plans)
    blocks = [Block(name=name, title=s.title, body=plain_body(s)) for name, s in shown.items()]
    blocks += [
        part.block(drawn, of=plan.name, number=f"-{i}")
        for part in parts(longest_s)
        for i, plan in enumerate(comparison.plans, 1)
        if (drawn := part.draw_plan(plan, pipeline))
    ]
    return render_page(title, subtitle, blocks)
