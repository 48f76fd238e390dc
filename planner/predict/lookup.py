"""Predicts table-batched lookups, one call for each row of a CSV file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.calibration.fit_fbgemm import LOCATIONS, call_seconds
from costmodels.collective.base import Basis
from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.estimates import RELATIVE_SIGMA, Source
from costmodels.lookup.base import AbstractLookupModel, LookupShards, TableColumns
from costmodels.lookup.fbgemm import call_sigma, is_measured
from costmodels.sharding import ComputeKernel
from costmodels.system_models import default_models
from costmodels.topology import Topology
from costmodels.training.optimizers import RowUpdate
from costmodels.uncertainty import CACHED_GROUPS, LOOKUP_GROUPS, group_sigma, rate_sigma
from costmodels.workload import DataType, Feature, Optimizer, Pooling, Table
from planner.errors import refuse
from planner.models import calibrated_spread_ratio
from planner.predict import rows as cells

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
_MOST: Final = 2**48
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

    @property
    def table(self) -> Table:
        """The table."""
        return self.shards.tables.tables[0]


def predict_lookups(table: cells.CsvRows, topology: Topology) -> tuple[cells.Answer, ...]:
    """Predict the call of every row.

    Args:
        table: columns ``phase``, ``rows_per_table``, ``dim``, and ``lookups_total`` or
            ``batch_per_table``; others have defaults, see ``shardplan predict lookup --help``.
        topology: the system, one device of which runs the call.

    Raises:
        InvalidInputError: some rows are wrong; the message lists all of them with their lines.
    """
    model = default_models(topology).lookup

    def predicted(call: LookupCall) -> cells.Answer:
        if topology.calibration and call.kernel is not ComputeKernel.FUSED:
            return cells.Unmodelled(reason="a CPU has no device memory apart from its own")
        return predict_calls((call,), model, topology)

    return cells.predict_each(table, lookup_call, predicted)


def predict_calls(
    calls: Sequence[LookupCall], model: AbstractLookupModel, topology: Topology
) -> cells.Predicted:
    """Predict one fused call on the tables of all ``calls``, which share a phase and a kernel."""
    indices = sum(call.num_tables * float(call.shards.num_indices[0]) for call in calls)
    return cells.interval(call_time(calls, model, topology), *_trust(calls[0], indices, topology))


def _trust(call: LookupCall, num_indices: float, topology: Topology) -> tuple[float, Basis]:
    """90 % spread of a call's time, and what the prediction is based on."""
    if topology.calibration:
        counts = dict(zip(("forward", "backward"), _PHASES[call.phase], strict=False))
        kinds = [f"lookup {phase} fused" for phase, count in counts.items() if count]
        spreads = [calibrated_spread_ratio(topology, kind) for kind in kinds]
        unfitted = cells.spread_ratio(_EXTRAPOLATED_SIGMA)
        return max((s for s in spreads if s is not None), default=unfitted), Basis.CALIBRATED
    kernel, table = call.kernel, call.table
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
    if table.row_update is RowUpdate.PER_INDEX and _PHASES[call.phase][1]:
        sigmas.append(_PER_INDEX_SIGMA)
        basis = Basis.ANALYTIC
    if any(source not in (Source.MEASURED, Source.CALIBRATED) for source in known_rates):
        basis = Basis.ANALYTIC
    if _PHASES[call.phase][2]:
        sigmas += [_IDLE_SIGMA, rate_sigma(topology, "host")]
    if is_fbgemm and not is_measured(topology):
        basis = Basis.EXTRAPOLATED
    if not is_fbgemm and num_indices < _FEW_INDICES:
        sigmas.append(_EXTRAPOLATED_SIGMA)
        basis = Basis.EXTRAPOLATED
    return cells.spread_ratio(*sigmas), basis


def call_time(calls: Sequence[LookupCall], model: AbstractLookupModel, topology: Topology) -> float:
    """Seconds of the phases of one call on the tables of all ``calls``, with its fixed costs."""
    tables = [(call.shards, call.num_tables) for call in calls]
    forward_s, backward_s = call_seconds(calls[0].kernel, tables, topology, model)
    forward, backward, idle = _PHASES[calls[0].phase]
    idle_s = _IDLE_CALLS * topology.host.eager_call_s
    return forward * forward_s + backward * backward_s + idle * idle_s


def lookup_call(row: Mapping[str, str]) -> LookupCall | cells.Unmodelled:
    """The call that a row describes.

    Raises:
        ValueError: a cell is wrong.
    """
    given = cells.given_cells(row)
    kernel = given.get("kernel", "TBE")
    if not _KERNEL.search(kernel) or _OTHER_KERNEL.search(kernel):
        return cells.Unmodelled(reason=f"kernel {kernel!r} is not a table-batched lookup of FBGEMM")
    missing = [c for c in LOOKUP_COLUMNS if c not in given]
    if "lookups_total" not in given and "batch_per_table" not in given:
        missing.append("lookups_total")
    if given.get("location", "").lower() == "uvm_caching" and "cache_load_factor" not in given:
        missing.append("cache_load_factor")
    if missing:
        return cells.Unmodelled(reason=f"{', '.join(missing)} not given")
    return _shaped(given)


def _shaped(given: dict[str, str]) -> LookupCall | cells.Unmodelled:
    phase = cells.word(given, "phase", "", {p: p for p in _PHASES}.__getitem__)
    rows = int(cells.number(given, "rows_per_table", low=1, high=_MOST, whole=True))
    dim = int(cells.number(given, "dim", low=1, high=16384, whole=True))
    num_tables = cells.number(given, "num_tables", 1.0, low=1, high=1e6, whole=True)
    pooling_factor = cells.number(given, "pooling_factor", 1.0, low=0, high=1e6)
    counts = _counts(given, num_tables, pooling_factor)
    law = _law(given, rows, counts[0], num_tables)
    if isinstance(law, cells.Unmodelled):
        return law
    table = Table(
        name="table",
        num_embeddings=rows,
        embedding_dim=dim,
        features=(Feature(name="feature", pooling_factor=pooling_factor),),
        distribution=law,
        dtype=cells.word(given, "weight_dtype", "fp32", DataType),
        pooling=cells.word(given, "pooling", "sum", Pooling),
        row_update=cells.word(given, "update", "deduplicated", RowUpdate),
    )
    kernel, ratio = cells.word(given, "location", "hbm", LOCATIONS.__getitem__), 0.0
    output = cells.word(given, "output_dtype", "fp32", DataType)
    optimizer = cells.word(given, "optimizer", "sgd", _optimizer)
    if kernel is ComputeKernel.FUSED_UVM_CACHING:
        ratio = cells.number(given, "cache_load_factor", 1.0, low=1e-9, high=1.0)
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
    bags = cells.number(given, "batch_per_table", 0.0, low=1, high=_MOST)
    indices = bags * pooling_factor
    if "lookups_total" in given:
        counted = cells.number(given, "lookups_total", low=0, high=_MOST) / num_tables
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
) -> AbstractIndexDistribution | cells.Unmodelled:
    """The law of one table's indices, corrected by the distinct rows if they were counted."""
    text = given.get("index_distribution", "uniform")
    law = named_law(text, rows)
    if "lookups_unique" not in given:
        reason = f"index_distribution {text!r} is not understood and lookups_unique not given"
        return law or cells.Unmodelled(reason=reason)
    most = min(indices, float(rows)) * num_tables
    unique = cells.number(given, "lookups_unique", low=0, high=most) / num_tables
    bins = (law or Uniform(num_embeddings=rows)).frequency_bins()
    curve = ((max(indices, 1.0), max(unique, 1.0)),)
    return Empirical.from_bins(*bins, rows, num_unique_curve=curve)


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
