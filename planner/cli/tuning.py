"""Runs a study for ``tune``, and prints and writes its results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cli.console import Settings, remark, shown_paths, warn, write_json
from planner.cli.interrupt import EXIT_STOPPED, StopOnInterrupt
from planner.cli.output import PLAN_FILE, check_file, check_folder, refuse_own_input
from planner.errors import InvalidInputError
from planner.support.atomic import write_texts_atomic
from planner.support.digits import significant
from planner.support.file_errors import writing
from planner.support.places import behind_links

if TYPE_CHECKING:
    from planner.result import PlanningResult
    from planner.tuning import DesignSpace, Look, Setup, Study, StudyProgress

_PAGE_FILE = "tune.html"

_SHOWN = 12
"""At most this many setups are printed."""

_BETTER = {
    "iteration": "as fast as",
    "throughput": "the throughput of",
    "cost": "as cheap as",
    "headroom": "the free memory of",
}
"""Words that compare the best setup with the usual one, by objective."""

_LEAST_PERCENT = 0.01
"""The least percentage that is printed for a proof; smaller values are only rounding."""


def describe(setup: Setup, space: DesignSpace) -> str:
    """A setup in words: the pipeline, and the other choices that the space leaves open."""
    from planner.tuning.effects import KNOBS, told_value, varying
    from planner.tuning.setups import OWN_CODECS

    free = varying(space)
    kept_out = {
        "sync_interval": setup.group_size == setup.gpus,
        "min_column_width": setup.min_column_width <= 4,
        "communication": setup.communication == OWN_CODECS,
        "cache_load_factors": not setup.cache_load_factors,
        "lookahead_batches": not setup.lookahead_batches,
    }
    return ", ".join(
        _WORDS.get(knob, "{}").format(told_value(knob, getattr(setup, knob)))
        for knob in KNOBS
        if (knob in free or knob == "pipeline") and not kept_out.get(knob, False)
    )


_WORDS = {
    "batch_size": "batch {}",
    "group_size": "groups of {}",
    "sync_interval": "averaged every {}",
    "min_column_width": "columns >= {}",
    "cache_load_factors": "cache {}",
    "lookahead_batches": "{} batches ahead",
    "reserved_bytes": "{} kept free",
}


def progress_line(study: Study, progress: StudyProgress) -> str:
    """A line such as ``3/24  best 5.92 ms  sparse_dist, groups of 16``."""
    from planner.tuning import GOALS

    text = f"{progress.done}/{progress.trials}"
    if progress.proofs is not None:
        done, total = progress.proofs
        return f"bounds of {done:,} of {total:,} kinds of setups proven"
    if progress.best is None or progress.setup is None:
        return f"{text}  nothing fits yet"
    goal = GOALS[study.goals[0]]
    value = f"{goal.write(goal.figure(progress.best))} {_unit(study.goals[0])}".strip()
    return f"{text}  best {value}  {describe(progress.setup, study.space)}"


def _unit(goal: str) -> str:
    return {"throughput": "samples/s", "cost": "USD per 1e9 samples", "headroom": "free"}.get(
        goal, ""
    )


def run_study(
    settings: Settings, study: Study, stop: StopOnInterrupt, storage: Path | None
) -> None:
    """Do trials until none is left, or until ``stop``, and print a remark on each."""
    with writing(storage or Path("the study")):
        study.run(
            progress=lambda p: remark(settings, progress_line(study, p)),
            should_stop=stop,
        )
    cut = sum(look.is_cut for look in study.looks)
    if cut:
        remark(
            settings,
            f"--trial-limit cut the search of {cut} of {len(study.looks)} trials: a faster or "
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
    """Print the setups and the best plan, and write them.

    Raises:
        NoPlanFoundError: no setup has a plan that fits.
        InvalidInputError: something cannot be written.
    """
    from planner import io

    tuned = study.best()
    result = replace(tuned.result, warnings=(*warnings, *tuned.result.warnings))
    written = () if output is None else _write(study, output, result)
    if settings.json:
        write_json(as_json(study, io.result_to_json(result)))
        warn(settings, _changes(study))
    else:
        _print_picks(study)
        _print_best(settings, study, result)
    for path in written:
        remark(settings, f"wrote {shown_paths((path,))}")


def check_output(output: Path, inputs: tuple[Path, ...], storage: Path | None) -> None:
    """Refuse an output that cannot be written, or that is an input or the journal, before a search.

    Raises:
        InvalidInputError: it is one of these; or a folder with the name of a file, or the other way
            round.
    """
    is_file = output.suffix == ".json"
    if is_file and output.is_dir():
        message = f"--output {output} is a folder; name one without .json, or a file in it"
        raise InvalidInputError(message)
    if not is_file and output.exists() and not output.is_dir():
        message = f"--output {output} is a file; name a folder, or a file that ends in .json"
        raise InvalidInputError(message)
    if is_file:
        if storage is not None and behind_links(storage) == behind_links(output):
            message = f"{output}: is named for both the journal and the plan; name two files"
            raise InvalidInputError(message)
        refuse_own_input([output], inputs)
        check_file(output)
        return
    others = [] if not output.exists() else sorted(p.name for p in output.iterdir())
    if PLAN_FILE in others and _PAGE_FILE not in others:
        message = (
            f"--output {output} holds a plan.json of another command, which would be lost; name "
            "another folder"
        )
        raise InvalidInputError(message)
    check_folder(output, inputs, force=True)


def _write(study: Study, output: Path, result: PlanningResult) -> tuple[Path, ...]:
    """Write only the best plan if the name ends in .json; otherwise a folder with everything."""
    from planner import io
    from planner.support.csv_text import csv_text
    from planner.tuning.page import study_page

    if output.suffix == ".json":
        io.save_plan(output, result)
        return (output,)
    with writing(output):
        behind_links(output).mkdir(parents=True, exist_ok=True)
    front = {look.number for look in study.front}
    rows = [_look_json(look, is_best=look.number in front) for look in study.looks]
    names = list(dict.fromkeys(name for row in rows for name in row))
    workload = study.space.problems[0].workload.name
    setups = output / "setups.csv"
    texts = {output / PLAN_FILE: io.plan_text(result)}
    if rows:
        texts[setups] = csv_text(names, ([r.get(n) for n in names] for r in rows))
    texts[output / _PAGE_FILE] = study_page(study, workload, space_parts(study))
    write_texts_atomic(texts)
    if not rows:  # stopped in the first search; a table here is that of an earlier study
        setups.unlink(missing_ok=True)
    return tuple(texts)


def as_json(study: Study, result: dict[str, Any]) -> dict[str, Any]:
    """The study as plain values for JSON."""
    tuned, front = study.best(), {look.number for look in study.front}
    known = study.known
    return {
        "setup": tuned.setup.to_json(),
        "iteration_time_s": tuned.value_s,
        "sync_s": tuned.sync_s,
        "objectives": list(study.goals),
        "picks": [_look_json(look, is_best=look.number in front) for look in study.looks],
        "space": {
            "setups": len(study.space.setups),
            "searched": len(study.looks),
            "ruled_out": len(study.ruled_out),
            "fit_nowhere": None if known is None else int((~known.fits).sum()),
            "possible_gain_ratio": _finite(None if known is None else known.proof_ratio),
        },
        "result": result,
    }


def _look_json(look: Look, *, is_best: bool) -> dict[str, Any]:
    facts = {} if look.facts is None else look.facts.to_json()
    time_s = facts.pop("time_s", None)
    told = {**look.setup.to_json(), "iteration_time_s": time_s, **facts}
    return {**told, "on_front": is_best, "reason": look.reason}


def _finite(value: float | None) -> float | None:
    return value if value is not None and value < float("inf") else None


def _print_picks(study: Study) -> None:
    """Print the setups, those of the front first, sorted by the first objective."""
    from planner.cli.printing.show import print_rows
    from planner.tuning import GOALS

    goals = [GOALS[name] for name in study.goals]
    front = study.front
    others = [x for x in study.looks if x.number not in {f.number for f in front}]
    others.sort(key=lambda x: float("inf") if x.facts is None else goals[0].value(x.facts))
    several = len(goals) > 1
    shown = [*front, *others][: max(_SHOWN, len(front) if several else 0)]
    rows = []
    for look in shown:
        mark = ("*" if several and look in front else "",) if several else ()
        if look.facts is None:
            cells = ["does not fit", *[""] * len(goals)]
        else:
            facts = look.facts
            cells = [g.write(g.figure(facts)) for g in goals]
            best = front[0].facts
            assert best is not None
            factor = goals[0].value(facts) / goals[0].value(best)
            if goals[0].large_is_good:
                factor = 1 / factor if factor else float("inf")
            cells.append(f"{factor:.2f}x")
        rows.append((*mark, describe(look.setup, study.space), *cells))
    title = "Setups (* no other equals or beats it in all objectives)" if several else "Setups"
    columns = (*([""] if several else []), "setup", *(g.title for g in goals), "against best")
    if rows:
        print_rows(title, columns, rows)


def _print_best(settings: Settings, study: Study, result: PlanningResult) -> None:
    from costmodels import units
    from planner.cli.console import stdout_console
    from planner.cli.printing.show import print_result
    from planner.report._terminal import print_facts, print_notes
    from planner.report.base import Fact
    from planner.tuning import GOALS

    tuned, goal = study.best(), GOALS[study.goals[0]]
    print_result(settings, result)
    base = next((x.facts for x in study.looks if x.setup == study.space.base), None)
    parts = [describe(tuned.setup, study.space)]
    if tuned.sync_s:
        parts.append(f"averaging copies {units.format_time(tuned.sync_s)} per iteration")
    if base is not None:
        gain = goal.figure(base) / goal.figure(tuned.facts)
        gain = 1 / gain if goal.large_is_good else gain
        better = _BETTER[study.goals[0]]
        parts.append(f"{gain:.2f}x {better} the usual setup")
    facts = (
        Fact(label="Setup", parts=tuple(parts)),
        Fact(label="Objective", parts=(", ".join(study.goals),)),
        Fact(label="Design space", parts=space_parts(study)),
    )
    print_facts(stdout_console(), facts)
    print_notes(stdout_console(), _changes(study))


def space_parts(study: Study) -> tuple[str, ...]:
    """Words on how much of the design space was searched, and what is proven about the rest."""
    total, known = len(study.space.setups), study.known
    parts = [f"{total:,} setups", f"{len(study.looks):,} searched"]
    if study.ruled_out:
        parts.append(f"{len(study.ruled_out):,} ruled out by their bounds")
    unfit = 0 if known is None else int((~known.fits).sum())
    if unfit:
        parts.append(f"{unfit:,} have no plan that fits")
    left = total - len(study.looks) - len(study.ruled_out) - unfit
    if left and known is not None:
        ended = len(study.looks) >= study.effort.trials
        why = f" after --trials {study.effort.trials:,}" if ended else ""
        parts.append(f"{left:,} left{why}")
    ratio = None if known is None else known.proof_ratio
    if ratio is None:
        parts.append("nothing is proven about the others")
    elif ratio < float("inf"):
        shown = significant(max(100 * ratio, _LEAST_PERCENT), 2)
        parts.append(f"proven: no setup is more than {shown} % better")
    return tuple(parts)


def _changes(study: Study) -> tuple[str, ...]:
    """A note if the best setup changes the training itself."""
    from planner.tuning.effects import training_changes

    changes = training_changes(study.space, study.best().setup)
    if not changes:
        return ()
    return (f"this setup changes the training itself: {'; '.join(changes)}",)
