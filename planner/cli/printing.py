"""Tables of predictions held against measurements: published ones, runs and traces."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from costmodels import units
from costmodels.calibration.fitting import geomean_error
from costmodels.cpu.exchange import STAGES
from costmodels.estimates import Estimate
from costmodels.validation import ErrorSummary, one_scale, rank_tasks, summarize_errors
from planner.report.base import Column, Fact, Kind, Section, by_field, by_place, format_percent
from planner.support.files import write_text_atomic
from planner.trace.kineto import HOST, TOTALS, TraceRow
from planner.trace.reading import TraceTimes
from planner.validation.cases import Part, Prediction, summarize
from planner.validation.intervals import PlanPair
from planner.validation.tasks import Outcome

_ERRORS: Final = ("geomean=geomean_error_ratio", "p90=p90_error_ratio")
RATIOS: Final = ("measured_ratio", "predicted_ratio", "error_ratio")


def kind_sections(parts: Sequence[Part], *, everything: bool) -> Iterator[Section]:
    """The predictions and errors of a kind of published measurements."""
    for part in parts:
        if everything or not part.by:
            yield _cases(part)
        if part.by:
            yield _groups(part)
        yield _all_cases(part)


def part_json(part: Part) -> dict[str, Any]:
    """Cases, errors by the names of predictions, and the errors of each group, as data."""
    cases = [
        {
            "case": p.case.name,
            "system": p.case.topology.name,
            "world_size": p.case.topology.world_size,
            **{title: p.case.groups[title] for title in part.by},
            "measured_s": p.case.measured_s,
            "predicted_s": p.shipped.time_s,
            "low_s": p.shipped.low_s,
            "high_s": p.shipped.high_s,
            "error_ratio": p.error_ratio,
            "others_s": {k: e.time_s for k, e in p.predicted.items() if e is not p.shipped},
            "source": p.case.reference,
        }
        for p in part.found
    ]
    groups = {" ".join(key): _errors(found) for key, found in part.groups.items()}
    return {"cases": cases, "errors": _errors(part.found), "groups": groups}


def _errors(found: Sequence[Prediction]) -> dict[str, dict[str, float]]:
    return {name: told_errors(summary) for name, summary in summarize(found).items()}


def told_errors(summary: ErrorSummary) -> dict[str, float]:
    """Errors as data, without the share inside intervals where there are none."""
    return {name: value for name, value in asdict(summary).items() if value == value}


def _cases(part: Part) -> Section:
    """A line of each case: measured, predicted with its interval, and all errors."""
    factor, digits = (1e3, 2) if part.unit == "ms" else (1e6, 1)

    def interval(found: Estimate) -> str:
        low, high = (f"{factor * s:.{digits}f}" for s in (found.low_s, found.high_s))
        return f"{low} .. {high}" if found.low_s < found.high_s else ""

    def error(name: str) -> Callable[[Prediction], float]:
        return lambda p: p.predicted[name].time_s / p.case.measured_s - 1

    first, *others = part.found[0].predicted
    return Section.of(
        part.title,
        part.found,
        {
            "case": lambda p: p.case.label or p.case.name,
            "devices": lambda p: f"{p.case.topology.world_size} x {p.case.topology.name}",
            f"measured {part.unit}": lambda p: f"{factor * p.case.measured_s:.{digits}f}",
            "predicted": lambda p: f"{factor * p.shipped.time_s:.{digits}f}",
            "90 % interval": lambda p: interval(p.shipped),
            Column("error", Kind.ERROR): error(first),
            **{Column(_short(name), Kind.ERROR, optional=True): error(name) for name in others},
        },
    )


def _groups(part: Part) -> Section:
    """A line of each group: mean error without and, in brackets, with signs, of each prediction."""
    names = list(part.found[0].predicted)
    judged = part.judged or names[0]
    several = len(names) > 1
    of = f"; worst, inside, rms ln: {judged}" if several else ""

    def biased(name: str) -> Callable[[dict[str, Any]], str]:
        return lambda row: (
            f"{format_percent(row[name].mean_error_ratio)} ({100 * row[name].bias_ratio:+.0f})"
        )

    rows: list[dict[str, Any]] = []
    for key, found in part.groups.items():
        errors = summarize(found)
        rows.append({**dict(zip(part.by, key, strict=True)), "n": len(found), **errors})
        rows[-1] |= asdict(errors[judged])
    return Section.of(
        f"{part.title}: mean error{of}",
        rows,
        {
            **by_field(*part.by, "n"),
            **{f"{_short(n) if several else 'error'} (bias)": biased(n) for n in names},
            Column("worst", Kind.SHARE): lambda row: row["worst_error_ratio"],
            **by_field("inside=coverage_ratio"),
            "rms ln?": lambda row: f"{row['rms_log_ratio']:.3f}",
        },
    )


def _all_cases(part: Part) -> Section:
    """A line of all cases together for each name of predictions."""
    rows = [{"predicted": name, **asdict(e)} for name, e in summarize(part.found).items()]
    title, worst = f"{part.title}: {len(part.found)} cases", "worst=worst_error_ratio"
    more = ("bias_ratio", *_ERRORS, worst, "inside=coverage_ratio")
    return Section.of(title, rows, by_field("predicted", "MAPE=mean_error_ratio", *more))


def memory_sections(found: pd.DataFrame, errors: pd.DataFrame) -> tuple[Section, Section]:
    """What steps hold beside the tables, measured and by the ledger, and errors by kind of step."""
    beside = {n: found[n] - found["tables_bytes"] for n in ("measured_bytes", "predicted_bytes")}
    steps = found.assign(step=found["group"] + " " + found["name"], **beside)
    sizes = ("tables_bytes", "beside them: measured=measured_bytes", "ledger=predicted_bytes")
    errs = ("rest_median_ratio", "rest_worst_ratio", "sum short by at most=most_short_ratio")
    return (
        Section.of(
            "Peak of device memory on one H200",
            steps.to_dict("records"),
            by_field("step", *sizes, "error=rest_ratio", "of the sum=sum_ratio"),
        ),
        Section.of(
            "Errors beside tables",
            errors.reset_index().to_dict("records"),
            by_field("steps=group", "n=num_steps", *errs, "reserved=reserved_median_ratio"),
        ),
    )


def _short(name: str) -> str:
    """The name of a prediction as the title of a column."""
    return name.partition(" (")[0].replace("left out", "out")


# ------------------------------------------------------------------ runs that were trained


def rankings(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """Scores of our model, and of two simpler ones, each with the one factor that suits it best."""
    tasks, measured = [o.task for o in outcomes], [o.measured_s for o in outcomes]
    judges = {
        "shardplan": [o.predicted_s for o in outcomes],
        "bytes": one_scale([o.bytes_model_bytes for o in outcomes], measured),
        "torchrec": one_scale([o.torchrec_rating_s for o in outcomes], measured),
    }
    return {
        name: told_errors(summarize_errors(predicted, measured))
        | rank_tasks(tasks, predicted, measured)
        for name, predicted in judges.items()
    }


def scores_section(found: dict[str, dict[str, float]], outcomes: Sequence[Outcome]) -> Section:
    """One line for each model, and how often measured times are inside their intervals."""
    inside = [(o.low_s <= o.measured_s <= o.high_s, o.iterations_inside_ratio) for o in outcomes]
    plans, iterations = map(format_percent, np.mean(inside, axis=0))
    width = format_percent(float(np.mean([o.high_s / o.low_s - 1.0 for o in outcomes])))
    shares = ("top 1=top_ratio", "in 5 %=within_5_ratio", "in 10 %=within_10_ratio")
    return Section.of(
        "Predicted against trained",
        [{"model": name, **scores} for name, scores in found.items()],
        {
            **by_field("model", *_ERRORS, "MAPE=mean_error_ratio"),
            "tau": lambda row: f"{row['kendall_tau_ratio']:.2f}",
            **by_field(*shares, "regret=mean_regret_ratio"),
        },
        notes=(
            "geomean, MAPE, p90: errors of iteration times (bytes and torchrec: after the one "
            "factor that suits them best)",
            "tau: Kendall's, mean over tasks. top 1, in 5 %, in 10 %: tasks in which the plan "
            "predicted fastest is",
            f"90 % intervals ({width} wide) hold {plans} of the plans' times and {iterations} of "
            "all iterations",
        ),
    )


def pairs_section(outcomes: Sequence[Outcome], title: str) -> Section:
    """For each plan, the ratio of the second half's times to those of the first."""
    half = len(outcomes) // 2
    pairs = [
        PlanPair(
            first=f"{a.origin} {a.kinds}",
            second="",
            measured_ratio=b.measured_s / a.measured_s,
            predicted_ratio=b.predicted_s / a.predicted_s,
        )
        for a, b in zip(outcomes[:half], outcomes[half:], strict=True)
    ]
    error = geomean_error(np.log([pair.error_ratio + 1.0 for pair in pairs]))
    note = f"geometric mean error of the ratio: {format_percent(error)}"
    return Section.of(title, pairs, by_field("plan=first", *RATIOS), notes=(note,))


def foreign_note(outcomes: Sequence[Outcome]) -> str | None:
    """A remark when other jobs were running."""
    load = max((o.foreign_ratio for o in outcomes), default=0.0)
    if load <= 0.03:
        return None
    return f"other jobs used up to {load:.1f} cores meanwhile; times are processor times per rank"


def pace_note(outcomes: Sequence[Outcome]) -> str | None:
    """A remark on how fast the machine was, compared with its calibration, and on the errors."""
    paced = [(o, o.pace_ratio) for o in outcomes if o.pace_ratio is not None]
    if not outcomes or len(paced) < len(outcomes):
        return None
    paces = [p for _, p in paced]
    missed = geomean_error(np.log([o.predicted_s * p / o.measured_s for o, p in paced]))
    inside = sum(o.low_s * p <= o.measured_s <= o.high_s * p for o, p in paced)
    return (
        f"for the same fixed work the machine took {min(paces):.2f} to {max(paces):.2f} times as "
        "long as when it was calibrated; times this ratio, predictions miss by "
        f"{format_percent(missed)} (geometric mean) and intervals hold "
        f"{format_percent(inside / len(paced))} of the plans"
    )


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row with the seconds of each stage in a column of its own."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, tuple):
            kind = name.removeprefix("stages_")
            flat |= {f"{s}_{kind}": v for s, v in zip(STAGES, value, strict=True)}
        else:
            flat[name] = value
    return flat


def write_files(
    folder: Path, outcomes: Sequence[Outcome], found: dict[str, dict[str, float]]
) -> list[Path]:
    """Write both tables; returns their paths."""
    tables = {
        "validate_torchrec_runs.csv": [_flat(asdict(outcome)) for outcome in outcomes],
        "validate_torchrec_models.csv": [{"model": name, **s} for name, s in found.items()],
    }
    for name, rows in tables.items():
        text = pd.DataFrame(rows).to_csv(index=False, float_format="%.6g")
        write_text_atomic(folder / name, text)
    return [folder / name for name in tables]


# ------------------------------------------------------------------ traces


_ROUNDING_S: Final = 1e-8
"""Two times that differ by less are the same in a file that is rounded to nanoseconds."""


def traces_json(traces: Sequence[TraceTimes], rows: Sequence[TraceRow]) -> dict[str, Any]:
    """One mapping per rank and stage, and one per rank with its kernels."""
    names = ("rank", "device", "iterations", "iteration_s", "busy_s", "idle_ratio", "host_s")
    ranks = [{name: getattr(t, name) for name in (*names, "host_bound", "groups")} for t in traces]
    return {
        "rows": [{**asdict(row), "error_ratio": row.error_ratio} for row in rows],
        "ranks": ranks,
    }


def trace_sections(
    traces: Sequence[TraceTimes], rows: Sequence[TraceRow], *, name: str = ""
) -> Iterator[Section]:
    """Per rank: a table of its kernels, whether the host sets the pace, and what is off most."""
    for times in sorted(traces, key=lambda t: t.rank):
        own = [row for row in rows if row.rank == times.rank]
        steps = "one step" if times.iterations == 1 else f"median of {times.iterations} steps"
        title = ", ".join(filter(None, (f"Rank {times.rank}", times.device, steps, name)))
        columns = ("per iteration", "calls?", "measured", "predicted", "waits?", "error", "ratio")
        yield Section.of(
            title, [line for row in own for line in _lines(row, times)], by_place(*columns)
        )
        yield Section("", (Fact("Pace", (_pace(times),)), Fact("Off most", _off(own))))


def _lines(row: TraceRow, times: TraceTimes) -> Iterator[tuple[str, ...]]:
    """A stage, and below it its kernels by kind, where it has more than one kind."""
    kinds = [group for group in times.groups if group.stage == row.kind]
    yield (
        row.kind,
        f"{sum(group.num_calls for group in kinds):g}" if kinds else "",
        units.format_time(row.measured_s),
        units.format_time(row.predicted_s),
        units.format_time(row.wait_s) if row.wait_s else "",
        "" if row.error_ratio is None else f"{100 * row.error_ratio:+.1f} %",
        _ratio(row),
    )
    for group in sorted(kinds, key=lambda g: -g.time_s) if len(kinds) > 1 else ():
        time = units.format_time(group.time_s)
        yield (f"- {group.group}", f"{group.num_calls:g}", time, "", "", "", "")


def _ratio(row: TraceRow) -> str:
    """Measured over predicted, both with waits: what a factor on this stage would be."""
    error = row.error_ratio
    return "" if error is None or error <= -1.0 else f"{1.0 / (1.0 + error):.2f}"


def _pace(times: TraceTimes) -> str:
    idle = format_percent(times.idle_ratio)
    busy, step = units.format_time(times.busy_s), units.format_time(times.iteration_s)
    if times.host_s is None:
        return f"the GPU works {busy} of a step of {step}, and is idle {idle} of it"
    bound, host = "host" if times.host_bound else "GPU", units.format_time(times.host_s)
    return (
        f"{bound}-bound: the host takes {host} for a step whose kernels take {busy}; the GPU is "
        f"idle {idle} of {step}"
    )


def _off(rows: Sequence[TraceRow]) -> tuple[str, ...]:
    """The stage of the GPU whose times lie furthest apart, and the host if it is off by more."""
    stages = [row for row in rows if row.kind not in (*TOTALS, HOST)]
    worst = max(stages, key=_gap_s)
    host = [row for row in rows if row.kind == HOST and _gap_s(row) > _gap_s(worst)]
    return tuple(
        f"{row.kind}, measured {units.format_time(row.measured_s)}, "
        f"predicted {units.format_time(row.predicted_s)}"
        for row in (*host, worst)
        if _gap_s(row) > _ROUNDING_S
    )


def _gap_s(row: TraceRow) -> float:
    return abs(row.measured_s + row.measured_wait_s - row.predicted_s - row.wait_s)
