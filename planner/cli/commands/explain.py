"""``shardplan explain``: why a plan is as it is, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

from costmodels import sharding, units
from planner import io
from planner.cli import inputs, spec
from planner.cli.console import assumed_section, bar, tell
from planner.cli.interrupt import StopOnInterrupt
from planner.explain import explainer as why
from planner.report import figures
from planner.report.base import Section, by_field, by_place
from planner.solving import assumed as assuming
from planner.support.text import counted

_CUT: Final = "--time-limit cut the searches marked 'cut': other runs may find other gains"


class ExplainFlags(spec.Flags):
    """What is to be explained.

    Attributes:
        tables: Price every option of this table; repeatable.
        prices: Plan again without each constraint.
        constraints: YAML file of constraints, in addition to those of the workload.
        time_limit: For each search of --prices, a safety by the clock.  [default: none; the budget
            of work ends a search]
    """

    rules = ("--time-limit needs --prices",)

    tables: Annotated[spec.Texts, "NAME", "--table"] = ()
    prices: bool = False
    constraints: spec.File = None
    time_limit: spec.TimeLimit = None


def _ignored(path: Path, made_for: io.SavedPlan | None) -> tuple[str, ...]:
    """What the file says that the plan was made for, and explanations do not look at."""
    found = []
    if made_for is not None and made_for.objective not in (None, "iteration"):
        found.append(f"the objective {made_for.objective!r}")
    if made_for is not None and made_for.num_scenarios:
        found.append(f"{counted(made_for.num_scenarios, 'scenario')} beside the workload")
    told = f"{path}: was made for {' and '.join(found)}; only the workload's iteration is explained"
    return (told,) if found else ()


@spec.command("What a plan waits for, and which change would help.")
def command(
    workload: Path, asked: ExplainFlags, flags: spec.ProblemFlags, plan: Path | None = None
) -> None:
    """Say what a plan waits for, and which changes would help.

    Without --table and --prices: the stages that the iteration waits for, and the best change of
    each single table on a critical rank.

    With --table: the costs of each option of the table, and the iteration time of the plan with
    this option. An option with few ways to place its shards is tried in all of them; the shards of
    other options are placed one after the other, each where it costs least. With --prices: what
    each constraint costs, and what one GiB more per rank would gain.

    All times are iteration times of the workload itself: scenarios, statistics, limits on moves and
    other objectives do not count, even if the plan was made for them. Without tables, omit PLAN.

    Examples:
      shardplan explain dlrm.yaml run1/plan.json                     what would help most
      shardplan explain dlrm.yaml run1/plan.json --table user_id     every option of a table
      shardplan explain dlrm.yaml run1/plan.json --prices            what each constraint costs
    """
    loaded = inputs.load_plans(workload, () if plan is None else (plan,), flags)
    read = inputs.with_constraints(loaded, asked.constraints)

    explainer = why.Explainer(read.problem, read.plans[0])
    told = [explainer.table(name) for name in asked.tables]
    sections = [table_section(explanation) for explanation in told]
    changes: Sequence[why.Change] = ()
    costs: Sequence[why.ConstraintCost] = ()
    if not asked.tables and not asked.prices:
        names = explainer.critical_tables()
        with bar("tables", len(names)) as step:
            changes = explainer.changes(progress=step)
        sections += change_sections(explainer, changes)
    if asked.prices:
        total = len(why.relaxed(read.problem.constraints)) + 1
        with StopOnInterrupt(keeps=False) as stop, bar("constraints", total) as step:
            costs = why.constraint_costs(
                read.problem, time_limit_s=asked.time_limit, progress=step, should_stop=stop
            )
        sections.append(costs_section(costs))
    assumed = assuming.priced_assumptions(read.problem, read.plans[0], read.assumed)
    warned = (_CUT,) if any(cost.is_cut for cost in costs) else ()
    sections.append(assumed_section(assumed, explainer.plan_time_s))
    tables = [
        {**asdict(t), "options": [_plain(o, o.placement, option=o.placement) for o in t.options]}
        for t in told
    ]
    data = {
        "plan_time_s": explainer.plan_time_s,
        "tables": tables,
        "changes": [_plain(c, c.after, before=c.before, after=c.after) for c in changes],
        "constraints": [{**asdict(c), "gain_s": c.gain_s} for c in costs],
        "assumed": assumed,
    }
    tell(data, sections, read.warnings + _ignored(plan or workload, read.made_for) + warned)


# ------------------------------------------------------------------ what is printed

_MOST_OPTIONS = 24


def _plain(item: Any, placed: Any, **placements: sharding.TablePlacement) -> dict[str, Any]:
    """The figures of an item, its placements in words, and the ranks where it puts the table."""
    plain = {k: v for k, v in asdict(item).items() if not isinstance(v, dict)}
    return {**plain, **{k: cut(p) for k, p in placements.items()}, "ranks": placed.ranks}


def cut(placement: sharding.TablePlacement) -> str:
    """``column_wise 4 x 32, fused``."""
    kind = placement.sharding_type.value
    columns = {s.col_offset: s.num_cols for s in placement.shards}
    if len(columns) > 1:
        narrow, wide = min(columns.values()), max(columns.values())
        kind += f" {len(columns)} x {narrow if narrow == wide else f'{narrow}-{wide}'}"
    return f"{kind}, {figures.kernel_name(placement)}"


def table_section(explanation: why.TableExplanation) -> Section:
    """The fastest options, with the plan's own among them, and what leaves others out."""
    options = explanation.options
    shown = options[:_MOST_OPTIONS]
    if not any(o.is_chosen for o in shown):
        shown = (*shown[:-1], *(o for o in options if o.is_chosen))
    title = (
        f"Table {explanation.table}: {len(options)} options, while the rest of the plan "
        f"({units.format_time(explanation.plan_time_s)}) stays as it is"
    )
    if len(shown) < len(options):
        title += f"; {len(shown)} are shown, --json has all"
    notes = []
    if explanation.rules:
        notes = [f"Constraints on {explanation.table} that leave out others:"]
        notes += [f" {rule}" for rule in explanation.rules]
    if explanation.num_stuck:
        told = "more options have no place beside the other tables under these constraints"
        notes.append(f"{explanation.num_stuck} {told}")
    return Section.of(
        title,
        shown,
        {
            "": lambda o: "*" if o.is_chosen else "",
            "option": lambda o: cut(o.placement),
            "ranks": lambda o: figures.where(o.placement),
            **by_field("forward=lookup_forward_s?", "backward=lookup_backward_s?"),
            **by_field("sent=exchanged_bytes", "memory=device_bytes"),
            "iteration": lambda o: _change(o.plan_time_s, explanation.plan_time_s),
        },
        notes=tuple(notes),
    )


def _change(time_s: float, plan_time_s: float) -> str:
    """A change of the iteration in percent; ``no change`` where that would show 0."""
    percent = 100 * (time_s / plan_time_s - 1)
    told = "no change" if abs(percent) < 0.005 else f"{percent:+.2f} %"
    return told if math.isfinite(percent) else "does not fit"


def change_sections(explainer: why.Explainer, changes: Sequence[why.Change]) -> Iterator[Section]:
    """What the iteration waits for, and the best change of each table."""
    estimate_s = explainer.plan_time_s
    waits = figures.path_seconds(explainer.estimate, lambda step: (step.stage, step.rank))
    none = "No table on a critical rank has another option that the rules and the memory allow"
    tables = bool(explainer.plan.placements)
    longest = sorted(waits.items(), key=lambda item: -item[1])
    yield Section.of(
        f"What the iteration of {units.format_time(estimate_s)} waits for",
        [(*at, units.format_time(s), f"{100 * s / estimate_s:.1f} %") for at, s in longest],
        by_place("stage", "rank", "time", "share"),
        notes=(none,) if tables and not changes else (),
    )
    if changes:
        yield Section.of(
            "Best change of each single table on a critical rank",
            changes,
            {
                "table": lambda c: c.table,
                "now": lambda c: cut(c.before),
                "instead": lambda c: f"{cut(c.after)} on {figures.where(c.after)}",
                "iteration": lambda c: _change(c.plan_time_s, estimate_s),
                "moves": lambda c: units.format_bytes(c.moved_bytes),
            },
        )


def costs_section(costs: Sequence[why.ConstraintCost]) -> Section:
    """What dropping each constraint gains over a search that keeps them all, which comes first."""
    kept_s = next((c.kept_s for c in costs if c.kept_s is not None), None)
    kept = "nothing fits" if kept_s is None else units.format_time(kept_s)
    rows = [("with all constraints", kept, "", "")]
    rows += [
        (
            f"with {c.constraint}"
            if c.constraint == why.MORE_MEMORY
            else f"without {c.constraint}",
            "nothing fits" if c.time_s is None else units.format_time(c.time_s),
            "" if c.time_s is None or kept_s is None else _change(c.time_s, kept_s),
            "cut" if c.is_cut else "",
        )
        for c in costs
    ]
    columns = ("planned again", "iteration", "change", "search")
    shown = by_place(*columns[: 4 if any(c.is_cut for c in costs) else 3])
    return Section.of("What each constraint costs", rows, shown)
