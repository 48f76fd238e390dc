"""``shardplan drift``: what new data do to a plan in use, and whether a new plan pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import planner
from costmodels import units
from costmodels.errors import require
from planner import io
from planner.cli import inputs, spec
from planner.cli.console import remark, settings, shown_paths, tell
from planner.cli.interrupt import StopOnInterrupt
from planner.cli.output import check_output, files_of
from planner.drift import changes
from planner.errors import refuse
from planner.profiling import profiler, statistics, stats
from planner.report.base import Column, Fact, Kind, Section, by_field, format_share
from planner.support.cores import usable_cores
from planner.support.status import Status
from planner.support.text import significant, unsigned_zero


@dataclass(frozen=True, slots=True, kw_only=True)
class DayFile:
    """A file or folder with data, and their day.

    The day counts from any origin; None if it is not given. ``is_date`` says that it was written as
    a date, so that its origin is that of the calendar.
    """

    path: Path
    day: float | None = None
    is_date: bool = False


def day_file(text: str) -> DayFile:
    """A value such as ``FILE``, ``12=FILE`` or ``2026-11-20=FILE``.

    Raises:
        ValueError: there is no such file.
    """
    before, equals, after = text.partition("=")
    before, day, is_date = before.strip(), None, True
    try:
        day = float(date.fromisoformat(before).toordinal())
    except ValueError:
        is_date = False
        if before.isascii() and before.isdecimal() and len(before) < 10:
            day = float(before)
    named = bool(equals) and day is not None
    path = Path(after if named else text)
    hint = "; DAY is a number or a date such as 2026-11-20" if equals and not named else ""
    require(path.exists(), f"{str(path)!r} does not exist{hint}")
    return DayFile(path=path, day=day, is_date=is_date) if named else DayFile(path=path)


def ordered(files: tuple[DayFile, ...]) -> tuple[DayFile, ...]:
    """The files sorted by day.

    Raises:
        UsageError: there are several files, of which one has no day, two have the same day,
            or some have dates and others numbers.
    """
    for file in files if len(files) > 1 else ():
        needs = f"--stats {file.path}: several statistics need their days, such as --stats 1=FILE"
        spec.refuse(file.day is None, needs)
    mixed = "--stats: some days are dates and others numbers; give all days in one way"
    spec.refuse(len({f.is_date for f in files}) > 1, mixed)
    twice = "--stats: two files are of the same day; give every day once"
    spec.refuse(len({f.day for f in files}) < len(files), twice)
    return tuple(sorted(files, key=lambda f: f.day or 0.0))


class DriftFlags(spec.Flags):
    """What the flags say about the data, the alarm and the plan that is looked for.

    Attributes:
        days: Statistics ('shardplan profile') or raw data of a day; DAY is a number or a date.
        before: Statistics that the plan was made with.  [default: the laws in the workload]
        threshold: Exit code 1 if a new plan makes the iteration shorter by more than
            this.  [default: 5%]
        constraints: YAML file of constraints, in addition to those of the workload.
        max_moved_bytes: Maximum bytes to move, such as '200 GiB'.
        max_moved_tables: Maximum number of tables to move.
        evaluations: Budget of each search: N priced plans.  [default: by the size of the problem]
        time_limit: For each search, a safety by the clock.  [default: none; the budget of work ends
            a search]
        output: Write the new plan, as plan.json.
    """

    days: Annotated[tuple[DayFile, ...], spec.Parsed("day=file", day_file), "[DAY=]FILE", "--stats"]
    before: spec.File = None
    threshold: spec.Percent = 0.05
    constraints: spec.File = None
    max_moved_bytes: spec.Bytes = None
    max_moved_tables: spec.Tables = None
    evaluations: spec.Evaluations = None
    time_limit: spec.TimeLimit = None
    output: spec.Output = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """All days in order.

    Attributes:
        days: what the data of each file do to the plan; at least one.
        threshold_ratio: saving above which a new plan is due.
        before: statistics that the plan was made with, None for the workload's laws.
    """

    days: Mapping[DayFile, changes.Assessment]
    threshold_ratio: float
    before: Path | None

    @property
    def latest(self) -> changes.Assessment:
        """The last day."""
        return list(self.days.values())[-1]

    @property
    def is_alarming(self) -> bool:
        """Whether the latest data ask for another plan, or for larger tables."""
        now = self.latest
        outgrown = any(rows.is_outgrown for rows in now.rows)
        return now.saved_ratio > self.threshold_ratio or not now.fits or outgrown

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the figures doubtful."""
        ends = [now.result.solver.status for now in self.days.values()]
        cut = ends.count(Status.TIME_LIMIT)
        told = (
            f"--time-limit cut the search of {cut} of {len(ends)} days: a faster or idler machine "
            "may find a better plan"
        )
        return (told,) if cut else ()

    @property
    def trend(self) -> changes.Trend | None:
        """The line through what a new plan saves, day by day; None without days."""
        days = [file.day for file in self.days if file.day is not None]
        return changes.trend(days, [now.saved_ratio for now in self.days.values()])


@spec.command("Say what new data do to a plan, and whether a new plan pays.")
def command(workload: Path, plan: Path, asked: DriftFlags, flags: spec.ProblemFlags) -> int:
    """Compare the data that a plan was made for with those of today.

    Prints what changed in each table, the iteration time of the plan then and now, the time of a
    new plan, the move to it with the training time that pays it back, and the tables that have too
    few rows for the ids in the data. With several days it also prints a trend: how long the plan
    lasts.

    Exit code 1 says that, under the latest data, a new plan saves more than --threshold, or the
    plan no longer fits in memory, or the data hold ids for which a table has no row.

    Examples:
      shardplan drift dlrm.yaml run1/plan.json --stats today.json
      shardplan drift dlrm.yaml run1/plan.json --before then.json --stats day_7_sparse.npy
      shardplan drift dlrm.yaml run1/plan.json --stats 1=mon.json --stats 2=tue.json
      shardplan drift dlrm.yaml run1/plan.json --stats today.json --threshold 5% -q || ./alert
    """
    data = (day.path for day in asked.days)
    files = (path for at in data for path in (at.iterdir() if at.is_dir() else [at]))
    read = (workload, plan, asked.before, asked.constraints, *files)
    check_output(asked.output, (*filter(None, read), *files_of(flags, workload)))
    drift, warnings = _drift(workload, plan, asked, flags)
    tell(as_json(drift), drift_sections(drift), warnings)
    if asked.output is not None:  # last, so that a disk that is full takes none of the answer away
        io.save_plan(asked.output, drift.latest.result)
        remark(f"wrote {shown_paths((asked.output,))}")
    return int(drift.is_alarming)


def _drift(
    workload: Path, plan: Path, asked: DriftFlags, flags: spec.ProblemFlags
) -> tuple[Drift, list[str]]:
    """The plan under the data of every day, and what reading it all had to remark."""
    files, before = ordered(asked.days), asked.before
    loaded = inputs.load_plans(workload, (plan,), flags, other_data=before is not None)
    read = inputs.with_constraints(loaded, asked.constraints)
    problem, warnings = read.problem, read.warnings
    if before is not None:
        old = stats_of(before, problem.workload)
        then, _, notes = changes.workload_under(problem.workload, old, str(before))
        problem, warnings = replace(problem, workload=then), inputs.with_notes(warnings, notes)
        if read.made_for is not None and inputs.made_of_others(read.made_for, then):
            warnings += (f"{plan}: was made for other laws, tables or training than {before} says",)
    limit = planner.MoveLimit(
        start=read.plans[0], max_bytes=asked.max_moved_bytes, max_tables=asked.max_moved_tables
    )
    search = planner.SearchSettings(
        time_limit_s=asked.time_limit, max_evaluations=asked.evaluations
    )
    found = {}
    with StopOnInterrupt(keeps=False) as stop:
        for file in files:
            now, rows, notes = changes.workload_under(
                problem.workload, stats_of(file.path, problem.workload), str(file.path)
            )
            warnings += notes
            assessed = changes.assess(problem, now, limit, search=search, should_stop=stop)
            found[file] = replace(assessed, rows=rows)
    drift = Drift(days=found, threshold_ratio=asked.threshold, before=before)
    return drift, [*warnings, *drift.warnings]


def stats_of(path: Path, workload: planner.Workload) -> stats.Stats:
    """Statistics from ``stats.json``, or counted in a file or folder of raw data.

    Raises:
        InvalidInputError: it is neither, or no feature of the data belongs to the workload.
    """
    if path.suffix == ".json":
        return stats.load_stats(path)
    readers = inputs.all_readers()
    names = {name for source in profiler.find_sources([path], readers) for name in source.names}
    tables = {t.name: t.name for t in workload.tables}
    tables |= {f.name: t.name for t in workload.tables for f in t.features}
    found = {name: tables[name] for name in sorted(names) if name in tables}
    if not found:
        refuse(
            f"{path}: has the features {stats.some_names(sorted(names))}, and none of them is a "
            "feature or table of the workload; profile it with 'shardplan profile --table-map'"
        )
    options = statistics.ProfileOptions(
        features=tuple(found),
        by_feature=statistics.ByFeature(found),
        batch_sizes=(int(workload.batch_size_per_rank),),
        jobs=usable_cores(),
    )
    with TemporaryDirectory(prefix="shardplan-") as folder:
        output = Path(folder) / "stats.json"
        return profiler.profile_files([path], output, options, readers=readers)


# ------------------------------------------------------------------ what is printed

_MOST_TABLES: Final = 12


_FIGURES: Final = ("before_s", "now_s", "new_s", "saved_ratio", "fits", "payback_s", "rows")


def as_json(drift: Drift) -> dict[str, Any]:
    """Raw figures in seconds, bytes and days; null for never."""
    line = drift.trend
    lasts = () if line is None else line.days_until(drift.threshold_ratio)
    return {
        "is_alarming": drift.is_alarming,
        "threshold_ratio": drift.threshold_ratio,
        "days": [
            {
                "file": str(file.path),
                "day": file.day,
                **{name: getattr(now, name) for name in _FIGURES},
                "move": now.result.reshard,
                "tables": now.changes,
            }
            for file, now in drift.days.items()
        ],
        "trend": line
        and {
            "slope_per_day": line.slope_per_day,
            "lasts_days": dict(zip(("soonest", "likely", "latest"), lasts, strict=True)),
        },
    }


def drift_sections(drift: Drift) -> Iterator[Section]:
    """The verdict and its figures, then what changed in each table."""
    yield Section("", _facts(drift))
    if len(drift.days) > 1:
        yield _days(drift)
    tables = _tables(drift.latest, everything=settings().verbose)
    if tables.rows:
        yield tables


def _facts(drift: Drift) -> tuple[Fact, ...]:
    now, file = drift.latest, list(drift.days)[-1]
    change = f"{unsigned_zero(100 * (now.now_s / now.before_s - 1), 1):+.1f} %"
    saved = f"saves {format_share(now.saved_ratio)}" if now.saved_ratio > 0 else "saves nothing"
    source = "the workload's own laws" if drift.before is None else str(drift.before)
    lines = {
        "Verdict": (_verdict(drift),),
        "Then": (f"{units.format_time(now.before_s)} per iteration", source),
        "Now": (f"{units.format_time(now.now_s)} ({change})", str(file.path)),
        "New plan": (units.format_time(now.new_s), saved),
        "Move": _move(now),
        "Too small": tuple(
            f"{rows.table}: ids need {rows.num_rows_needed:,} rows, it has {rows.num_embeddings:,}"
            for rows in now.rows
            if rows.is_outgrown
        ),
    }
    return tuple(Fact(label, parts) for label, parts in lines.items())


def _verdict(drift: Drift) -> str:
    now = drift.latest
    limit = f"{_percent(drift.threshold_ratio)} (--threshold)"
    if any(rows.is_outgrown for rows in now.rows):
        return "Enlarge tables: the data hold ids for which the model has no rows."
    if not now.fits:
        return "Plan again: under these data the plan in use does not fit in memory."
    saved = _percent(now.saved_ratio)
    if now.saved_ratio > drift.threshold_ratio:
        return f"Plan again: a new plan saves {saved} of each iteration, above {limit}."
    words = f"Keep the plan: a new one saves {saved} of each iteration, not more than {limit}."
    return f"{words} {_lasting(drift)}".strip()


def _percent(ratio: float) -> str:
    """A share beside the threshold that it is held against, with the digits of both."""
    return f"{significant(round(100 * ratio, 4))} %"


def _lasting(drift: Drift) -> str:
    line, days = drift.trend, len(drift.days)
    if line is None:
        return ""
    soon, likely, late = line.days_until(drift.threshold_ratio)
    if not math.isfinite(likely):
        return "What a new plan saves does not grow from day to day."
    latest = significant(late) if math.isfinite(late) else "any number of"
    span = f" ({significant(soon)} to {latest})" if days > 2 else ""
    words = f"This plan lasts about {significant(likely)} more days{span}"
    return f"{words}, by a line through {days} days."


def _move(now: changes.Assessment) -> tuple[str, ...]:
    move = now.move
    if move is None:
        return ("none: no other plan is faster",)
    payback = units.format_long_time(now.payback_s or 0.0)
    return (
        f"{move.moved_tables} of {len(now.result.plan.placements)} tables, "
        f"{units.format_bytes(move.moved_bytes)}",
        f"{units.format_time(move.time_s)} once over the links",
        f"paid back after {payback} of training" if now.pays else "no faster, but it fits",
    )


def _days(drift: Drift) -> Section:
    rows = [
        {
            "day": str(file.path),
            "this plan_s": now.now_s,
            "new plan_s": now.new_s,
            "saves_ratio": now.saved_ratio,
            "tables moved": 0 if now.move is None else now.move.moved_tables,
        }
        for file, now in drift.days.items()
    ]
    return Section.of("Day by day", rows, by_field(*rows[0]))


def _tables(now: changes.Assessment, *, everything: bool) -> Section:
    shown = now.changes if everything else now.changes[:_MOST_TABLES]
    notes = [
        "Cells with an arrow: then -> now. distinct rows: in one batch of all ranks. hottest 1 "
        "%: share of accesses on the hottest 1 % of rows. changes by: bytes of rows that a batch "
        "looks up more or fewer."
    ]
    if left := len(now.changes) - len(shown):
        notes.append(f"{left} more tables changed by less; -v shows all.")
    return Section.of(
        "What changed",
        shown,
        {
            Column("table"): lambda c: c.table,
            Column("pooling"): _pair(lambda f: significant(f.pooling_factor)),
            Column("distinct rows"): _pair(lambda f: units.format_count(f.num_unique_rows)),
            Column("hottest 1 %"): _pair(lambda f: format_share(f.hot_ratio)),
            Column("changes by", Kind.BYTES, optional=True): lambda c: c.changed_bytes,
        },
        notes=tuple(notes),
    )


def _pair(write: Callable[[changes.IndexFigures], str]) -> Callable[[changes.TableChange], str]:
    """Writes a figure as it was and as it is, or once where it reads the same."""
    return lambda c: " -> ".join(dict.fromkeys((write(c.before), write(c.now))))
