"""Whether a step gets shorter as GPUs are added, at one batch size over all of them.

    python -m benchmarks.search.growth                        ten models, 8 to 512 GPUs
    python -m benchmarks.search.growth --model 3 --model 7 --gpus 64,128,256
    python -m benchmarks.search.growth --alone                every point searched from nothing
    python -m benchmarks.search.growth --groups 16            with copies, averaged every 16 steps

Each model is drawn at random: 20 to 300 tables (:mod:`benchmarks.search.instances`), their widths,
their skew, the dense part, the system and the batch. The points go through the code of ``shardplan
sweep``, without a limit by the clock, so that the figures are the same on every machine.

``rise`` is how much longer a step takes than the shortest one on fewer GPUs. ``proven`` is the part
of that rise that no plan avoids: the lower bound is longer than that shortest step by so much.
``avoidable`` is how much longer the step takes than both of them, the most that a better plan could
save. A rise of more than 3 % is ``physics`` if at most 3 % are avoidable, and ``open`` otherwise.

``--groups N`` asks ``shardplan tune`` instead: each group of GPUs may have a copy of all tables, so
that exchanges join fewer GPUs, and copies are averaged every N steps, which changes the training.
The best group size of each number of GPUs is shown, with the time of the averaging per step.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.search.instances import drawn
from costmodels.workload import DenseArch, Workload
from planner import load_system
from planner.errors import NoPlanFoundError
from planner.problem import NO_CONSTRAINTS
from planner.sweep import Grid, Journal, Operation, PointResult, run
from planner.sweep.runner import Task, solve
from planner.tuning import Effort, Menu, Study, Tuned, design_space

GPUS: Final = (8, 16, 32, 64, 128, 256, 512)
MODELS: Final = 10
ALLOWED_RATIO: Final = 0.03
"""A step may take this much longer than the shortest one on fewer GPUs."""

_SYSTEMS: Final = ("h100_sxm", "a100_80gb_sxm", "b200_sxm", "mi300x", "aws_p4d", "h200_sxm")
_WIDTHS: Final = ((64,), (128,), (32, 64, 128), (128, 256), (16, 32, 64, 96, 128, 192, 256))
_EXPONENTS: Final = ((0.0, 0.6), (0.0, 1.2), (0.8, 1.4))
_BATCHES: Final = (32_768, 65_536, 131_072, 262_144, 524_288)
_DENSE: Final = (
    DenseArch(num_dense_features=13, bottom_mlp=(64,), top_mlp=(64, 1)),
    DenseArch(num_dense_features=13, bottom_mlp=(512, 256), top_mlp=(512, 256, 1)),
    DenseArch(num_dense_features=256, bottom_mlp=(1024, 512), top_mlp=(2048, 1024, 512, 1)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model, the system that trains it, and the samples of one step over all GPUs."""

    number: int
    workload: Workload
    system: str
    global_batch_size: int


def model(number: int) -> Model:
    """The model of that number, always the same."""
    rng = np.random.default_rng([19, number])
    dense = _DENSE[rng.integers(len(_DENSE))]
    widths = _WIDTHS[rng.integers(len(_WIDTHS))]
    workload = drawn(
        int(np.exp(rng.uniform(np.log(20), np.log(300)))),
        seed=number,
        widths=widths,
        exponents=_EXPONENTS[rng.integers(len(_EXPONENTS))],
        dense=_ending_in(dense, widths[0]),
    )
    return Model(
        number=number,
        workload=workload,
        system=_SYSTEMS[rng.integers(len(_SYSTEMS))],
        global_batch_size=_BATCHES[rng.integers(len(_BATCHES))],
    )


def _ending_in(dense: DenseArch, width: int) -> DenseArch:
    return DenseArch(
        num_dense_features=dense.num_dense_features,
        bottom_mlp=(*dense.bottom_mlp, width),
        top_mlp=dense.top_mlp,
    )


def tasks(asked: Model, gpus: Sequence[int], evaluations: int | None) -> list[Task]:
    """The points of one model."""
    grid = Grid(
        systems=(asked.system,), gpus=tuple(gpus), global_batch_sizes=(asked.global_batch_size,)
    )
    return [
        Task(
            point=point,
            problem=point.problem(
                asked.workload, NO_CONSTRAINTS, load_system(point.system, gpus=point.gpus)
            ),
            operation=Operation(),
            max_evaluations=evaluations,
        )
        for point in grid.points()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """A point beside the shortest step on fewer GPUs; 0 for the first one."""

    result: PointResult
    rise_ratio: float
    proven_ratio: float

    @property
    def avoidable_ratio(self) -> float:
        """How much longer the step takes than the shortest one before and than its bound."""
        return (1.0 + self.rise_ratio) / (1.0 + self.proven_ratio) - 1.0

    @property
    def verdict(self) -> str:
        """Who is to blame for a rise; empty where there is none to speak of."""
        if self.rise_ratio <= ALLOWED_RATIO:
            return ""
        return "physics" if self.avoidable_ratio <= ALLOWED_RATIO else "open"


def rises(results: Sequence[PointResult]) -> Iterator[Rise]:
    """Every point that has a plan, fewest GPUs first."""
    least_s = math.inf
    for result in sorted(results, key=lambda r: r.point.gpus):
        if result.iteration_time_s is None:
            continue
        time_s, bound_s = result.iteration_time_s, result.bound_s or 0.0
        yield Rise(
            result=result,
            rise_ratio=max(time_s / least_s - 1, 0.0),
            proven_ratio=max(bound_s / least_s - 1, 0.0),
        )
        least_s = min(least_s, time_s)


def main() -> None:
    """Plan every model on every number of GPUs and print the rises."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", action="append", type=int, metavar="N", help="0, 1, 2, ...")
    parser.add_argument("--gpus", default=",".join(map(str, GPUS)), metavar="N,N")
    parser.add_argument("--evaluations", type=int, metavar="N")
    parser.add_argument("--alone", action="store_true", help="hand no plans on")
    parser.add_argument("--groups", type=int, metavar="N", help="copies, averaged every N steps")
    parser.add_argument("--workers", type=int, default=1, metavar="N")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="go on from these results")
    options = parser.parse_args()
    gpus = [int(text) for text in options.gpus.split(",")]
    if options.groups is not None:
        _with_groups(options.model or range(MODELS), gpus, options.groups, options.evaluations)
        return
    verdicts = []
    print(
        f"{'model':>24} {'GPUs':>5} {'step':>12} {'bound':>12} {'gap':>8} {'rise':>8} "
        f"{'proven':>8} {'avoidable':>9}"
    )
    for number in options.model or range(MODELS):
        asked, begun = model(number), time.perf_counter()
        points = tasks(asked, gpus, options.evaluations)
        if options.alone:
            found = tuple(map(solve, points))
        else:
            journal = None if options.journal is None else Journal(options.journal)
            found = run(points, journal=journal, workers=options.workers)
        verdicts.append(_print(asked, found))
        print(f"{'':>24} {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    even = verdicts.count("")
    print(
        f"{even} of {len(verdicts)} models within {100 * ALLOWED_RATIO:g} %; "
        f"{verdicts.count('physics')} rise by at most so much more than no plan avoids; "
        f"{verdicts.count('open')} perhaps by more"
    )


def _print(asked: Model, results: Sequence[PointResult]) -> str:
    """A line per point; the verdict on the model."""
    name = f"{asked.number}: {len(asked.workload.tables)} tables"
    print(f"{name:>24} {asked.system}, {asked.global_batch_size:,} samples per step")
    verdicts = set()
    for line in rises(results):
        result = line.result
        time_s, bound_s = result.iteration_time_s or math.nan, result.bound_s or 0.0
        print(
            f"{'':>24} {result.point.gpus:5d} {1e3 * time_s:9.4f} ms {1e3 * bound_s:9.4f} ms "
            f"{100 * (1 - bound_s / time_s):6.2f} % {100 * line.rise_ratio:6.2f} % "
            f"{100 * line.proven_ratio:6.2f} % {100 * line.avoidable_ratio:7.2f} %  {line.verdict}",
            flush=True,
        )
        verdicts.add(line.verdict)
    for result in results:
        if result.iteration_time_s is None:
            print(f"{'':>24} {result.point.gpus:5d} {result.status.value}")
    return next((v for v in ("open", "physics") if v in verdicts), "")


def grouped(task: Task, sync_interval: int) -> Tuned | None:
    """The best plan where groups may have copies; None if none was found that fits."""
    menu = Menu(
        pipelines=(task.problem.workload.pipeline,),
        tries_groups=True,
        sync_intervals=(sync_interval,),
        min_column_widths=(4,),
    )
    space = design_space(task.problem, menu=menu, tunes_cache=False)
    effort = Effort(trials=len(space.setups), trial_evaluations=task.max_evaluations)
    study = Study(space, effort)
    study.run()
    try:
        return study.best()
    except NoPlanFoundError:
        return None


def _with_groups(
    numbers: Sequence[int], gpus: Sequence[int], sync_interval: int, evaluations: int | None
) -> None:
    """Print the best group size of every point, and the rises."""
    print(f"{'model':>24} {'GPUs':>5} {'group':>5} {'step':>12} {'averaging':>12} {'rise':>8}")
    num_even = 0
    for number in numbers:
        asked, begun = model(number), time.perf_counter()
        print(f"{asked.number:>24} {asked.system}, {asked.global_batch_size:,} samples per step")
        least_s, most = math.inf, 0.0
        for task in tasks(asked, gpus, evaluations):
            best = grouped(task, sync_interval)
            if best is None:
                print(f"{'':>24} {task.point.gpus:5d} no plan")
                continue
            rise = max(best.value_s / least_s - 1.0, 0.0)
            least_s, most = min(least_s, best.value_s), max(most, rise)
            print(
                f"{'':>24} {task.point.gpus:5d} {best.setup.group_size:5d} "
                f"{1e3 * best.value_s:9.4f} ms {1e3 * best.sync_s:9.4f} ms {100 * rise:6.2f} %",
                flush=True,
            )
        num_even += most <= ALLOWED_RATIO
        print(f"{'':>24} {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    print(f"{num_even} of {len(numbers)} models within {100 * ALLOWED_RATIO:g} %")


if __name__ == "__main__":
    main()
