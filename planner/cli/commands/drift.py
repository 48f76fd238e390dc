"""``shardplan drift``: what new data do to a plan in use, and whether a new plan pays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import planner
from costmodels.errors import require
from planner import io
from planner.cli import flags as spec
from planner.cli import inputs
from planner.cli.console import remark, shown_paths, tell
from planner.cli.interrupt import StopOnInterrupt
from planner.cli.output import check_output, files_of
from planner.cli.printing import drift_show as show
from planner.drift import changes
from planner.errors import refuse
from planner.profiling import profiler, statistics, stats
from planner.support.cores import usable_cores

EXIT_DRIFTED = 1
_MOST_DAYS: Final = 1e9
"""Days are counted from any origin, but none is millions of years away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DayFile:
    """A file or folder with data, and their day.

    The day counts from any origin; None if it is not given. ``is_date`` says that it was written as
    a date, so that its origin is that of the calendar.
    """

    path: Path
    day: float | None = None
    is_date: bool = False

    @property
    def files(self) -> tuple[Path, ...]:
        """The file, or all of the folder."""
        return tuple(self.path.iterdir()) if self.path.is_dir() else (self.path,)


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
        if before.isascii() and before.isdecimal() and float(before) < _MOST_DAYS:
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    data = (path for day in asked.days for path in day.files)
    read = (workload, plan, asked.before, asked.constraints, *data)
    check_output(asked.output, (*filter(None, read), *files_of(flags, workload)))
    drift, warnings = _drift(workload, plan, asked, flags)
    warnings += drift.warnings
    tell(show.as_json(drift), show.drift_sections(drift), warnings)
    if asked.output is not None:  # last, so that a disk that is full takes none of the answer away
        io.save_plan(asked.output, drift.latest.result)
        remark(f"wrote {shown_paths((asked.output,))}")
    return EXIT_DRIFTED if drift.is_alarming else 0


def _drift(
    workload: Path, plan: Path, asked: DriftFlags, flags: spec.ProblemFlags
) -> tuple[show.Drift, list[str]]:
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
    drift = show.Drift(days=found, threshold_ratio=asked.threshold, before=before)
    return drift, list(warnings)


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
