"""How well table-batched lookups on a GPU are predicted.

    python benchmarks/lookup_gpu.py
    python benchmarks/lookup_gpu.py --points measured.csv --system h200_sxm

Mean absolute and largest error in percent of FBGEMM's lookups, by where the table lies and by
phase. The constants of the lookup model were fitted to the rows of role ``calibrate``; the rows of
role ``validate`` were never fitted. On V100 one constant is fitted, the efficiency of updates, to
one kernel; what was not fitted there are both forwards and the update of Criteo's tables.

Then the learned factor: its fit holds tables out in turn and says whether it helps. With
``--points`` (columns as ``shardplan predict lookup`` takes them, and ``time_us``) it is fitted to
those; ``--write`` keeps it for the system if it helps.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from costmodels.calibration.fit_residual import ResidualFit, fit_residual
from costmodels.lookup.base import LookupShard
from costmodels.lookup.residual import LookupResidual, shard_features
from costmodels.lookup.roofline import Roofline
from costmodels.sharding import ComputeKernel
from costmodels.stages.stage_model import BACKWARD_KERNELS
from costmodels.topology import Topology
from costmodels.uncertainty import left_out
from costmodels.workload import Optimizer
from planner.io import load_system, load_workload
from planner.io.library import configs_folder
from planner.io.system.residual_file import residual_path, write_residual
from planner.predict.lookup import (
    LOOKUP_COLUMNS,
    LookupCall,
    call_time,
    lookup_call,
    predict_lookups,
)
from planner.predict.rows import CsvRows, Predicted, read_table

DEVICE, SYSTEM = "H100-SXM5-80GB", "h100_sxm"
V100, V100_SYSTEM = "V100", "v100_32gb_sxm"
CRITEO_US = {"forward": 52.0, "backward": 109.0}
"""One V100, batch 2048, 26 tables of 128 columns, one index each, sgd (Lin et al.'s trace)."""
CRITEO_BATCH = 2048
_NO_SORT_PER_S = 1e18
Errors = dict[tuple[str, ...], list[float]]


def points(device: str = DEVICE) -> CsvRows:
    """The rows measured on a device."""
    table = read_table(configs_folder() / "published" / "lookup_points.csv", LOOKUP_COLUMNS)
    kept = [i for i, row in enumerate(table.rows) if row["device"] == device]
    return CsvRows(
        path=table.path,
        columns=table.columns,
        rows=tuple(table.rows[i] for i in kept),
        lines=tuple(table.lines[i] for i in kept),
    )


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


def v100_errors() -> dict[str, float]:
    """Signed relative errors of the kernels alone; their sort is not in the trace."""
    topology = load_system(V100_SYSTEM, gpus=1)
    bare = replace(topology, device=replace(topology.device, sort_rate_per_s=_NO_SORT_PER_S))
    table = points(V100)
    found = {}
    for row in table.rows:
        call = lookup_call(row)
        if isinstance(call, LookupCall):
            seconds = call_time(call, Roofline(), bare)
            name = f"{row['role']:10s} 8 uniform tables, {row['phase']}"
            found[name] = 1e6 * seconds / float(row["time_us"]) - 1.0
    for phase, seconds in _criteo_s(bare).items():
        found[f"validate   Criteo, 53248 indices, {phase}"] = 1e6 * seconds / CRITEO_US[phase] - 1.0
    return found


def _criteo_s(topology: Topology) -> dict[str, float]:
    model = Roofline()
    shards = [
        LookupShard(
            table=table,
            kernel=ComputeKernel.FUSED,
            row_offset=0,
            num_rows=table.num_embeddings,
            num_cols=table.embedding_dim,
            num_indices=CRITEO_BATCH,
            num_table_indices=CRITEO_BATCH,
            num_bags=CRITEO_BATCH,
            output_element_bytes=4,
            index_bytes=8,
            optimizer=Optimizer.SGD,
            cache_load_factor_ratio=None,
        )
        for table in load_workload("dlrm_criteo_terabyte").tables
    ]
    work = np.sum([model.shard_work(s, topology) for s in shards], axis=0)
    latency_s = topology.device.kernel_latency_s
    return {
        "forward": float(model.forward_time(work, topology)) + latency_s,
        "backward": float(model.backward_time(work, topology)) + BACKWARD_KERNELS * latency_s,
    }


def residual_groups() -> dict[str, tuple[float, ...]]:
    """Root mean square errors of the groups behind the intervals of lookups."""
    table = points()
    logs: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row, p in zip(table.rows, predict_lookups(table, load_system(SYSTEM)), strict=True):
        if isinstance(p, Predicted) and row["role"] == "calibrate":
            run = row["point_id"].rsplit("-", 1)[0]
            error = math.log(1e6 * p.time_s / float(row["time_us"]))
            logs[row["location"]][row["optimizer"], run].append(error)
    forwards = [abs(math.log1p(e)) for name, e in v100_errors().items() if "forward" in name]
    return {
        "in device memory": (*left_out(list(logs["hbm"].values())), *forwards),
        "behind a cache": left_out(list(logs["uvm_caching"].values())),
    }


def fitted(table: CsvRows, topology: Topology) -> dict[str, ResidualFit]:
    """The learned factor of each phase on rows with measured times."""
    found = {}
    for phase in ("forward", "backward"):
        seen, ratios, tables = [], [], []
        for row in table.rows:
            call = lookup_call(row)
            mine = row["phase"].startswith(phase) and row.get("role", "calibrate") == "calibrate"
            if mine and isinstance(call, LookupCall):
                seconds = call_time(call, Roofline(), topology)
                seen.append(shard_features(call.shard))
                ratios.append(math.log(float(row["time_us"]) * 1e-6 / seconds))
                tables.append((row["rows_per_table"], row["dim"], row.get("num_tables")))
        found[phase] = fit_residual(np.array(seen), np.array(ratios), tables)
    return found


def main(arguments: Sequence[str] = ()) -> None:
    """Print one line per group, and what the learned factor does."""
    parser = argparse.ArgumentParser(description="Errors of lookups on GPUs; learned factors.")
    parser.add_argument("--points", type=Path, help="measured rows to fit a learned factor to")
    parser.add_argument("--system", default=SYSTEM)
    parser.add_argument("--write", action="store_true", help="keep the factor if it helps")
    options = parser.parse_args(arguments)
    if options.points is None:
        _print_errors()
    table = points() if options.points is None else read_table(options.points, LOOKUP_COLUMNS)
    topology = load_system(options.system, gpus=1)
    fits = fitted(table, topology)
    print(f"\nlearned factor on {topology.name}, tables held out: geomean error")
    for phase, fit in fits.items():
        with_it = "-" if math.isnan(fit.corrected_ratio) else f"{100 * fit.corrected_ratio:.1f} %"
        line = f"  {phase:9s} {fit.num_points} points of {fit.num_tables} tables: "
        line += f"{100 * fit.analytic_ratio:.1f} % without, {with_it} with it; "
        print(line + ("kept: " if fit.factor else "not kept: ") + fit.reason)
    kept = LookupResidual(forward=fits["forward"].factor, backward=fits["backward"].factor)
    if options.write and (kept.forward or kept.backward):
        write_residual(residual_path(topology), kept)
        print(f"wrote {residual_path(topology)}")


def _print_errors() -> None:
    print(f"{'role':10s} {'location':12s} {'phase':20s} {'rows':>5s} {'MAPE':>7s} {'worst':>7s}")
    for key, values in sorted(errors().items()):
        role, location, phase = (*key, "all")[:3]
        size = 100 * np.abs(values)
        line = f"{role:10s} {location:12s} {phase:20s} {len(values):5d} "
        print(line + f"{size.mean():6.1f}% {size.max():6.1f}%")
    print("\nV100, kernels alone")
    for name, error in v100_errors().items():
        print(f"  {name:45s} {100 * error:+6.1f}%")
    print("\nerrors of groups left out, for intervals: ln(predicted / measured)")
    for name, groups in residual_groups().items():
        print(f"  {name:20s} " + " ".join(f"{g:.3f}" for g in groups))


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
