"""``shardplan calibrate``: measure this machine, write a system file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.cli.console import Settings, remark, say, write_json
from planner.cli.flags.common import FILE, output_options
from planner.cli.printing.show import print_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from costmodels.calibration.fitting import FitError

EXAMPLES = """\b
Examples:
  shardplan calibrate -o my_cpu.yaml                 about five minutes
  shardplan calibrate -o my_cpu.yaml --quick         under a minute, rougher
  shardplan plan dlrm.yaml --system my_cpu.yaml"""


@click.command(short_help="Measure this machine, write a system file.", epilog=EXAMPLES)
@click.option(
    "-o", "--output", type=FILE, required=True, metavar="FILE", help="System file to write (YAML)."
)
@click.option("--quick", is_flag=True, help="Fewer points, rougher constants.")
@click.option(
    "--ranks", type=click.IntRange(2, 64), default=2, show_default=True, help="Gloo ranks to run."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random points.")
@output_options
@click.pass_obj
def command(settings: Settings, *, output: Path, quick: bool, ranks: int, seed: int) -> int:
    """Run microbenchmarks and fit the constants of the cost models to them.

    Measures lookups of single tables, gloo collectives, single operators of dense parts (matrix
    products, attention, norms, functions of single elements ...), and the stages of training steps
    of small random models: lookups, exchanges, dense layers, update. Each stage is fitted by
    itself, never an iteration, and none of these models is one that 'validate torchrec' trains.

    Writes the system file and, beside it, the constants with their fit errors and the points that
    look wrong. Times are processor times, so other jobs on the machine disturb little.
    """
    from costmodels.calibration.designs import FULL, QUICK
    from costmodels.calibration.report import Calibration
    from planner.cli.real_runs import require_torchrec, status_line
    from planner.io.system.calibrated_system import write_calibrated_system

    require_torchrec("calibrate")
    from planner.integrations.measure.calibrate_cpu import calibrate_machine, memory_bytes

    with status_line(settings, f"{ranks} ranks") as progress:
        _, fitted = calibrate_machine(
            QUICK if quick else FULL, world_size=ranks, seed=seed, progress=progress
        )
    calibration = Calibration(
        constants=fitted.constants,
        errors=fitted.errors,
        seed=seed,
        effort="quick" if quick else "full",
    )
    written = write_calibrated_system(output, calibration, memory_bytes=memory_bytes())
    if settings.json:
        write_json(
            {
                "machine": fitted.constants.machine,
                "written": [str(path) for path in written],
                "fit": [_as_json(e) for e in fitted.errors],
            }
        )
    else:
        _print(fitted.constants.machine, fitted.errors)
        remark(settings, "wrote " + "  ".join(map(str, written)))
    return 0


def _print(machine: str, errors: Sequence[FitError]) -> None:
    rows = [
        (
            e.name,
            str(e.num_points),
            f"{100 * e.geomean_ratio:.1f} %",
            f"{100 * e.held_out_ratio:.1f} %",
            f"{100 * e.p90_ratio:.1f} %",
            str(len(e.odd_points) or ""),
        )
        for e in errors
    ]
    columns = ("model", "points", "error", "held out", "p90", "odd points")
    print_rows(f"Fit on {machine}", columns, rows)
    odd = [f"{e.name}: {point}" for e in errors for point in e.odd_points]
    if odd:
        say("Points that look wrong:")
        for line in odd:
            say(f"  {line}")


def _as_json(error: FitError) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(error)
