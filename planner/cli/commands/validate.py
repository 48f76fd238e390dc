"""``shardplan validate``: predictions against known truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from planner.cli.console import Settings, write_json
from planner.cli.flags import output_options
from planner.cli.show import print_rows

if TYPE_CHECKING:
    from planner.published import PublishedPrediction

EXAMPLES = """\b
Examples:
  shardplan validate published
  shardplan validate published --json > errors.json"""


@click.group(short_help="Compare predictions with measured systems.", epilog=EXAMPLES)
def command() -> None:
    """Compare predictions with measurements that no model was fitted to."""


@command.command("published", short_help="Systems measured and published by others.")
@output_options
@click.pass_obj
def published(settings: Settings) -> int:
    """Predict every shipped measured system and print the errors.

    Each case prices the plan that its log printed. The last column is a naive serial roofline on
    the same inputs. Sources of the measurements are in configs/published.
    """
    from planner.published import load_cases, predict

    predictions = tuple(predict(case) for case in load_cases())
    if settings.json:
        write_json(_as_json(predictions))
    else:
        _print(predictions)
    return 0


def _print(predictions: tuple[PublishedPrediction, ...]) -> None:
    from planner.published import summarize

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
    columns = ("case", "devices", "measured ms", "predicted", "90 % interval", "error", "naive")
    print_rows("MLPerf DLRM-DCNv2, iteration time", columns, rows)
    ours, naive = summarize(predictions)
    for label, s in (("shardplan", ours), ("naive", naive)):
        click.echo(
            f"{label:9}  MAPE {100 * s.mean_error_ratio:.1f} %"
            f"   p90 {100 * s.p90_error_ratio:.1f} %"
            f"   geomean {100 * s.geomean_error_ratio:.1f} %"
            f"   worst {100 * s.worst_error_ratio:.1f} %   over {s.count} systems"
        )


def _as_json(predictions: tuple[PublishedPrediction, ...]) -> dict[str, object]:
    from dataclasses import asdict

    from planner.published import summarize

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
