"""What ``shardplan validate published`` prints about MLPerf's systems."""

from __future__ import annotations

from dataclasses import asdict

from planner.cli.console import say
from planner.cli.printing.show import print_rows
from planner.validation.published import PublishedPrediction, summarize


def print_predictions(predictions: tuple[PublishedPrediction, ...]) -> None:
    """Each system with the errors of both models, and a summary of them."""
    rows = []
    for p in predictions:
        topology, time = p.case.problem.topology, p.predicted
        rows.append(
            (
                " ".join(p.case.name.split("-")[1:3]),
                f"{topology.world_size} x {topology.name}",
                f"{p.case.measured_s * 1e3:.2f}",
                f"{time.time_s * 1e3:.2f}",
                f"{time.low_s * 1e3:.2f} .. {time.high_s * 1e3:.2f}",
                f"{100 * p.error_ratio:+.1f} %",
                f"{100 * (p.naive_s / p.case.measured_s - 1):+.1f} %",
            )
        )
    columns = ("case", "devices", "measured ms", "predicted", "90 % interval", "error", "naive?")
    print_rows("MLPerf DLRM-DCNv2, iteration time", columns, rows)
    ours, naive = summarize(predictions)
    for label, s in (("shardplan", ours), ("naive", naive)):
        say(
            f"{label:9}  MAPE {100 * s.mean_error_ratio:.1f} %"
            f"   p90 {100 * s.p90_error_ratio:.1f} %"
            f"   geomean {100 * s.geomean_error_ratio:.1f} %"
            f"   worst {100 * s.worst_error_ratio:.1f} %   over {s.count} systems"
        )


def as_json(predictions: tuple[PublishedPrediction, ...]) -> dict[str, object]:
    """The same with full precision, for ``--json``."""
    ours, naive = summarize(predictions)
    naive_summary = {k: v for k, v in asdict(naive).items() if k != "coverage_ratio"}
    return {
        "cases": [
            {
                "case": p.case.name,
                "system": p.case.problem.topology.name,
                "world_size": p.case.problem.topology.world_size,
                "measured_s": p.case.measured_s,
                "predicted_s": p.predicted.time_s,
                "low_s": p.predicted.low_s,
                "high_s": p.predicted.high_s,
                "error_ratio": p.error_ratio,
                "naive_s": p.naive_s,
                "plan_source": p.case.plan_source,
                "source": p.case.reference,
            }
            for p in predictions
        ],
        "shardplan": asdict(ours),
        "naive": naive_summary,
    }
