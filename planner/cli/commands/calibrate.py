"""``shardplan calibrate``: measure this machine, write a system file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import click

from planner.cli.console import Settings, remark, say, shown_paths, write_json
from planner.cli.flags import Flags, StrictCommand, is_given, option, output_options, switch, taking
from planner.cli.printing.show import print_items, print_rows
from planner.cli.types import File, System, ValueKind, complete_system
from planner.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from costmodels.calibration.fit_fbgemm import BlockError
    from costmodels.calibration.fitting import FitError
    from planner.integrations.measure.gloo_ranks import Launch
    from planner.io.system.measured_rows import MeasuredRows

_LEAST_CORES: Final = 2
"""The constants of CPU ranks have those of collectives, for which a rank needs another one."""
_NOT_BESIDE_HOST: Final = ("rows", "stored", "system", "quick", "ranks", "seed")
_MOST_TOLD: Final = 8
"""Points that failed, of which the command tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flags(Flags):
    """The flags of the command, as given."""

    output: File = option(
        "System file to write (YAML); with --host, one that exists, whose calls are replaced.",
        "-o --output",
    )
    host: bool = switch(
        "Measure the host's calls only, in seconds, and print their lines of a system file."
    )
    rows: File = option(
        "Write the raw rows of this device here.  [default on GPUs: beside the system file]"
    )
    stored: File = option("Fit stored rows of a GPU, and measure nothing.", "--from")
    system: System = option(
        "System of the GPU, whose numbers stay where nothing is measured.",
        shell_complete=complete_system,
    )
    device: Annotated[str | None, ValueKind(click.Choice(["cpu", "cuda"]))] = option(
        "What to measure.  [default: cuda if torch sees a GPU, else cpu]"
    )
    quick: bool = switch("Measure fewer points; constants are rougher.")
    ranks: Annotated[int | None, ValueKind(click.IntRange(1, 64))] = option(
        "Number of ranks.  [default: those of the launcher, or 1 GPU, or 2 cores]"
    )
    seed: Annotated[int, ValueKind(click.INT)] = option(
        "Of the random points to measure.", default=0
    )

    def check(self) -> None:
        """Refuse flags that contradict each other.

        Raises:
            InvalidInputError: nothing would be written, or a flag would have no effect.
        """
        if self.host:
            _refuse_beside("--host", "measures the host's calls only", _NOT_BESIDE_HOST)
            return
        if self.output is None and self.rows is None:
            message = (
                "nothing to write: name a system file with -o, or a file of raw rows with --rows, "
                "or measure the host only with --host"
            )
            raise InvalidInputError(message)
        if self.stored is None:
            return
        told = "fits stored rows and measures nothing"
        _refuse_beside("--from", told, ("rows", "device", "quick", "ranks", "seed"))
        if self.system is None:
            raise InvalidInputError(_which_system("--from"))


def _refuse_beside(flag: str, told: str, others: Sequence[str]) -> None:
    for name in others:
        if is_given(name):
            other = {"stored": "--from"}.get(name, f"--{name}")
            message = f"{flag} {told}: drop {other}, or drop {flag}"
            raise InvalidInputError(message)


def _which_system(asking: str) -> str:
    from planner.io.library import names

    return (
        f"{asking} needs --system: the system of the GPU, whose numbers stay where nothing is "
        f"measured (one of {', '.join(names('systems'))}, or a file)"
    )


@click.command(cls=StrictCommand, short_help="Measure this machine and write a system file.")
@taking(_Flags)
@output_options
@click.pass_obj
def command(settings: Settings, *, flags: _Flags) -> int:
    """Run microbenchmarks and fit the constants of the cost models to them.

    On GPUs it measures lookups of FBGEMM (forward, and backward with the update), matrix products,
    the host's calls, copies to and from the host and, from two ranks on, collectives. GPU times are
    those between CUDA events, while the GPU is held until the host has queued the call. Each point
    is a row of the file of raw rows, written as soon as it is known; a point that fails is skipped
    and told. Without FBGEMM there are no lookups. The system file is the base --system with what
    was measured in its place; --from writes it from stored rows.

    On CPU cores (--device cpu) ranks exchange over gloo, and the stages of training steps of small
    random models are measured too. None of these models is one that 'validate torchrec' trains.
    Constants and their errors are written beside the system file.

    It starts its own ranks, or measures those that torchrun has started on this host; the first
    rank fits, writes and prints.

    Examples:
      shardplan calibrate --system h100_sxm -o my.yaml       this GPU, some minutes
      torchrun --standalone --nproc-per-node 8 -m planner calibrate --system h100_sxm -o my.yaml
      shardplan calibrate --host                             what a call takes the host, in seconds
      shardplan calibrate --rows my.rows.jsonl               measure only
      shardplan calibrate --from my.rows.jsonl --system h100_sxm -o my.yaml
      shardplan calibrate --device cpu -o my_cpu.yaml        CPU ranks, about five minutes
      shardplan plan dlrm.yaml --system my.yaml
    """
    from planner.cli.output import check_file
    from planner.integrations.measure.gloo_ranks import launch_of, require_torch

    for path in (flags.output, flags.rows):
        if path is not None:
            check_file(path)
    if flags.stored is not None:
        return _fit_rows(settings, flags, flags.stored)
    require_torch("calibrate")
    launch = launch_of()
    if flags.host:
        return _tell_host(settings, flags, launch)
    kind = flags.device or _seen_device(settings, launch)
    if kind == "cuda":
        return _calibrate_gpus(settings, flags, launch)
    return _calibrate_cores(settings, flags, launch)


def _seen_device(settings: Settings, launch: Launch | None) -> str:
    from planner.integrations.measure.calibrate import sees_gpus

    count = sees_gpus()
    if launch is None or launch.rank == 0:
        told = "cpu, because torch sees no GPU" if not count else f"cuda, torch sees {count} GPUs"
        remark(settings, f"device: {told}")
    return "cuda" if count else "cpu"


def _tell_host(settings: Settings, flags: _Flags, launch: Launch | None) -> int:
    """Measure the calls of the host; print their lines, and write them into a system file."""
    from planner.integrations.measure.calibrate import sees_gpus

    kind = flags.device or _seen_device(settings, launch)
    if kind == "cuda" and not sees_gpus():
        message = "torch sees no GPU here; measure the calls of CPU ranks with --device cpu"
        raise InvalidInputError(message)
    from planner.integrations.host_calls import measure_host
    from planner.io.system.system_writer import write_host_calls

    calls = measure_host(kind)
    written = [] if flags.output is None else [flags.output]
    for path in written:
        write_host_calls(path, calls)
    if settings.json:
        write_json({**asdict(calls), "written": [str(path) for path in written]})
        return 0
    say("host:")
    for line in calls.lines():
        say(f"  {line}")
    if written:
        remark(settings, f"wrote {shown_paths(written)}")
    return 0


def _calibrate_gpus(settings: Settings, flags: _Flags, launch: Launch | None) -> int:
    from planner.io.library import locate

    if flags.output is not None:
        if flags.system is None:
            raise InvalidInputError(_which_system("a system file of GPUs"))
        locate(flags.system, "systems")
    rows = flags.rows or flags.output.with_suffix(".rows.jsonl")  # type: ignore[union-attr]
    world_size = _world_size(flags.ranks, launch, least=1, default=1)
    _measure_rows(settings, flags, launch, "cuda", rows, world_size)
    if launch is not None and launch.rank > 0:
        return 0
    if flags.output is not None:
        return _fit_rows(settings, flags, rows)
    return _tell_rows(settings, rows)


def _calibrate_cores(settings: Settings, flags: _Flags, launch: Launch | None) -> int:
    if flags.system is not None:
        message = (
            "--system is the system of a GPU; CPU ranks are measured whole: drop --system, or use "
            "--device cuda"
        )
        raise InvalidInputError(message)
    if flags.output is not None:
        code = _calibrate_ranks(settings, flags, launch)
        if flags.rows is None:
            return code
    assert flags.rows is not None  # one of the two is given
    world_size = _world_size(flags.ranks, launch, least=1, default=1)
    _measure_rows(settings, flags, launch, "cpu", flags.rows, world_size)
    return 0 if launch is not None and launch.rank > 0 else _tell_rows(settings, flags.rows)


def _measure_rows(
    settings: Settings, flags: _Flags, launch: Launch | None, kind: str, rows: Path, world_size: int
) -> None:
    from costmodels.calibration.device import (
        DEVICE_FULL,
        DEVICE_QUICK,
        DeviceJob,
        on_a_core,
    )
    from planner.cli.progress import status_line
    from planner.integrations.measure.calibrate import write_rows

    settings.quiet = settings.quiet or (launch is not None and launch.rank > 0)
    effort = DEVICE_QUICK if flags.quick else DEVICE_FULL
    effort = on_a_core(effort) if kind == "cpu" else effort
    job = DeviceJob(kind=kind, effort=effort, seed=flags.seed, path=str(rows))
    with status_line(settings, f"{world_size} ranks on {kind}") as progress:
        write_rows(job, world_size=world_size, launch=launch, progress=progress)


def _tell_rows(settings: Settings, path: Path) -> int:
    from planner.io.system.measured_rows import read_rows

    measured = read_rows(path)
    if settings.json:
        write_json(
            {
                "machine": measured.machine(),
                "written": [str(path)],
                "rows": len(measured.rows),
                "failed": list(measured.failed),
            }
        )
        return 0
    say(f"{len(measured.rows)} points measured on {measured.machine()}")
    _tell_failed(settings, measured)
    remark(settings, f"wrote {shown_paths([path])}")
    return 0


def _tell_failed(settings: Settings, measured: MeasuredRows) -> None:
    for line in measured.failed[:_MOST_TOLD]:
        remark(settings, f"not measured: {line}")
    if len(measured.failed) > _MOST_TOLD:
        remark(settings, f"not measured: {len(measured.failed) - _MOST_TOLD} further points")


def _fit_rows(settings: Settings, flags: _Flags, stored: Path) -> int:
    """Fit the rows of a GPU and write its system file."""
    from planner.io.system.calibrated_device import fit_and_write
    from planner.io.system.measured_rows import read_rows

    assert flags.output is not None  # checked before
    assert flags.system is not None
    measured = read_rows(stored)
    result = fit_and_write(flags.output, flags.system, measured)
    if settings.json:
        write_json(
            {
                "machine": measured.machine(),
                "written": [str(path) for path in result.written],
                "measured": {key: value for key, _, value in result.replaced},
                "fit": [asdict(e) for e in result.errors],
                "lookups": [asdict(e) for e in result.lookup_errors],
                "kept": list(result.kept),
                "other_card": result.other_card,
                "failed": list(measured.failed),
            }
        )
        return 0
    numbers = [entry for entry in result.replaced if not entry[0].startswith("lookup.")]
    print_rows(f"Measured on {measured.machine()}", ("key", "base", "measured"), numbers)
    _print_lookups(result.lookup_errors)
    if result.errors:
        _print(measured.machine(), result.errors)
    _tell_failed(settings, measured)
    for line in result.kept:
        remark(settings, f"from the base: {line}")
    if result.other_card:
        remark(settings, f"{result.other_card}: caches and links stay those of the base")
    remark(settings, f"wrote {shown_paths(result.written)}")
    return 0


def _calibrate_ranks(settings: Settings, flags: _Flags, launch: Launch | None) -> int:
    """Measure CPU ranks, fit their constants and write their system file."""
    from costmodels.calibration.points import FULL, QUICK
    from planner.cli.progress import status_line
    from planner.integrations.measure.calibrate import fit_here, measure_machine, memory_bytes
    from planner.integrations.measure.gloo_ranks import require_torchrec
    from planner.io.system.system_writer import write_calibrated_system

    require_torchrec("calibrate")
    assert flags.output is not None  # the caller has seen to it
    world_size = _world_size(flags.ranks, launch, least=_LEAST_CORES, default=_LEAST_CORES)
    only_measures = launch is not None and launch.rank > 0
    settings.quiet = settings.quiet or only_measures
    effort = QUICK if flags.quick else FULL
    with status_line(settings, f"{world_size} ranks") as progress:
        progress("measuring")
        points = measure_machine(effort, world_size=world_size, seed=flags.seed, launch=launch)
        if only_measures:
            return 0
        progress("fitting")
        words = "quick" if flags.quick else "full"
        fitted = fit_here(points, world_size=world_size, seed=flags.seed, effort=words)
    written = write_calibrated_system(flags.output, fitted, memory_bytes=memory_bytes())
    if settings.json:
        write_json(
            {
                "machine": fitted.constants.machine,
                "written": [str(path) for path in written],
                "fit": [asdict(e) for e in fitted.errors],
            }
        )
    else:
        _print(fitted.constants.machine, fitted.errors)
        remark(settings, f"wrote {shown_paths(written)}")
    return 0


def _world_size(ranks: int | None, launch: Launch | None, *, least: int, default: int) -> int:
    """Number of ranks to measure.

    Raises:
        InvalidInputError: the launcher started another number than asked for, or too few.
    """
    if launch is not None and ranks not in (None, launch.world_size):
        message = (
            f"--ranks is {ranks}, but the launcher has started {launch.world_size} ranks: drop "
            f"--ranks, or start {ranks}"
        )
        raise InvalidInputError(message)
    found = launch.world_size if launch is not None else ranks or default
    if found < least:
        message = (
            "the constants of CPU ranks need at least 2 ranks, because they have collectives: "
            "torchrun --standalone --nproc-per-node 2 -m planner calibrate ..., or --ranks 2"
        )
        raise InvalidInputError(message)
    return found


def _print_lookups(errors: Sequence[BlockError]) -> None:
    """Errors of lookups, each predicted by a fit that left it out."""
    if errors:
        print_items(
            "Lookups that the fit has not seen, ten groups in turn",
            errors,
            {
                "lookups": lambda e: f"{e.block} {e.direction}",
                "points": lambda e: str(e.num_points),
                "mean error": lambda e: f"{100 * e.mape_ratio:.1f} %",
                "worst": lambda e: f"{100 * e.worst_ratio:.1f} %",
            },
        )


def _print(machine: str, errors: Sequence[FitError]) -> None:
    print_items(
        f"Fit on {machine}",
        errors,
        {
            "model": lambda e: e.name,
            "points": lambda e: str(e.num_points),
            "error": lambda e: f"{100 * e.geomean_ratio:.1f} %",
            "held out": lambda e: f"{100 * e.held_out_ratio:.1f} %",
            "p90": lambda e: f"{100 * e.p90_ratio:.1f} %",
            "odd points": lambda e: str(len(e.odd_points) or ""),
        },
    )
    odd = [f"  {e.name}: {point}" for e in errors for point in e.odd_points]
    if odd:
        say("\n".join(("Points that look wrong:", *odd)))
