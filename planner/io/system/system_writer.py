"""Writes system files: fitted factors, calibrated CPU ranks, and calls of a host."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from costmodels.calibration.device import HostCalls
from costmodels.calibration.fitting import Calibration
from costmodels.cpu.dense import memory_s
from costmodels.measured.cpu_constants import CpuConstants
from costmodels.topology import FITTED_KINDS, FittedFactors, Topology
from planner.errors import InvalidInputError
from planner.io.documents import read_text, yaml_text
from planner.io.library import configs_folder, locate, read_template
from planner.io.system.measured_files import load_constants, write_calibration
from planner.io.system.system_schema import LEAST_FACTOR, MOST_FACTOR, own_base, read_system
from planner.support.files import write_text_atomic, write_texts_atomic

_SETTLED: Final = 0.5
"""A factor is written as assumed if the runs reduce its variance by less than this share."""
_FITTED_BLOCK: Final = re.compile(
    r"^(?:# Fitted by .*\n)?fitted:.*\n(?:(?:#.*\n|\n)*[ ].*\n)*", re.MULTILINE
)
"""Matches the factors of a file up to their last line; later comments belong to what follows."""
_BASE: Final = re.compile(r"^base:.*$", re.MULTILINE)


def write_fitted_system(
    path: Path,
    source: str | Path,
    topology: Topology,
    found: FittedFactors,
    *,
    settled_ratio: Sequence[float],
    num_runs: int,
) -> tuple[Path, ...]:
    """Write ``path``, and beside it copies of the files that ``source`` names.

    Args:
        path: the system file to write.
        source: the system that was fitted: a shipped name, or a file.
        topology: the same system, loaded; factors that it has already are multiplied.
        found: the fitted factors.
        settled_ratio: for each factor, by what share the runs reduce its variance, 0..1.
        num_runs: number of plans that were run.

    Returns:
        All files that were written.

    Raises:
        InvalidInputError: a factor is out of range, a file cannot be read, the folder cannot be
            written, or it holds another file by the name of one that the system needs beside it;
            nothing is written then.
    """
    base = locate(source, "systems")
    if path.exists() and path.samefile(base):
        message = f"{path} is the system that was fitted; name another file to write"
        raise InvalidInputError(message)
    text = _FITTED_BLOCK.sub("", read_text(base).rstrip("\n") + "\n")
    if topology.calibration and read_system(base).value.get("calibration") is None:
        text, copies = _on_calibrated_cores(path, base, text, topology)
    else:
        text, copies = _with_copies(path, base, text, topology)
    before = topology.fitted.ratios if topology.fitted else (1.0,) * len(FITTED_KINDS)
    ratios = [old * new for old, new in zip(before, found.ratios, strict=True)]
    _check_ratios(ratios)
    plans = "1 plan" if num_runs == 1 else f"{num_runs} plans"
    lines = [
        f"# Fitted by `shardplan fit` to own runs of {plans}: measured times over those of the "
        "numbers above.",
        "fitted:",
    ]
    for kind, ratio, settled in zip(FITTED_KINDS, ratios, settled_ratio, strict=True):
        origin = "calibrated" if settled >= _SETTLED else "default"
        told = f"own runs of {plans} settle {100 * settled:.0f} % of it"
        lines.append(f"  {kind}: {ratio:.6g} ({origin}, {told})")
    rows = (", ".join(f"{v:.6g}" for v in row) for row in found.spread_ratio)
    lines.append(f"  spread: [{', '.join(f'[{row}]' for row in rows)}]")
    whole = text.rstrip("\n") + "\n\n" + "\n".join(lines) + "\n"
    write_texts_atomic({**copies, path: whole})
    return (path, *copies)


def _check_ratios(ratios: Sequence[float]) -> None:
    """Refuse factors that a system file may not hold, which would be refused where it is read."""
    for kind, ratio in zip(FITTED_KINDS, ratios, strict=True):
        if not LEAST_FACTOR <= ratio <= MOST_FACTOR:
            message = (
                f"the runs ask for a factor of {ratio:,.4g} on times of kind {kind}, and a system "
                f"file takes {LEAST_FACTOR:g} to {MOST_FACTOR:g}: are the units of the times right?"
            )
            raise InvalidInputError(message)


def _on_calibrated_cores(
    path: Path, base: Path, text: str, topology: Topology
) -> tuple[str, dict[Path, str]]:
    """The text of a system based on ``base`` with the calibration of ``topology``, and files."""
    calibration = path.with_suffix(".calibration.json")
    copies, name = {calibration: read_text(Path(topology.calibration))}, base.stem
    if base.parent.resolve() != (configs_folder() / "systems").resolve():
        copy = path.with_suffix(".base.yaml")
        text, more = _with_copies(copy, base, text, replace(topology, calibration=""))
        copies |= {copy: text, **more}
        name = copy.name
    latency_us = 1e6 * topology.device.kernel_latency_s
    machine = load_constants(topology.calibration).machine.replace(",", "")
    lines = (
        f"# The cores of one machine over gloo, by the calibration of another ({machine}), which",
        "# the factors below correct; rates of the base that are no memory sizes are not used.",
        f"name: {yaml_text(path.stem)}",
        f"base: {yaml_text(name)}",
        "device:",
        f"  kernel_latency: {latency_us:.3f} us (default, {machine})",
        f"calibration: {yaml_text(calibration.name)}",
    )
    return "\n".join(lines) + "\n", copies


def _with_copies(
    path: Path, base: Path, text: str, topology: Topology
) -> tuple[str, dict[Path, str]]:
    """The text with the names of copies beside ``path``, and the texts of these copies.

    If the system starts from a file of the user, that file is copied too, with the files it names.

    Raises:
        InvalidInputError: a copy would replace another file.
    """
    if path.parent.resolve() == base.parent.resolve():
        return text, {}
    copies: dict[Path, str] = {}
    below = own_base(base)
    if below is not None:
        copy = path.with_suffix(".base.yaml")
        inner, more = _with_copies(copy, below, read_text(below), topology)
        text = _BASE.sub(lambda _: f"base: {yaml_text(copy.name)}", text)
        copies |= {copy: inner, **more}
    named = (topology.calibration, *topology.collective_curves)
    origins = [Path(name) for name in named if name.endswith((".json", ".csv"))]
    for origin in origins:
        copy, told = path.with_name(origin.name), read_text(origin)
        there = read_text(copy) if copy.exists() else told
        if copies.setdefault(copy, there) != told:
            message = (
                f"{copy}: is another file than {origin}, which the system needs beside it; name an "
                "output in another folder"
            )
            raise InvalidInputError(message)
        text = re.sub(rf"[^\s,\[\"']*{re.escape(copy.name)}", copy.name, text)
    return text, copies


_NOT_IN_NOTES: Final = re.compile(r"[,:#\"']")
"""Characters that separate the parts of a value in the file, or end it."""


def write_calibrated_system(
    path: Path, calibration: Calibration, *, memory_bytes: float
) -> tuple[Path, Path]:
    """Write ``path`` and, beside it, its calibration as JSON; returns both paths.

    Raises:
        InvalidInputError: the folder cannot be written.
    """
    beside = path.with_suffix(".calibration.json")
    write_calibration(beside, calibration)
    text = _text(path.stem, beside.name, calibration.constants, memory_bytes)
    write_text_atomic(path, text)
    return path, beside


def _text(name: str, calibration: str, constants: CpuConstants, memory_bytes: float) -> str:
    ranks = constants.world_size
    note = f"(calibrated, {_NOT_IN_NOTES.sub('', constants.machine)})"
    return read_template("cpu_system").format(
        name=yaml_text(name),
        machine=yaml_text(constants.machine),
        calibration=yaml_text(calibration),
        note=note,
        guess="(default, not measured; the calibrated models do not use it)",
        ranks=ranks,
        share=f"{memory_bytes / 2**30 / ranks:.1f} GiB",
        memory_gib=memory_bytes / 2**30,
        stream_rate=_stream_rate_text(constants, note),
        l2_mb=constants.l2_bytes / 1e6,
        gflops=2e-9 / max(constants.dense.forward_s[2], 1e-15),
        call_us=1e6 * constants.kernel_latency_s,
        sort=1.0 / max(sum(constants.fused.backward_s[2:4]), 1e-15),
        latency_us=1e6 * constants.collective.all_to_all_s[0],
        crossing_gb=0.5e-9 / max(constants.collective.all_to_all_s[1], 1e-15),
    )


def _stream_rate_text(constants: CpuConstants, note: str) -> str:
    """The rate of elementwise functions on data outside caches, such as the casts of codecs."""
    if constants.operators is None:
        return "10 GB/s (default, not measured; only codecs of exchanges use it)"
    counts_s = dict(constants.operators.forward_s)["elementwise"]
    return f"{1e-9 / max(memory_s(counts_s), 1e-12):.1f} GB/s {note}"


_HOST = re.compile(r"^host:[ \t]*(#.*)?$", re.MULTILINE)
_NEXT_BLOCK = re.compile(r"^\S", re.MULTILINE)


def write_host_calls(path: Path, calls: HostCalls) -> None:
    """Replace or add ``eager_call`` and ``eager_pass`` in the block ``host`` of a system file.

    Raises:
        InvalidInputError: the file cannot be read, or has no such block with a key on each line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path}: cannot be read as a system file; -o names one that exists ({error})"
        raise InvalidInputError(message) from error
    block = _HOST.search(text)
    if block is None:
        message = f"{path}: no block 'host:' with a key on each line; write these lines into it"
        raise InvalidInputError(message)
    after = _NEXT_BLOCK.search(text, block.end())
    end = after.start() if after else len(text)
    body = text[block.end() : end]
    indent = re.search(r"^([ \t]+)\S", body, re.MULTILINE)
    for line in calls.lines():
        key = line.partition(":")[0]
        written = f"{indent.group(1) if indent else '  '}{line}"
        old = re.search(rf"^[ \t]+{key}:.*$", body, re.MULTILINE)
        if old is None:
            body = f"{body.rstrip()}\n{written}\n"
        else:
            body = body[: old.start()] + written + body[old.end() :]
    write_text_atomic(path, text[: block.end()] + body + text[end:])
