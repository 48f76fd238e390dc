"""What ``shardplan validate published`` and ``validate intervals`` print, for all kinds alike."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from planner.cli.console import Settings, write_json
from planner.cli.printing.show import print_items, print_rows
from planner.validation.cases import Part, Prediction, summarize

if TYPE_CHECKING:
    from costmodels.estimates import Estimate
    from costmodels.validation import ErrorSummary

_UNITS: Final = {"ms": (1e3, 2), "us": (1e6, 1)}
"""The factor and the decimals of times in a unit."""


def show_kind(settings: Settings, kind: str) -> None:
    """Print the predictions and errors of a kind: a function of :mod:`planner.validation`."""
    module, name = kind.split(".")
    found = importlib.import_module(f"planner.validation.{module}")
    parts: tuple[Part, ...] = getattr(found, name)()
    if settings.json:
        write_json({part.name: _as_json(part) for part in parts})
        return
    for part in parts:
        if settings.verbose or not part.by:
            _print_cases(part)
        if part.by:
            _print_groups(part)
        _print_errors(part)


def _as_json(part: Part) -> dict[str, Any]:
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


def _print_cases(part: Part) -> None:
    """A line of each case: measured, predicted with its interval, and all errors."""
    factor, digits = _UNITS[part.unit]

    def interval(found: Estimate) -> str:
        low, high = (f"{factor * s:.{digits}f}" for s in (found.low_s, found.high_s))
        return f"{low} .. {high}" if found.low_s < found.high_s else ""

    def error(p: Prediction, time_s: float) -> str:
        return f"{100 * (time_s / p.case.measured_s - 1):+.1f} %"

    first, *others = part.found[0].predicted
    rows = [
        (
            p.case.label or p.case.name,
            f"{p.case.topology.world_size} x {p.case.topology.name}",
            f"{factor * p.case.measured_s:.{digits}f}",
            f"{factor * p.shipped.time_s:.{digits}f}",
            interval(p.shipped),
            *(error(p, p.predicted[name].time_s) for name in (first, *others)),
        )
        for p in part.found
    ]
    columns = (f"measured {part.unit}", "predicted", "90 % interval", "error")
    print_rows(
        part.title, ("case", "devices", *columns, *(f"{x}?" for x in map(_short, others))), rows
    )


def _print_groups(part: Part) -> None:
    """A line of each group: mean error without and, in brackets, with signs, of each prediction."""
    names = list(part.found[0].predicted)
    judged = part.judged or names[0]
    rows = []
    for key, found in part.groups.items():
        errors = summarize(found)
        biased = [
            f"{_percent(e.mean_error_ratio)} ({100 * e.bias_ratio:+.0f})" for e in errors.values()
        ]
        one = errors[judged]
        told = (_percent(one.worst_error_ratio, 0), _inside(one.coverage_ratio))
        rows.append((*key, str(len(found)), *biased, *told, f"{one.rms_log_ratio:.3f}"))
    titles = [_short(name) for name in names] if len(names) > 1 else ["error"]
    columns = (*part.by, "n", *(f"{t} (bias)" for t in titles), "worst", "inside", "rms ln?")
    of = f"; worst, inside, rms ln: {judged}" if len(names) > 1 else ""
    print_rows(f"{part.title}: mean error{of}", columns, rows)


def _print_errors(part: Part) -> None:
    """A line of all cases together for each name of predictions."""
    print_items(
        f"{part.title}: {len(part.found)} cases",
        summarize(part.found).items(),
        {
            "predicted": lambda item: item[0],
            "MAPE": lambda item: _percent(item[1].mean_error_ratio),
            "bias": lambda item: f"{100 * item[1].bias_ratio:+.1f} %",
            "geomean": lambda item: _percent(item[1].geomean_error_ratio),
            "p90": lambda item: _percent(item[1].p90_error_ratio),
            "worst": lambda item: _percent(item[1].worst_error_ratio),
            "inside": lambda item: _inside(item[1].coverage_ratio),
        },
    )


def show_memory(settings: Settings) -> None:
    """What steps hold beside the tables, measured and by the ledger, in GB of 10^9 bytes."""
    from planner.validation.steps import memory_errors, memory_of_steps

    found = memory_of_steps()
    errors = memory_errors(found)
    if settings.json:
        write_json({"steps": found.to_dict("records"), "errors": errors.to_dict("index")})
        return
    print_items(
        "Peak of device memory on one H200",
        found.to_dict("records"),
        {
            "step": lambda s: f"{s['group']} {s['name']}",
            "tables GB": lambda s: f"{s['tables_bytes'] / 1e9:.3f}",
            "beside them: measured": lambda s: _beside_gb(s, "measured_bytes"),
            "ledger": lambda s: _beside_gb(s, "predicted_bytes"),
            "error": lambda s: f"{100 * s['rest_ratio']:+.1f} %",
            "of the sum": lambda s: f"{100 * s['sum_ratio']:+.1f} %",
        },
    )
    print_items(
        "Errors beside tables",
        errors.reset_index().to_dict("records"),
        {
            "steps": lambda e: e["group"],
            "n": lambda e: str(e["num_steps"]),
            "median": lambda e: _percent(e["rest_median_ratio"]),
            "worst": lambda e: f"{100 * e['rest_worst_ratio']:+.1f} %",
            "sum short by at most": lambda e: _percent(e["most_short_ratio"]),
            "allocator adds": lambda e: (
                _percent(e["reserved_median_ratio"] - 1.0, 0) if e["reserved_median_ratio"] else ""
            ),
        },
    )


def _beside_gb(step: dict[Any, Any], name: str) -> str:
    return f"{(step[name] - step['tables_bytes']) / 1e9:.3f}"


def show_intervals(settings: Settings) -> None:
    """How many held-out measurements are inside their intervals, and pairs of plans."""
    from planner.validation.intervals import coverages, published_pairs

    found, pairs = coverages(), published_pairs()
    if settings.json:
        write_json(
            {
                "families": [{**asdict(c), "coverage_ok": c.coverage_ok} for c in found],
                "pairs": [{**asdict(p), "error_ratio": p.error_ratio} for p in pairs],
            }
        )
        return
    print_items(
        "Coverage of 90 % intervals",
        found,
        {
            "measurements never fitted": lambda c: c.family,
            "rows": lambda c: str(c.rows),
            "inside": lambda c: _percent(c.coverage_ratio, 0),
            "median width": lambda c: _percent(c.width_ratio, 0),
            "80 to 97 %": lambda c: c.verdict,
        },
    )
    print_items(
        "Two plans on one system",
        pairs,
        {
            "plan of": lambda p: p.first,
            "against plan of": lambda p: p.second,
            "measured ratio": lambda p: f"{p.measured_ratio:.3f}",
            "predicted": lambda p: f"{p.predicted_ratio:.3f}",
            "error": lambda p: f"{100 * p.error_ratio:+.1f} %",
        },
    )


def _percent(ratio: float, digits: int = 1) -> str:
    return f"{100 * ratio:.{digits}f} %"


def _inside(ratio: float) -> str:
    """The share inside intervals; empty where there are none."""
    return _percent(ratio, 0) if ratio == ratio else ""


def _short(name: str) -> str:
    """The name of a prediction as the title of a column."""
    return name.partition(" (")[0].replace("left out", "out")
