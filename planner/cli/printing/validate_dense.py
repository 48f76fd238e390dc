"""GPU times of dense parts beside their predictions, as tables and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from costmodels.validation.metrics import ErrorSummary, summarize_errors
from planner.cli.console import Settings, say, write_json
from planner.cli.printing.show import print_rows
from planner.validation.dense_kernels import DLRM, DOTS, GRAPHS, DensePrediction, PublishedStep

if TYPE_CHECKING:
    from costmodels.dense._constants import KernelConstants


_GROUPS = {DOTS: "dot interactions", GRAPHS: "steps as CUDA graphs"}
"""How families that are no dense steps are called."""


def print_cases(
    found: Sequence[DensePrediction], steps: Sequence[PublishedStep], *, every: bool
) -> None:
    """The errors of each family, of the groups, and the published steps.

    Args:
        found: measured times with their predictions.
        steps: published steps with their predictions.
        every: whether every measurement gets a line.
    """
    if every:
        cases = [
            (p.point.name, _us(p.point.measured_s), _us(p.shipped_s), _us(p.left_out_s))
            for p in found
        ]
        named = ("measurement", "measured us", "shipped", "family left out")
        print_rows("GPU times of dense parts", named, cases)
    rows = []
    for family in dict.fromkeys(p.point.family for p in found):
        known = [p for p in found if p.point.family == family]
        logs = [math.log(p.left_out_s / p.point.measured_s) for p in known]
        rms = math.sqrt(sum(x * x for x in logs) / len(logs))
        rows.append((family, str(len(known)), *_errors(known), f"{rms:.3f}"))
    families = ("family", "n", "shipped (bias)", "family left out (bias)", "rms ln")
    print_rows("GPU times on H200 and H100: mean error", families, rows)
    for name, group in _groups(found).items():
        say(f"{name:24} {_line(group)}")
    lines = [
        (
            s.name,
            f"{1e3 * s.measured_s:.1f}",
            f"{1e3 * s.predicted.time_s:.1f}",
            f"{1e3 * s.predicted.low_s:.1f} .. {1e3 * s.predicted.high_s:.1f}",
            f"{100 * (s.predicted.time_s / s.measured_s - 1):+.1f} %",
            f"{1e3 * s.eager_s:.1f}",
        )
        for s in steps
    ]
    columns = ("NVIDIA's DLRM", "measured ms", "predicted", "90 % interval", "error", "if eager")
    print_rows("65,536 samples on one A100, nothing fitted", columns, lines)


def print_constants(settings: Settings, constants: KernelConstants) -> None:
    """The fitted constants."""
    if settings.json:
        write_json(asdict(constants))
        return
    for name, value in asdict(constants).items():
        say(f"{name:26} {value:.3g}")


def as_json(found: Sequence[DensePrediction], steps: Sequence[PublishedStep]) -> dict[str, object]:
    """The same."""
    return {
        "cases": [
            {
                "case": p.point.name,
                "family": p.point.family,
                "measured_s": p.point.measured_s,
                "shipped_s": p.shipped_s,
                "left_out_s": p.left_out_s,
                "is_inside": p.is_inside(),
            }
            for p in found
        ],
        "errors": {
            name: {
                "shipped": asdict(_summary((p.shipped_s, p) for p in group)),
                "family left out": asdict(_summary((p.left_out_s, p) for p in group)),
            }
            for name, group in _groups(found).items()
        },
        "published": [
            {
                "case": s.name,
                "measured_s": s.measured_s,
                "predicted_s": s.predicted.time_s,
                "low_s": s.predicted.low_s,
                "high_s": s.predicted.high_s,
                "eager_s": s.eager_s,
            }
            for s in steps
        ],
    }


def _groups(found: Sequence[DensePrediction]) -> dict[str, list[DensePrediction]]:
    """Dense steps, steps of DLRMs, interactions, and steps as graphs."""
    groups: dict[str, list[DensePrediction]] = {}
    for p in found:
        name = (
            "DLRM, all kernels" if p.point.family.startswith(DLRM) else _GROUPS.get(p.point.family)
        )
        groups.setdefault(name or "dense steps", []).append(p)
    return groups


def _summary(pairs: Iterable[tuple[float, DensePrediction]]) -> ErrorSummary:
    known = list(pairs)
    return summarize_errors([s for s, _ in known], [p.point.measured_s for _, p in known])


def _errors(known: Sequence[DensePrediction]) -> tuple[str, str]:
    shipped = _summary((p.shipped_s, p) for p in known)
    left_out = _summary((p.left_out_s, p) for p in known)
    first, second = (
        f"{100 * s.mean_error_ratio:.1f} % ({100 * s.bias_ratio:+.0f})" for s in (shipped, left_out)
    )
    return first, second


def _line(group: Sequence[DensePrediction]) -> str:
    shipped, left_out = _errors(group)
    inside = sum(p.is_inside() for p in group)
    return f"shipped {shipped}   family left out {left_out}   inside {inside} of {len(group)}"


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.1f}"
