"""Where the time of ``shardplan plan`` goes before its search begins, part by part.

    python -m benchmarks.search.where                          the three large cases
    python -m benchmarks.search.where --case 300x64 --case 26x16
    python -m benchmarks.search.where --case 3000x512 --profile list

``TABLESxRANKS`` takes the tables that ``shardplan init --tables`` makes up, read from a file as a
user's would be. Every part is run once, in the order in which ``plan`` comes to it; ``CPU`` tells
how much of a core it had, ``peak`` the memory of the whole process so far.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from costmodels.pipeline import CostPipeline
from costmodels.sharding import check_plan
from planner import load_system, load_workload
from planner.io.workload.starter import placeholder_text
from planner.models import default_models
from planner.options.arithmetic import refuse_hopeless
from planner.options.enumeration import enumerate_options
from planner.options.table_limits import table_limits
from planner.prepare import search_objective
from planner.problem import PlanningProblem
from planner.scenarios import ScenarioRule
from planner.search.bounds.feasibility import require_feasible
from planner.search.common.linear import LinearModel
from planner.search.construct.greedy import list_greedy, size_cost
from planner.space.evaluation import SearchSpace

T = TypeVar("T")

CASES: Final = ("3000x512", "20x4096", "10000x64")
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
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0 / _MIB
        print(f"  {name:14} {seconds:8.3f} s {cpu_s:8.3f} s CPU {peak:7.0f} MiB peak  {note}")


def run(case: str, system: str, profiled: str) -> None:
    """Print the parts of one case."""
    tables, ranks = (int(number) for number in case.split("x"))
    print(case, flush=True)
    parts = Parts(profiled)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.yaml"
        path.write_text(placeholder_text(tables, "model"), encoding="utf-8")
        workload = parts.time("load workload", lambda: load_workload(path))
    topology = parts.time("load system", lambda: load_system(system, gpus=ranks))
    problem = PlanningProblem(workload=workload, topology=topology)
    models = default_models(topology)
    pipeline = parts.time("pipeline", lambda: CostPipeline(workload, topology, models))
    limits = parts.time("limits", lambda: table_limits(problem))
    parts.time("arithmetic", lambda: refuse_hopeless(problem, pipeline, limits))
    listing = parts.time(
        "list",
        lambda: enumerate_options(problem, pipeline, limits=limits),
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
    options = parser.parse_args()
    for case in options.case or CASES:
        run(case, options.system, options.profile)


if __name__ == "__main__":
    main()
