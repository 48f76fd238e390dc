"""Reads curves of collectives from logs of nccl-tests, rccl-tests (text, JSON) and PARAM comms.

Columns are found by their headers; times are those of out-of-place operations. The environment that
nccl-tests writes into its JSON is not kept, nor are the names of hosts.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from costmodels.collective.base import Collective, CollectiveCurve
from costmodels.errors import CostModelError
from costmodels.units import US
from planner.errors import InvalidInputError
from planner.io.documents import read_text
from planner.io.system.collective_curves import CurveRecord

_NAMES: Final = {
    "all_reduce": Collective.ALL_REDUCE,
    "allreduce": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "allgather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "reducescatter": Collective.REDUCE_SCATTER,
    "all_to_all": Collective.ALL_TO_ALL,
    "alltoall": Collective.ALL_TO_ALL,
}
_BINARY: Final = re.compile(r"\b(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)_perf\b")
_PARAM_ROW: Final = re.compile(r"^COMMS-RES-(?P<name>[a-z_0-9]+)(?P<dtype>-\w+)*$")
_RANK: Final = re.compile(r"^#\s+Rank\s+\d+\b.*?\bon\s+(?P<host>\S+)\s+device\b")
_VERSION: Final = re.compile(r"(?:NCCL|RCCL) version[ :]+(\d+(?:\.\d+)+)|nccl-library=(\d+)")
_TIME_UNITS: Final = {"(ns)": 1e-3, "(us)": 1.0, "(ms)": 1e3, "(s)": 1e6}
_OLD_VERSION_CODES: Final = 10_000


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
class _Log:
    """What was read from one log."""

    harness: str
    points: dict[Collective | None, list[tuple[float, float]]]
    ranks: int | None = None
    nodes: int | None = None
    library: str = "NCCL"
    version: str = ""


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
            text = str(error)
            problems.append(text if text.startswith(str(path)) else f"{path}: {text}")
    if problems:
        raise InvalidInputError(problems)
    return tuple(records)


def _records(path: Path, shape: LogShape) -> Iterator[CurveRecord]:
    text = read_text(path)
    log = _read_json(text) if text.lstrip().startswith("{") else _read_text(text)
    ranks, nodes = _shape(log, shape)
    for name, points in log.points.items():
        if name is not None and shape.collective not in (None, name):
            message = f"the log times {name}, --collective says {shape.collective}; leave it out"
            raise ValueError(message)
        collective = shape.collective or name or _collective_in(path.name)
        if collective is None:
            message = "the log does not name its collective; add --collective"
            raise ValueError(message)
        sizes, times = _averaged(points)
        domain = min(shape.domain_gpus or ranks // nodes, ranks)
        curve = CollectiveCurve(
            collective=collective,
            ranks=ranks,
            domains=-(-ranks // domain),
            size_bytes=sizes,
            time_s=times,
            network_bytes_per_s=shape.network_bytes_per_s,
            version=log.version,
            source=path.name,
        )
        yield CurveRecord(
            set_name=shape.set_name,
            role="calibrate",
            nodes=nodes,
            curve=curve,
            library=log.library,
            harness=log.harness,
        )


def _shape(log: _Log, shape: LogShape) -> tuple[int, int]:
    """(ranks, nodes) from the flags, or else from the log."""
    nodes = shape.nodes or log.nodes or 1
    ranks = nodes * shape.gpus_per_node if shape.gpus_per_node else log.ranks
    if ranks is None:
        message = "the log does not say how many ranks took part; add --gpus-per-node (and --nodes)"
        raise ValueError(message)
    if log.ranks not in (None, ranks):
        message = (
            f"the log lists {log.ranks} ranks, {nodes} nodes of {shape.gpus_per_node} GPUs have "
            f"{ranks}; correct --nodes or --gpus-per-node"
        )
        raise ValueError(message)
    if ranks % nodes:
        message = f"{ranks} ranks do not divide over {nodes} nodes; add --nodes, --gpus-per-node"
        raise ValueError(message)
    return ranks, nodes


def _averaged(points: list[tuple[float, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Rising sizes with mean times in seconds; empty messages and zero times are left out."""
    by_size: dict[float, list[float]] = defaultdict(list)
    for size, time_us in points:
        if size > 0 and time_us > 0:
            by_size[size].append(time_us * US)
    if len(by_size) < 2:
        message = "fewer than two sizes with a time"
        raise ValueError(message)
    sizes = tuple(sorted(by_size))
    return sizes, tuple(sum(by_size[s]) / len(by_size[s]) for s in sizes)


def _read_json(text: str) -> _Log:
    """Read the JSON that ``nccl-tests -J`` writes."""
    try:
        data: Any = json.loads(text)
        points = [(float(r["size"]), float(r["out_of_place"]["time"])) for r in data["results"]]
    except json.JSONDecodeError as error:
        message = f"line {error.lineno}: not JSON: {error.msg}"
        raise ValueError(message) from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        message = "JSON without results[].size and results[].out_of_place.time"
        raise ValueError(message) from error
    devices = data.get("devices") or []
    hosts = {d.get("hostname") for d in devices if isinstance(d, dict)}
    name = _collective_in(json.dumps(data.get("args", "")))
    return _Log(
        harness="nccl-tests, JSON",
        points={name: points},
        ranks=len(devices) or None,
        nodes=len(hosts) or None,
        version=_version_text(data.get("nccl_version")),
    )


def _read_text(text: str) -> _Log:
    lines = text.splitlines()
    param = _read_param(lines)
    if param:
        return _Log(harness="PARAM comms", points=param)
    hosts = [m["host"] for line in lines if (m := _RANK.match(line))]
    version = _VERSION.search(text)
    found = version and (version[1] or version[2])
    return _Log(
        harness="nccl-tests",
        points=_read_blocks(lines),
        ranks=len(hosts) or None,
        nodes=len(set(hosts)) or None,
        library="RCCL" if "rccl" in text.lower() else "NCCL",
        version=_version_text(found),
    )


def _read_blocks(lines: list[str]) -> dict[Collective | None, list[tuple[float, float]]]:
    """The rows below each header of nccl-tests; one log can have several tests."""
    points: dict[Collective | None, list[tuple[float, float]]] = defaultdict(list)
    collective: Collective | None = None
    columns: list[str] = []
    scale = 1.0
    for line in lines:
        collective = _collective_in(line) or collective
        words = line.lstrip("# \t").split()
        if {"size", "time"} <= set(words):
            columns = words
        elif line.startswith("#"):
            scale = next((_TIME_UNITS[w] for w in words if w in _TIME_UNITS), scale)
        elif columns and len(words) >= len(columns) and words[0].isdecimal():
            size, time = words[columns.index("size")], words[columns.index("time")]
            points[collective].append((float(size), _time(time) * scale))
    if not points:
        message = "no table of nccl-tests or PARAM found (a header with size and time, and rows)"
        raise ValueError(message)
    return dict(points)


def _read_param(lines: list[str]) -> dict[Collective | None, list[tuple[float, float]]]:
    """The rows ``COMMS-RES-<collective>``, of which the median over ranks is taken."""
    points: dict[Collective | None, list[tuple[float, float]]] = defaultdict(list)
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
        collective = _NAMES.get(re.sub(r"_(base|v)$|(?<=all)v$", "", row["name"])) if row else None
        if collective and columns and len(words) > len(columns):
            size = _column(columns, "size (B)")
            time = _column(columns, "Latency(us):p50")
            points[collective].append((float(words[1 + size]), _time(words[1 + time])))
    return dict(points)


def _column(labels: list[str], wanted: str) -> int:
    for position, label in enumerate(labels):
        if label.endswith(wanted):
            return position
    message = f"PARAM header without {wanted!r}"
    raise ValueError(message)


def _time(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        message = f"time {text!r} is not a number"
        raise ValueError(message) from None


def _collective_in(text: str) -> Collective | None:
    found = _BINARY.search(text.lower())
    return _NAMES[found[1]] if found else None


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
