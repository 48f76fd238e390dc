"""What each part of the search contributes: the gap with all parts, and with one left out.

Every run gets the same CPU seconds, so that other work on the machine changes little. Run it from
the root of the repository: ``python -m benchmarks.search.ablation --seconds 10``.
"""

from __future__ import annotations

import argparse
import time

from costmodels.pipeline import CostPipeline
from planner.objectives import objective_named
from planner.options.enumeration import enumerate_options
from planner.problem import PlanningProblem
from planner.search.auto import Auto
from planner.search.base import SearchOutcome
from planner.search.common.schedule import SearchPart
from planner.space.evaluation import Budget, Evaluator, SearchSpace
from tests.planner import cases

INSTANCES = ((26, 64), (100, 64), (100, 128), (300, 128), (856, 16))
"""(tables, ranks) in hosts of eight."""
_LOCAL = 8


def space_of(tables: int, ranks: int) -> SearchSpace:
    """The synthetic instance of that size; 26 tables are those of MLPerf's DLRM-DCNv2."""
    workload = cases.dlrm() if tables == len(cases.DLRM_ROWS) else cases.synthetic(tables)
    topology = cases.topology(ranks // _LOCAL, _LOCAL)
    pipeline = CostPipeline(workload, topology)
    problem = PlanningProblem(workload=workload, topology=topology)
    return SearchSpace(problem, pipeline, enumerate_options(problem, pipeline))


def search(
    space: SearchSpace, without: frozenset[SearchPart], seconds: float, seed: int, name: str
) -> SearchOutcome:
    """One search for the objective of that name with so many CPU seconds."""
    objective = objective_named(name, space)
    budget = Budget(time_limit_s=seconds)
    evaluate = Evaluator(space, objective, budget, clock=time.process_time)
    return Auto(without).search(space, evaluate, seed=seed)


def main() -> None:
    """Print one line per instance and part left out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="CPU seconds per search")
    parser.add_argument("--seeds", type=int, default=1, help="searches per line")
    parser.add_argument("--objective", default="iteration")
    parser.add_argument("--case", action="append", metavar="TABLESxRANKS")
    chosen = parser.parse_args()
    print(f"{'tables x ranks':>14}  {'without':<22}  {'plan (ms)':>10}  {'above best':>10}")
    instances = [tuple(map(int, c.split("x"))) for c in chosen.case or ()] or INSTANCES
    for tables, ranks in instances:
        space = space_of(tables, ranks)
        variants = [frozenset[SearchPart](), *(frozenset([part]) for part in SearchPart)]
        means = []
        for without in variants:
            found = [
                search(space, without, chosen.seconds, s, chosen.objective)
                for s in range(chosen.seeds)
            ]
            values = [o.values[0] if o.values else float("inf") for o in found]
            means.append(sum(values) / len(values))
        for without, mean in zip(variants, means, strict=True):
            name = next(iter(without), "(nothing)")
            print(
                f"{tables:>6} x {ranks:<5}  {name:<22}  {1e3 * mean:>10.4f}  "
                f"{mean / min(means) - 1:>10.2%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
