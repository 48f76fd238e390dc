"""Measured steps of one GPU beside their predictions, as tables and as JSON."""

from __future__ import annotations

from planner.cli.console import say
from planner.cli.printing.show import print_rows
from planner.validation.gpu_steps import GpuStep, host_groups, summarize


def print_steps(found: tuple[GpuStep, ...], *, every: bool) -> None:
    """The errors of each group; with ``every``, each step before them."""
    if every:
        rows = [
            (
                s.name,
                s.group,
                f"{s.measured_s * 1e3:.2f}",
                f"{s.predicted.time_s * 1e3:.2f}",
                f"{s.predicted.low_s * 1e3:.2f} .. {s.predicted.high_s * 1e3:.2f}",
                f"{100 * (s.predicted.time_s / s.measured_s - 1):+.1f} %",
                f"{100 * (s.host_only_s / s.measured_s - 1):+.1f} %",
            )
            for s in found
        ]
        columns = ("step", "group", "measured ms", "predicted", "90 % interval", "error")
        print_rows("Steps on one H200, wall", (*columns, "kernels measured"), rows)
    for name, (whole, host) in summarize(found).items():
        say(
            f"{name:11} n {whole.count:2}   MAPE {100 * whole.mean_error_ratio:.1f} %"
            f"   bias {100 * whole.bias_ratio:+.1f} %   worst {100 * whole.worst_error_ratio:.1f} %"
            f"   inside {100 * whole.coverage_ratio:.0f} %"
            f"   with measured kernels: MAPE {100 * host.mean_error_ratio:.1f} %"
            f"   bias {100 * host.bias_ratio:+.1f} %"
        )
    groups = ", ".join(f"{name} {error:.2f}" for name, error in host_groups(found).items())
    say(f"rms ln(predicted / measured) of host-bound steps with measured kernels: {groups}")


def as_json(found: tuple[GpuStep, ...]) -> dict[str, object]:
    """The same."""
    return {
        "steps": [
            {
                "step": s.name,
                "group": s.group,
                "measured_s": s.measured_s,
                "predicted_s": s.predicted.time_s,
                "low_s": s.predicted.low_s,
                "high_s": s.predicted.high_s,
                "with_measured_kernels_s": s.host_only_s,
            }
            for s in found
        ],
        "groups": {
            name: {
                "count": whole.count,
                "mean_error_ratio": whole.mean_error_ratio,
                "coverage_ratio": whole.coverage_ratio,
                "with_measured_kernels_ratio": host.mean_error_ratio,
            }
            for name, (whole, host) in summarize(found).items()
        },
        "host_groups": host_groups(found),
    }
