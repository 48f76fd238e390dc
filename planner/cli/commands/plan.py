"""``shardplan plan``: search for the fastest plan, print it, write it."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import planner
from costmodels import units
from costmodels.errors import CostModelError
from planner import api, io, objectives, scenarios
from planner import result as results
from planner.cli import console, inputs, spec
from planner.cli.interrupt import EXIT_STOPPED, StopOnInterrupt
from planner.cli.output import check_folder, files_of, refuse_other_run
from planner.drift import changes
from planner.errors import InvalidInputError, PlannerError
from planner.io.plan import result_json
from planner.options import torchrec_rules
from planner.profiling import stats
from planner.report import run_files
from planner.solving import assumed as assuming
from planner.solving import prepare
from planner.study import figures
from planner.support.status import Status
from planner.support.text import format_gap

_LOST = "no plan was found before that, so nothing is written"

_SHORT = 2000
"""The budget of work, in priced plans, of the search that prices wider tables."""


HEADINGS: Final = {
    "The system and the model": "--gpus-per-host --global-batch-size --price --set --model",
    "The search": "--strategy --objective --evaluations --seed --torchrec-defaults --require-gap",
    "A plan in use": "--from --max-moved-bytes --max-moved-tables --curve",
    "Several data, and failures": "--scenario --robust --mtbf",
    "Output": "--force --json --quiet --debug",
}
"""The flags of the help that people need less often."""


class PlanFlags(spec.ScenarioFlags):
    """Further flags: data, constraints, a plan in use, failures, output.

    Attributes:
        stats: Statistics from 'shardplan profile', for all tables or some.
        constraints: YAML file of constraints, in addition to those of the workload.
        plan_in_use: The plan in use: the search starts from it, and moves are counted from it.
        max_moved_bytes: Maximum bytes to move, such as '200 GiB'.
        max_moved_tables: Maximum number of tables to move.
        curve: Also plan with 1, 2, 5 and 10 moved tables at most; name the table that blocks.
        mtbf_s: Mean time between failures of one host: says how often to write checkpoints.
        require_gap: Exit code 1 unless the plan is proven to be this close to the best, such as 5%.
        output: Write plan, reports and traces.
        force: Write into a folder even if it holds other files, or a plan of another model.
    """

    rules = (
        *spec.ScenarioFlags.rules,
        *("--max-moved-bytes needs --from", "--max-moved-tables needs --from"),
        *("--curve needs --from", "--force needs --output"),
    )

    stats: spec.File = None
    constraints: spec.File = None
    plan_in_use: Annotated[spec.File, "PLAN", "--from"] = None
    max_moved_bytes: spec.Bytes = None
    max_moved_tables: spec.Tables = None
    curve: bool = False
    mtbf_s: Annotated[spec.Duration, "--mtbf"] = None
    require_gap: spec.MaybePercent = None
    output: spec.Folder = None
    force: bool = False


@spec.command("Find the fastest plan for a workload on a system.", headings=HEADINGS)
def command(
    workload: Path, flags: spec.ProblemFlags, search: spec.SearchFlags, more: PlanFlags
) -> int:
    """Search for the plan with the shortest training iteration.

    Prints the predicted time with a 90 % interval, the stages that hold it back, the memory of the
    fullest rank, and the gap: how far the plan can be from the best one. The search ends by a
    budget of work that depends on the problem alone: the same command gives the same plan on every
    machine.

    Exit codes: 0 there is a plan, however the search ended; 1 the gap is wider than --require-gap,
    and the plan is written all the same; 3 nothing fits; 4 Ctrl-C or SIGTERM ended the search, and
    its best plan is printed and written.

    Examples:
      shardplan plan dlrm.yaml --system h100_sxm --gpus 16
      shardplan plan dlrm.yaml --system a100_80gb_sxm --gpus 8 --batch-size 4096 -o run1
      shardplan plan dlrm.yaml --system my_box.yaml --gpus 64 --time-limit 2min --json
      shardplan plan dlrm.yaml --system h100_sxm --gpus 16 --require-gap 5% && ./train
      shardplan plan dlrm.yaml --system h100_sxm --from run1/plan.json --max-moved-bytes '200 GiB'
      shardplan plan dlrm.yaml --system h100_sxm --gpus 64 --mtbf 500h -o run2
    """
    start_s = time.perf_counter()
    with StopOnInterrupt(keeps=False, lost=_LOST) as stop:
        asked = _asked(workload, flags, more)
        result = _searched(asked, search, more, stop, start_s)
        _deliver(result, more.output, search.time_limit_s)
        missed = None if more.require_gap is None else unmet(result.solver, more.require_gap)
        if missed is not None:
            console.complain(f"shardplan: {missed}")
        if stop():
            words = f"stopped by {stop.stopped_by}: this is the best plan so far"
            console.remark(f"{words} (exit code {EXIT_STOPPED})")
            return EXIT_STOPPED
        return int(missed is not None)


def _asked(source: Path, flags: spec.ProblemFlags, more: PlanFlags) -> inputs.Inputs:
    """The workload, the system, and everything that further flags add.

    Raises:
        InvalidInputError: a file or flag breaks a rule, or the output cannot be written.
    """
    if more.output is not None:
        named = filter(None, (more.stats, more.constraints, more.plan_in_use, *more.scenarios))
        check_folder(more.output, (source, *named, *files_of(flags, source)), force=more.force)
    loaded = inputs.load_problem(source, flags)
    read = inputs.with_constraints(loaded, more.constraints)
    problem, warnings = read.problem, read.warnings
    if more.stats is not None:
        measured, notes = stats.with_stats(
            problem.workload, stats.load_stats(more.stats), str(more.stats)
        )
        problem, warnings = replace(problem, workload=measured), inputs.with_notes(warnings, notes)
    if more.plan_in_use is not None:
        saved = io.load_plan(more.plan_in_use, problem.workload, problem.topology)
        limit = planner.MoveLimit(
            start=saved.plan, max_bytes=more.max_moved_bytes, max_tables=more.max_moved_tables
        )
        problem, warnings = replace(problem, move_limit=limit), warnings + saved.warnings
    if more.output is not None and not more.force:
        refuse_other_run(more.output, problem.workload)
    main = replace(loaded.problem, workload=problem.workload)
    others, found = inputs.load_scenarios(more.scenarios, main, flags)
    warnings = tuple(dict.fromkeys((*warnings, *found)))
    return replace(read, problem=replace(problem, scenarios=others), warnings=warnings)


def _searched(
    asked: inputs.Inputs,
    search: spec.SearchFlags,
    more: PlanFlags,
    stop: StopOnInterrupt,
    start_s: float,
) -> planner.PlanningResult:
    """The plan, with what the inputs leave open and everything that further flags ask for.

    ``start_s`` is when the command began, by ``time.perf_counter``: a time limit counts from there.
    """
    more.check_figures(search.objective)
    now_s = time.perf_counter()
    robust = scenarios.ScenarioRule(more.robust or scenarios.ScenarioRule.WORST)
    steered = replace(search.settings(), robust=robust, kept_s=now_s - start_s)
    until_s = start_s + (search.time_limit_s or math.inf)
    pricing = prepare.pricing_of(torchrec_figures=more.torchrec_defaults)
    in_seconds = objectives.objective_class(search.objective).unit == "s"
    with console.status_line("search") as show:

        def told(found: Any) -> None:
            stop.keeps = stop.keeps or found.incumbent is not None
            show(found.line(in_seconds=in_seconds))

        result = api.solve(
            asked.problem,
            search=steered,
            make_pipeline=pricing,
            progress=told,
            should_stop=stop,
        )
    stop.keeps = True
    assumed = assuming.priced_assumptions(
        result.problem, result.plan, asked.assumed, lambda: time.perf_counter() < until_s
    )
    warnings = (*asked.warnings, *result.warnings)
    result = replace(result, warnings=warnings, assumed=assumed)
    if not stop() and search.objective == "iteration":
        result = _with_wider_price(result, steered, stop, start_s)
    if more.curve and not stop():
        result = changes.with_curve(result, search=steered, make_pipeline=pricing, should_stop=stop)
    if more.mtbf_s is not None:
        result = figures.with_checkpoints(result, more.mtbf_s)
    return result


def _with_wider_price(
    result: planner.PlanningResult,
    search: planner.SearchSettings,
    stop: StopOnInterrupt,
    start_s: float,
) -> planner.PlanningResult:
    """With the price of the next widths, where FBGEMM's rule lets tables only be copied.

    The short search takes what is left of a time limit; where nothing is left, there is no price.
    """
    problem, kept_s = result.problem, time.perf_counter() - start_s
    is_late = kept_s > (search.time_limit_s or math.inf) - 1.0
    if not torchrec_rules.odd_tables(problem.workload) or problem.scenarios or is_late:
        return result
    short = replace(search, kept_s=kept_s, max_evaluations=_SHORT, with_baselines=False)
    wide = replace(problem, workload=torchrec_rules.widened(problem.workload), move_limit=None)
    try:
        found = api.solve(wide, search=short, should_stop=stop)
    except (CostModelError, PlannerError):
        return result
    times_s = (one.estimate.time.time_s for one in (result, found))
    return replace(
        result,
        warnings=(*result.warnings, torchrec_rules.priced_remark(problem.workload, *times_s)),
    )


def _deliver(result: planner.PlanningResult, output: Path | None, limit_s: float | None) -> None:
    """Write, then print, also what cannot be written: nothing gets lost."""
    written: tuple[Path, ...] = ()
    problem: Exception | None = None
    try:
        if output is not None:
            written = run_files.write_run(output, result)
    except (OSError, InvalidInputError, MemoryError) as error:
        problem = error
    data = result_json.result_to_json(result) if console.settings().json else {}
    console.tell(data, console.result_sections(result, written=written))
    if console.settings().json and written:
        console.remark(f"wrote {console.shown_paths(written)}")
    if problem is not None:
        raise problem
    if limit_s is not None and result.solver.status is Status.TIME_LIMIT:
        cut = f"--time-limit {units.format_time(limit_s)} cut the search before its budget of work"
        console.remark(f"{cut} was spent: a faster or idler machine may find another plan")


_WORTH_TELLING: Final = 0.1
"""Share of the gap from which on its part that no search can close is worth a word."""


def unmet(solver: results.SolverReport, most_ratio: float) -> str | None:
    """Why the gap is not within ``most_ratio`` (0..1), in one line; None if it is.

    Args:
        solver: how the search went.
        most_ratio: the widest gap that is good enough.
    """
    gap, asked = solver.gap_ratio, f"--require-gap {100 * most_ratio:g}%"
    more = f"give it more --evaluations than the {solver.work:,} it used"
    if solver.status is Status.TIME_LIMIT:
        more = "give it a longer --time-limit, which cut the search, or more --evaluations"
    if gap is None:
        more = more if solver.strategy == "auto" else "--strategy auto proves a bound"
        ended = solver.status.words
        return f"the gap is unknown, so {asked} is not met: {ended}; {more}"
    if gap <= most_ratio:
        return None
    told, unseen = format_gap(gap), solver.unseen_gap_ratio
    wider = "a little wider" if told == format_gap(most_ratio) else "wider"
    if unseen >= _WORTH_TELLING * gap:
        more = (
            f"{format_gap(unseen)} are launches and overlap, which no bound counts and "
            f"--objective phases leaves out; for the rest, {more}"
        )
    return f"the gap of {told} is {wider} than {asked}: {more}"
