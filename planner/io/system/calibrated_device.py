"""Writes a system file for a device that was measured: a base, and the numbers that replace its."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from costmodels.calibration.device import (
    LOOKUP_BLOCKS,
    HostCalls,
    Rates,
    collective_curves,
    fit_rates,
    host_calls_of,
    uneven_error,
)
from costmodels.calibration.fit_fbgemm import BlockError, FbgemmFit, LookupRow, fit_fbgemm
from costmodels.calibration.fitting import FitError
from costmodels.datatypes import DataType
from costmodels.errors import CostModelError, InvalidValueError
from costmodels.measured.curves import CollectiveCurve
from costmodels.measured.fbgemm_constants import FITTED
from costmodels.topology import Device, Topology
from costmodels.units import GB, GIB, US
from planner.errors import InvalidInputError
from planner.io.documents import yaml_text
from planner.io.library import configs_folder, locate
from planner.io.schemas import validate
from planner.io.system.collective_curves import CurveRecord, curves_text
from planner.io.system.measured_rows import MeasuredRows
from planner.io.system.system_file import load_system
from planner.io.system.system_schema import DeviceSchema, SystemSchema, read_system, system_of
from planner.support.files import write_texts_atomic

_NOT_IN_NOTES: Final = re.compile(r"[():#\"'\\\n]")
"""Characters that end the source of a number in a file."""
_TFLOP: Final = 1e12
_EFFICIENCY_OF: Final = (DataType.BF16, DataType.FP16, DataType.TF32, DataType.FP32)
"""The type whose measured rate is the base's peak rate times the written efficiency: the first of
these that was measured."""


_NUMBERS: Final = (
    ("device", "hbm_capacity", "hbm_capacity_bytes", GIB, ".2f", " GiB", ""),
    ("device", "hbm_bandwidth", "hbm_bandwidth_bytes_per_s", GB, ".5g", " GB/s",
     "large copies and additions on "),
    ("device", "num_multiprocessors", "num_multiprocessors", 1, ".0f", "", ""),
    ("device", "kernel_latency", "kernel_latency_s", US, ".3f", " us",
     "one tiny kernel to the next on "),
    ("host", "device_link_bandwidth", "host_link_bytes_per_s", GB, ".2f", " GB/s",
     "large pinned copies on "),
    ("links.host", "latency", "exchange_latency_s", US, ".2f", " us", "smallest all-to-all on "),
    ("links.host", "bandwidth", "exchange_bytes_per_s", GB, ".2f", " GB/s",
     "largest all-to-all on "),
)  # fmt: skip
"""Section and key of a system file, the measured rate, how it is written, and how measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a calibration from rows has written.

    Attributes:
        written: the files.
        replaced: keys of the system, with the number of the base and the measured one.
        errors: how well each law fits.
        lookup_errors: those of lookups, each predicted by a fit to others.
        kept: what the rows do not say, so that the numbers of the base stay.
        other_card: how the measured card differs from that of the base; empty if it does not.
    """

    written: tuple[Path, ...]
    replaced: tuple[tuple[str, str, str], ...]
    errors: tuple[FitError, ...]
    lookup_errors: tuple[BlockError, ...]
    kept: tuple[str, ...]
    other_card: str


def fit_and_write(path: Path, base: str | Path, measured: MeasuredRows) -> Written:
    """Fit what the rows of a GPU hold, and write its system file.

    Args:
        path: the system file to write.
        base: the system whose numbers stay where nothing was measured: a shipped name, or a file.
        measured: rows of a GPU.

    Raises:
        InvalidInputError: the rows are those of CPU cores or give a number that no system has, or
            the base or a file is not usable. Nothing is written then.
    """
    if not measured.environment.get("gpu"):
        message = (
            f"{measured.path}:1: gpu: is missing, so these are rows of CPU cores, which a system "
            "of GPUs cannot be fitted to; calibrate CPU ranks with --device cpu -o FILE"
        )
        raise InvalidInputError(message)
    start = locate(base, "systems")
    _check_base(path, start)
    topology = load_system(base)
    rates = fit_rates(measured.environment, measured.rows)
    curves = collective_curves(
        measured.rows,
        version=measured.environment.get("nccl", ""),
        source=f"own measurement on {measured.machine()}",
    )
    lookups = _fit_lookups(topology, rates, measured)
    calls = _calls(measured)
    sections = _sections(start, rates, calls, lookups, measured)
    written = _write(path, start, sections, calls, curves, measured)
    before = {p.name: p.value for p in topology.provenance}
    uneven = uneven_error(measured.rows)
    said = {
        "rate of the device memory": rates.hbm_bandwidth_bytes_per_s,
        "rates of matrix products": rates.products_flops or None,
        "time of a kernel": rates.kernel_latency_s,
        "link to the host": rates.host_link_bytes_per_s,
        "calls of the host": calls,
        "lookups": lookups,
        "collectives (they need two ranks)": rates.exchange_bytes_per_s,
    }
    return Written(
        written=written,
        replaced=tuple(
            (p.name, before.get(p.name, ""), p.value)
            for p in load_system(path).provenance
            if before.get(p.name) != p.value
        ),
        errors=(uneven,) if uneven is not None else (),
        lookup_errors=lookups.errors if lookups else (),
        kept=tuple(what for what, value in said.items() if value is None),
        other_card=_other_card(topology.device, rates, measured.environment["gpu"]),
    )


def _other_card(base: Device, rates: Rates, card: str) -> str:
    """How a measured card differs from the base's, by the first word of its name or its size."""
    told = f"the rows are of {card!r}"
    if base.name.upper().partition("-")[0] not in re.findall("[A-Z0-9]+", card.upper()):
        return f"{told}, the base has {base.name}"
    counts = rates.num_multiprocessors, base.num_multiprocessors
    if all(counts) and counts[0] != counts[1]:
        return f"{told} with {counts[0]} multiprocessors, {base.name} of the base has {counts[1]}"
    return ""


def _calls(measured: MeasuredRows) -> HostCalls | None:
    """What calls take the host; None if the rows do not say it."""
    try:
        calls = host_calls_of(measured.rows)
    except InvalidValueError:
        return None
    return replace(calls, machine=_note(f"host of {measured.machine()}"))


def _note(text: str) -> str:
    """Text as the source of a number in a file."""
    return "".join(c for c in _NOT_IN_NOTES.sub("", text) if c.isprintable())


def _check_base(path: Path, base: Path) -> None:
    """Refuse to start from the file that is written, or from CPU ranks.

    Raises:
        InvalidInputError: the base is one of these, or no system.
    """
    if path.exists() and path.samefile(base):
        message = f"{path} is the system to start from; name another file to write"
        raise InvalidInputError(message)
    if validate(SystemSchema, read_system(base)).calibration is not None:
        message = f"{base}: has ranks on CPU cores; name the system of a GPU with --system"
        raise InvalidInputError(message)


def _fit_lookups(topology: Topology, rates: Rates, measured: MeasuredRows) -> FbgemmFit | None:
    """The constants of lookups on a device with the measured rates; None without lookups.

    Raises:
        InvalidInputError: a row describes a call that no table can have.
    """
    found = measured.of_block(*LOOKUP_BLOCKS)
    if not found:
        return None
    device, host = topology.device, topology.host
    if rates.hbm_bandwidth_bytes_per_s is not None:
        device = replace(device, hbm_bandwidth_bytes_per_s=rates.hbm_bandwidth_bytes_per_s)
    if rates.host_link_bytes_per_s is not None:
        host = replace(host, device_link_bandwidth_bytes_per_s=rates.host_link_bytes_per_s)
    try:
        rows = [LookupRow.of(row) for row in found]
        return fit_fbgemm(rows, replace(topology, device=device, host=host))
    except CostModelError as error:
        message = f"{measured.path}: {error}"
        raise InvalidInputError(message) from error


def _sections(
    base: Path, rates: Rates, calls: HostCalls | None, fit: FbgemmFit | None, measured: MeasuredRows
) -> list[str]:
    """The lines of all sections that have measured numbers."""
    note = _note(measured.machine())
    found: dict[str, list[str]] = {"device": [], "host": [], "links.host": []}
    for section, key, field, size, form, unit, how in _NUMBERS:
        value = getattr(rates, field)
        if value:
            found[section].append(f"{key}: {value / size:{form}}{unit} (measured, {how}{note})")
    device = validate(SystemSchema, read_system(base)).device
    found["device"] += _product_lines(device, rates, note)
    found["host"] += calls.lines() if calls else ()
    lines = []
    for section, numbers in found.items():
        *above, last = section.split(".")
        if numbers:
            lines += [f"{key}:" for key in above] + [f"{'  ' * len(above)}{last}:"]
            lines += [f"{'  ' * (len(above) + 1)}{line}" for line in numbers]
    if fit is not None:
        how = f"calibrated, {_note(measured.machine('fbgemm'))}"
        rest = "default, of the base, for these seconds"
        lines.append("lookup:")
        lines += [
            f"  {name}: {value:.6g} ({how if name in FITTED else rest})"
            for name, value in asdict(fit.constants).items()
        ]
    return lines


def _write(
    path: Path,
    base: Path,
    sections: list[str],
    calls: HostCalls | None,
    curves: Sequence[CollectiveCurve],
    measured: MeasuredRows,
) -> tuple[Path, ...]:
    """Write ``path``, and beside it the measured curves of collectives if there are any.

    Raises:
        InvalidInputError: the rows give no system, or a file cannot be written.
    """
    start = load_system(base)
    lines = [
        f"# Measured by `shardplan calibrate` on {_note(measured.machine())}.",
        "# Keys that are not here are those of the base.",
        f"name: {yaml_text(path.stem)}",
        f"description: {yaml_text(f'{start.device.name}, measured')}",
        *sections,
    ]
    texts: dict[Path, str] = {}
    if curves:
        beside = path.with_suffix(".curves.csv")
        texts[beside] = curves_text(_records(path.stem, start.device.name, curves))
        kept = [_relative(path, name) for name in start.collective_curves]
        names = ", ".join(yaml_text(name) for name in (beside.name, *kept))
        lines.append(f"collective_curves: [{names}]")
    try:
        whole = [*lines, f"base: {yaml_text(str(base.resolve()))}"]
        validate(SystemSchema, system_of(path, "\n".join(whole)))
        if calls is not None:
            replace(start.host, eager_call_s=calls.eager_call_s, eager_pass_s=calls.eager_pass_s)
    except (InvalidInputError, CostModelError) as error:
        message = f"{measured.path}: the rows give a number that no system has: {error}"
        raise InvalidInputError(message) from error
    lines.insert(3, f"base: {yaml_text(_base_name(path, base))}")
    write_texts_atomic({**texts, path: "\n".join(lines) + "\n"})
    return (path, *texts)


def _base_name(path: Path, base: Path) -> str:
    """How ``path`` names its base: by its name if it is shipped, else by the way to the file."""
    is_shipped = base.resolve().is_relative_to(configs_folder().resolve())
    return base.stem if is_shipped else os.path.relpath(base.resolve(), path.parent.resolve())


def _relative(path: Path, curves: str) -> str:
    """The name of a set of curves, or the way from ``path`` to a file of them."""
    if not curves.endswith(".csv"):
        return curves
    return os.path.relpath(Path(curves).resolve(), path.parent.resolve())


def _product_lines(base: DeviceSchema, rates: Rates, note: str) -> list[str]:
    """Rates of products: a rate times the efficiency is what was measured.

    The efficiency is the measured share of the base's rate of one type. So this type keeps its
    peak, and the others get the peak at which the same efficiency gives their measured rate. Types
    that were not measured keep what the base says.
    """
    measured = dict(rates.products_flops)
    reference = next((t for t in _EFFICIENCY_OF if t in measured and t in base.flops), None)
    if reference is None:
        return []
    efficiency = min(1.0, max(0.01, measured[reference] / base.flops[reference].value))
    told = f"large {reference.value} products on {note}"
    lines = [f"flops_efficiency: {efficiency:.4f} (measured, {told})", "flops:"]
    for kind in dict.fromkeys((*base.flops, *measured)):
        if kind in measured:
            rate = measured[kind] / efficiency / _TFLOP
            what = f"large products on {note} reach {measured[kind] / _TFLOP:.1f} TFLOP/s"
            lines.append(f"  {kind.value}: {rate:.5g} TFLOP/s (measured, {what})")
        else:
            kept = base.flops[kind]
            source = ", ".join(part for part in (kept.source.value, kept.reference) if part)
            lines.append(f"  {kind.value}: {kept.text} ({source})")
    return lines


def _records(name: str, device: str, curves: Sequence[CollectiveCurve]) -> list[CurveRecord]:
    return [
        CurveRecord(
            set_name=name,
            role="calibrate",
            nodes=1,
            curve=curve,
            device=device,
            library="NCCL",
            harness="shardplan calibrate",
        )
        for curve in curves
    ]
