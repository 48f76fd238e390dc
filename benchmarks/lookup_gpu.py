"""How well table-batched lookups on a GPU are predicted.

    python benchmarks/lookup_gpu.py

Mean absolute and largest error in percent of FBGEMM's lookups, by where the table lies and by
phase. Nothing of the law of FBGEMM's kernels is fitted to them; ``shardplan validate published
--what lookups`` prints its errors on the rows that it is fitted to. The roofline of other kernels
was fitted to the rows of role ``calibrate``. On V100 there are three groups: ``fbgemm``, which
deduplicates rows (one constant is fitted there, the efficiency of updates, to one kernel);
``per_index``, an older update that does not (one constant, to bags of 16 and 32 indices); and
``small`` forwards of 5 to 40 us, to which nothing was fitted. Kernels of the H100 are timed with
their sort, those of the V100 without.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodels.distribution.uniform import Uniform
from costmodels.lookup.base import LookupShards, TableColumns
from costmodels.lookup.roofline import Roofline
from costmodels.sharding import ComputeKernel
from costmodels.topology import Topology
from costmodels.training.optimizers import RowUpdate
from costmodels.workload import Feature, Optimizer, Table
from planner.io import load_system, load_workload
from planner.io.documents import configs_folder
from planner.predict.operations import (
    LOOKUP_COLUMNS,
    CsvRows,
    LookupCall,
    Predicted,
    call_time,
    lookup_call,
    predict_calls,
    predict_lookups,
    read_table,
)

DEVICE, SYSTEM = "H100-SXM5-80GB", "h100_sxm"
V100_FILE, V100_SYSTEM = "lookup_points_v100.csv", "v100_32gb_sxm"
CRITEO_US = {"forward": 52.0, "backward": 109.0}
"""One V100, batch 2048, 26 tables of 128 columns, one index each, sgd (Lin et al., 2021)."""
CRITEO_ROLES = (("forward", "fbgemm", "validate"), ("backward", "per_index", "calibrate"))
"""The backward chose how times of atomic additions and of device memory join; no number fits it."""
CRITEO_BATCH = 2048
PRODUCTION_INDICES, PRODUCTION_TABLES, PRODUCTION_BATCH = 3_292_247, 197, 512
PRODUCTION_FORWARD_US, PRODUCTION_BACKWARD_US = 389.0, (2904.0, 3105.0)
"""A production model of 2020 in Lin et al.'s traces: 64 columns, sgd; the backward twice."""
Errors = dict[tuple[str, ...], list[float]]


def left_out(groups: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Root mean square error of each group if the constants came from the other groups.

    A constant that is fitted to G groups alike removes 1 / G of the error of each group. Errors
    without the group in the fit are therefore larger by G / (G - 1).
    """
    grown = len(groups) / max(len(groups) - 1, 1)
    return tuple(grown * math.sqrt(float(np.mean(np.square(g)))) for g in groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Relative error of a prediction, and whether the measured time is inside its interval."""

    error_ratio: float
    is_inside: bool

    @staticmethod
    def of(predicted: Predicted, measured_us: float) -> Compared:
        """Compare with a measured time in microseconds."""
        measured_s = 1e-6 * measured_us
        return Compared(
            error_ratio=predicted.time_s / measured_s - 1.0,
            is_inside=predicted.low_s <= measured_s <= predicted.high_s,
        )


def published(name: str) -> CsvRows:
    """A shipped file of measured lookups."""
    return read_table(configs_folder() / "published" / name, LOOKUP_COLUMNS)


def points() -> CsvRows:
    """The rows measured on the H100."""
    table = published("lookup_points.csv")
    kept = [i for i, row in enumerate(table.rows) if row["device"] == DEVICE]
    return CsvRows(
        path=table.path,
        columns=table.columns,
        rows=tuple(table.rows[i] for i in kept),
        lines=tuple(table.lines[i] for i in kept),
    )


@functools.cache
def errors() -> Errors:
    """Relative errors by (role, location) and by (role, location, phase)."""
    table = points()
    found: Errors = defaultdict(list)
    for row, p in zip(table.rows, predict_lookups(table, load_system(SYSTEM)), strict=True):
        if isinstance(p, Predicted):
            error = 1e6 * p.time_s / float(row["time_us"]) - 1.0
            found[row["role"], row["location"]].append(error)
            found[row["role"], row["location"], row["phase"]].append(error)
    return found


@functools.cache
def v100_groups() -> dict[tuple[str, str], list[Compared]]:
    """Kernels on V100 by (group, role); of group ``fbgemm`` the backward is without its sort."""
    topology = load_system(V100_SYSTEM, gpus=1)
    table = published(V100_FILE)
    found: dict[tuple[str, str], list[Compared]] = defaultdict(list)
    for row, p in zip(table.rows, predict_lookups(table, topology), strict=True):
        if isinstance(p, Predicted):
            found[row["group"], row["role"]].append(Compared.of(p, float(row["time_us"])))
    for phase, group, role in CRITEO_ROLES:
        predicted = predict_calls(_criteo_calls(phase), Roofline(), topology)
        found[group, role].append(Compared.of(predicted, CRITEO_US[phase]))
    found["per_index", "validate"] += _production(topology)
    return found


def _criteo_calls(phase: str) -> list[LookupCall]:
    """Criteo's tables, one index per sample."""
    tables = load_workload("dlrm_criteo_terabyte").tables
    each = [replace(t, row_update=RowUpdate.PER_INDEX) for t in tables]
    return [_call(t, phase, CRITEO_BATCH, CRITEO_BATCH) for t in each]


def _log_error(calls: Sequence[LookupCall], topology: Topology, time_us: float) -> float:
    seconds = call_time(calls, Roofline(), topology)
    return math.log(1e6 * seconds / time_us)


def _forward_log_error(calls: Sequence[LookupCall], topology: Topology, time_us: float) -> float:
    """Of a forward kernel as in an iteration, where the latency of a kernel is added."""
    model = Roofline()
    work = np.sum([c.num_tables * model.checked_work(c.shards, topology)[0] for c in calls], axis=0)
    seconds = float(model.forward_time(work, topology)) + topology.device.kernel_latency_s
    return math.log(1e6 * seconds / time_us)


def _production(topology: Topology) -> list[Compared]:
    """Two traces of a model whose index law is not published.

    Its tables are taken as uniform, with as many rows as make the forward as long as measured; the
    backward that follows is compared.
    """

    def predicted(rows: int, phase: str) -> Predicted:
        table = Table(
            name="table",
            num_embeddings=rows,
            embedding_dim=64,
            features=(Feature(name="feature", pooling_factor=1.0),),
            distribution=Uniform(num_embeddings=rows),
            row_update=RowUpdate.PER_INDEX,
        )
        call = _call(table, phase, PRODUCTION_INDICES / PRODUCTION_TABLES, PRODUCTION_BATCH)
        return predict_calls([call] * PRODUCTION_TABLES, Roofline(), topology)

    def forward_us(rows: int) -> float:
        return 1e6 * predicted(rows, "forward").time_s

    rows = bisect_left(range(10**6), PRODUCTION_FORWARD_US, lo=1, key=forward_us)
    backward = predicted(rows, "backward")
    return [Compared.of(backward, time_us) for time_us in PRODUCTION_BACKWARD_US]


def _call(table: Table, phase: str, num_indices: float, num_bags: float) -> LookupCall:
    counts = np.array([num_indices]), np.array([num_bags])
    shards = LookupShards.whole(TableColumns((table,)), *counts, optimizer=Optimizer.SGD)
    return LookupCall(kernel=ComputeKernel.FUSED, shards=shards, num_tables=1.0, phase=phase)


@functools.cache
def error_groups() -> dict[str, tuple[float, ...]]:
    """Root mean square errors, as in an iteration, of the groups behind the intervals.

    Calls that wait for the host are left out: the host of the run is not known.
    """
    h100, v100 = load_system(SYSTEM), load_system(V100_SYSTEM, gpus=1)
    logs: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in points().rows:
        call = lookup_call(row)
        is_fitted = row["role"] == "calibrate" and row["phase"] != "eval forward"
        if isinstance(call, LookupCall) and is_fitted:
            run = row["point_id"].rsplit("-", 1)[0]
            error = _log_error((call,), h100, float(row["time_us"]))
            logs[row["location"]][row["optimizer"], run].append(error)
    uniform = published(V100_FILE).rows[0]
    forwards = [
        abs(_forward_log_error(calls, v100, time_us))
        for calls, time_us in (
            ([lookup_call(uniform)], float(uniform["time_us"])),
            (_criteo_calls("forward"), CRITEO_US["forward"]),
        )
    ]
    return {
        "in device memory": (*left_out(list(logs["hbm"].values())), *forwards),
        "behind a cache": left_out(list(logs["uvm_caching"].values())),
    }


def main() -> None:
    """Print one line per group."""
    print(f"{'role':10s} {'location':12s} {'phase':20s} {'rows':>5s} {'MAPE':>7s} {'worst':>7s}")
    for key, values in sorted(errors().items()):
        role, location, phase = (*key, "all")[:3]
        size = 100 * np.abs(values)
        line = f"{role:10s} {location:12s} {phase:20s} {len(values):5d} "
        print(line + f"{size.mean():6.1f}% {size.max():6.1f}%")
    print("\nV100 group role        rows    MAPE   worst  inside")
    for (group, role), compared in sorted(v100_groups().items()):
        size = 100 * np.abs([c.error_ratio for c in compared])
        inside = 100 * np.mean([c.is_inside for c in compared])
        line = f"{group:10s} {role:10s} {len(compared):5d} "
        print(line + f"{size.mean():6.1f}% {size.max():6.1f}% {inside:6.0f}%")
    print("\nerrors of groups left out, for intervals: ln(predicted / measured)")
    for name, groups in error_groups().items():
        print(f"  {name:20s} " + " ".join(f"{g:.3f}" for g in groups))


if __name__ == "__main__":
    main()
