"""``shardplan calibrate``: measure this machine, write a system file."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Final

import click

from costmodels.calibration import device as designs
from costmodels.calibration import points
from planner.cli import inputs, printing, spec
from planner.cli.console import remark, settings, status_line, tell_written, write_data
from planner.cli.output import check_output
from planner.io import documents
from planner.io.system import system_writer
from planner.report.base import Section, by_field, by_place

_LEAST_CORES: Final = 2
"""The constants of CPU ranks have those of collectives, for which a rank needs another one."""
_MOST_TOLD: Final = 8
"""Points that failed, of which the command tells."""


class _Flags(spec.Flags):
    """The flags of the command, as given.

    Attributes:
        output: System file to write (YAML); with --host, one that exists, whose calls are replaced.
        host: Measure the host's calls only, in seconds, and print their lines of a system file.
        rows: Write the raw rows of this device here.  [default on GPUs: beside the system file]
        stored: Fit stored rows of a GPU, and measure nothing.
        system: System of the GPU, whose numbers stay where nothing is measured.
        device: What to measure.  [default: cuda if torch sees a GPU, else cpu]
        quick: Measure fewer points; constants are rougher.
        ranks: Number of ranks.  [default: 1 GPU, or 2 cores]
        seed: Of the random points to measure.
    """

    rules = (
        "--host excludes --rows --from --system --quick --ranks --seed",
        "--from excludes --rows --device --quick --ranks --seed",
        "--from needs --system",
    )

    output: spec.Output = None
    host: bool = False
    rows: spec.File = None
    stored: Annotated[spec.File, "--from"] = None
    system: spec.System = None
    device: Annotated[str | None, click.Choice(["cpu", "cuda"])] = None
    quick: bool = False
    ranks: Annotated[int | None, click.IntRange(1, 64)] = None
    seed: Annotated[int, click.INT] = 0


@spec.command("Measure this machine and write a system file.")
def command(flags: _Flags) -> None:
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

    Examples:
      shardplan calibrate --system h100_sxm -o my.yaml       this GPU, some minutes
      shardplan calibrate --system h100_sxm --ranks 8 -o my.yaml
      shardplan calibrate --host                             what a call takes the host, in seconds
      shardplan calibrate --rows my.rows.jsonl               measure only
      shardplan calibrate --from my.rows.jsonl --system h100_sxm -o my.yaml
      shardplan calibrate --device cpu -o my_cpu.yaml        CPU ranks, about five minutes
      shardplan plan dlrm.yaml --system my.yaml
    """
    from planner.integrations.measure.calibrate import sees_gpus

    spec.refuse(
        flags.output is None and flags.rows is None and not flags.host,
        "nothing to write: name a system file with -o, or a file of raw rows with --rows, or "
        "measure the host only with --host",
    )
    check_output(flags.rows, flag="--rows")
    if flags.rows is not None:
        if flags.rows.is_file() and flags.rows.stat().st_size:
            system_writer.read_rows(flags.rows)  # what it replaces must be rows
        spec.refuse(flags.rows == flags.output, "--rows and --output are one file; name two")
    check_output(flags.output, [] if flags.stored is None else [flags.stored])
    if flags.stored is not None:
        _tell_rows(flags.stored, flags)
        return
    inputs.require_torchrec("calibrate", ("torch",))
    kind = flags.device
    if kind is None:
        count = sees_gpus()
        kind = "cuda" if count else "cpu"
        why = f"cuda, torch sees {count} GPUs" if count else "cpu, because torch sees no GPU"
        remark(f"device: {why}")
    if flags.host:
        _measure_host(flags, kind)
        return
    if kind == "cuda" and flags.output is not None:
        needs = "a system file of GPUs needs --system: that of the GPU, by its name or file"
        spec.refuse(flags.system is None, needs)
        documents.locate(flags.system or "", "systems")
    _measure(flags, kind)


def _measure(flags: _Flags, kind: str) -> None:
    """Measure GPUs or CPU cores, fit, write and print.

    Raises:
        InvalidInputError: there are too few ranks, or CPU ranks are to be measured for the system
            of a GPU.
    """
    from planner.integrations.measure.calibrate import write_rows

    spec.refuse(
        kind == "cpu" and flags.system is not None,
        "--system is the system of a GPU; CPU ranks are measured whole: drop --system, or use "
        "--device cuda",
    )
    rows = flags.rows
    if flags.output is not None and kind == "cpu":
        _calibrate_ranks(flags, flags.output)
    elif flags.output is not None:
        rows = rows or flags.output.with_suffix(".rows.jsonl")
    if rows is None:
        return
    world_size = flags.ranks or 1
    effort = designs.DEVICE_QUICK if flags.quick else designs.DEVICE_FULL
    effort = replace(effort, size_ratio=designs.CORE_SIZES) if kind == "cpu" else effort
    job = designs.DeviceJob(kind=kind, effort=effort, seed=flags.seed, path=str(rows))
    with status_line(f"{world_size} ranks on {kind}") as progress:
        write_rows(job, world_size=world_size, progress=progress)
    _tell_rows(rows, flags if kind == "cuda" else None)


def _measure_host(flags: _Flags, kind: str) -> None:
    """Measure the calls of the host; print their lines, and write them into a system file."""
    from planner.integrations.measure.calibrate import sees_gpus

    none = "torch sees no GPU here; measure the calls of CPU ranks with --device cpu"
    spec.refuse(kind == "cuda" and not sees_gpus(), none)
    from planner.integrations.measure.device_rows import measure_host

    calls = measure_host(kind)
    if flags.output is not None:
        system_writer.write_host_calls(flags.output, calls)
    if not settings().json:
        write_data("\n  ".join(("host:", *calls.lines())) + "\n")
    if settings().json or flags.output is not None:
        tell_written([flags.output] if flags.output else [], asdict(calls))


def _tell_rows(rows: Path, flags: _Flags | None) -> None:
    """Tell what was measured; on a GPU fit the rows, and write the system file asked for."""
    measured = system_writer.read_rows(rows)
    told: dict[str, Any] = {"machine": measured.machine(), "failed": measured.failed}
    lines = [f"not measured: {line}" for line in measured.failed[:_MOST_TOLD]]
    if len(measured.failed) > _MOST_TOLD:
        lines.append(f"not measured: {len(measured.failed) - _MOST_TOLD} further points")
    if flags is None or flags.output is None:
        words = f"{len(measured.rows)} points measured on {measured.machine()}"
        told |= {"rows": len(measured.rows)}
        tell_written([rows], told, (Section("", notes=(words,)),))
    else:
        result = system_writer.fit_and_write(flags.output, flags.system or "", measured)
        told |= {
            "measured": {key: value for key, _, value in result.replaced},
            "lookups": [
                {"block": block, "direction": way, **printing.told_errors(error)}
                for (block, way), error in result.lookup_errors.items()
            ],
            "kept": result.kept,
            "other_card": result.other_card,
        }
        lines += [f"from the base: {line}" for line in result.kept]
        if result.other_card:
            lines.append(f"{result.other_card}: caches and links stay those of the base")
        shown = _fit_sections(measured.machine(), result)
        tell_written(result.written, told, shown)
    for line in lines:
        remark(line)


def _fit_sections(machine: str, result: "system_writer.Written") -> tuple[Section, ...]:
    """What was measured of a GPU, and how well the laws fit."""
    numbers = [entry for entry in result.replaced if not entry[0].startswith("lookup.")]
    found = [{"lookups": " ".join(k), **asdict(e)} for k, e in result.lookup_errors.items()]
    cells = by_field("lookups", "points=count", "mean_error_ratio", "worst=worst_error_ratio")
    lookups = Section.of("Lookups that the fit has not seen, ten groups in turn", found, cells)
    measured = Section.of(f"Measured on {machine}", numbers, by_place("key", "base", "measured"))
    return (measured, lookups) if found else (measured,)


def _calibrate_ranks(flags: _Flags, output: Path) -> None:
    """Measure CPU ranks, fit their constants and write their system file.

    Raises:
        InvalidInputError: there are too few ranks.
    """
    from planner.integrations.measure.calibrate import fit_here, measure_machine, memory_bytes

    inputs.require_torchrec("calibrate")
    world_size = flags.ranks or _LEAST_CORES
    spec.refuse(
        world_size < _LEAST_CORES,
        "the constants of CPU ranks need at least 2 ranks, because they have collectives: give "
        "--ranks 2",
    )
    effort, words = (points.QUICK, "quick") if flags.quick else (points.FULL, "full")
    with status_line(f"{world_size} ranks") as progress:
        progress("measuring")
        measured = measure_machine(effort, world_size=world_size, seed=flags.seed)
        progress("fitting")
        fitted = fit_here(measured, world_size=world_size, seed=flags.seed, effort=words)
    written = system_writer.write_calibrated_system(output, fitted, memory_bytes=memory_bytes())
    machine = fitted.constants.machine
    shown = ("model=name", "points=num_points", "error=geomean_ratio", "held_out_ratio")
    errors = Section.of(f"Fit on {machine}", fitted.errors, by_field(*shown, "p90_ratio"))
    tell_written(written, {"machine": machine, "fit": fitted.errors}, (errors,))
