"""What ``tune`` and ``worker`` share: the problem in a journal, and what is printed."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cli.console import Settings, remark, write_json
from planner.cli.flags.common import ProblemFlags
from planner.cli.interrupt import EXIT_STOPPED, StopOnInterrupt
from planner.support.file_errors import writing

if TYPE_CHECKING:
    from planner.tuning import Setup, Study, StudyProgress


def source_values(workload: Path, flags: ProblemFlags) -> dict[str, Any]:
    """From which files and flags another process loads the same problem; paths are absolute."""
    system = flags.system
    if system is not None and Path(system).is_file():
        system = str(Path(system).absolute())
    source = str(workload.absolute()) if workload.is_file() else str(workload)
    return {"workload": source, "flags": asdict(replace(flags, system=system))}


def flags_from(values: dict[str, Any]) -> ProblemFlags:
    """The flags of a journal."""
    return ProblemFlags(
        **{
            **values,
            "overrides": tuple(values["overrides"]),
            "models": tuple(values.get("models", ())),
        }
    )


def progress_line(progress: StudyProgress) -> str:
    """``3/24  best 5.92 ms  sparse_dist, 16 ranks``."""
    from costmodels import units

    text = f"{progress.done}/{progress.trials}"
    if progress.best_s is None or progress.setup is None:
        return f"{text}  nothing fits yet"
    return f"{text}  best {units.format_time(progress.best_s)}  {describe(progress.setup)}"


def describe(setup: Setup) -> str:
    """A pick in words."""
    parts = [setup.pipeline.value, f"groups of {setup.group_size}"]
    if setup.min_column_width > 4:
        parts.append(f"columns >= {setup.min_column_width}")
    if setup.cache_load_factors:
        parts.append("cache " + ", ".join(f"{f:.0%}" for f in setup.cache_load_factors))
    return ", ".join(parts)


def run_study(
    settings: Settings, study: Study, stop: StopOnInterrupt, storage: Path | None, *, patient: bool
) -> None:
    """Do trials until none is left or ``stop`` says so, each with a remark."""
    with writing(storage or Path("the study")):
        study.run(
            progress=lambda p: remark(settings, progress_line(p)), should_stop=stop, patient=patient
        )
    cut = study.num_cut
    if cut:
        remark(
            settings,
            f"--trial-limit cut the search of {cut} of {study.progress().done} trials: a faster or "
            "idler machine may pick another setup",
        )


def stopped(settings: Settings, study: Study, stop: StopOnInterrupt) -> int:
    """The exit code, and a remark if the study was stopped."""
    progress = study.progress()
    if not stop():
        return 0
    done = f"{progress.done} of {progress.trials} trials"
    remark(settings, f"stopped by {stop.stopped_by} after {done}")
    return EXIT_STOPPED


def show(
    settings: Settings, study: Study, output: Path | None, *, warnings: tuple[str, ...]
) -> None:
    """Print the picks and the best plan, and write it.

    Raises:
        NoPlanFoundError: no pick has a plan that fits.
        InvalidInputError: the plan cannot be written.
    """
    from planner import io

    tuned = study.best()
    result = replace(tuned.result, warnings=(*warnings, *tuned.result.warnings))
    if output is not None:
        io.save_plan(output, result)
    picks = study.values()
    if settings.json:
        document = {
            "setup": tuned.setup.to_json(),
            "iteration_time_s": tuned.value_s,
            "sync_s": tuned.sync_s,
            "picks": [{**s.to_json(), "iteration_time_s": value} for s, value in picks],
            "result": io.result_to_json(result),
        }
        write_json(document)
    else:
        _print_picks(picks)
        _print_best(settings, study)
    if output is not None:
        remark(settings, f"wrote {output}")


def _print_picks(picks: tuple[tuple[Setup, float | None], ...]) -> None:
    """The picks, best first; equal ones once."""
    from costmodels import units
    from planner.cli.printing.show import print_rows

    best: dict[Setup, float | None] = {}
    for setup, value in picks:
        known = best.get(setup)
        if setup not in best or (value is not None and (known is None or value < known)):
            best[setup] = value
    ranked = sorted(best.items(), key=lambda pair: (pair[1] is None, pair[1] or 0.0))
    first = next((v for _, v in ranked if v is not None), None)
    rows = []
    for setup, value in ranked[:_SHOWN]:
        shown = "does not fit" if value is None else units.format_time(value)
        factor = "" if value is None or not first else f"{value / first:.2f}x"
        rows.append((describe(setup), shown, factor))
    if rows:
        print_rows("Picks", ("setup", "iteration", "against best"), rows)


_SHOWN = 12


def _print_best(settings: Settings, study: Study) -> None:
    from costmodels import units
    from planner.cli.console import stdout_console
    from planner.cli.printing.show import print_result
    from planner.report._terminal import print_facts
    from planner.report.base import Fact

    tuned = study.best()
    print_result(settings, tuned.result)
    base = next((v for s, v in study.values() if s == study.menu.base()), None)
    parts = [describe(tuned.setup)]
    if tuned.sync_s:
        parts.append(f"averaging copies {units.format_time(tuned.sync_s)} per iteration")
    if base is not None:
        parts.append(f"{base / tuned.value_s:.2f}x as fast as the usual setup")
    print_facts(stdout_console(), (Fact(label="Setup", parts=tuple(parts)),))
