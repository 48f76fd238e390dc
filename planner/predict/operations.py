"""Predicts collectives, matrix products and table-batched lookups, row by row of a CSV file."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import EnumType
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from costmodels.calibration.fit_fbgemm import LOCATIONS, call_seconds
from costmodels.collective.base import AbstractCollectiveModel, Basis, Confidence, balanced_s
from costmodels.cpu.dense import dense_counts
from costmodels.dense.roofline import product_s
from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.estimates import RELATIVE_SIGMA, Source
from costmodels.lookup.base import AbstractLookupModel, LookupShards, TableColumns
from costmodels.lookup.fbgemm import call_sigma, is_measured
from costmodels.measured.curves import Collective
from costmodels.operators import Product
from costmodels.sharding import ComputeKernel
from costmodels.system_models import default_models
from costmodels.topology import Topology
from costmodels.training.optimizers import RowUpdate
from costmodels.uncertainty import CACHED_GROUPS, LOOKUP_GROUPS, group_sigma, rate_sigma
from costmodels.units import US
from costmodels.workload import DataType, Feature, Optimizer, Pooling, Table
from planner.errors import InvalidInputError, refuse
from planner.io.documents import csv_rows, read_text
from planner.io.system.system_file import load_constants
from planner.models import calibrated_spread_ratio, collective_model_of_device
from planner.support.files import csv_text

ADDED_COLUMNS: Final = ("predicted_us", "low_us", "high_us", "source")
REASON_COLUMN: Final = "reason"
"""The column that says why a row has no prediction; it is written if some row has none."""
OWN_COLUMNS: Final = frozenset((*ADDED_COLUMNS, REASON_COLUMN))
"""Columns of predictions; of a table that has them already, as one that was predicted before, they
are replaced."""
_Row = TypeVar("_Row")
_Word = TypeVar("_Word")
_QUANTILE_95: Final = 1.645
_UNFITTED_SPREAD: Final = 0.5
"""90 % spread on a calibrated machine for operations that its calibration did not measure."""
_CELL: Final = 40
"""Errors show at most this many characters of a cell."""
_NAMES: Final = {c.value.replace("_", ""): c for c in Collective} | {
    "alltoallv": Collective.ALL_TO_ALL
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvRows:
    """A CSV file: its columns, its rows, and the line number of each row."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[dict[str, str], ...]
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A predicted time with its 90 % interval, and what it is based on."""

    time_s: float
    low_s: float
    high_s: float
    basis: Basis


Answer = Predicted | str
"""What a row gets: a prediction, or why no model covers the row."""


def predict_collectives(
    table: CsvRows, system: Callable[[int, int], Topology]
) -> tuple[tuple[Predicted, ...], tuple[str, ...]]:
    """Predict the collective of every row; returns the times, and remarks on them.

    Args:
        table: columns ``collective``, ``size_bytes`` and two of ``nodes``, ``gpus_per_node`` and
            ``ranks``; other columns are ignored.
        system: makes the system from the number of all GPUs and the number on each host.

    Raises:
        InvalidInputError: some rows are wrong; the message lists all of them with their lines.
    """
    rows = parsed(table, _collective_row)
    made = {shape: system(*shape) for _, shape, _ in rows}
    models = {shape: collective_model_of_device(topology) for shape, topology in made.items()}
    found = []
    for collective, shape, size_bytes in rows:
        topology, model = made[shape], models[shape]
        time_s = float(balanced_s(model, collective, np.array(size_bytes), topology))
        trust = _trust(model, collective, size_bytes, topology)
        found.append(interval(time_s, trust.spread_ratio, trust.basis))
    told = (text for shape in sorted(made) for text in models[shape].remarks(made[shape]))
    return tuple(found), tuple(dict.fromkeys(told))


def _trust(
    model: AbstractCollectiveModel, collective: Collective, size_bytes: float, topology: Topology
) -> Confidence:
    """The confidence that the model states, or on a calibrated machine the one of its fit."""
    if not topology.calibration:
        return model.confidence(collective, size_bytes, topology)
    fitted = calibrated_spread_ratio(topology, f"gloo {collective}") or _UNFITTED_SPREAD
    ranks = load_constants(topology.calibration).world_size
    if topology.num_hosts == 1 and topology.world_size == ranks:
        return Confidence(basis=Basis.MEASURED, spread_ratio=fitted)
    return Confidence(basis=Basis.EXTRAPOLATED, spread_ratio=fitted + _UNFITTED_SPREAD)


def read_table(path: Path, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> CsvRows:
    """Read a CSV file with at least the columns ``needed``; upper and lower case are the same.

    Columns that are neither ``needed`` nor ``optional`` are passed on. But a column whose name is
    nearly that of an optional one is refused as a misspelling, because defaults would otherwise
    take the place of its cells.

    Raises:
        InvalidInputError: the file cannot be read, columns are missing, or a row has too many
            cells.
    """
    header, body = csv_rows(path, read_text(path))
    known = {name.lower(): name for name in (*needed, *optional)}
    names = [name.removeprefix("\ufeff") for name in header]
    columns = tuple(known.get(name.lower(), name) for name in names)
    problems = [f"{path}:1: column {c!r} is missing" for c in needed if c not in columns]
    problems += [f"{path}:1: column {c!r} twice" for c in set(columns) if columns.count(c) > 1]
    problems += [
        f"{path}:1: column {c!r} is not known; did you mean {known[near[0]]!r}?"
        for c in columns
        if c not in known.values()
        and (near := get_close_matches(c.lower(), known, n=1, cutoff=0.8))
        and known[near[0]] not in columns
    ]
    problems += [
        f"{path}:{line}: {len(cells)} cells, the header has {len(columns)}"
        for line, cells in body
        if len(cells) != len(columns)
    ]
    if problems:
        raise InvalidInputError(problems)
    if not body:
        refuse(f"{path}: no rows below the header")
    return CsvRows(
        path=path,
        columns=columns,
        rows=tuple(dict(zip(columns, cells, strict=True)) for _, cells in body),
        lines=tuple(line for line, _ in body),
    )


def answers(table: CsvRows, found: Iterable[Answer]) -> list[dict[str, Any]]:
    """The rows with the predictions in seconds, which replace columns of the same name."""
    rows = []
    for row, p in zip(table.rows, found, strict=True):
        told: dict[str, Any] = {k: cell for k, cell in row.items() if k not in OWN_COLUMNS}
        if isinstance(p, Predicted):
            figures = {"predicted_s": p.time_s, "low_s": p.low_s, "high_s": p.high_s}
            told |= {**figures, "source": p.basis.value}
        else:
            told |= dict.fromkeys(("predicted_s", "low_s", "high_s", "source"))
            told["reason"] = p
        rows.append(told)
    return rows


def predicted_text(table: CsvRows, found: Iterable[Answer]) -> str:
    """The table as CSV text with the predictions, which replace columns of the same name."""
    told = answers(table, found)
    added = [*ADDED_COLUMNS, *([REASON_COLUMN] if any("reason" in row for row in told) else [])]
    kept = [c for c in table.columns if c not in OWN_COLUMNS]
    rows = []
    for row, own in zip(table.rows, told, strict=True):
        times = (own["predicted_s"], own["low_s"], own["high_s"])
        shown = (None if time_s is None else f"{time_s / US:.6g}" for time_s in times)
        cells = (*shown, own["source"], own.get("reason"))
        rows.append([*(row[c] for c in kept), *cells[: len(added)]])
    return csv_text((*kept, *added), rows)


def spread_ratio(*sigmas: float) -> float:
    """Spread of a 90 % interval, from log-standard deviations of independent errors."""
    return math.exp(_QUANTILE_95 * math.hypot(*sigmas)) - 1.0


def interval(time_s: float, spread_ratio: float, basis: Basis) -> Predicted:
    """A time with an interval that has the same factor to both sides."""
    wide = 1.0 + spread_ratio
    return Predicted(time_s=time_s, low_s=time_s / wide, high_s=time_s * wide, basis=basis)


def parsed(table: CsvRows, parse: Callable[[dict[str, str]], _Row]) -> list[_Row]:
    """Read every row with ``parse``.

    Raises:
        InvalidInputError: ``parse`` refuses rows; the message lists all of them with their lines.
    """
    rows, problems = [], []
    for line, row in zip(table.lines, table.rows, strict=True):
        try:
            rows.append(parse(row))
        except ValueError as error:
            problems.append(f"{table.path}:{line}: {error}")
    if problems:
        raise InvalidInputError(problems)
    return rows


def predict_each(
    table: CsvRows,
    parse: Callable[[dict[str, str]], _Row | str],
    predict: Callable[[_Row], Answer],
) -> tuple[Answer, ...]:
    """A prediction of every row that ``parse`` understands; errors as :func:`parsed`."""
    rows = parsed(table, parse)
    return tuple(row if isinstance(row, str) else predict(row) for row in rows)


def _collective_row(row: dict[str, str]) -> tuple[Collective, tuple[int, int], float]:
    """The collective, the number of all GPUs and that of each host, and the size in bytes.

    The shape follows from two of three columns; the third one may be missing.
    """
    name = row["collective"].strip().lower().replace("_", "").replace("-", "")
    if name not in _NAMES:
        refuse(f"collective {row['collective']!r} is not one of {', '.join(Collective)}")
    size_bytes = number(row, "size_bytes", low=0.0, high=2**50)
    given = {
        c: int(number(row, c, low=1, high=65_536, whole=True))
        for c in ("nodes", "gpus_per_node", "ranks")
        if row.get(c, "").strip()
    }
    if "ranks" not in given and len(given) < 2:
        refuse("needs ranks, or nodes and gpus_per_node")
    ranks = given.get("ranks", given.get("nodes", 1) * given.get("gpus_per_node", 1))
    nodes = given.get("nodes", max(1, ranks // given.get("gpus_per_node", ranks)))
    per_node = given.get("gpus_per_node", max(1, ranks // nodes))
    if nodes * per_node != ranks:
        refuse(f"{ranks} ranks are not {nodes} nodes of {per_node} GPUs")
    return _NAMES[name], (ranks, per_node), size_bytes


def number(
    row: Mapping[str, str], column: str, *, low: float, high: float, whole: bool = False
) -> float:
    """A cell as a number between ``low`` and ``high``.

    Raises:
        ValueError: it is not a number, not a whole number if ``whole``, or out of range.
    """
    text = row[column].strip()
    try:
        value = float(text)
    except ValueError:
        refuse(f"{column} {text[:_CELL]!r} is not a number")
    if not low <= value <= high or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        refuse(f"{column} must be {kind} from {low:.16g} to {high:.16g}, got {text[:_CELL]}")
    return value


def given_cells(row: Mapping[str, str]) -> dict[str, str]:
    """The cells that are not empty, without blanks around them."""
    return {name: text.strip() for name, text in row.items() if text.strip()}


def word(
    given: Mapping[str, str], column: str, default: str, meaning: Callable[[str], _Word]
) -> _Word:
    """The meaning of a cell that must be one of a few words.

    Raises:
        ValueError: it is none of them.
    """
    text = given.get(column, default)
    try:
        return meaning(text.lower())
    except (KeyError, ValueError):
        names = (
            f"one of {', '.join(map(str, meaning))}" if isinstance(meaning, EnumType) else "known"
        )
        refuse(f"{column} {text!r} is not {names}")


# ------------------------------------------------------------------ matrix products


DENSE_COLUMNS: Final = ("M", "K", "N")
DENSE_OPTIONAL: Final = ("batch", "dtype")
_MODEL_SIGMA: Final = 0.28
"""Log-standard deviation of the errors on the products to which the tiles were fitted."""


def predict_products(table: CsvRows, topology: Topology) -> tuple[Answer, ...]:
    """Predict the product of every row: ``batch`` products of M x K by K x N in ``dtype``.

    Args:
        table: columns ``M``, ``K``, ``N``, ``batch`` (default 1) and ``dtype`` (default fp32).
        topology: the system, one device of which computes.

    Raises:
        InvalidInputError: some rows are wrong; the message lists all of them with their lines.
    """
    spread = spread_ratio(rate_sigma(topology, "dense"), _MODEL_SIGMA)
    sources = [p.source for p in topology.provenance if p.name == "device.flops_efficiency"]
    known = bool(sources) and sources[0] in (Source.MEASURED, Source.CALIBRATED)
    basis = Basis.CALIBRATED if known else Basis.ANALYTIC
    rates = dict(topology.device.flops_per_s)

    def predicted(product: Product, dtype: DataType) -> Answer:
        """At the rate of the element type; tf32 runs as fp32 on devices without it."""
        if topology.calibration:
            return _on_cpu(product, dtype, topology)
        if dtype is not DataType.TF32 and dtype not in rates:
            name = topology.device.name
            return f"{name} lists no rate for products in {dtype}"
        return interval(product_s(product, dtype, topology.device), spread, basis)

    return predict_each(table, _product, lambda row: predicted(*row))


def _on_cpu(product: Product, dtype: DataType, topology: Topology) -> Answer:
    """A product on a core, by the constants of a calibrated machine, which are those of fp32."""
    if dtype is not DataType.FP32:
        return f"this machine was calibrated in fp32, not in {dtype}"
    counts = dense_counts((product,), joined_elements=0.0)
    counts[0] = 0.0
    constants = load_constants(topology.calibration).dense
    seconds = float(counts @ np.array(constants.forward_s))
    spread = calibrated_spread_ratio(topology, "dense forward") or spread_ratio(_MODEL_SIGMA)
    return interval(seconds, spread, Basis.CALIBRATED)


def _product(row: Mapping[str, str]) -> tuple[Product, DataType] | str:
    """A row's product and element type.

    Raises:
        ValueError: a cell is wrong.
    """
    given = given_cells(row)
    missing = [c for c in DENSE_COLUMNS if c not in given]
    if missing:
        return f"{', '.join(missing)} not given"
    m, k, n, count = (
        int(number({"batch": "1", **given}, c, low=1, high=2**31, whole=True))
        for c in (*DENSE_COLUMNS, "batch")
    )
    dtype = word(given, "dtype", "fp32", DataType)
    return Product(m=m, k=k, n=n, count=count), dtype


# ------------------------------------------------------------------ lookups


LOOKUP_COLUMNS: Final = ("phase", "rows_per_table", "dim")
LOOKUP_OPTIONAL: Final = (
    *("lookups_total", "batch_per_table", "pooling_factor", "num_tables", "location"),
    *("cache_load_factor", "pooling", "weight_dtype", "output_dtype", "optimizer"),
    *("index_distribution", "lookups_unique", "kernel", "update"),
)
_KERNEL: Final = re.compile(r"tbe|table.?batched", re.IGNORECASE)
_OTHER_KERNEL: Final = re.compile(r"nbit|triton|hip", re.IGNORECASE)
_NUMBER: Final = re.compile(r"((?<=[\s=:(])[-+])?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?")
_PHASES: Final = {
    "forward": (1, 0, 0),
    "eval forward": (1, 0, 1),
    "backward": (0, 1, 0),
    "backward+optimizer": (0, 1, 0),
    "forward+backward": (1, 1, 0),
    "forward+backward+optimizer": (1, 1, 0),
}
"""For each phase: number of forward lookups, number of backward lookups, and whether the device is
idle before the call, so that it has to wait for the host."""
_IDLE_CALLS: Final = 8.0
"""How long the host needs until an idle device is busy, in eager calls.

From eval minus train forwards of 157 calls on an H200, whose host took 24 us for an eager call: 75
to 400 us, 8 to 9 eager calls in the median.
"""
_IDLE_SIGMA: Final = 0.4
"""Log-standard deviation of the same host time among these calls."""
_POWER_LAW_SHIFT: Final = 0.5
"""Values of a power law, cut to whole numbers, fall on row k in proportion to (k + 1/2)^-s."""
_FEW_INDICES: Final = 7e4
"""With fewer indices a call of older kernels does not fill the device, and kernels count that are
not modelled."""
_EXTRAPOLATED_SIGMA: Final = 0.3
"""Added uncertainty of such calls: V100 kernels of 5 to 40 us are missed by up to 0.25."""
_PER_INDEX_SIGMA: Final = 0.15
"""Added uncertainty of updates per index, whose only constant comes from a single device."""
_MOST_INDICES: Final = 2**48
_LARGEST_EXPONENT: Final = 100.0
"""Largest exponent of a law of indices; all indices are on one row long before this."""
_AGREEING: Final = 0.1
"""Counted indices agree with a mean pooling factor if they differ by at most this share."""
_SOURCED: Final = ("device.hbm_bandwidth", "device.update_efficiency", "device.sort_rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupCall:
    """One fused call of ``kernel`` on ``num_tables`` equal tables, one of which is ``shards``."""

    kernel: ComputeKernel
    shards: LookupShards
    num_tables: float
    phase: str


def predict_lookups(table: CsvRows, topology: Topology) -> tuple[Answer, ...]:
    """Predict the call of every row.

    Args:
        table: columns ``phase``, ``rows_per_table``, ``dim``, and ``lookups_total`` or
            ``batch_per_table``; others have defaults, see ``shardplan predict lookup --help``.
        topology: the system, one device of which runs the call.

    Raises:
        InvalidInputError: some rows are wrong; the message lists all of them with their lines.
    """
    model = default_models(topology).lookup

    def predicted(call: LookupCall) -> Answer:
        if topology.calibration and call.kernel is not ComputeKernel.FUSED:
            return "a CPU has no device memory apart from its own"
        return predict_calls((call,), model, topology)

    return predict_each(table, lookup_call, predicted)


def predict_calls(
    calls: Sequence[LookupCall], model: AbstractLookupModel, topology: Topology
) -> Predicted:
    """Predict one fused call on the tables of all ``calls``, which share a phase and a kernel."""
    indices = sum(call.num_tables * float(call.shards.num_indices[0]) for call in calls)
    return interval(call_time(calls, model, topology), *_lookup_trust(calls[0], indices, topology))


def _lookup_trust(call: LookupCall, num_indices: float, topology: Topology) -> tuple[float, Basis]:
    """90 % spread of a call's time, and what the prediction is based on."""
    if topology.calibration:
        counts = zip(("forward", "backward"), _PHASES[call.phase], strict=False)
        spreads = [calibrated_spread_ratio(topology, f"lookup {p} fused") for p, n in counts if n]
        unfitted = spread_ratio(_EXTRAPOLATED_SIGMA)
        return max((s for s in spreads if s is not None), default=unfitted), Basis.CALIBRATED
    kernel, table = call.kernel, call.shards.tables.tables[0]
    known = CACHED_GROUPS if kernel is ComputeKernel.FUSED_UVM_CACHING else LOOKUP_GROUPS
    is_fbgemm, sources = table.row_update.sorts, {p.name: p.source for p in topology.provenance}
    sigmas = [group_sigma(known), rate_sigma(topology, "lookup")]
    if is_fbgemm:
        sigmas[0] = call_sigma(topology, kernel, is_pooled=table.pooling is not Pooling.NONE)
    # Measured rates of this device, or of a similar one.
    known_rates = [sources[name] for name in _SOURCED if name in sources]
    basis = Basis.CALIBRATED if known_rates else Basis.ANALYTIC
    if kernel is not ComputeKernel.FUSED:
        known_rates.append(sources.get("host.device_link_bandwidth", Source.DEFAULT))
        sigmas.append(RELATIVE_SIGMA[known_rates[-1]])
    is_per_index = table.row_update is RowUpdate.PER_INDEX and _PHASES[call.phase][1]
    sigmas += [_PER_INDEX_SIGMA] if is_per_index else []
    if is_per_index or not {*known_rates} <= {Source.MEASURED, Source.CALIBRATED}:
        basis = Basis.ANALYTIC
    if _PHASES[call.phase][2]:
        sigmas += [_IDLE_SIGMA, rate_sigma(topology, "host")]
    if is_fbgemm and not is_measured(topology):
        basis = Basis.EXTRAPOLATED
    if not is_fbgemm and num_indices < _FEW_INDICES:
        sigmas.append(_EXTRAPOLATED_SIGMA)
        basis = Basis.EXTRAPOLATED
    return spread_ratio(*sigmas), basis


def call_time(calls: Sequence[LookupCall], model: AbstractLookupModel, topology: Topology) -> float:
    """Seconds of the phases of one call on the tables of all ``calls``, with its fixed costs."""
    tables = [(call.shards, call.num_tables) for call in calls]
    forward_s, backward_s = call_seconds(calls[0].kernel, tables, topology, model)
    forward, backward, idle = _PHASES[calls[0].phase]
    idle_s = _IDLE_CALLS * topology.host.eager_call_s
    return forward * forward_s + backward * backward_s + idle * idle_s


def lookup_call(row: Mapping[str, str]) -> LookupCall | str:
    """The call that a row describes.

    Raises:
        ValueError: a cell is wrong.
    """
    given = given_cells(row)
    kernel = given.get("kernel", "TBE")
    if not _KERNEL.search(kernel) or _OTHER_KERNEL.search(kernel):
        return f"kernel {kernel!r} is not a table-batched lookup of FBGEMM"
    missing = [c for c in LOOKUP_COLUMNS if c not in given]
    if "lookups_total" not in given and "batch_per_table" not in given:
        missing.append("lookups_total")
    if given.get("location", "").lower() == "uvm_caching" and "cache_load_factor" not in given:
        missing.append("cache_load_factor")
    if missing:
        return f"{', '.join(missing)} not given"
    phase = word(given, "phase", "", {p: p for p in _PHASES}.__getitem__)
    rows = int(number(given, "rows_per_table", low=1, high=_MOST_INDICES, whole=True))
    dim = int(number(given, "dim", low=1, high=16384, whole=True))
    filled = {**dict.fromkeys(("num_tables", "pooling_factor", "cache_load_factor"), "1"), **given}
    num_tables = number(filled, "num_tables", low=1, high=1e6, whole=True)
    pooling_factor = number(filled, "pooling_factor", low=0, high=1e6)
    counts = _counts(given, num_tables, pooling_factor)
    law = _law(given, rows, counts[0], num_tables)
    if isinstance(law, str):
        return law
    table = Table(
        name="table",
        num_embeddings=rows,
        embedding_dim=dim,
        features=(Feature(name="feature", pooling_factor=pooling_factor),),
        distribution=law,
        dtype=word(given, "weight_dtype", "fp32", DataType),
        pooling=word(given, "pooling", "sum", Pooling),
        row_update=word(given, "update", "deduplicated", RowUpdate),
    )
    kernel, ratio = word(given, "location", "hbm", LOCATIONS.__getitem__), 0.0
    output = word(given, "output_dtype", "fp32", DataType)
    optimizer = word(given, "optimizer", "sgd", _optimizer)
    if kernel is ComputeKernel.FUSED_UVM_CACHING:
        ratio = number(filled, "cache_load_factor", low=1e-9, high=1.0)
    shards = LookupShards.whole(
        TableColumns((table,)),
        np.array(counts[:1]),
        np.array(counts[1:]),
        kernel,
        ratio,
        output_element_bytes=int(output.num_bytes),
        optimizer=optimizer,
    )
    return LookupCall(kernel=kernel, shards=shards, num_tables=num_tables, phase=phase)


def _counts(given: dict[str, str], num_tables: float, pooling_factor: float) -> tuple[float, float]:
    """(indices, bags) of one table; either one follows from the other and the pooling factor.

    Raises:
        ValueError: both and the pooling factor are given, and do not agree.
    """
    bags = 0.0
    if "batch_per_table" in given:
        bags = number(given, "batch_per_table", low=1, high=_MOST_INDICES)
    indices = bags * pooling_factor
    if "lookups_total" in given:
        counted = number(given, "lookups_total", low=0, high=_MOST_INDICES) / num_tables
        all_given = bags > 0 and "pooling_factor" in given
        if all_given and not math.isclose(counted, indices, rel_tol=_AGREEING):
            refuse(
                f"lookups_total {given['lookups_total']} is not num_tables x batch_per_table x "
                f"pooling_factor = {num_tables * indices:.10g}; correct one or leave one out"
            )
        if counted > 0 and pooling_factor == 0:
            refuse(
                f"lookups_total {given['lookups_total']} with a pooling_factor of 0: no bag holds "
                "an index; correct one or leave one out"
            )
        indices = counted
    return indices, bags or indices / max(pooling_factor, 1e-6)


def _law(
    given: dict[str, str], rows: int, indices: float, num_tables: float
) -> AbstractIndexDistribution | str:
    """The law of one table's indices, corrected by the distinct rows if they were counted."""
    text = given.get("index_distribution", "uniform")
    law = named_law(text, rows)
    if "lookups_unique" not in given:
        reason = f"index_distribution {text!r} is not understood and lookups_unique not given"
        return law or reason
    most = min(indices, float(rows)) * num_tables
    unique = number(given, "lookups_unique", low=0, high=most) / num_tables
    bins = (law or Uniform(num_embeddings=rows)).frequency_bins()
    drawn = max(indices, 1.0)
    curve = ((drawn, min(max(unique, 1.0), drawn)),)
    return Empirical.from_bins(*bins, rows, num_unique_curve=curve, most_draws_ratio=1000.0)


def named_law(text: str, rows: int) -> AbstractIndexDistribution | None:
    """A law from words such as ``uniform``, ``zipf 1.2``, ``power law alpha 1.05``; else None."""
    words = text.lower()
    if any(w in words for w in ("uniform", "random", "distinct")):
        return Uniform(num_embeddings=rows)
    exponent = _NUMBER.search(words)
    if exponent is None or not any(w in words for w in ("zipf", "power", "pow-law", "alpha")):
        return None
    if not 0.0 <= float(exponent[0]) <= _LARGEST_EXPONENT:
        return None
    shift = _POWER_LAW_SHIFT if "pow" in words else 0.0
    return Zipf(num_embeddings=rows, exponent=float(exponent[0]), shift=shift)


def _optimizer(text: str) -> Optimizer:
    name = text.replace("-", "_").replace("row_wise", "rowwise").removeprefix("exact_")
    return Optimizer(name)
