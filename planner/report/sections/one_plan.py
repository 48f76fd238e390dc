"""One plan in time and space, beside other values, moves and plans; and what figures rest on."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import replace
from operator import attrgetter
from typing import Final, final

import numpy as np
from markupsafe import Markup

from costmodels import units
from costmodels.estimates import IterationEstimate, MemoryLedger, RankMemory, Source, StageTime
from costmodels.memory import ALLOCATOR_RATIO
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.work import output_traffic_bytes
from costmodels.workload import Table
from planner.models import pipeline_of
from planner.report import base, figures, page
from planner.report.base import Column, Fact, Kind, Section, by_field
from planner.report.figures import FAMILIES, family, family_keys
from planner.report.page import Bar, Lane, block, grid
from planner.report.sections.base import AbstractReportSection
from planner.result import Candidate, PlanningResult
from planner.support.text import counted

# ------------------------------------------------------------------ timeline

_SHOWN_RATIO = 1e-4
_SMALLEST_SHARE = 0.01
"""The sums by stage leave out stages with a smaller share of the iteration than this."""
_TIE = 1e-6
"""A stage that ends as late as one on the critical path, up to this share of the iteration, counts
as on it."""


@final
class TimelineSection(
    AbstractReportSection, order=20, title="Timeline of one iteration", short="Timeline"
):
    """The critical path, which is the chain of steps that the iteration waits for.

    It has one row for each step. To shorten a stage that is not on it does not shorten the
    iteration. The page also draws a lane for each stream of some ranks.
    """

    def build(self, result: PlanningResult) -> Section:
        """The steps of the critical path in order of time; facts have their sums by stage."""
        estimate = result.estimate
        total = estimate.time.time_s or 1.0
        shares = tuple(
            f"{stage} {base.format_share(share)}"
            for stage, share in figures.path_shares(estimate)
            if share >= _SMALLEST_SHARE
        )
        facts = (Fact("By stage", shares or ("none",)),)
        return Section.of(
            "Critical path",
            estimate.critical_path,
            {
                **by_field("rank", "stage", "start_s", "time=duration_s"),
                Column("share", Kind.SHARE): lambda step: step.duration_s / total,
            },
            facts=facts,
        )

    def draw_plan(self, plan: Candidate, _pipeline: CostPipeline) -> Markup:
        """The critical path, and a lane for each stream of the notable ranks."""
        estimate = plan.estimate
        end_s = max(length_s(estimate), self.scale_s)
        ranks = figures.notable_ranks(estimate)
        path = tuple(
            _bar(f"critical path, rank {s.rank}", s.stage, s.start_s, s.duration_s, end_s)
            for s in estimate.critical_path
            if s.duration_s >= _SHOWN_RATIO * end_s
        )
        lanes = [Lane(label="Critical path", bars=path)]
        for word, rank in ranks:
            lanes += _rank_lanes(estimate, word, rank, end_s)
        shown = [stage.name for stage in estimate.stages if any(stage.duration_s)]
        shown += [step.stage for step in estimate.critical_path]
        return block(
            "timeline",
            ranks=", ".join(f"{word} {rank}" for word, rank in ranks),
            keys=family_keys({family(name) for name in shown}),
            rows=lanes,
            ticks=page.axis(end_s),
        )


def length_s(estimate: IterationEstimate) -> float:
    """Seconds until the last stage of any rank ends."""
    spans = (zip(s.start_s, s.duration_s, strict=True) for s in estimate.stages)
    return max([estimate.time.time_s, *(sum(span) for stage in spans for span in stage)])


def _bar(
    who: str, stage: str, start_s: float, duration_s: float, end_s: float, *, strong: bool = False
) -> Bar:
    """A stage from a start, for a duration; its labels go from long to short."""
    span = f"{units.format_time(duration_s)} from {units.format_time(start_s)}"
    return Bar(
        start_ratio=start_s / end_s,
        width_ratio=duration_s / end_s,
        css=family(stage),
        labels=(stage, figures.merged_name(stage), FAMILIES[family(stage)]),
        title=f"{who}: {stage}, {span}{', on the critical path' if strong else ''}",
        strong=strong,
    )


def _rank_lanes(estimate: IterationEstimate, word: str, rank: int, end_s: float) -> list[Lane]:
    """A lane for each stream in which the rank does something."""
    path_s = {s.stage: s.start_s + s.duration_s for s in estimate.critical_path}
    lanes: dict[str, list[Bar]] = {}
    for stage in estimate.stages:
        start_s, duration_s = stage.start_s[rank], stage.duration_s[rank]
        if duration_s > _SHOWN_RATIO * end_s:
            late = abs(path_s.get(stage.name, -1.0) - start_s - duration_s) <= _TIE * end_s
            bar = _bar(f"rank {rank}", stage.name, start_s, duration_s, end_s, strong=late)
            lanes.setdefault(stage.stream, []).append(bar)
    group = f"{word[0].upper()}{word[1:]}: rank {rank}"
    return [
        Lane(label=stream.replace("_", " "), group="" if i else group, bars=tuple(lanes[stream]))
        for i, stream in enumerate(sorted(lanes, key=lambda name: name != "compute"))
    ]


# ------------------------------------------------------------------ stages

_BUSIEST = 8
"""So many ranks get a bar where there are more than :data:`MOST_GROUPS`."""


@final
class StagesSection(
    AbstractReportSection, order=30, title="Time per stage and rank", short="Stages"
):
    """How evenly the ranks are loaded.

    Rows have the slowest, the median and the fastest rank of each stage. The page has one stacked
    bar for each rank, without its waits, or for the busiest of many ranks.
    """

    def build(self, result: PlanningResult) -> Section:
        """Stages in the order in which they start."""
        stages = [stage for stage in result.estimate.stages if any(stage.duration_s)]
        note = "Column rank: where the stage takes longest; - if all ranks take equally long."
        return Section.of(
            "Balance of ranks",
            sorted(stages, key=lambda stage: min(stage.start_s)),
            {
                **by_field("stage=name", "stream?"),
                Column("rank", Kind.COUNT): _slowest_rank,
                Column("slowest", Kind.TIME): lambda s: max(s.duration_s),
                Column("median", Kind.TIME): lambda s: statistics.median(s.duration_s),
                Column("fastest", Kind.TIME): lambda s: min(s.duration_s),
                Column("worst/mean", Kind.FACTOR, optional=True): lambda s: (
                    max(s.duration_s) / statistics.fmean(s.duration_s)
                ),
            },
            notes=(note,),
        )

    def draw_plan(self, plan: Candidate, _pipeline: CostPipeline) -> Markup:
        """A stacked bar for each rank, or for the busiest."""
        families_s = figures.family_durations_s(plan.estimate)
        busy_s = [sum(column) for column in zip(*families_s.values(), strict=True)]
        ranks, what = list(range(len(busy_s))), "each rank"
        is_long = len(ranks) > page.MOST_GROUPS
        if is_long:
            ranks = sorted(ranks, key=lambda r: (-busy_s[r], r))[:_BUSIEST]
            what = f"the {_BUSIEST} busiest ranks and the mean of all"
        rows = {f"rank {r}": {n: times[r] for n, times in families_s.items()} for r in ranks}
        if is_long:
            rows["mean of ranks"] = {n: statistics.fmean(t) for n, t in families_s.items()}
        sums_s = {name: sum(row.values()) for name, row in rows.items()}
        end_s = max(sums_s.values(), default=0.0) or 1.0
        lanes = []
        for name, row in rows.items():
            told = [(k, f"{FAMILIES[k]}, {units.format_time(s)}", s) for k, s in row.items()]
            lanes.append(page.stacked(name, told, end_s, units.format_time(sums_s[name])))
        keys, ticks = family_keys(families_s), page.axis(end_s)
        return block("stages", what=what, keys=keys, rows=lanes, ticks=ticks)


def _slowest_rank(stage: StageTime) -> int | None:
    times = stage.duration_s
    return None if min(times) == max(times) else times.index(max(times))


# ------------------------------------------------------------------ memory

_MEMORY_MOST_ROWS = 16
_AT_ENDS = 6
"""This many rows are shown at each end of a long list."""

PURPOSES: Final[dict[str, str]] = figures.WORDS["purposes"]


@final
class MemorySection(AbstractReportSection, order=40, title="Memory"):
    """The memory of ranks and hosts, compared with its limits.

    Rows are groups of equal ranks, the fullest first; of many, the middle is left out. The page has
    one bar for each rank, or for the fullest rank of each host, and the hosts below them if tables
    are in host memory.
    """

    def build(self, result: PlanningResult) -> Section:
        """Bytes by purpose; ranks with the same printed numbers share a row."""
        ledger = result.best.memory
        groups: dict[tuple[str, ...], list[RankMemory]] = {}
        for rank in _fullest_first(ledger):
            sizes = (rank.used_bytes, rank.capacity_bytes, *purposes_bytes(rank).values())
            groups.setdefault(tuple(map(base.format_gib, sizes)), []).append(rank)
        used = [p for p in PURPOSES if any(purposes_bytes(r)[p] for r in ledger.ranks)]
        columns = [Column(PURPOSES[p].split()[0], Kind.GIB, optional=True) for p in used]
        names = {own[0].rank: figures.rank_ranges([r.rank for r in own]) for own in groups.values()}
        shown = [own[0] for own in groups.values()]
        hidden = len(shown) - 2 * _AT_ENDS if len(shown) > _MEMORY_MOST_ROWS else 0
        told = f"{hidden} groups of ranks between the fullest and the emptiest left out."
        facts = [Fact("Hosts", figures.fullest_hosts(ledger)[:_AT_ENDS])]
        if result.problem.topology.compute_device != "cpu":
            facts.insert(0, Fact("Reserve", _reserve(ledger.fullest)))
        return Section.of(
            self.title,
            shown[:_AT_ENDS] + shown[-_AT_ENDS:] if hidden else shown,
            {
                Column("ranks"): lambda r: names[r.rank],
                Column("used GiB", Kind.GIB): lambda r: r.used_bytes,
                Column("capacity", Kind.GIB): lambda r: r.capacity_bytes,
                Column("share", Kind.SHARE): lambda r: r.used_bytes / r.capacity_bytes,
                **{c: attrgetter(f"{p}_bytes") for c, p in zip(columns, used, strict=True)},
            },
            facts=tuple(fact for fact in facts if fact.parts),
            notes=(told,) if hidden else (),
        )

    def draw_plan(self, plan: Candidate, pipeline: CostPipeline) -> Markup:
        """A bar for each rank, or for the fullest of each group of ranks."""
        groups, in_order = page.rank_groups(pipeline.topology), _fullest_first(plan.memory)
        fullest = {
            name: next(r for r in in_order if r.rank in ranks) for name, ranks in groups.items()
        }
        each = len(groups) == pipeline.topology.world_size
        end = 1.02 * max(max(r.capacity_bytes, r.used_bytes) for r in fullest.values())
        lanes = [
            _lane(name if each else f"{name}, rank {rank.rank}", rank, end)
            for name, rank in fullest.items()
        ]
        ticks = [*page.axis(end / units.GIB, lambda v: f"{v:,.0f} GiB" if v >= 1 else f"{v:g} GiB")]
        limits = {(r.capacity_bytes, r.capacity_bytes - r.reserved_bytes) for r in fullest.values()}
        if len(limits) == 1:
            lines = zip(*limits, ("limit", "reserve"), strict=True)
            ticks += [(at / end, "", css) for at, css in lines]
        used = {p for r in fullest.values() for p, value in purposes_bytes(r).items() if value > 0}
        return block(
            "memory",
            which="each rank" if each else "the fullest rank of each group of ranks",
            keys=[(f"c-m-{p}", words) for p, words in PURPOSES.items() if p in used],
            rows=lanes,
            ticks=ticks,
            hosts=figures.fullest_hosts(plan.memory)[:_AT_ENDS],
        )


def _fullest_first(ledger: MemoryLedger) -> list[RankMemory]:
    return sorted(ledger.ranks, key=lambda r: (r.headroom_bytes, r.rank))


def _reserve(rank: RankMemory) -> tuple[str, ...]:
    """The reserve, beside what PyTorch's allocator adds to the bytes that it gives out."""
    least, usual, most = map(base.format_share, ALLOCATOR_RATIO)
    more = base.format_gib(ALLOCATOR_RATIO[-1] * (rank.used_bytes - rank.reserved_bytes))
    return (
        f"{base.format_gib(rank.reserved_bytes)} GiB",
        f"PyTorch's allocator added {least} to {most} in measured steps, {usual} in the median",
        f"here up to {more} GiB",
    )


def purposes_bytes(rank: RankMemory) -> dict[str, float]:
    """Bytes by purpose."""
    return {name: float(getattr(rank, f"{name}_bytes")) for name in PURPOSES}


def _lane(name: str, rank: RankMemory, end: float) -> Lane:
    """Bytes by purpose, then what is free, then the reserve at the end of the memory."""
    used = purposes_bytes(rank)
    gap = max(0.0, rank.capacity_bytes - sum(used.values()))
    parts = [(f"m-{p}", f"{PURPOSES[p]}, {base.format_gib(v)} GiB", v) for p, v in used.items()]
    parts.insert(-1, ("", "", gap))
    word = "free" if rank.headroom_bytes >= 0 else "over"
    free = base.format_gib(abs(rank.headroom_bytes))
    return page.stacked(name, parts, end, f"{free} GiB {word}")


# ------------------------------------------------------------------ traffic


@final
class TrafficSection(AbstractReportSection, order=50, title="All-to-all traffic", short="Traffic"):
    """A matrix of ranks, or of hosts if there are many ranks; only on the page."""

    def draw_plan(self, plan: Candidate, pipeline: CostPipeline) -> Markup | None:
        """The matrix of one plan, unless there is a single rank."""
        world = pipeline.topology.world_size
        if world == 1:
            return None
        groups = page.rank_groups(pipeline.topology)
        names, starts = list(groups), [ranks.start for ranks in groups.values()]
        traffic = output_traffic_bytes(pipeline.plan_work(plan.plan), pipeline.topology)
        matrix = np.add.reduceat(np.add.reduceat(traffic, starts, axis=0), starts, axis=1)
        return block(
            "traffic",
            unit="hosts" if names[0].startswith("host") else "ranks",
            names=names,
            matrix=matrix,
            by_rank=len(groups) == world,
        )


# ------------------------------------------------------------------ tables

_TABLES_MOST_ROWS = 40
_HOT_RATIO = 0.01

_NOTE = (
    "Cost is the time of lookups and collectives, shared out over tables by what each brings to "
    "them on each rank; lookup (forward and backward) and exchange are means per rank. Pooling: "
    "indices per sample of all features. Hot rows: share of accesses on the hottest 1 % of rows."
)


@final
class TablesSection(AbstractReportSection, order=60, title="Tables"):
    """A row for each table, the most expensive first.

    The terminal shows the first ones. The page has all tables and a box to search them.
    """

    def build(self, result: PlanningResult) -> Section:
        """The tables that cost most; the rest are in plan.json."""
        listed = _listed(result)
        hidden = len(listed.rows) - _TABLES_MOST_ROWS
        left_out = (f"{hidden} cheaper tables left out; plan.json has them all.",)
        return replace(
            listed,
            facts=(Fact("Sharding", figures.kinds_in_words(result.plan)),),
            rows=listed.rows[:_TABLES_MOST_ROWS],
            notes=(_NOTE, *(left_out if hidden > 0 else ())),
        )

    def draw(self, result: PlanningResult) -> Markup:
        """The list of the chosen plan."""
        listed = _listed(result)
        kinds = ", ".join(figures.kinds_in_words(result.plan))
        box = grid(listed.columns, listed.rows, css="list", ident="tablelist")
        return block("tables", kinds=kinds, note=_NOTE, count=f"{len(listed.rows):,}", box=box)


def _listed(result: PlanningResult) -> Section:
    """A row for each table, in the order of their costs."""
    tables = {t.name: t for t in result.problem.workload.tables}
    costs = figures.table_costs(result.best, pipeline_of(result.problem))
    total_s = sum(map(sum, costs.values())) or 1.0
    return Section.of(
        TablesSection.title,
        sorted(result.plan.placements, key=lambda p: (-sum(costs[p.table]), p.table)),
        {
            Column("table"): lambda p: p.table,
            Column("cost", Kind.SHARE): lambda p: sum(costs[p.table]) / total_s,
            Column("lookup", Kind.TIME, optional=True): lambda p: costs[p.table][0],
            Column("exchange", Kind.TIME, optional=True): lambda p: costs[p.table][1],
            Column("type"): figures.short_name,
            Column("kernel", optional=True): figures.kernel_name,
            Column("ranks"): figures.where,
            Column("rows", Kind.COUNT): lambda p: tables[p.table].num_embeddings,
            Column("dim", Kind.COUNT): lambda p: tables[p.table].embedding_dim,
            Column("size", Kind.BYTES): lambda p: tables[p.table].weight_bytes,
            Column("pooling", Kind.NUMBER, optional=True): lambda p: tables[p.table].pooling_factor,
            Column("hot rows", Kind.SHARE, optional=True): lambda p: _hot_ratio(tables[p.table]),
        },
    )


def _hot_ratio(table: Table) -> float:
    return table.distribution.access_share(max(1.0, _HOT_RATIO * table.num_embeddings))


# ------------------------------------------------------------------ other values, moves, sources


@final
class AssumedSection(AbstractReportSection, order=15, title="Assumed"):
    """One row for each assumed value, with the step of this plan at the other end of its range."""

    def build(self, result: PlanningResult) -> Section | None:
        """Key, value, number of tables, another value, and the step with that value alone."""
        if not result.assumed:
            return None
        ours_s = result.estimate.time.time_s
        return Section.of(
            self.title,
            result.assumed,
            {
                **by_field("what", "assumed=value"),
                Column("tables", Kind.COUNT): lambda a: a.num_tables or None,
                **by_field("at the other end=other", "step=time_s"),
                Column("change", Kind.DELTA): lambda a: a.time_s and a.time_s - ours_s,
            },
            notes=("The same plan, with one value changed at a time.",),
        )


@final
class MovesSection(
    AbstractReportSection, order=25, title="Bytes moved against step time", short="Moves"
):
    """A row for each number of tables; nothing if this was not asked for."""

    def build(self, result: PlanningResult) -> Section | None:
        """The curve, and the table that the limit blocks."""
        if not result.curve:
            return None
        before_s = result.curve[0].move.before_s
        notes = [
            "at least: a proven bound; no plan within the limits of the row has a shorter "
            "iteration. paid back after: training on the new plan until it has saved the time of "
            "the move. A table that is cut anew, while no rank receives a part of it, does not "
            "count as moved."
        ]
        blocked = result.blocked
        if blocked is not None:
            more = base.format_share(1.0 - blocked.iteration_s / result.estimate.time.time_s)
            moved = units.format_bytes(blocked.moved_bytes)
            notes.append(
                f"The limit on moves blocks table {blocked.table}: moving it too ({moved}) would "
                f"save another {more}."
            )
        return Section.of(
            self.title,
            result.curve,
            {
                Column("at most"): lambda p: (
                    "the limit" if p.most_tables is None else counted(p.most_tables, "table")
                ),
                **by_field("tables=move.moved_tables", "moved=move.moved_bytes"),
                **by_field("over the links=move.time_s", "iteration_s"),
                Column("saves", Kind.SHARE): lambda p: 1.0 - p.iteration_s / before_s,
                **by_field("at least=bound_s"),
                Column("paid back after"): lambda p: (
                    None if (s := p.move.payback_s) is None else units.format_long_time(s)
                ),
            },
            notes=tuple(notes),
        )


# ------------------------------------------------------------------ alternatives


@final
class AlternativesSection(
    AbstractReportSection, order=80, title="Runners-up and baselines", short="Alternatives"
):
    """One row for each plan, all priced by the same models."""

    def build(self, result: PlanningResult) -> Section:
        """The chosen plan first, then the others from fast to slow."""
        found = [("chosen", result.best)]
        found += [("runner-up", plan) for plan in result.runners_up]
        found += [("baseline", plan) for plan in result.baselines]
        seen: Counter[str] = Counter()
        roles: dict[str, tuple[str, Candidate]] = {}
        for role, plan in found:  # plans of one strategy get names that differ
            seen[plan.name] += 1
            name = plan.name if seen[plan.name] == 1 else f"{plan.name} {seen[plan.name]}"
            roles[name] = role, replace(plan, name=name)
        best, *others = (plan for _, plan in roles.values())
        words = figures.abbreviations(plan.plan for plan in (best, *others))
        notes = (
            *((f"Column sharding: {words}",) if words else ()),
            *figures.unfit_baselines(result),
        )
        return Section.of(
            self.title,
            [best, *sorted(others, key=lambda plan: plan.estimate.time.time_s)],
            {
                Column("plan"): lambda p: p.name,
                Column("role", optional=True): lambda p: roles[p.name][0],
                Column("ratio", Kind.FACTOR): lambda p: figures.speedup(result.best, p),
                **figures.PLAN_CELLS,
            },
            notes=notes,
        )


# ------------------------------------------------------------------ sources, limits


@final
class ProvenanceSection(
    AbstractReportSection, order=100, title="Sources of numbers", short="Sources"
):
    """How the model is trained, and one row for each number of the system, weak sources first."""

    def build(self, result: PlanningResult) -> Section:
        """Name, value as written, source and reference of each number."""
        entries = result.problem.topology.provenance
        workload = result.problem.workload
        optimizers = {workload.optimizer_of(table).value: None for table in workload.tables}
        trained = ", ".join(optimizers) or workload.optimizer.value
        training = (f"pipeline {workload.pipeline.value}", f"optimizer {trained}")
        return Section.of(
            self.title,
            sorted(entries, key=lambda entry: -list(Source).index(entry.source)),
            {
                **by_field("number=name"),
                Column("value"): lambda entry: entry.value,
                **by_field("source=source.value", "reference"),
            },
            facts=(Fact("Training", training),),
        )


@final
class LimitsSection(AbstractReportSection, order=110, title="Limits of the model", short="Limits"):
    """A list on the page, which begins with the warnings of this plan."""

    def draw(self, result: PlanningResult) -> Markup:
        """The warnings, and then the limits that hold for every plan."""
        own = dict.fromkeys((*result.warnings, *result.estimate.warnings))
        return block("limits", own=own)
