"""Searches on one task, each in a fork of its own; :mod:`benchmarks.search.peers` calls it.

Prints one line for each, ``ROW`` and a JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from benchmarks.search.peer_searches import restated
from benchmarks.search.peer_searches.tasks import Best, SpaceName, TimeIsUp, price, space_of, task
from planner.objectives import objective_named
from planner.search.auto import Auto
from planner.search.base import Record
from planner.search.common.schedule import USUAL
from planner.space.evaluation import Budget, Evaluator, SearchSpace
from planner.space.objective import AbstractObjective

OURS: Final = "ours"
SEARCHES: Final = {
    SpaceName.HALVING: (OURS, "neuroshard", "dreamshard", "recshard", "embark"),
    SpaceName.ALL: (OURS, "recshard", "embark"),
}
"""Which searches run in which space."""
CHECKOUTS: Final = ("neuroshard", "dreamshard")
"""Those that run from a checkout of their repository."""

Row = dict[str, str | float]
Want = tuple[SpaceName, str]
"""Space and search."""


def run(
    space: SearchSpace,
    search: str,
    *,
    seconds: float,
    seed: int,
    checkout: Path | None = None,
    model: Path | None = None,
) -> Row:
    """What a search finds in so many CPU seconds, priced by :func:`tasks.price` like all others."""
    peer = None if search == OURS else _peer(search, seed, checkout, model)
    best, started, used = Best(seconds), time.perf_counter(), time.process_time()
    if peer is None:
        _ours(space, best, seconds, seed)
    else:
        with contextlib.suppress(TimeIsUp):
            peer(space, best)
    row: Row = {"cpu_s": round(time.process_time() - used, 2), "priced": best.num_priced}
    row["wall_s"] = round(time.perf_counter() - started, 2)
    if best.plan is not None:
        value, fits = price(space, best.plan)
        row |= {"iteration_ms": 1e3 * value, "fits": int(fits)}
    return row


class _CpuEvaluator(Evaluator):
    """An evaluator whose time limit is in seconds of this process."""

    def __init__(self, space: SearchSpace, objective: AbstractObjective, budget: Budget) -> None:
        super().__init__(space, objective, budget)
        self._began = time.process_time()

    @property
    def seconds(self) -> float:
        """Processor seconds since the search began."""
        return time.process_time() - self._began


def _ours(space: SearchSpace, best: Best, seconds: float, seed: int) -> None:
    """The default strategy in one process; what proves bounds beside it makes no plans."""
    objective = objective_named("iteration", space)
    budget = Budget(time_limit_s=seconds)
    evaluate = _CpuEvaluator(space, objective, budget)
    before = USUAL.second_size
    object.__setattr__(USUAL, "second_size", math.inf)
    try:
        found = Auto().search(Record(evaluate), seed=seed)
    finally:
        object.__setattr__(USUAL, "second_size", before)
    best.num_priced = evaluate.num_evaluations
    if found.assignments:
        best.offer(found.values[0], lambda: space.plan(found.assignments[0]))


def _peer(
    search: str, seed: int, checkout: Path | None, model: Path | None
) -> Callable[[SearchSpace, Best], None]:
    """A peer's search, with all that it imports."""
    if search not in CHECKOUTS:
        return partial(getattr(restated, search), seed=seed)
    if checkout is None:
        msg = f"{search} runs from a checkout of its repository; name its folder by --{search}"
        raise SystemExit(msg)
    if search == "neuroshard":
        from benchmarks.search.peer_searches import neuroshard

        return partial(neuroshard.neuroshard, neuroshard.sharder_of(checkout))
    from benchmarks.search.peer_searches import dreamshard

    return partial(dreamshard.dreamshard, dreamshard.trainer_of(checkout, seed), model)


def in_child(send: Connection, chosen: argparse.Namespace, want: Want) -> None:
    """One search in a process of its own, which begins as all others do."""
    space, search = want
    folder = getattr(chosen, search, None)
    row = run(
        space_of(task(chosen.task, chosen.seed), space),
        search,
        seconds=chosen.seconds,
        seed=chosen.seed,
        checkout=folder,
        model=chosen.model,
    )
    send.send({"space": space.value, "search": search} | row)


def _want(text: str) -> Want:
    space, search = text.split(":")
    return SpaceName(space), search


def main() -> None:
    """Run some searches on one task, or train DreamShard."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", type=int, default=0)
    parser.add_argument("--want", type=_want, nargs="*", default=[], metavar="SPACE:SEARCH")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    for name in CHECKOUTS:
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--pretrain", action="store_true")
    chosen = parser.parse_args()
    if chosen.pretrain:
        from benchmarks.search.peer_searches.dreamshard import pretrain

        pretrain(chosen.dreamshard, chosen.seconds, chosen.seed, chosen.model)
    fork = multiprocessing.get_context("fork")
    for want in chosen.want:
        receive, send = fork.Pipe(duplex=False)
        child = fork.Process(target=in_child, args=(send, chosen, want))
        child.start()
        send.close()
        print("ROW " + json.dumps(receive.recv()), flush=True)
        child.join()


if __name__ == "__main__":
    main()
