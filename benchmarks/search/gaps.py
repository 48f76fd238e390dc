"""Proven optimality gaps, one line per case of ``benchmarks.search.instances``.

    python -m benchmarks.search.gaps                     the usual cases, 10 s each
    python -m benchmarks.search.gaps --time-limit 60 --case 26x64 --case 100x128

Gaps depend on how fast the machine is unless a search ends by itself; ``cpu`` says how much of a
core the search had.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time

from benchmarks.search.instances import CASES, workload_of
from planner import load_system, plan

_HEAD = ("case", "iteration_ms", "bound_ms", "gap_percent", "status", "seconds", "cpu_seconds")


def main() -> None:
    """Plan every case and print value, bound and gap."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--case", action="append", metavar="TABLESxRANKS")
    parser.add_argument("--system", default="h100_sxm")
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--objective", default="iteration")
    parser.add_argument("--csv", action="store_true")
    options = parser.parse_args()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if options.csv:
        writer.writerow(_HEAD)
    else:
        print(
            f"{_HEAD[0]:>10} {'iteration':>12} {'bound':>12} {'gap':>8}  {'ended':12} seconds   cpu"
        )
    for case in options.case or CASES:
        workload, ranks = workload_of(case)
        started, used = time.perf_counter(), time.process_time()
        result = plan(
            workload,
            load_system(options.system, gpus=ranks),
            time_limit_s=options.time_limit,
            seed=options.seed,
            objective=options.objective,
            with_baselines=False,
        )
        seconds, cpu = time.perf_counter() - started, time.process_time() - used
        value, bound = 1e3 * result.solver.value, 1e3 * (result.bound or 0.0)
        gap, ended = 100 * (result.gap_ratio or 0.0), result.solver.status.value
        if options.csv:
            writer.writerow((case, value, bound, gap, ended, round(seconds, 1), round(cpu, 1)))
        else:
            print(
                f"{case:>10} {value:9.4f} ms {bound:9.4f} ms {gap:6.2f} %  {ended:12} "
                f"{seconds:6.1f} {cpu:6.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
