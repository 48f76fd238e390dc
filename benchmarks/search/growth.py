"""Whether a step gets shorter as GPUs are added, at one batch size over all of them.

    python -m benchmarks.search.growth                        ten models, 8 to 512 GPUs
    python -m benchmarks.search.growth --model 3 --model 7 --gpus 64,128,256
    python -m benchmarks.search.growth --groups 16            with copies, averaged every 16 steps

Each model is drawn at random: 20 to 300 tables (:mod:`benchmarks.search.instances`), their widths,
their skew, the dense part, the system and the batch. The points go through the code of ``shardplan
study --grid``, without a limit by the clock, so that the figures are the same on every machine.

``rise`` is how much longer a step takes than the shortest one on fewer GPUs. ``proven`` is the part
of that rise that no plan avoids: the lower bound is longer than that shortest step by so much.
``avoidable`` is how much longer the step takes than both of them, the most that a better plan could
save. A rise of more than 3 % is ``physics`` if at most 3 % are avoidable, and ``open`` otherwise.

``--groups N`` asks for copies too: each group of GPUs may have a copy of all tables, so
that exchanges join fewer GPUs, and copies are averaged every N steps, which changes the training.
The best group size of each number of GPUs is shown, with the time of the averaging per step.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from benchmarks.search.instances import drawn
from costmodels.workload import DenseArch, Workload
from planner import load_system
from planner.errors import NoPlanFoundError
from planner.options.enumeration import rank_batch
from planner.problem import PlanningProblem
from planner.study import Effort, SetupResult, Space, Study
from planner.study.space import COPIES, SYNC, SYSTEM, Value
from planner.study.space import GPUS as GPUS_KNOB
from planner.support.processes import WorkerPool

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


def space_of(asked: Model, gpus: Sequence[int], sync_interval: int | None = None) -> Space:
    """The setups of one model: every number of GPUs, and copies if there is an interval."""

    def load(picks: Mapping[str, Value]) -> PlanningProblem:
        topology = load_system(asked.system, gpus=int(str(picks[GPUS_KNOB])))
        batch = rank_batch(asked.global_batch_size, asked.workload, topology.world_size)
        workload = replace(asked.workload, batch_size_per_rank=batch)
        return PlanningProblem(workload=workload, topology=topology)

    knobs: dict[str, tuple[Value, ...]] = {SYSTEM: (asked.system,), GPUS_KNOB: tuple(gpus)}
    if sync_interval is not None:
        knobs |= {COPIES: ("all",), SYNC: (sync_interval,)}
    return Space(knobs, load)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """A point beside the shortest step on fewer GPUs; 0 for the first one."""

    result: SetupResult
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


def gpus_of(result: SetupResult) -> int:
    """The number of GPUs of a setup."""
    return int(str(result.setup.get(GPUS_KNOB)))


def rises(results: Sequence[SetupResult]) -> Iterator[Rise]:
    """Every setup that has a plan, fewest GPUs first."""
    least_s = math.inf
    for result in sorted(results, key=gpus_of):
        if result.figures is None:
            continue
        time_s, bound_s = result.figures.time_s, result.bound_s or 0.0
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
    parser.add_argument("--groups", type=int, metavar="N", help="copies, averaged every N steps")
    parser.add_argument("--workers", type=int, default=1, metavar="N")
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
        effort = Effort(evaluations=options.evaluations, time_limit_s=None, is_grid=True)
        with WorkerPool(options.workers) as pool:
            place = None if options.workers == 1 else pool
            study = Study(space_of(asked, gpus), effort, goals=("iteration",), place=place)
            study.run()
        verdicts.append(_print(asked, study.results))
        print(f"{'':>24} {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    even = verdicts.count("")
    print(
        f"{even} of {len(verdicts)} models within {100 * ALLOWED_RATIO:g} %; "
        f"{verdicts.count('physics')} rise by at most so much more than no plan avoids; "
        f"{verdicts.count('open')} perhaps by more"
    )


def _print(asked: Model, results: Sequence[SetupResult]) -> str:
    """A line per point; the verdict on the model."""
    name = f"{asked.number}: {len(asked.workload.tables)} tables"
    print(f"{name:>24} {asked.system}, {asked.global_batch_size:,} samples per step")
    verdicts = set()
    for line in rises(results):
        result = line.result
        time_s = math.nan if result.figures is None else result.figures.time_s
        bound_s = result.bound_s or 0.0
        print(
            f"{'':>24} {gpus_of(result):5d} {1e3 * time_s:9.4f} ms {1e3 * bound_s:9.4f} ms "
            f"{100 * (1 - bound_s / time_s):6.2f} % {100 * line.rise_ratio:6.2f} % "
            f"{100 * line.proven_ratio:6.2f} % {100 * line.avoidable_ratio:7.2f} %  {line.verdict}",
            flush=True,
        )
        verdicts.add(line.verdict)
    for result in results:
        if result.figures is None:
            print(f"{'':>24} {gpus_of(result):5d} {result.status}")
    return next((v for v in ("open", "physics") if v in verdicts), "")


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
        for count in gpus:
            space = space_of(asked, [count], sync_interval)
            effort = Effort(trials=len(space.setups), evaluations=evaluations)
            study = Study(space, effort, goals=("iteration",))
            study.run()
            try:
                best = study.best()
            except NoPlanFoundError:
                print(f"{'':>24} {count:5d} no plan")
                continue
            time_s = best.figures.time_s
            rise = max(time_s / least_s - 1.0, 0.0)
            least_s, most = min(least_s, time_s), max(most, rise)
            print(
                f"{'':>24} {count:5d} {space.group_size(best.setup):5d} "
                f"{1e3 * time_s:9.4f} ms {1e3 * best.sync_s:9.4f} ms {100 * rise:6.2f} %",
                flush=True,
            )
        num_even += most <= ALLOWED_RATIO
        print(f"{'':>24} {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    print(f"{num_even} of {len(numbers)} models within {100 * ALLOWED_RATIO:g} %")


if __name__ == "__main__":
    main()
