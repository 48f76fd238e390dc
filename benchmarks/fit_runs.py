"""What ``shardplan fit`` learns from two plans of a model about its other plans, on gloo ranks.

    python -m benchmarks.fit_runs                      six random models, eight random plans each
    python -m benchmarks.fit_runs --models 3 --seed 9

Every model is trained by TorchRec on two ranks of this machine under all its plans in turns; two of
the plans are also run under the PyTorch profiler. The shipped system ``cpu_gloo`` is then fitted to
these two plans, by their times, by their traces, and by both, and predicts the other six. Times are
those of the clock on the wall and, for the fit by times, processor seconds as ``validate torchrec``
takes them. Nothing that is fitted has seen a run of this program, but the constants of the cores
that a fit starts from were measured on a machine of the same kind.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from costmodels.calibration.points import random_plan
from costmodels.sharding import Plan
from costmodels.workload import Workload
from planner import load_system
from planner.fit.estimate import Predictor, Run, fit, mean_iteration_s
from planner.integrations.measure.gloo_ranks import run_on_ranks
from planner.integrations.measure.runs import (
    NUM_BATCHES,
    RunCase,
    RunSettings,
    Training,
    make_batches,
    run_plans,
)
from planner.problem import PlanningProblem
from planner.trace.reading import TraceTimes, read_trace
from planner.validation.tasks import MIXES, random_workload

RANKS: Final = 2
NUM_PLANS: Final = 8
FITTED: Final = 2
_WARM_UP: Final = 4
_PROFILED: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A model and its plans; traces of every rank for the first of them."""

    workload: Workload
    plans: tuple[Plan, ...]
    runs: tuple[dict[str, Any], ...]
    traces: tuple[tuple[TraceTimes, ...], ...]


def profile_rank(rank: int, world_size: int, cases: Sequence[RunCase], folder: str) -> None:
    """Write a trace of each case, ``PLAN.RANK.json``."""
    batches = make_batches(cases[0].workload, rank, 0)
    for index, case in enumerate(cases):
        training = Training(case, world_size, 0)
        path = Path(folder) / f"{index}.{rank}.json"
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            schedule=torch.profiler.schedule(wait=0, warmup=_WARM_UP, active=_PROFILED, repeat=1),
            on_trace_ready=lambda found, path=path: found.export_chrome_trace(str(path)),
        ) as profiler:
            for i in range(_WARM_UP + _PROFILED):
                training.step(batches[i % NUM_BATCHES])
                profiler.step()


def measured(seed: int) -> Measured:
    """One random model under random plans."""
    workload, rng = random_workload(seed), np.random.default_rng(seed)
    plans = [random_plan(workload, RANKS, MIXES[i % 4], rng) for i in range(NUM_PLANS)]
    plans = [plans[i] for i in rng.permutation(NUM_PLANS)]
    cases = tuple(RunCase(workload=workload, plan=plan) for plan in plans)
    runs = run_plans(cases, world_size=RANKS, settings=RunSettings(num_blocks=8, seed=seed))
    with tempfile.TemporaryDirectory() as folder:
        run_on_ranks(profile_rank, RANKS, cases[:FITTED], folder)
        traces = tuple(
            tuple(read_trace(Path(folder) / f"{i}.{rank}.json") for rank in range(RANKS))
            for i in range(FITTED)
        )
    return Measured(workload=workload, plans=tuple(plans), runs=tuple(runs), traces=traces)


def log_errors(found: Measured) -> dict[str, tuple[float, ...]]:
    """|ln(predicted / measured)| of the plans that were not fitted, by what was."""
    problem = PlanningProblem(workload=found.workload, topology=load_system("cpu_gloo", gpus=RANKS))
    wall_s = [run["wall_s"] for run in found.runs]
    processor_s = [run["measured_s"] for run in found.runs]
    profiled_s = [mean_iteration_s(traces) for traces in found.traces]

    def left(name: str, times_s: Sequence[float], given: Sequence[Run] | None) -> None:
        factors, topology = np.zeros(4), problem.topology
        if given is not None:
            fitted = fit(problem, given)
            factors, topology = np.log(fitted.factors.ratios), fitted.topology
        kept = [run_of(i, times_s[i]) for i in range(FITTED, NUM_PLANS)]
        on = PlanningProblem(workload=found.workload, topology=topology)
        predicted_s = Predictor(on, kept).iterations_s(factors)
        errors[name] = tuple(np.abs(np.log(predicted_s / np.array(times_s[FITTED:]))).tolist())

    def run_of(index: int, time_s: float, traces: tuple[TraceTimes, ...] = ()) -> Run:
        plan = found.plans[index]
        return Run(name=str(index), plan=plan, iteration_s=time_s, traces=traces)

    errors: dict[str, tuple[float, ...]] = {}
    two = range(FITTED)
    left("before", wall_s, None)
    left("times", wall_s, [run_of(i, wall_s[i]) for i in two])
    left("traces", wall_s, [run_of(i, profiled_s[i], found.traces[i]) for i in two])
    left("both", wall_s, [run_of(i, wall_s[i], found.traces[i]) for i in two])
    left("before, processor", processor_s, None)
    left("times, processor", processor_s, [run_of(i, processor_s[i]) for i in two])
    profiled = [run_of(i, processor_s[i], found.traces[i]) for i in two]
    left("both, processor", processor_s, profiled)
    return errors


def main() -> None:
    """A row per model, and the geometric mean errors of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=6)
    parser.add_argument("--seed", type=int, default=300)
    options = parser.parse_args()
    all_errors: dict[str, list[float]] = defaultdict(list)
    for seed in range(options.seed, options.seed + options.models):
        errors = log_errors(measured(seed))
        if not all_errors:
            print("geometric mean error of six plans after a fit to two others")
            print(f"{'model':8s}" + "".join(f"{name:>20s}" for name in errors))
        print(f"{seed:<8d}" + "".join(f"{_percent(e):>20s}" for e in errors.values()), flush=True)
        for name, found in errors.items():
            all_errors[name].extend(found)
    print(f"{'all':8s}" + "".join(f"{_percent(e):>20s}" for e in all_errors.values()))


def _percent(errors: Sequence[float]) -> str:
    return f"{100 * math.expm1(float(np.mean(errors))):.1f} %"


if __name__ == "__main__":
    main()
