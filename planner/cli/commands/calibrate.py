"""``shardplan calibrate``: measure this machine, write a system file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from planner.cli.console import Settings, remark, say, shown_paths, write_json
from planner.cli.flags.common import FILE, output_options
from planner.cli.printing.show import print_rows
from planner.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from costmodels.calibration.fitting import FitError
    from planner.integrations.measure.launched import Launch

_LEAST_RANKS: Final = 2
"""A single rank has nobody to send to."""

EXAMPLES = """\b
Examples:
  shardplan calibrate -o my_cpu.yaml                 about five minutes
  shardplan calibrate -o my_cpu.yaml --quick         about a minute, rougher
  shardplan calibrate --host                         seconds: what the host's calls take
  shardplan calibrate --host -o my_gpus.yaml         ... written into a system file
  torchrun --standalone --nproc-per-node 4 -m planner calibrate -o my_cpu.yaml
  shardplan plan dlrm.yaml --system my_cpu.yaml"""


@click.command(short_help="Measure this machine's CPU and write a system file.", epilog=EXAMPLES)
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="FILE",
    help="System file to write (YAML). With --host, one that exists, whose calls are replaced.",
)
@click.option(
    "--host",
    is_flag=True,
    help="Measure only what eager calls take on this machine, and print the lines of its host.",
)
@click.option("--quick", is_flag=True, help="Measure fewer points; the constants are rougher.")
@click.option(
    "--ranks",
    type=click.IntRange(_LEAST_RANKS, 64),
    help="Number of gloo ranks.  [default: those of the launcher, or 2]",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Of the random points to measure."
)
@output_options
@click.pass_obj
def command(
    settings: Settings,
    *,
    output: Path | None,
    host: bool,
    quick: bool,
    ranks: int | None,
    seed: int,
) -> int:
    """Run microbenchmarks and fit the constants of the cost models to them.

    It measures lookups of single tables, gloo collectives, single operators of dense parts (matrix
    products, attention, norms, elementwise functions ...), and the stages of training steps of
    small random models: lookups, exchanges, dense layers, update. Each stage is fitted by itself;
    whole iterations are never fitted. None of these models is one that 'validate torchrec' trains.

    It starts its own ranks, or measures those that torchrun has started on this host; then the
    first rank fits, writes and prints. Ranks run on CPU cores, also on a machine with GPUs.

    It writes the system file and, beside it, the constants with their errors and odd points. Times
    are processor times, corrected by how slow fixed work was that is timed beside them.

    --host takes seconds and needs torch alone. It measures an eager call of a tiny kernel and a
    tiny forward and backward pass, on the GPU where there is one. From these follows what the host
    takes to issue a step, which decides small steps and differs by a factor of seven between hosts.
    """
    if host:
        if quick or ranks is not None:
            message = "--host takes no --quick and no --ranks: it is one measurement of seconds"
            raise InvalidInputError(message)
        return _host(settings, output)
    if output is None:
        message = "-o is missing: name the system file to write, or add --host"
        raise InvalidInputError(message)
    return _everything(settings, output, quick=quick, ranks=ranks, seed=seed)


def _everything(
    settings: Settings, output: Path, *, quick: bool, ranks: int | None, seed: int
) -> int:
    """Measure all that a system file of CPU ranks holds, fit it, and write the file."""
    from costmodels.calibration.designs import FULL, QUICK
    from costmodels.calibration.report import Calibration
    from planner.cli.output import check_file
    from planner.cli.real_runs import require_torchrec, status_line
    from planner.integrations.measure.launched import launch_of
    from planner.io.system.calibrated_system import write_calibrated_system

    require_torchrec("calibrate")
    check_file(output)
    launch = launch_of()
    world_size = _world_size(ranks, launch)
    from planner.integrations.measure.calibrate_cpu import (
        fit_here,
        measure_machine,
        memory_bytes,
    )

    only_measures = launch is not None and launch.rank > 0
    settings.quiet = settings.quiet or only_measures
    effort = QUICK if quick else FULL
    with status_line(settings, f"{world_size} ranks") as progress:
        progress("measuring")
        points = measure_machine(effort, world_size=world_size, seed=seed, launch=launch)
        if only_measures:
            return 0
        progress("fitting")
        fitted = fit_here(points, world_size=world_size)
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
        remark(settings, f"wrote {shown_paths(written)}")
    return 0


def _host(settings: Settings, output: Path | None) -> int:
    """Measure the calls of the host; print their lines, and write them into a system file."""
    from planner.io.system.host_lines import write_host_calls

    try:
        from planner.integrations.host_calls import measure_host
    except ImportError as error:
        message = "calibrate --host measures calls of PyTorch, which is not installed"
        raise InvalidInputError(message) from error
    calls = measure_host()
    if output is not None:
        write_host_calls(output, calls)
    if settings.json:
        write_json(
            {
                "machine": calls.machine,
                "eager_call_s": calls.eager_call_s,
                "eager_pass_s": calls.eager_pass_s,
                "written": [str(output)] if output else [],
            }
        )
        return 0
    say("host:")
    for line in calls.lines():
        say(f"  {line}")
    if output is not None:
        remark(settings, f"wrote {shown_paths((output,))}")
    return 0


def _world_size(ranks: int | None, launch: Launch | None) -> int:
    """Number of ranks to measure.

    Raises:
        InvalidInputError: the launcher started another number than asked for, or a single rank.
    """
    if launch is None:
        return ranks or _LEAST_RANKS
    if ranks not in (None, launch.world_size):
        message = (
            f"--ranks is {ranks}, but the launcher has started {launch.world_size} ranks: drop "
            f"--ranks, or start {ranks}"
        )
        raise InvalidInputError(message)
    if launch.world_size < _LEAST_RANKS:
        message = (
            "collectives need at least 2 ranks, but the launcher has started 1: "
            "torchrun --standalone --nproc-per-node 2 -m planner calibrate ..."
        )
        raise InvalidInputError(message)
    return launch.world_size


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
