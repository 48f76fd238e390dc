"""Where gaps come from: the plan, the bound, or what no bound counts.

    python -m benchmarks.search.blame

Small models are searched with every option, then every one of their plans is priced: the plan's
distance from the optimum and the bound's distance are printed apart. Larger ones are searched for
the usual time and for many times as long: where the long search finds a better plan, the short one
was to blame, and where it proves more, its bound was. ``unseen`` is the part of the gap that is
launches and overlap, which follow from no phase's maximum, so that bounds leave them out.
"""

from __future__ import annotations

import argparse
import math
import statistics
from typing import Final

import numpy as np

from benchmarks.search.instances import drawn, workload_of
from costmodels.pipeline import CostPipeline
from planner import load_system, plan
from planner.objectives import objective_named
from planner.problem import PlanningProblem
from planner.search.auto import Auto
from planner.search.base import Record
from planner.search.common.schedule import USUAL
from planner.search.construct import walk
from planner.solving.prepare import search_space
from planner.space.evaluation import Budget, Evaluator

SHAPES: Final = ((3, 1, 2), (3, 1, 3), (3, 2, 1), (2, 2, 2), (2, 1, 4))
"""(tables, hosts, ranks per host) of the small models."""
CASES: Final = ("dcnv2x16", "26x8", "26x16", "100x16")


def main() -> None:
    """Both parts, a line per case."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seeds", type=int, default=4, help="small models of each shape")
    parser.add_argument("--long", type=float, default=120.0, metavar="SECONDS")
    parser.add_argument("--case", action="append", metavar="TABLESxRANKS")
    chosen = parser.parse_args()
    for objective in ("iteration", "phases"):
        small(objective, chosen.seeds)
    for objective in ("iteration", "phases"):
        for case in chosen.case or CASES:
            longer(objective, case, chosen.long)


def small(objective: str, seeds: int) -> None:
    """Against every plan."""
    plans, bounds = [], []
    for tables, hosts, local in SHAPES:
        for seed in range(seeds):
            found, bound, optimum = _exhausted(objective, tables, hosts, local, seed)
            plans.append(found / optimum - 1.0)
            bounds.append(1.0 - bound / optimum)
    print(
        f"{objective:<10}{len(plans)} small models, every plan priced: the plan is "
        f"{100 * statistics.mean(plans):.2f} % above the optimum on average, "
        f"{100 * max(plans):.2f} % at worst; the bound {100 * statistics.mean(bounds):.2f} % below "
        f"it, {100 * max(bounds):.2f} % at worst",
        flush=True,
    )


def _exhausted(
    objective: str, tables: int, hosts: int, local: int, seed: int
) -> tuple[float, float, float]:
    """Value and bound of the search, and the optimum."""
    topology = load_system("h100_sxm", gpus=hosts * local, gpus_per_host=local)
    workload = drawn(tables, seed=seed)
    space = search_space(PlanningProblem(workload=workload, topology=topology), CostPipeline)
    priced = objective_named(objective, space)
    optimum = math.inf
    for _, works in walk.every_assignment(space):
        values = np.where(space.overflow_ratio(works) <= 0, priced.values(works), np.inf)
        optimum = min(optimum, float(values.min()))
    record = Record(Evaluator(space, priced, Budget()))
    object.__setattr__(USUAL, "exhaustive_s", 0.0)
    outcome = Auto().search(record, seed=0)
    return outcome.values[0], float(outcome.bound or 0.0), optimum


def longer(objective: str, case: str, long_s: float) -> None:
    """The usual 10 s beside a long search."""
    workload, ranks = workload_of(case)
    system = load_system("h100_sxm", gpus=ranks)
    short, long = (
        plan(workload, system, objective=objective, time_limit_s=s, with_baselines=False).solver
        for s in (10.0, long_s)
    )
    print(
        f"{objective:<10}{case:>9}  10 s: gap {100 * (short.gap_ratio or 0.0):5.2f} % "
        f"(unseen {100 * short.unseen_gap_ratio:.2f})   {long_s:g} s: plan "
        f"{100 * (1 - long.value / short.value):5.2f} % better, bound "
        f"{100 * ((long.bound or 0.0) / (short.bound or math.inf) - 1):5.2f} % higher, gap "
        f"{100 * (long.gap_ratio or 0.0):5.2f} %",
        flush=True,
    )


if __name__ == "__main__":
    main()
