"""Iterations on one GPU beside their predictions, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from planner.cli.console import say
from planner.cli.printing.show import print_rows
from planner.validation.single_gpu import AS_SHIPPED, SingleGpuPrediction, summarize

_SHOWN: Final = {
    "model left out, same GPU": "model out",
    "GPU left out": "GPU out",
}


def print_cases(found: Sequence[SingleGpuPrediction]) -> None:
    """Every case: as shipped with its interval, and the errors with models and GPUs left out."""
    rows = []
    for p in found:
        shipped, measured_s = p.predicted[AS_SHIPPED], p.case.measured_s
        errors = (p.predicted[name].time_s / measured_s - 1.0 for name in (AS_SHIPPED, *_SHOWN))
        rows.append(
            (
                f"{p.case.model} {p.case.workload.local_batch_size}",
                p.case.topology.name,
                f"{measured_s * 1e3:.2f}",
                f"{shipped.time_s * 1e3:.2f}",
                f"{shipped.low_s * 1e3:.2f} .. {shipped.high_s * 1e3:.2f}",
                *(f"{100 * e:+.1f} %" for e in errors),
            )
        )
    columns = ("case", "device", "measured ms", "predicted", "90 % interval", "error")
    print_rows("DLRM on one GPU, iteration time", (*columns, *_SHOWN.values()), rows)


def print_errors(found: Sequence[SingleGpuPrediction]) -> None:
    """One line per way of fitting."""
    for name, s in summarize(found).items():
        say(
            f"{name:26}  GMAE {100 * s.geomean_error_ratio:.1f} %"
            f"   MAPE {100 * s.mean_error_ratio:.1f} %"
            f"   p90 {100 * s.p90_error_ratio:.1f} %"
            f"   worst {100 * s.worst_error_ratio:.1f} %"
            f"   inside {100 * s.coverage_ratio:.0f} %"
        )


def as_json(found: Sequence[SingleGpuPrediction]) -> dict[str, object]:
    """The same."""
    return {
        "cases": [
            {
                "case": p.case.name,
                "measured_s": p.case.measured_s,
                "predicted_s": {name: e.time_s for name, e in p.predicted.items()},
                "low_s": {name: e.low_s for name, e in p.predicted.items()},
                "high_s": {name: e.high_s for name, e in p.predicted.items()},
                "source": p.case.reference,
            }
            for p in found
        ],
        "errors": {name: asdict(s) for name, s in summarize(found).items()},
    }
