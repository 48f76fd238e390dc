"""Where the time of ``shardplan plan`` goes before its search begins, part by part.

    python -m benchmarks.search.where                          the three large cases
    python -m benchmarks.search.where --case 300x64 --case 26x16
    python -m benchmarks.search.where --case 3000x512 --profile list
    python -m benchmarks.search.where --first-plan             300x64, 856x128 and 3000x512

``TABLESxRANKS`` takes the tables that ``shardplan import tables --tables`` makes up, read from a
file as a user's would be; ``--tables drawn`` takes those of :mod:`benchmarks.search.instances`,
which are less alike. Every part is run once, in the order in which ``plan`` comes to it; ``CPU``
tells how much of a core it had, ``peak`` the memory of the whole process so far.

``--first-plan`` runs the planner itself until its search has priced the first plan that fits. Each
case has a process of its own. ``start`` is the interpreter with its imports, ``read`` the workload
and system files, ``first plan`` all that comes between them and the price of that plan.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import gc
import itertools
import math
import pstats
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from benchmarks.search.instances import drawn
from costmodels.pipeline import CostPipeline
from costmodels.sharding import check_plan
from costmodels.system_models import default_models
from planner import load_system, load_workload
from planner.api import solve
from planner.io.workload.starter import placeholder_text
from planner.io.workload.workload_file import workload_text
from planner.options.enumeration import enumerate_options
from planner.options.table_limits import refuse_hopeless, table_limits
from planner.problem import PlanningProblem
from planner.scenarios import ScenarioRule
from planner.search.base import SearchProgress
from planner.search.bounds.feasibility import require_feasible
from planner.search.common.linear import LinearModel
from planner.search.construct.greedy import list_greedy, size_cost
from planner.solving.prepare import search_objective
from planner.space.evaluation import SearchSpace

T = TypeVar("T")

CASES: Final = ("3000x512", "20x4096", "10000x64")
FIRST_PLAN_CASES: Final = ("300x64", "856x128", "3000x512")
TABLES: Final = ("init", "drawn")
_MIB: Final = 2.0**20
_SHOWN: Final = 25


class Parts:
    """Times parts and prints a line for each."""

    def __init__(self, profiled: str) -> None:
        """Functions of the part named ``profiled`` are listed after it."""
        self._profiled = profiled
        self._seconds = self._cpu_s = 0.0

    def time(self, name: str, part: Callable[[], T], note: Callable[[T], str] | None = None) -> T:
        """Run a part without garbage collection, as ``plan`` does."""
        profile = cProfile.Profile() if name == self._profiled else None
        gc.collect()
        gc.disable()
        started, used = time.perf_counter(), time.process_time()
        found = profile.runcall(part) if profile else part()
        seconds, cpu_s = time.perf_counter() - started, time.process_time() - used
        gc.enable()
        self._seconds, self._cpu_s = self._seconds + seconds, self._cpu_s + cpu_s
        self._line(name, seconds, cpu_s, note(found) if note else "")
        if profile:
            pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(_SHOWN)
        return found

    def total(self) -> None:
        """Print the sums."""
        self._line("all", self._seconds, self._cpu_s, "")

    @staticmethod
    def _line(name: str, seconds: float, cpu_s: float, note: str) -> None:
        peak = f"{_peak_bytes() / _MIB:7.0f} MiB peak"
        print(f"  {name:14} {seconds:8.3f} s {cpu_s:8.3f} s CPU {peak}  {note}")


def _peak_bytes() -> float:
    """Most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


@contextmanager
def _written(tables: int, kind: str) -> Iterator[Path]:
    """A workload file with so many tables, one of ``TABLES``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.yaml"
        text = placeholder_text(tables, "model") if kind == "init" else workload_text(drawn(tables))
        path.write_text(text, encoding="utf-8")
        yield path


class _FoundError(Exception):
    """The search has priced its first plan."""


def first_plan(case: str, system: str, kind: str, began_s: float) -> None:
    """Print how long the planner takes to its first plan; ``began_s``: when the process did."""
    tables, ranks = (int(number) for number in case.split("x"))
    start_s, start_cpu_s = time.time() - began_s, time.process_time()
    value_s = math.nan

    def stop(line: SearchProgress) -> None:
        nonlocal value_s
        if line.incumbent is not None:
            value_s = line.incumbent
            raise _FoundError

    with _written(tables, kind) as path:
        times = [(time.perf_counter(), time.process_time())]
        problem = PlanningProblem(
            workload=load_workload(path), topology=load_system(system, gpus=ranks)
        )
    times.append((time.perf_counter(), time.process_time()))
    with contextlib.suppress(_FoundError):
        solve(problem, progress=stop)
    times.append((time.perf_counter(), time.process_time()))
    read, first = (
        f"{b - a:6.2f} s {d - c:6.2f} s CPU" for (a, c), (b, d) in itertools.pairwise(times)
    )
    print(
        f"{case:10} {kind:6} start {start_s:5.2f} s {start_cpu_s:5.2f} s CPU   read {read}   "
        f"first plan {first}   {_peak_bytes() / _MIB:5.0f} MiB peak   {1e3 * value_s:9.3f} ms"
    )


def first_plans(cases: Sequence[str], system: str, kinds: Sequence[str]) -> None:
    """Each case in a process of its own."""
    for case, kind in itertools.product(cases, kinds):
        command = [sys.executable, "-m", "benchmarks.search.where", "--case", case]
        command += ["--system", system, "--tables", kind, "--began", str(time.time())]
        subprocess.run(command, check=True)


def run(case: str, system: str, profiled: str, kind: str = "init") -> None:
    """Print the parts of one case."""
    tables, ranks = (int(number) for number in case.split("x"))
    print(case, flush=True)
    parts = Parts(profiled)
    with _written(tables, kind) as path:
        workload = parts.time("load workload", lambda: load_workload(path))
    topology = parts.time("load system", lambda: load_system(system, gpus=ranks))
    problem = PlanningProblem(workload=workload, topology=topology)
    models = default_models(topology)
    pipeline = parts.time("pipeline", lambda: CostPipeline(workload, topology, models))
    parts.time("limits", lambda: table_limits(problem))
    parts.time("arithmetic", lambda: refuse_hopeless(problem, pipeline))
    listing = parts.time(
        "list",
        lambda: enumerate_options(problem, pipeline),
        lambda found: f"{sum(len(t.options) for t in found.tables):,} options",
    )
    space = parts.time(
        "space",
        lambda: SearchSpace(problem, pipeline, listing),
        lambda found: f"{len(found.pool):,} rows of work",
    )
    parts.time("feasibility", lambda: require_feasible(space))
    objective = parts.time(
        "objective", lambda: search_objective("iteration", space, ScenarioRule.WORST)
    )
    parts.time("linear model", lambda: LinearModel(space, objective))
    sizes = np.array([size_cost(table) for table in workload.tables])
    first = parts.time("first plan", lambda: list_greedy(space, sizes))
    parts.time("its value", lambda: float(objective.values(space.work(first))))
    plan = parts.time("plan object", lambda: space.plan(first))
    work = parts.time("plan work", lambda: pipeline.plan_work(plan))
    parts.time("iteration time", lambda: pipeline.iteration_times(work))
    parts.time("check plan", lambda: check_plan(plan, workload, topology.world_size))
    parts.time("estimate", lambda: pipeline.estimate(plan))
    parts.time("memory", lambda: pipeline.memory(plan))
    parts.total()


def main() -> None:
    """Run every case."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--case", action="append", metavar="TABLESxRANKS")
    parser.add_argument("--system", default="h100_sxm")
    parser.add_argument("--profile", default="", metavar="PART", help="list a part's functions too")
    parser.add_argument("--tables", choices=TABLES, help="default: init; both for first plans")
    parser.add_argument("--first-plan", action="store_true", help="until the first plan alone")
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    kind = options.tables or TABLES[0]
    if options.began is not None:
        first_plan(options.case[0], options.system, kind, options.began)
    elif options.first_plan:
        kinds = [options.tables] if options.tables else TABLES
        first_plans(options.case or FIRST_PLAN_CASES, options.system, kinds)
    else:
        for case in options.case or CASES:
            run(case, options.system, options.profile, kind)


if __name__ == "__main__":
    main()
