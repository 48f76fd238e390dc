"""Reads ``fit --run PLAN=TRACE|TIME``: measured runs from the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from costmodels import units
from costmodels.errors import UnitError
from planner.errors import InvalidInputError

if TYPE_CHECKING:
    from costmodels.sharding import Plan
    from planner.fit.estimate import Run

_TRACE_SUFFIXES: Final = (".json", ".gz")
_LEAST_S, _MOST_S = 1e-9, 3.6e6


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRun:
    """A plan with the measured seconds of an iteration, or with traces."""

    plan: Path
    time_s: float | None = None
    traces: tuple[Path, ...] = ()


class RunType(click.ParamType[GivenRun]):
    """A value such as ``run1/plan.json=5.2ms``, or ``PLAN=rank-0.json.gz``, or ``PLAN=traces``."""

    name = "plan=trace|time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> GivenRun:
        """Refuse a value that is neither a time nor an existing path."""
        if isinstance(value, GivenRun):
            return value
        plan, equals, measured = str(value).rpartition("=")
        if not equals or not plan or not measured:
            self.fail(f"{value!r}: write PLAN=TRACE or PLAN=TIME, such as plan.json=5.2ms", param)
        path = Path(measured)
        if path.is_dir():
            traces = sorted(p for p in path.iterdir() if p.name.endswith(_TRACE_SUFFIXES))
            if not traces:
                self.fail(f"{measured!r} holds no traces (.json or .json.gz)", param, ctx)
            return GivenRun(plan=Path(plan), traces=tuple(traces))
        if path.exists():
            return GivenRun(plan=Path(plan), traces=(path,))
        try:
            return GivenRun(plan=Path(plan), time_s=units.parse_quantity(measured, "s"))
        except UnitError as error:
            self.fail(f"{measured!r} is no file, and no time: {error}", param, ctx)


def plans_of(given: tuple[GivenRun, ...]) -> tuple[Path, ...]:
    """The plans, each once."""
    return tuple(dict.fromkeys(run.plan for run in given))


def measured_runs(
    given: tuple[GivenRun, ...], plans: tuple[Plan, ...]
) -> tuple[tuple[Run, ...], tuple[str, ...]]:
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
    from planner.fit.estimate import Run, mean_iteration_s
    from planner.trace.reading import read_trace

    runs, notes = [], []
    paths: dict[Plan, list[Path]] = {}
    for path, plan in zip(plans_of(given), plans, strict=True):
        paths.setdefault(plan, []).append(path)
    for plan, (path, *others) in paths.items():
        mine = [run for run in given if run.plan in (path, *others)]
        traces = tuple(read_trace(p) for run in mine for p in run.traces)
        times = [run.time_s for run in mine if run.time_s is not None]
        if not all(_LEAST_S <= t <= _MOST_S for t in times):
            message = f"--run {path}: the time of an iteration must be above 0: 1 ns to 1000 hours"
            raise InvalidInputError(message)
        time_s = sum(times) / len(times) if times else mean_iteration_s(traces)
        if len(times) > 1:
            names = ", ".join(map(str, (path, *others)))
            low, high, mean = map(units.format_time, (min(times), max(times), time_s))
            notes.append(
                f"{names}: one plan, whose {len(times)} times, {low} to {high}, count as one run "
                f"of {mean}, their mean; intervals do not know how far they lie apart"
            )
        runs.append(Run(name=str(path), plan=plan, iteration_s=time_s, traces=traces))
    return tuple(runs), tuple(notes)
