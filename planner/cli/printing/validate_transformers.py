"""Steps of transformers beside their predictions, as tables and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from costmodels.sustained import Shares
from planner.cli.console import Settings, say, write_json
from planner.cli.printing.show import print_rows
from planner.validation.transformers import (
    AS_SHIPPED,
    LEFT_OUT,
    MODEL_OUT,
    Prediction,
    TransformerPrediction,
    summarize,
)


def print_cases(found: Sequence[TransformerPrediction], *, every: bool) -> None:
    """Errors by model, device and precision; every case with its interval where asked for."""
    groups: dict[tuple[str, str], list[TransformerPrediction]] = {}
    for p in found:
        groups.setdefault((p.case.model, p.case.group), []).append(p)
    names = (AS_SHIPPED, *LEFT_OUT)
    rows = []
    for (model, group), members in groups.items():
        times = [p.case.measured_s * 1e3 for p in members]
        errors = (
            f"{100 * np.mean([abs(_error(p, n)) for p in members]):.1f} %"
            f" ({100 * np.mean([_error(p, n) for p in members]):+.0f})"
            for n in names
        )
        naive = np.mean([abs(p.naive_s / p.case.measured_s - 1.0) for p in members])
        spread = f"{min(times):.0f} .. {max(times):.0f}"
        known = f"{_rms(members):.3f}"
        rows.append(
            (model, group, str(len(members)), spread, *errors, known, f"{100 * naive:.0f} %")
        )
    columns = ("model", "device", "rows", "measured ms", "shipped", "model out", "family out")
    columns_after = ("generation out", "rms ln", "naive?")
    title = "Transformers, micro-batch: mean error (bias)"
    print_rows(title, (*columns, *columns_after), rows)
    if every:
        _print_every(found)


def print_errors(found: Sequence[TransformerPrediction]) -> None:
    """One line per way of fitting."""
    for name, s in summarize(found).items():
        inside = f"   inside {100 * s.coverage_ratio:.0f} %" if s.coverage_ratio >= 0 else ""
        say(
            f"{name:26}  MAPE {100 * s.mean_error_ratio:.1f} %"
            f"   GMAE {100 * s.geomean_error_ratio:.1f} %"
            f"   p90 {100 * s.p90_error_ratio:.1f} %"
            f"   worst {100 * s.worst_error_ratio:.1f} %{inside}   over {s.count} rows"
        )


def print_unfitted_groups(found: Sequence[Prediction], *, every: bool) -> None:
    """Errors of steps to which nothing is fitted, by model, system and precision."""
    title = "Steps to which nothing is fitted, micro-batch"
    if every:
        print_unfitted(title, found)
    groups: dict[tuple[str, str, str], list[Prediction]] = {}
    for p in found:
        kind = p.case.workload.dense.dtype.value
        groups.setdefault((p.case.model, p.case.topology.name, kind), []).append(p)
    rows = []
    for (model, system, kind), members in groups.items():
        sizes = [p.case.topology.world_size for p in members]
        errors = [100 * p.error_ratio for p in members]
        rows.append(
            (
                f"{model}, {kind}",
                system,
                f"{min(sizes)} .. {max(sizes)}" if len(set(sizes)) > 1 else f"{sizes[0]}",
                f"{len(members)}",
                f"{np.mean(np.abs(errors)):.1f} % ({np.mean(errors):+.0f})",
                f"{sum(_is_inside(p) for p in members)}",
            )
        )
    columns = ("model", "system", "GPUs", "rows", "error (bias)", "inside")
    print_rows(title, columns, rows)
    _print_mean(found)


def print_frameworks(found: Sequence[Prediction]) -> None:
    """Errors of steps in other frameworks; the last column is what sets the width of intervals."""
    groups: dict[str, list[Prediction]] = {}
    for p in found:
        groups.setdefault(p.case.family, []).append(p)
    rows = []
    for name, members in groups.items():
        errors = np.array([p.error_ratio for p in members])
        rows.append(
            (
                name,
                f"{len(members)}",
                f"{100 * np.mean(np.abs(errors)):.1f} % ({100 * np.mean(errors):+.0f})",
                f"{sum(_is_inside(p) for p in members)}",
                f"{math.sqrt(float(np.mean(np.log1p(errors) ** 2))):.3f}",
            )
        )
    columns = ("framework", "rows", "error (bias)", "inside", "rms ln")
    print_rows("Steps of BERT in other frameworks, nothing fitted", columns, rows)
    _print_mean(found)


def print_unfitted(title: str, found: Sequence[Prediction]) -> None:
    """Cases to which nothing is fitted, and the mean of their errors."""
    rows = [
        (
            p.case.name,
            f"{p.case.topology.world_size} x {p.case.topology.name}",
            f"{p.case.measured_s * 1e3:.2f}",
            f"{p.predicted.time_s * 1e3:.2f}",
            f"{p.predicted.low_s * 1e3:.2f} .. {p.predicted.high_s * 1e3:.2f}",
            f"{100 * p.error_ratio:+.1f} %",
        )
        for p in found
    ]
    columns = ("case", "devices", "measured ms", "predicted", "90 % interval", "error")
    print_rows(title, columns, rows)
    _print_mean(found)


def _print_mean(found: Sequence[Prediction]) -> None:
    inside = sum(_is_inside(p) for p in found)
    mean = float(np.mean([abs(p.error_ratio) for p in found]))
    width = float(np.median([p.predicted.high_s / p.predicted.low_s for p in found]))
    say(
        f"MAPE {100 * mean:.1f} %   inside {inside} of {len(found)}"
        f"   median interval: high = {width:.2f} low"
    )


def _is_inside(p: Prediction) -> bool:
    return p.predicted.low_s <= p.case.measured_s <= p.predicted.high_s


def unfitted_json(p: Prediction) -> dict[str, object]:
    """The same of one case."""
    return {
        "case": p.case.name,
        "system": p.case.topology.name,
        "world_size": p.case.topology.world_size,
        "measured_s": p.case.measured_s,
        "predicted_s": p.predicted.time_s,
        "low_s": p.predicted.low_s,
        "high_s": p.predicted.high_s,
        "source": p.case.reference,
    }


def print_shares(settings: Settings, shares: dict[str, Shares]) -> None:
    """The constants of ``costmodels/sustained.py`` as the rows give them."""
    if settings.json:
        write_json({name: asdict(values) for name, values in shares.items()})
        return
    rows = [
        (name, *(f"{value:.3f}" for value in asdict(values).values()))
        for name, values in shares.items()
    ]
    columns = ("device", "products", "memory", "flash 1")
    print_rows("Shares of the device's rates, fitted to all rows on one host", columns, rows)


def as_json(
    found: Sequence[TransformerPrediction],
    others: Sequence[Prediction],
    frameworks: Sequence[Prediction],
) -> dict[str, object]:
    """Cases and errors."""
    return {
        "unfitted": [unfitted_json(p) for p in others],
        "frameworks": [unfitted_json(p) for p in frameworks],
        "cases": [
            {
                "case": p.case.name,
                "family": p.case.family,
                "model": p.case.model,
                "system": p.case.topology.name,
                "world_size": p.case.topology.world_size,
                "measured_s": p.case.measured_s,
                "predicted_s": {name: e.time_s for name, e in p.predicted.items()},
                "low_s": {name: e.low_s for name, e in p.predicted.items()},
                "high_s": {name: e.high_s for name, e in p.predicted.items()},
                "naive_s": p.naive_s,
                "source": p.case.reference,
            }
            for p in found
        ],
        "errors": {
            name: {k: v for k, v in asdict(s).items() if v == v}
            for name, s in summarize(found).items()
        },
    }


def _error(p: TransformerPrediction, name: str) -> float:
    return p.predicted[name].time_s / p.case.measured_s - 1.0


def _rms(members: Sequence[TransformerPrediction]) -> float:
    """Root mean square of ln(predicted / measured) with the model left out."""
    errors = [np.log1p(_error(p, MODEL_OUT)) for p in members]
    return float(np.sqrt(np.mean(np.square(errors))))


def _print_every(found: Sequence[TransformerPrediction]) -> None:
    rows = []
    for p in found:
        ours = p.predicted[AS_SHIPPED]
        rows.append(
            (
                p.case.name,
                f"{p.case.topology.world_size} x {p.case.topology.name}",
                f"{p.case.measured_s * 1e3:.1f}",
                f"{ours.time_s * 1e3:.1f}",
                f"{ours.low_s * 1e3:.0f} .. {ours.high_s * 1e3:.0f}",
                f"{100 * _error(p, AS_SHIPPED):+.1f} %",
            )
        )
    columns = ("case", "devices", "measured ms", "predicted", "90 % interval", "error")
    print_rows("Every case, as shipped", columns, rows)
