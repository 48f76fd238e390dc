"""Reads measured curves of collectives: one row of a CSV file for each, with its source.

The columns are ``set`` (a system has the curves of the sets that it names), ``collective``,
``nodes``, ``gpus_per_node``, ``ranks``, ``domain_gpus`` (ranks that share a scale-up fabric),
``device``, ``network``, ``network_GBps`` (nominal, for each rank and direction), ``library``,
``version``, ``harness``, ``role``, ``source``, ``licence``, ``notes`` and ``points_bytes_us``
(``size:time`` pairs, with the size as nccl-tests states it). Predictions use only rows with the
role ``calibrate`` or ``calibrate-optional`` (another class of device).

Curves also come from logs of nccl-tests, rccl-tests (text, JSON) and PARAM comms. Columns are found
by their headers; times are those of out-of-place operations. The environment that nccl-tests writes
into its JSON is not kept, nor are the names of hosts.
"""

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Final

import numpy as np

from costmodels.errors import CostModelError
from costmodels.fabrics import fabric_named
from costmodels.measured.curves import Collective, CollectiveCurve
from costmodels.topology import Topology
from costmodels.units import GB, US
from planner.errors import refuse, refuse_any
from planner.io import documents
from planner.io.schemas import Lax, collect, schemas_of, validate
from planner.support.files import csv_text, unguarded

_WORDS: Final = documents.read_words("collectives")
_KEYS: Final = schemas_of(_WORDS, Lax, number=float, collective=Collective)
COLUMNS: Final = tuple(_WORDS["keys"]["row"])
_TEXTS: Final = ("device", "network", "library", "harness", "role", "licence", "notes")
"""Columns that are fields of a record."""
PREDICTING_ROLES: Final = ("calibrate", "calibrate-optional")


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
        every = read_curves(Path(name)) if is_file else shipped_curves()
        found = [r for r in every if is_file or r.set_name == name]
        if not found:
            known = ", ".join(sorted({r.set_name for r in every}))
            refuse(f"no set {name!r}; there are {known}, or name a CSV file")
        found = [r for r in found if r.role in PREDICTING_ROLES]
        is_own = is_file or name == topology.name
        is_own = is_own or all(r.device == topology.device.name for r in found)
        curves += [replace(r.curve, priority=position + (not is_own)) for r in found]
    return tuple(curves)


@cache
def shipped_curves() -> tuple[CurveRecord, ...]:
    """All rows of ``configs/calibrations/collectives.csv``."""
    return read_curves(documents.configs_folder() / "calibrations" / "collectives.csv")


def read_curves(path: Path) -> tuple[CurveRecord, ...]:
    """The rows of a file.

    Raises:
        InvalidInputError: some rows are wrong; the message lists all of them with their lines.
    """
    header, body = documents.csv_rows(path, documents.read_text(path))
    if missing := [c for c in COLUMNS if c not in header]:
        refuse(f"{path}:1: columns missing: {', '.join(missing)}")
    problems: list[str] = []
    records = []
    for line, row in body:
        cells = {k: unguarded(v.strip()) for k, v in zip(header, row, strict=False) if v.strip()}
        document = documents.Document(path, cells, {(): line})
        records.append(collect(problems, document.where(()), partial(_record, document)))
    refuse_any(problems)
    if not records:
        refuse(f"{path}: no rows")
    return tuple(filter(None, records))


def curves_text(records: Iterable[CurveRecord]) -> str:
    """The rows as CSV."""
    return csv_text(COLUMNS, ([_row(record)[c] for c in COLUMNS] for record in records))


def _record(document: documents.Document) -> CurveRecord:
    row = validate(_KEYS["row"], document)
    points = [_point(text) for text in row.points_bytes_us.split()]
    curve = CollectiveCurve(
        collective=row.collective,
        ranks=row.ranks,
        domains=-(-row.ranks // row.domain_gpus),
        size_bytes=tuple(size for size, _ in points),
        time_s=tuple(time * US for _, time in points),
        network_bytes_per_s=row.network_GBps * GB,
        version=row.version,
        source=row.source,
        fabric=fabric_named(row.network),
    )
    texts = {name: getattr(row, name) for name in _TEXTS}
    return CurveRecord(set_name=row.set, nodes=row.nodes, curve=curve, **texts)


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


def _point(text: str) -> tuple[float, float]:
    size, separator, time = text.partition(":")
    try:
        return float(size), float(time if separator else "")
    except ValueError:
        refuse(f"points_bytes_us: {text!r} is not size:time")


# ------------------------------------------------------------------ logs

_NAMES: Final = {name: c for c in Collective for name in (c.value, c.value.replace("_", ""))}
_OTHERS: Final = ("alltoallv", "broadcast", "gather", "hypercube", "reduce", "scatter", "sendrecv")
"""Programs of nccl-tests whose operations no training step here has."""
_BINARY: Final = re.compile(
    rf"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|{'|'.join(_OTHERS)})_perf"
)
_PREFIX: Final = re.compile(
    r"^\s*(?:(?:\[[^\]]*\]:?|<\w+>:?|\d{4}-\d\d-\d\d[T ][\d:.,Z+-]+|[^\s#\[<]+:(?=[\s#\[]|$)"
    r"|[^\s#\[<]*:\d+(?=[\s#]|$))\s*)+"
)
"""What launchers put before a line: ``[1,0]<stdout>:``, ``0: ``, ``[0] ``, ``host:pid ``, times."""
_PARAM_ROW: Final = re.compile(r"^COMMS-RES-(?P<name>[a-z_0-9]+)(?P<dtype>-\w+)*$")
_RANK: Final = re.compile(r"^#?\s*Rank\s+(?P<rank>\d{1,6})\b.*?\bon\s+(?P<host>\S+)\s+device\b")
_VERSION: Final = re.compile(r"(?:NCCL|RCCL) version[ :]+(\d+(?:\.\d+)+)|nccl-library=(\d+)")
_TIME_UNITS: Final = {"(ns)": 1e-3, "(us)": 1.0, "(ms)": 1e3, "(s)": 1e6}
_OLD_VERSION_CODES: Final = 10_000
_OTHERS_MOST: Final = 1.1
"""busbw / algbw is at most 1 for all operations but an all-reduce; with room for rounding."""
_LEAST_RATE: Final = 0.5
"""GB/s; below it, the two decimals of a log say little about the ratio of two rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogShape:
    """Values that a log may lack, from flags of the command line; None to take those of the log.

    A collective or a number of ranks that is not the log's is refused.
    """

    collective: Collective | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    domain_gpus: int | None = None
    network_bytes_per_s: float = 0.0
    set_name: str = "imported"


@dataclass(slots=True)
class _Table:
    """One table of a log: its program, the host of each rank that is listed, and its rows.

    ``program`` is empty where the log does not say it; ``ratios`` are busbw / algbw of the rows.
    """

    program: str = ""
    hosts: dict[int, str] = field(default_factory=dict)
    points: list[tuple[float, float]] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)


def read_logs(paths: tuple[Path, ...], shape: LogShape) -> tuple[CurveRecord, ...]:
    """Read one curve for each collective of each log.

    Raises:
        InvalidInputError: logs lack something or are broken; the message lists all of them.
    """
    records: list[CurveRecord] = []
    problems: list[str] = []
    for path in paths:
        try:
            records.extend(_records(path, shape))
        except (ValueError, CostModelError) as error:
            text = str(error).replace("could not convert string to float:", "not a number:")
            problems.append(text if text.startswith(str(path)) else f"{path}: {text}")
    refuse_any(problems)
    return tuple(records)


def _records(path: Path, shape: LogShape) -> Iterator[CurveRecord]:
    text = documents.read_text(path)
    is_json = text.lstrip().startswith("{")
    tables, version, told = _read_json(text, path) if is_json else _read_text(text)
    points: dict[tuple[Collective, int, int], list[tuple[float, float]]] = defaultdict(list)
    for collective, table in _named(tables, path.name, shape.collective):
        ranks, nodes = _shape(table.hosts, shape)
        _check_bus_rate(collective, ranks, table.ratios)
        points[collective, ranks, nodes] += table.points
    for (collective, ranks, nodes), rows in points.items():
        sizes, times = _averaged(rows)
        domain = min(shape.domain_gpus or ranks // nodes, ranks)
        curve = CollectiveCurve(
            collective=collective,
            ranks=ranks,
            domains=-(-ranks // domain),
            size_bytes=sizes,
            time_s=times,
            network_bytes_per_s=shape.network_bytes_per_s,
            version=version,
            source=path.name,
        )
        named = {"set_name": shape.set_name, "role": "calibrate", **told}
        yield CurveRecord(nodes=nodes, curve=curve, **named)


def _named(
    tables: list[_Table], file_name: str, asked: Collective | None
) -> list[tuple[Collective, _Table]]:
    """Each table that is of use with its collective.

    The name of the file, or the flag, names the one table whose program the log does not say.
    Without them it is an all-reduce where busbw is above algbw, as no other operation has it.
    """
    unnamed = [t for t in tables if not t.program]
    named = [(c, t) for t in tables if t.program and (c := _NAMES.get(t.program))]
    if not unnamed:
        if not named:
            others = ", ".join(sorted({t.program for t in tables}))
            refuse(f"the log times {others}, which no training step here has")
        if wrong := [str(name) for name, _ in named if asked not in (None, name)]:
            refuse(f"the log times {wrong[0]}, --collective says {asked}; leave it out")
        return named
    collective = asked or _NAMES.get(_program_in(file_name))
    if collective is None and all(t.ratios and min(t.ratios) > _OTHERS_MOST for t in unnamed):
        collective = Collective.ALL_REDUCE
    if collective is None:
        refuse("the log does not name its collective; add --collective")
    if len(unnamed) > 1:
        refuse(
            f"{len(unnamed)} tables do not name their collective, and one name is not taken for "
            "several; split the log, one table each"
        )
    return [*named, (collective, unnamed[0])]


def _shape(hosts: dict[int, str], shape: LogShape) -> tuple[int, int]:
    """(ranks, nodes) from the flags, or else from the ranks that the log lists.

    A list with holes, of which only some lines were kept, says no more than the highest rank.
    """
    is_whole = bool(hosts) and len(hosts) == max(hosts) + 1
    listed = len(hosts) if is_whole else None
    if hosts and not is_whole and None in (shape.gpus_per_node, shape.nodes):
        refuse(
            f"the log lists rank {max(hosts)} but not all ranks before it; add --nodes and "
            "--gpus-per-node"
        )
    nodes = shape.nodes or len(set(hosts.values())) or 1
    ranks = nodes * shape.gpus_per_node if shape.gpus_per_node else listed
    if ranks is None:
        refuse("the log does not say how many ranks took part; add --gpus-per-node (and --nodes)")
    if listed not in (None, ranks) or ranks <= max(hosts, default=0):
        told = f"{listed} ranks" if listed else f"rank {max(hosts)}"
        refuse(
            f"the log lists {told}, {nodes} nodes of {shape.gpus_per_node} GPUs have "
            f"{ranks}; correct --nodes or --gpus-per-node"
        )
    if ranks % nodes:
        refuse(f"{ranks} ranks do not divide over {nodes} nodes; add --nodes, --gpus-per-node")
    return ranks, nodes


def _check_bus_rate(collective: Collective, ranks: int, ratios: list[float]) -> None:
    """Refuse a table of another collective, which its ratio of bus to algorithm bandwidth tells.

    nccl-tests (doc/PERFORMANCE.md): 2 (n - 1) / n for an all-reduce, (n - 1) / n for the others.
    """
    if not ratios or ranks < 2:
        return
    found = statistics.median(ratios)
    expected = (2 if collective is Collective.ALL_REDUCE else 1) * (ranks - 1) / ranks
    if abs(found - expected) > 0.05 * expected:
        refuse(
            f"busbw is {found:.3g} times algbw, where {collective} over {ranks} ranks has "
            f"{expected:.3g}; the table is of another collective or another number of ranks"
        )


def _averaged(points: list[tuple[float, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Rising sizes with mean times in seconds; empty messages and zero times are left out."""
    kept = np.array([point for point in points if min(point) > 0]).reshape(-1, 2)
    sizes, places, counts = np.unique(kept[:, 0], return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        refuse("fewer than two sizes with a time")
    times_s = US * np.bincount(places, kept[:, 1]) / counts
    return tuple(sizes.tolist()), tuple(times_s.tolist())


def _read_json(text: str, path: Path) -> tuple[list[_Table], str, dict[str, str]]:
    """The table, the version and fields of records in the JSON that ``nccl-tests -J`` writes."""
    log = validate(_KEYS["log"], documents.Document(path, documents.parse_json(text, path), {}))
    table = _Table(
        program=_program_in(json.dumps(log.args)),
        hosts={i: device.hostname for i, device in enumerate(log.devices or ())},
        points=[(result.size, result.out_of_place.time) for result in log.results],
    )
    told = {"library": "NCCL", "harness": "nccl-tests, JSON"}
    return [table], _version_text(log.nccl_version), told


def _read_text(text: str) -> tuple[list[_Table], str, dict[str, str]]:
    lines = [_PREFIX.sub("", line, count=1) for line in text.splitlines()]
    if param := _read_param(lines):
        return param, "", {"library": "NCCL", "harness": "PARAM comms"}
    version = _VERSION.search(text)
    library = "RCCL" if "rccl" in text.lower() else "NCCL"
    told = {"library": library, "harness": "nccl-tests"}
    return _read_tables(lines), _version_text(version and (version[1] or version[2])), told


def _read_tables(lines: list[str]) -> list[_Table]:
    """The tables of nccl-tests, each with the program and the ranks that stand before it.

    A program names the next table only. A table without ranks of its own has those of the last.
    """
    tables: list[_Table] = []
    program, hosts, fresh = "", dict[int, str](), True
    columns: list[str] = []
    scale = 1.0
    for line in lines:
        words = line.lstrip("# \t").split()
        found = _program_in(line)
        if found and "concluded" not in line:
            program = found
        if listed := _RANK.match(line):
            hosts = hosts if fresh else {}
            hosts[int(listed["rank"])] = listed["host"]
            fresh = True
        elif {"size", "time"} <= set(words):
            columns, fresh = words, False
            tables.append(_Table(program=program, hosts=hosts))
            program = ""
        elif line.lstrip().startswith("#") or words[:1] == ["(B)"]:
            scale = next((_TIME_UNITS[w] for w in words if w in _TIME_UNITS), scale)
        elif columns and words and words[0].isdecimal():
            _read_row(words, columns, scale, tables[-1])
    if not any(t.points for t in tables):
        refuse("no table of nccl-tests or PARAM found (a header with size and time, and rows)")
    return [t for t in tables if t.points]


def _read_row(words: list[str], columns: list[str], scale: float, table: _Table) -> None:
    """One row. Cells that are left empty, such as redop, are those between type and time."""
    time = columns.index("time")
    empty = max(len(columns) - len(words), 0)
    if empty > max(time - 3, 0):
        return
    time -= empty
    size_bytes, time_us = float(words[columns.index("size")]), float(words[time]) * scale
    table.points.append((size_bytes, time_us))
    rates = columns[time + empty + 1 : time + empty + 3]
    if rates == ["algbw", "busbw"]:
        algorithm, bus = float(words[time + 1]), float(words[time + 2])
        if algorithm >= _LEAST_RATE and bus >= _LEAST_RATE:
            table.ratios.append(bus / algorithm)


def _read_param(lines: list[str]) -> list[_Table]:
    """The rows ``COMMS-RES-<collective>``, of which the median over ranks is taken."""
    tables: dict[str, _Table] = {}
    columns: list[str] = []
    for line in lines:
        words = line.split()
        if not words or not words[0].startswith("COMMS-RES"):
            continue
        labels = re.split(r"\s{2,}|\t", line.strip())[1:]
        if any(label.endswith("size (B)") for label in labels):
            columns = labels
            continue
        row = _PARAM_ROW.match(words[0])
        program = re.sub(r"_(base|v)$|(?<=all)v$", "", row["name"]) if row else ""
        if program in _NAMES and columns and len(words) > len(columns):
            wanted = ("size (B)", "Latency(us):p50")
            at = [i for end in wanted for i, c in enumerate(columns) if c.endswith(end)]
            if len(at) != len(wanted):
                refuse(f"PARAM header without {' or '.join(wanted)}")
            size, time_us = (float(words[1 + i]) for i in at)
            tables.setdefault(program, _Table(program=program)).points.append((size, time_us))
    return list(tables.values())


def _program_in(text: str) -> str:
    """The last program of nccl-tests that a text names, without ``_perf``; empty for none."""
    found = _BINARY.findall(text.lower())
    return found[-1] if found else ""


def _version_text(value: object) -> str:
    """A version such as ``2.27.3``, from text or from NCCL's number 22703; empty for others."""
    text = str(value or "")
    found = re.match(r"\d+(?:\.\d+)+", text)
    if found:
        return found[0]
    if not text.isdecimal():
        return ""
    code = int(text)
    major, rest = divmod(code, 10_000 if code >= _OLD_VERSION_CODES else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"
