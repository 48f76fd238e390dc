"""Writes system files: fitted factors, calibrated CPU ranks, calls of a host, and measured devices.

A file names its base, and has the numbers that replace those of the base. Those of a measured
device come from the raw rows of its calibration, which are read here.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from costmodels.calibration import device
from costmodels.calibration.fit_fbgemm import BlockErrors, FbgemmFit, LookupRow, fit_fbgemm
from costmodels.calibration.fitting import Calibration
from costmodels.cpu.dense import memory_s
from costmodels.datatypes import DataType
from costmodels.measured.cpu_constants import CpuConstants
from costmodels.measured.fbgemm_constants import FITTED
from costmodels.topology import FITTED_KINDS, Device, FittedFactors, Topology
from costmodels.units import GB, GIB, US
from costmodels.workload import Optimizer
from planner.errors import InvalidInputError, refuse
from planner.io import documents, schemas
from planner.io.system import system_file
from planner.io.system.collective_curves import CurveRecord, curves_text
from planner.support.files import write_text_atomic, write_texts_atomic

_NOT_IN_NOTES: Final = re.compile(r"[():#\"'\\\n]")
"""Characters that end the source of a number in a file."""
_TFLOP: Final = 1e12
Sections = Mapping[str, Any]
_EFFICIENCY_OF: Final = (DataType.BF16, DataType.FP16, DataType.TF32, DataType.FP32)
"""The type whose measured rate is the base's peak rate times the written efficiency: the first of
these that was measured."""


_UNITS: Final = {"_per_s": (GB, " GB/s"), "_bytes": (GIB, " GiB"), "_s": (US, " us"), "": (1, "")}
"""The unit in which a rate is written, by the end of its name."""
_SETTLED: Final = 0.5
"""A factor is written as assumed if the runs reduce its variance by less than this share."""


def write_fitted_system(
    path: Path,
    source: str | Path,
    topology: Topology,
    found: FittedFactors,
    *,
    settled_ratio: Sequence[float],
    num_runs: int,
) -> tuple[Path, ...]:
    """Write ``path``, a system with the fitted factors whose base is ``source``.

    Args:
        path: the system file to write.
        source: the system that was fitted: a shipped name, or a file.
        topology: the same system, loaded; factors that it has already are multiplied. Where it has
            a calibration that ``source`` does not name, a copy of that is written beside ``path``.
        found: the fitted factors.
        settled_ratio: for each factor, by what share the runs reduce its variance, 0..1.
        num_runs: number of plans that were run.

    Returns:
        All files that were written.

    Raises:
        InvalidInputError: a factor is out of range, a file cannot be read, or the folder cannot be
            written; nothing is written then.
    """
    base = documents.locate(source, "systems")
    _refuse_itself(path, base, "was fitted")
    plans = "1 plan" if num_runs == 1 else f"{num_runs} plans"
    header = [
        f"Fitted by `shardplan fit` to own runs of {plans}: measured times over those of the base."
    ]
    values: dict[str, Any] = {"base": documents.yaml_text(_base_name(path, base))}
    copies: dict[Path, str] = {}
    if topology.calibration and system_file.read_system(base).value.get("calibration") is None:
        copies[path.with_suffix(".calibration.json")] = documents.read_text(
            Path(topology.calibration)
        )
        lines, section = _other_cores(path, topology)
        header += lines
        values |= section
    before = topology.fitted.ratios if topology.fitted else (1.0,) * len(FITTED_KINDS)
    fitted = values["fitted"] = {}
    for i, kind in enumerate(FITTED_KINDS):
        origin = "calibrated" if settled_ratio[i] >= _SETTLED else "default"
        told = f"own runs of {plans} settle {100 * settled_ratio[i]:.0f} % of it"
        fitted[kind] = f"{before[i] * found.ratios[i]:.6g} ({origin}, {told})"
    rows = [[float(f"{v:.6g}") for v in row] for row in found.spread_ratio]
    fitted["spread"] = documents.yaml_text(rows)
    blame = "the runs give a number that no system has (are the units of their times right?)"
    _, text = _checked(path, header, values, blame)
    write_texts_atomic({**copies, path: text})
    return (path, *copies)


def _other_cores(path: Path, topology: Topology) -> tuple[list[str], Sections]:
    """Comments and keys of a system whose cores have the calibration of another machine."""
    machine = _note(system_file.load_constants(topology.calibration).machine)
    latency_us = topology.device.kernel_latency_s / US
    comments = [
        f"By the calibration of another machine ({machine}), which the factors correct;",
        "rates of the base that are no memory sizes are not used.",
    ]
    return comments, {
        "name": documents.yaml_text(path.stem),
        "device": {"kernel_latency": f"{latency_us:.3f} us (default, {machine})"},
        "calibration": documents.yaml_text(path.with_suffix(".calibration.json").name),
    }


def _checked(
    path: Path, header: Sequence[str], values: Sections, blame: str
) -> tuple[Topology, str]:
    """The system of a file with these comments and values, and its text.

    Raises:
        InvalidInputError: they are no system; the message begins with ``blame``.
    """
    text = "\n".join([*(f"# {line}" for line in header), *_lines(values)]) + "\n"
    try:
        return system_file.named_system(system_file.system_of(path, text)), text
    except InvalidInputError as error:
        refuse(f"{blame}: {error}")


def _refuse_itself(path: Path, base: Path, what: str) -> None:
    """Refuse to write the file that is read."""
    if path.exists() and path.samefile(base):
        refuse(f"{path} is the system that {what}; name another file to write")


def write_calibrated_system(
    path: Path, calibration: Calibration, *, memory_bytes: float
) -> tuple[Path, Path]:
    """Write ``path`` and, beside it, its calibration as JSON; returns both paths.

    Raises:
        InvalidInputError: the folder cannot be written.
    """
    beside = path.with_suffix(".calibration.json")
    system_file.write_calibration(beside, calibration)
    constants, ranks = calibration.constants, calibration.constants.world_size
    note = f"(calibrated, {_note(constants.machine)})"
    text = documents.read_template("cpu_system").format(
        name=documents.yaml_text(path.stem),
        machine=documents.yaml_text(constants.machine),
        calibration=documents.yaml_text(beside.name),
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
    write_text_atomic(path, text)
    return path, beside


def _stream_rate_text(constants: CpuConstants, note: str) -> str:
    """The rate of elementwise functions on data outside caches, such as the casts of codecs."""
    if constants.operators is None:
        return "10 GB/s (default, not measured; only codecs of exchanges use it)"
    counts_s = dict(constants.operators.forward_s)["elementwise"]
    return f"{1e-9 / max(memory_s(counts_s), 1e-12):.1f} GB/s {note}"


def write_host_calls(path: Path, calls: device.HostCalls) -> None:
    """Replace or add ``eager_call`` and ``eager_pass`` in the block ``host`` of a system file.

    Raises:
        InvalidInputError: the file cannot be read, or has no such block with a key on each line.
    """
    text = documents.read_text(path)
    lines, places = text.split("\n"), documents.as_yaml(path, text).lines
    inside = [at for keys, at in places.items() if keys[0:1] == ("host",) and len(keys) > 1]
    first = min(inside, default=0)
    if first <= places.get(("host",), 0):
        refuse(f"{path}: no block 'host:' with a key on each line; write these lines into it")
    indent = lines[first - 1].partition(lines[first - 1].strip())[0]
    missing = []
    for line in calls.lines():
        at = places.get(("host", line.partition(":")[0]))
        if at is None:
            missing.append(f"{indent}{line}")
        else:
            lines[at - 1] = f"{indent}{line}"
    lines[first - 1 : first - 1] = missing
    write_text_atomic(path, "\n".join(lines))


# ------------------------------------------------------------------ devices that were measured

_ROWS: Final = schemas.schemas_of(
    documents.read_words("rows"),
    text=Annotated[str, Field(max_length=400)],
    law=Annotated[str, Field(pattern=r"^(uniform|zipf \d{1,2}(\.\d{1,6})?)$")],
    optimizer=Annotated[Optimizer, Field(strict=False)],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRows:
    """The rows of a file.

    Attributes:
        path: the file.
        environment: its first row: the device, the software and the day.
        rows: all rows that hold a measurement, as they stand in the file.
        failed: what could not be measured, and why, in words.
    """

    path: Path
    environment: device.Row
    rows: tuple[device.Row, ...]
    failed: tuple[str, ...]

    def of_block(self, *blocks: str) -> tuple[device.Row, ...]:
        """The rows of some blocks."""
        return tuple(row for row in self.rows if row["block"] in blocks)

    def machine(self, *software: str) -> str:
        """Device and software in a few words, as the source of what is fitted to the rows.

        Args:
            software: keys of the environment to name beside torch and the driver.
        """
        known = self.environment
        card = str(known.get("gpu") or known.get("cpu") or "unknown device")
        keys = [key for key in ("torch", *software, "driver") if known.get(key)]
        return ", ".join([card, *(f"{key} {known[key]}" for key in keys)])


def read_rows(path: Path) -> MeasuredRows:
    """Read and check a file of rows (docs/reference/formats.md): one JSON object a line.

    Every row that a fit reads is checked here, so that a fit meets numbers that are finite and
    above 0 only.

    Raises:
        InvalidInputError: the file cannot be read, or a row is not as described; the message names
            the line of the first such row.
    """
    rows: list[device.Row] = []
    failed: list[str] = []
    environment: device.Row | None = None
    for number, line in enumerate(documents.read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        row = documents.parse_json(line, path, line=number)
        document = documents.Document(path, row, {(): number})
        head = schemas.validate(_ROWS["every row"], document)
        if (head.block == "ceilings" and head.what == "env") != (environment is None):
            refuse(
                f"{path}:{number}: the first row must describe the machine, and only the first "
                'row: {"block": "ceilings", "what": "env", "gpu": ..., "torch": ...}'
            )
        if environment is None:
            schemas.validate(_ROWS["the machine"], document)
            environment = row
        elif head.error is not None:
            name = " ".join(str(row[k]) for k in ("block", "what", "operation", "id") if row.get(k))
            failed.append(f"{name[:100]}: {head.error[:200]}")
        else:
            schemas.validate(_schema(head, row), document)
            _check(document, row)
            rows.append(row)
    if environment is None:
        refuse(f"{path}: no rows")
    return MeasuredRows(path=path, environment=environment, rows=tuple(rows), failed=tuple(failed))


def _schema(head: Any, row: device.Row) -> Any:
    """What a row that holds a measurement has to be like."""
    if head.block != "ceilings":
        return _ROWS.get(head.block, schemas.Loose)
    if head.what.startswith("kernel gap"):
        return _ROWS["a gap"]
    is_call = "wall_us" in row or head.what in (device.EAGER_CALL, device.EAGER_PASS)
    return _ROWS.get(head.what, _ROWS["a call" if is_call else "another ceiling"])


def _check(document: documents.Document, row: device.Row) -> None:
    """Refuse a row whose values do not go together."""
    if row["block"] in device.LOOKUP_BLOCKS and row["uniq"] > row["N"]:
        told = f"uniq ({row['uniq']}) must not exceed N ({row['N']}), the indices of the call"
        document.refuse((), row, told)
    if row["block"] == "collectives":
        keys, ranks = ("sent_bytes", "kept_bytes"), row["ranks"]
        told = f"{' and '.join(keys)} must have a number for each of {ranks} ranks"
        if any(len(row[key]) != ranks for key in keys):
            document.refuse((), row, told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a calibration from rows has written.

    Attributes:
        written: the files.
        replaced: keys of the system, with the number of the base and the measured one.
        lookup_errors: how well the law of lookups fits, each predicted by a fit to others.
        kept: what the rows do not say, so that the numbers of the base stay.
        other_card: how the measured card differs from that of the base; empty if it does not.
    """

    written: tuple[Path, ...]
    replaced: tuple[tuple[str, str, str], ...]
    lookup_errors: BlockErrors
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
        refuse(
            f"{measured.path}:1: gpu: is missing, so these are rows of CPU cores, which a system "
            "of GPUs cannot be fitted to; calibrate CPU ranks with --device cpu -o FILE"
        )
    start = documents.locate(base, "systems")
    _refuse_itself(path, start, "the rows start from")
    document = system_file.read_system(start)
    schema = schemas.validate(system_file.SystemSchema, document)
    if schema.calibration is not None:
        refuse(f"{start}: has ranks on CPU cores; name the system of a GPU with --system")
    topology, machine = system_file.named_system(document), _note(measured.machine())
    rates = device.fit_rates(measured.environment, measured.rows)
    values: dict[str, Any] = {
        "name": documents.yaml_text(path.stem),
        "base": documents.yaml_text(_base_name(path, start)),
        "description": documents.yaml_text(f"{topology.device.name}, measured"),
        **_sections(schema.device, rates, machine),
    }
    texts: dict[Path, str] = {}
    if curves := _curves(path.stem, topology.device.name, measured):
        beside = path.with_suffix(".curves.csv")
        texts[beside] = curves
        sets = topology.collective_curves
        kept = [_way(path, Path(name)) if name.endswith(".csv") else name for name in sets]
        values["collective_curves"] = documents.yaml_text([beside.name, *kept])
    header = (
        f"Measured by `shardplan calibrate` on {machine}.",
        "Keys that are not here are those of the base.",
    )
    blame = f"{measured.path}: the rows give a number that no system has"
    checked = partial(_checked, path, header, blame=blame)
    (found, text), lookups = checked(values), None
    if rows := measured.of_block(*device.LOOKUP_BLOCKS):
        known = map(LookupRow.of, rows)
        lookups = schemas.made(str(measured.path), lambda: fit_fbgemm([*known], found))
        values["lookup"] = _lookup_section(lookups, measured)
        found, text = checked(values)
    write_texts_atomic({**texts, path: text})
    return Written(
        written=(path, *texts),
        replaced=_replaced(topology, found),
        lookup_errors=lookups.errors if lookups else {},
        kept=_kept(rates, lookups),
        other_card=_other_card(topology.device, rates, measured.environment["gpu"]),
    )


def _replaced(base: Topology, found: Topology) -> tuple[tuple[str, str, str], ...]:
    """Keys whose numbers differ, with both numbers."""
    before = {p.name: p.value for p in base.provenance}
    both = ((p.name, before.get(p.name, ""), p.value) for p in found.provenance)
    return tuple(entry for entry in both if entry[1] != entry[2])


def _kept(rates: dict[str, Any], lookups: FbgemmFit | None) -> tuple[str, ...]:
    """What the rows do not say."""
    numbers = documents.read_words("rows")["numbers"]
    said = {row["what"]: rates.get(row["rate"]) for row in numbers if "what" in row}
    said["rates of matrix products"] = rates["products_flops"] or None
    said["lookups"] = lookups
    return tuple(what for what, value in said.items() if value is None)


def _other_card(base: Device, rates: dict[str, Any], card: str) -> str:
    """How a measured card differs from the base's, by the first word of its name or its size."""
    told = f"the rows are of {card!r}"
    if base.name.upper().partition("-")[0] not in re.findall("[A-Z0-9]+", card.upper()):
        return f"{told}, the base has {base.name}"
    counts = rates["num_multiprocessors"], base.num_multiprocessors
    if all(counts) and counts[0] != counts[1]:
        return f"{told} with {counts[0]} multiprocessors, {base.name} of the base has {counts[1]}"
    return ""


def _note(text: str) -> str:
    """Text as the source of a number in a file."""
    return "".join(c for c in _NOT_IN_NOTES.sub("", text) if c.isprintable())


def _lookup_section(fit: FbgemmFit, measured: MeasuredRows) -> Sections:
    how = f"calibrated, {_note(measured.machine('fbgemm'))}"
    rest = "default, of the base, for these seconds"
    return {
        name: f"{value:.6g} ({how if name in FITTED else rest})"
        for name, value in asdict(fit.constants).items()
    }


def _sections(base: Any, rates: dict[str, Any], machine: str) -> Sections:
    """All sections that have measured numbers, but lookups."""
    found: dict[str, dict[str, Any]] = {"device": {}, "host": {}, "links.host": {}}
    for row in documents.read_words("rows")["numbers"]:
        size, unit = next(unit for end, unit in _UNITS.items() if row["rate"].endswith(end))
        if value := rates.get(row["rate"]):
            text = f"{value / size:{row['digits']}}{unit} (measured, {row.get('how', '')}{machine})"
            found[row["section"]][row["key"]] = text
    found["device"] |= _products(base, rates, machine)
    links = {"host": found.pop("links.host")}
    return {**found, "links": links}


def _lines(sections: Sections, indent: str = "") -> Iterator[str]:
    """The lines of sections that are not empty."""
    for key, value in sections.items():
        if isinstance(value, str):
            yield f"{indent}{key}: {value}"
        elif inner := list(_lines(value, f"{indent}  ")):
            yield from (f"{indent}{key}:", *inner)


def _base_name(path: Path, base: Path) -> str:
    """How ``path`` names its base: by its name if it is shipped, else by the way to the file."""
    is_shipped = base.resolve().is_relative_to(documents.configs_folder().resolve())
    return base.stem if is_shipped else _way(path, base)


def _way(path: Path, file: Path) -> str:
    """The way to a file from the folder of ``path``."""
    return os.path.relpath(file.resolve(), path.parent.resolve())


def _products(base: Any, rates: dict[str, Any], note: str) -> Sections:
    """Rates of products: a rate times the efficiency is what was measured.

    The efficiency is the measured share of the base's rate of one type. So this type keeps its
    peak, and the others get the peak at which the same efficiency gives their measured rate. Types
    that were not measured keep what the base says.
    """
    measured = rates["products_flops"]
    reference = next((t for t in _EFFICIENCY_OF if t in measured and t in base.flops), None)
    if reference is None:
        return {}
    efficiency = min(1.0, max(0.01, measured[reference] / base.flops[reference].value))
    told = f"large {reference.value} products on {note}"
    flops = {}
    for kind, kept in base.flops.items():
        source = ", ".join(part for part in (kept.source.value, kept.reference) if part)
        flops[kind.value] = f"{kept.text} ({source})"
    for kind, rate in measured.items():
        what = f"large products on {note} reach {rate / _TFLOP:.1f} TFLOP/s"
        flops[kind.value] = f"{rate / efficiency / _TFLOP:.5g} TFLOP/s (measured, {what})"
    return {"flops_efficiency": f"{efficiency:.4f} (measured, {told})", "flops": flops}


def _curves(name: str, card: str, measured: MeasuredRows) -> str:
    """The measured curves of collectives as CSV; empty without any."""
    told = {"role": "calibrate", "library": "NCCL", "harness": "shardplan calibrate"}
    version, source = measured.environment.get("nccl", ""), measured.machine()
    curves = device.collective_curves(
        measured.rows, version=version, source=f"own measurement on {source}"
    )
    records = [CurveRecord(set_name=name, nodes=1, curve=c, device=card, **told) for c in curves]
    return curves_text(records) if records else ""
