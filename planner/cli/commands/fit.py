"""``shardplan fit``: learn from runs of one's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import planner
from costmodels import sharding, topology, units
from costmodels.errors import UnitError, require
from planner import models
from planner.cli import console, inputs, printing, spec
from planner.cli.output import check_output, files_of
from planner.fit import estimate
from planner.io.system import system_writer
from planner.report.base import Fact, Section, by_field, by_place, format_share
from planner.trace import kineto, reading

_TRACE_SUFFIXES: Final = (".json", ".gz")

_FAR_OFF = 20.0
"""Times as long or as short as predicted from which on a run is doubted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRun:
    """A plan with the measured seconds of an iteration, or with traces."""

    plan: Path
    time_s: float | None = None
    traces: tuple[Path, ...] = ()


def _given_run(text: str) -> GivenRun:
    """``run1/plan.json=5.2ms``, or ``PLAN=rank-0.json.gz``, or ``PLAN=traces``, a folder."""
    plan, _, measured = text.rpartition("=")
    form = f"{text!r}: write PLAN=TRACE or PLAN=TIME, such as plan.json=5.2ms"
    require(bool(plan and measured), form)
    path, traces = Path(measured), [Path(measured)]
    if path.is_dir():
        traces = sorted(p for p in path.iterdir() if p.name.endswith(_TRACE_SUFFIXES))
        require(bool(traces), f"{measured!r} holds no traces (.json or .json.gz)")
    if path.exists():
        return GivenRun(plan=Path(plan), traces=tuple(traces))
    try:
        time_s = units.parse_quantity(measured, "s")
    except UnitError as error:
        message = f"{measured!r} is no file, and no time: {error}"
        raise ValueError(message) from error
    is_time = 1e-9 <= time_s <= 3.6e6
    require(is_time, f"{measured!r}: an iteration takes a time above 0: 1 ns to 1000 hours")
    return GivenRun(plan=Path(plan), time_s=time_s)


@spec.command("Correct a system by your own measured runs.")
def command(
    workload: Path,
    flags: spec.ProblemFlags,
    runs: Annotated[
        tuple[GivenRun, ...], spec.Parsed("plan=trace|time", _given_run), "PLAN=TRACE|TIME", "--run"
    ],
    output: spec.Output = None,
) -> None:
    """Correct a system by measured runs: factors on lookups, collectives, dense part and host.

    Each kind of time gets one factor. Where the runs do not determine a factor, it stays near 1, or
    near the others: the iteration time of one plan determines about one factor, common to all
    kinds; plans that differ, or traces, determine more. The error 'left out' of a run is that after
    fitting to all other runs. A trace has the time of each kind's own kernels and of the host, and
    what is printed of it says which stage is off before the fit, and by what.

    The system file that is written is the old one with these factors, and with the intervals that
    they leave.

    Args:
        runs: A plan that was run, with its iteration time, a profiler trace, or a folder of traces.
        output: System file to write.  [default: none]

    Examples:
      shardplan fit dlrm.yaml --run run1/plan.json=5.2ms --run run2/plan.json=6.9ms -o mine.yaml
      shardplan fit dlrm.yaml --run run1/plan.json=traces/ -o mine.yaml
      shardplan plan dlrm.yaml --system mine.yaml --gpus 16
    """
    traces = (path for run in runs for path in run.traces)
    check_output(output, (workload, *plans_of(runs), *traces, *files_of(flags, workload)))
    read = inputs.load_plans(workload, plans_of(runs), flags)
    measured, notes = measured_runs(runs, read.plans)

    problem = read.problem
    found, pipeline = estimate.fit(problem, measured), models.pipeline_of(problem)
    warnings = [*read.warnings, *notes, *_doubts(found, problem, runs)]
    traced = [run for run in measured if run.traces]
    compared = {run.name: kineto.compare_traces(pipeline, run.plan, run.traces) for run in traced}
    if output is not None:
        warnings += _write(output, read, found, flags)
    sections: list[Section] = []
    for run in traced:
        busiest = max(run.traces, key=lambda t: t.busy_s)
        shown = run.traces if console.settings().verbose else (busiest,)
        sections += printing.trace_sections(shown, compared[run.name], name=run.name)
    sections += _sections(found)
    traces_of = {r.name: printing.traces_json(r.traces, compared[r.name]) for r in traced}
    console.tell({**_as_json(found), "traces": traces_of}, sections, warnings)


def _write(
    output: Path, read: inputs.Inputs, found: estimate.Fit, flags: spec.ProblemFlags
) -> list[str]:
    """Write the system file; returns what it cannot hold."""
    system = flags.system or (read.made_for.system if read.made_for else None)
    files = system_writer.write_fitted_system(
        output,
        system or read.problem.topology.name,
        found.topology,
        found.factors,
        settled_ratio=found.settled_ratio,
        num_runs=len(found.errors),
    )
    then = f"use it with --system {console.typed(output)}"
    console.remark(f"wrote {console.shown_paths(files)}; {then}")
    if not flags.models:
        return []
    again = " ".join(f"--model {text}" for text in flags.models)
    return [
        f"the factors correct the models of {again}, which a system file cannot name; give it "
        f"again beside --system {output}"
    ]


def plans_of(given: tuple[GivenRun, ...]) -> tuple[Path, ...]:
    """The plans, each once."""
    return tuple(dict.fromkeys(run.plan for run in given))


def measured_runs(
    given: tuple[GivenRun, ...], plans: tuple[sharding.Plan, ...]
) -> tuple[tuple[estimate.Run, ...], tuple[str, ...]]:
    """One run for each plan: times of the same plan are averaged, and its traces are joined.

    Files with the same plan are one run, because a second run of a plan does not tell how well
    other plans are predicted. A given time is used instead of the time in traces, which includes
    the work of the profiler.

    Args:
        given: the runs of the command line.
        plans: the loaded plans, in the order of :func:`plans_of`.

    Returns:
        The runs, and a line for each run whose time is a mean of several.

    Raises:
        InvalidInputError: a trace cannot be read.
    """
    runs, notes = [], []
    of_path = dict(zip(plans_of(given), plans, strict=True))
    by_plan: dict[sharding.Plan, list[GivenRun]] = {}
    for run in given:
        by_plan.setdefault(of_path[run.plan], []).append(run)
    for plan, mine in by_plan.items():
        path, names = mine[0].plan, dict.fromkeys(str(run.plan) for run in mine)
        traces = tuple(reading.read_trace(p) for run in mine for p in run.traces)
        times = [run.time_s for run in mine if run.time_s is not None]
        time_s = sum(times) / len(times) if times else estimate.mean_iteration_s(traces)
        if len(times) > 1:
            low, high, mean = map(units.format_time, (min(times), max(times), time_s))
            notes.append(
                f"{', '.join(names)}: one plan, whose {len(times)} times, {low} to {high}, count "
                f"as one run of {mean}, their mean; intervals do not know how far they lie apart"
            )
        runs.append(estimate.Run(name=str(path), plan=plan, iteration_s=time_s, traces=traces))
    return tuple(runs), tuple(notes)


def _doubts(
    found: estimate.Fit, problem: planner.PlanningProblem, runs: tuple[GivenRun, ...]
) -> list[str]:
    """Why the factors may be wrong, or say less than they seem to."""
    doubts = []
    for error in found.errors:
        ratio = error.measured_s / error.before_s
        if not 1 / _FAR_OFF <= ratio <= _FAR_OFF:
            far = f"{max(ratio, 1 / ratio):,.0f} times as {'long' if ratio > 1 else 'short'}"
            question = "is its unit right, and is it the time of one iteration?"
            doubts.append(f"{error.name} took {far} as predicted: {question}")
    left, before = found.left_out_ratio, found.before_ratio
    if left is None:
        doubts.append("there is a single run: how well the factors predict other plans is unknown")
    elif left > before:
        doubts.append(
            f"runs left out are predicted worse than before ({100 * left:.1f} % against "
            f"{100 * before:.1f} %): the factors are noise; give more runs, or use the system "
            "without them"
        )
    if found.topology is not problem.topology:
        doubts.append(
            "these CPU ranks were never calibrated: the runs correct constants measured on other "
            f"cores, not the rates of {problem.topology.name}; 'shardplan calibrate' measures yours"
        )
    if all(run.time_s is None for run in runs):
        doubts.append(
            "the times come from traces, which contain the profiler's own work; also give the time "
            "of an iteration without a profiler, such as --run plan.json=5.2ms"
        )
    return doubts


def _as_json(found: estimate.Fit) -> dict[str, Any]:
    return {
        "factors": dict(zip(topology.FITTED_KINDS, found.factors.ratios, strict=True)),
        "settled_ratio": dict(zip(topology.FITTED_KINDS, found.settled_ratio, strict=True)),
        "absent": found.absent,
        "num_settled": found.num_settled,
        "noise_ratio": found.noise_ratio,
        "error_before_ratio": found.before_ratio,
        "error_left_out_ratio": found.left_out_ratio,
        "runs": found.errors,
    }


def _sections(found: estimate.Fit) -> tuple[Section, ...]:
    mean, kinds = "geometric mean error {:.1f} %", topology.FITTED_KINDS
    left = found.left_out_ratio
    others = "" if left is None else f"{mean}, each run predicted from the others"
    lines = {
        "Determined": f"{found.num_settled:.1f} of {len(kinds)} factors by these runs",
        "Before": mean.format(100 * found.before_ratio),
        "Left out": others.format(100 * (left or 0.0)),
    }
    return (
        Section.of(
            "Factors on the system's times",
            [
                (k, f"{r:.3f}", "not in these runs" if k in found.absent else format_share(s))
                for k, r, s in zip(kinds, found.factors.ratios, found.settled_ratio, strict=True)
            ],
            by_place("kind", "factor", "determined"),
        ),
        Section.of(
            "Errors of the predicted iteration",
            found.errors,
            {
                **by_field("run=name", "measured_s"),
                "before": lambda e: _error(e.before_s, e.measured_s),
                "fitted": lambda e: _error(e.fitted_s, e.measured_s),
                "left out": lambda e: _error(e.left_out_s, e.measured_s),
                **by_field("90 % from=low_s?", "90 % to=high_s?"),
            },
        ),
        Section("", tuple(Fact(label, (words,)) for label, words in lines.items() if words)),
    )


def _error(predicted_s: float | None, measured_s: float) -> str:
    return "" if predicted_s is None else f"{100 * (predicted_s / measured_s - 1):+.1f} %"
