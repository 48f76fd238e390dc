"""Proven optimality gaps on synthetic models, one line per case.

    python -m benchmarks.search.gaps                     the usual cases, 10 s each
    python -m benchmarks.search.gaps --time-limit 60 --case 26x64 --case 100x128

Seconds are of this machine; gaps of cases that end by themselves are not.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time

from benchmarks.search.torchrec_instances import synthetic
from planner import load_system, load_workload, plan

CASES = (
    "dcnv2x8", "dcnv2x16", "dcnv2x64", "26x8", "26x16", "26x64", "26x128", "100x8", "100x16",
    "100x64", "100x128", "300x8", "300x16", "300x64", "300x128", "856x8", "856x16", "856x64",
    "856x128",
)  # fmt: skip


def main() -> None:
    """Plan every case and print value, bound and gap."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--case", action="append", metavar="TABLESxGPUS")
    parser.add_argument("--system", default="h100_sxm")
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--csv", action="store_true")
    options = parser.parse_args()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    head = ("case", "iteration_ms", "bound_ms", "gap_percent", "status", "seconds")
    if options.csv:
        writer.writerow(head)
    else:
        print(f"{head[0]:>10} {'iteration':>12} {'bound':>12} {'gap':>8}  {'ended':12} seconds")
    for case in options.case or CASES:
        tables, gpus = case.split("x")
        workload = (
            load_workload("dlrm_dcnv2_mlperf") if tables == "dcnv2" else synthetic(int(tables))
        )
        started = time.perf_counter()
        result = plan(
            workload,
            load_system(options.system, gpus=int(gpus)),
            time_limit_s=options.time_limit,
            with_baselines=False,
        )
        seconds = time.perf_counter() - started
        value, bound = 1e3 * result.solver.value, 1e3 * (result.bound or 0.0)
        gap = 100 * (result.gap_ratio or 0.0)
        row = (case, value, bound, gap, result.solver.status.value, seconds)
        if options.csv:
            writer.writerow(row)
        else:
            print(
                f"{case:>10} {value:9.4f} ms {bound:9.4f} ms {gap:6.2f} %  {row[4]:12} "
                f"{seconds:6.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
