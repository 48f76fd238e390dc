"""Reads measured curves of collectives: one row of a CSV file for each, with its source.

The columns are ``set`` (a system has the curves of the sets that it names), ``collective``,
``nodes``, ``gpus_per_node``, ``ranks``, ``domain_gpus`` (ranks that share a scale-up fabric),
``device``, ``network``, ``network_GBps`` (nominal, for each rank and direction), ``library``,
``version``, ``harness``, ``role``, ``source``, ``licence``, ``notes`` and ``points_bytes_us``
(``size:time`` pairs, with the size as nccl-tests states it). Predictions use only rows with the
role ``calibrate`` or ``calibrate-optional`` (another class of device).
"""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from costmodels.errors import CostModelError
from costmodels.fabrics import fabric_named
from costmodels.measured.curves import Collective, CollectiveCurve
from costmodels.topology import Topology
from costmodels.units import GB, US
from planner.errors import InvalidInputError
from planner.io.documents import read_text
from planner.io.library import configs_folder
from planner.support.files import csv_text, unguarded, write_text_atomic

COLUMNS: Final = (
    "set", "collective", "nodes", "gpus_per_node", "ranks", "domain_gpus", "device", "network",
    "network_GBps", "library", "version", "harness", "role", "source", "licence", "notes",
    "points_bytes_us",
)  # fmt: skip
_TEXTS: Final = ("device", "network", "library", "harness", "role", "licence", "notes")
"""Columns that are fields of a record."""
PREDICTING_ROLES: Final = ("calibrate", "calibrate-optional")
ROLES: Final = (*PREDICTING_ROLES, "validate")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveRecord:
    """One row: the curve, and where it comes from."""

    set_name: str
    role: str
    nodes: int
    curve: CollectiveCurve
    device: str = ""
    network: str = ""
    library: str = ""
    harness: str = ""
    licence: str = ""
    notes: str = ""


def load_curves(topology: Topology) -> tuple[CollectiveCurve, ...]:
    """The curves that a system names, for predictions; empty if it names none.

    Curves of earlier sets are preferred. The curves of a shipped set are marked as those of a
    similar system, unless the set has the system's name, or all of its curves were measured on the
    same device. Curves of the user's own files are not marked.

    Raises:
        InvalidInputError: a set or file does not exist, or breaks a rule.
    """
    curves: list[CollectiveCurve] = []
    for position, name in enumerate(topology.collective_curves):
        is_file = name.endswith(".csv")
        found = _predicting(read_curves(Path(name))) if is_file else _shipped_set(name)
        is_own = is_file or name == topology.name
        is_own = is_own or all(r.device == topology.device.name for r in found)
        curves += [replace(r.curve, priority=position + (not is_own)) for r in found]
    return tuple(curves)


def unknown_sets(names: Sequence[str]) -> list[tuple[int, str]]:
    """(position, error) of each name that is neither a shipped set nor a CSV file."""
    sets = [name for name in names if not name.endswith(".csv")]
    known = {r.set_name for r in shipped_curves()} if sets else set()
    listed = ", ".join(sorted(known))
    return [
        (i, f"no set {name!r}; there are {listed}, or name a CSV file")
        for i, name in enumerate(names)
        if name in sets and name not in known
    ]


@functools.lru_cache(maxsize=256)
def _shipped_set(name: str) -> tuple[CurveRecord, ...]:
    """The curves of a shipped set that predictions may use."""
    for _, message in unknown_sets([name]):
        raise InvalidInputError(message)
    return _predicting(r for r in shipped_curves() if r.set_name == name)


def _predicting(records: Iterable[CurveRecord]) -> tuple[CurveRecord, ...]:
    return tuple(r for r in records if r.role in PREDICTING_ROLES)


@functools.lru_cache(maxsize=1)
def shipped_curves() -> tuple[CurveRecord, ...]:
    """All rows of ``configs/calibrations/collectives.csv``."""
    return read_curves(configs_folder() / "calibrations" / "collectives.csv")


def read_curves(path: Path) -> tuple[CurveRecord, ...]:
    """The rows of a file.

    Raises:
        InvalidInputError: some rows are wrong; the message lists all of them with their lines.
    """
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    missing = [c for c in COLUMNS if c not in (reader.fieldnames or ())]
    if missing:
        message = f"{path}:1: columns missing: {', '.join(missing)}"
        raise InvalidInputError(message)
    records, problems = [], []
    for row in reader:
        try:
            cells = {k: unguarded((v or "").strip()) for k, v in row.items() if k in COLUMNS}
            records.append(_record(cells))
        except (ValueError, CostModelError) as error:
            problems.append(f"{path}:{reader.line_num}: {error}")
    if problems:
        raise InvalidInputError(problems)
    if not records:
        message = f"{path}: no rows"
        raise InvalidInputError(message)
    return tuple(records)


def curves_text(records: Iterable[CurveRecord]) -> str:
    """The rows as CSV."""
    return csv_text(COLUMNS, ([_row(record)[c] for c in COLUMNS] for record in records))


def write_curves(path: Path, records: Iterable[CurveRecord]) -> None:
    """Write a file of curves, completely or not at all."""
    write_text_atomic(path, curves_text(records))


def _record(row: dict[str, str]) -> CurveRecord:
    for column, known in (("role", ROLES), ("collective", [*Collective])):
        if row[column] not in known:
            message = f"{column} {row[column]!r} is not one of {', '.join(known)}"
            raise ValueError(message)
    nodes, ranks, domain = (_whole(row, c) for c in ("nodes", "ranks", "domain_gpus"))
    points = [_point(text) for text in row["points_bytes_us"].split()]
    curve = CollectiveCurve(
        collective=Collective(row["collective"]),
        ranks=ranks,
        domains=-(-ranks // domain),
        size_bytes=tuple(size for size, _ in points),
        time_s=tuple(time * US for _, time in points),
        network_bytes_per_s=float(row["network_GBps"] or 0) * GB,
        version=row["version"],
        source=row["source"],
        fabric=fabric_named(row["network"]),
    )
    texts = {name: row[name] for name in _TEXTS}
    return CurveRecord(set_name=row["set"], nodes=nodes, curve=curve, **texts)


def _row(record: CurveRecord) -> dict[str, str]:
    curve = record.curve
    pairs = zip(curve.size_bytes, curve.time_s, strict=True)
    return {
        **{name: getattr(record, name) for name in _TEXTS},
        "set": record.set_name,
        "collective": curve.collective.value,
        "nodes": str(record.nodes),
        "gpus_per_node": str(curve.ranks // record.nodes),
        "ranks": str(curve.ranks),
        "domain_gpus": str(curve.ranks // curve.domains),
        "network_GBps": f"{curve.network_bytes_per_s / GB:g}" if curve.network_bytes_per_s else "",
        "version": curve.version,
        "source": curve.source,
        "points_bytes_us": " ".join(f"{size:.0f}:{time / US:.6g}" for size, time in pairs),
    }


def _whole(row: dict[str, str], column: str) -> int:
    text = row[column]
    if not text.isdecimal() or int(text) < 1:
        message = f"{column} must be a whole number of at least 1, got {text!r}"
        raise ValueError(message)
    return int(text)


def _point(text: str) -> tuple[float, float]:
    size, separator, time = text.partition(":")
    try:
        return float(size), float(time if separator else "")
    except ValueError:
        message = f"points_bytes_us: {text!r} is not size:time"
        raise ValueError(message) from None
