"""Which way of choosing setups is best: samplers and bounds of ``tune`` on whole design spaces.

Every setup of a design space is searched once and every bound proven once, with the seconds that
each takes; that table is kept in a folder. Then each way is replayed on it as ``tune`` runs it. Its
time is the sum of the measured seconds of what it searched and proved. Told are the seconds until
it has a setup within 1 % of the best there is, and how far it is from the best after 5, 10 and 20 %
of the time of a full enumeration: median and quartiles over five seeds.

    python -m benchmarks.search.tuning --tables FOLDER
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from costmodels.workload import Pipeline, Workload
from planner import load_system, load_workload
from planner.errors import InfeasibleError, NoPlanFoundError
from planner.problem import PlanningProblem
from planner.search.bounds.quick import Floor
from planner.tuning import GOALS, DesignSpace, Effort, Facts, Menu, Pricer, Setup, Study
from planner.tuning import design_space as listed
from planner.tuning.known import Floors
from planner.tuning.pricer import Outcome, StopCallback
from tests.planner import cases

SEEDS = 5
SHARES = (0.05, 0.10, 0.20)
"""Parts of a full enumeration's time after which ways are compared; the last one ends them."""
NEAR = 0.01
NO_BOUND = Floor(value=0.0, free_bytes=1e18)
PIPELINES = (Pipeline.SPARSE_DIST, Pipeline.PREFETCH_SPARSE_DIST, Pipeline.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A design space with its objective, and the plans priced per setup."""

    name: str
    goal: str
    evaluations: int
    make: Callable[[], DesignSpace]


def on_clusters(workload: Workload, *clusters: tuple[str, int], menu: Menu) -> DesignSpace:
    """The design space of a workload on systems of so many ranks."""
    problems = (
        PlanningProblem(workload=workload, topology=load_system(system, gpus=gpus))
        for system, gpus in clusters
    )
    return listed(*problems, menu=menu)


CASES = (
    Case(
        name="clusters",
        goal="cost",
        evaluations=100,
        make=lambda: on_clusters(
            load_workload("small_demo"),
            *(("h100_sxm", 8), ("h100_sxm", 16), ("h100_sxm", 32)),
            *(("a100_80gb_sxm", 8), ("a100_80gb_sxm", 16)),
            menu=Menu(
                pipelines=PIPELINES,
                batch_sizes=(1024, 2048, 4096, 8192),
                communications=("workload", "fp16/bf16"),
                min_column_widths=(4, 8, 16, 32, 64),
            ),
        ),
    ),
    Case(
        name="groups",
        goal="iteration",
        evaluations=200,
        make=lambda: on_clusters(
            load_workload("dlrm_dcnv2_mlperf"),
            ("h100_sxm", 16),
            menu=Menu(
                pipelines=PIPELINES,
                tries_groups=True,
                sync_intervals=(1, 4, 16, 64),
                communications=("workload", "fp16/bf16"),
            ),
        ),
    ),
    Case(
        name="memory",
        goal="cost",
        evaluations=100,
        make=lambda: on_clusters(
            load_workload("dlrm_dcnv2_mlperf"),
            ("a100_40gb_sxm", 2),
            menu=Menu(
                pipelines=PIPELINES,
                reserves_bytes=tuple(g * 2.0**30 for g in (2, 8)),
                min_column_widths=(4, 32, 128),
                communications=("workload", "fp16/bf16"),
                batch_sizes=(2048, 8192),
            ),
        ),
    ),
    Case(
        name="money",
        goal="cost",
        evaluations=200,
        make=lambda: on_clusters(
            cases.synthetic(40),
            *(("a100_80gb_sxm", 8), ("h100_sxm", 8), ("h200_sxm", 8)),
            *(("a100_80gb_sxm", 16), ("h100_sxm", 16)),
            menu=Menu(
                pipelines=PIPELINES,
                batch_sizes=(1024, 4096, 8192),
                communications=("workload", "fp16/bf16"),
                min_column_widths=(4, 8, 16, 32, 64, 128),
            ),
        ),
    ),
)


# ------------------------------------------------------------------ the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Every setup and every family of a space, with the seconds that each took."""

    space: DesignSpace
    outcomes: dict[Setup, tuple[Outcome | None, float]]
    floors: dict[Setup, tuple[Floor | None, float]]

    @property
    def total_s(self) -> float:
        """Seconds of searching every setup."""
        return sum(seconds for _, seconds in self.outcomes.values())


def measured(case: Case, folder: Path) -> Table:
    """The table of a case, from the folder as far as it is there."""
    space = case.make()
    pricer = Pricer(space=space, max_evaluations=case.evaluations)
    path = folder / f"{case.name}.jsonl"
    rows = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        rows[row["kind"], Setup.from_json(row["setup"])] = row
    with path.open("a") as file:
        for setup in space.setups:
            if ("setup", setup) not in rows:
                row = _row("setup", setup, *_timed(partial(_searched, pricer, setup)))
                rows["setup", setup] = row
                print(json.dumps(row), file=file, flush=True)
        for family in Floors(space).families:
            if ("family", family) not in rows:
                row = _row("family", family, *_timed(partial(_proven, pricer, family)))
                rows["family", family] = row
                print(json.dumps(row), file=file, flush=True)
    outcomes = {s: (_outcome(rows["setup", s]), rows["setup", s]["seconds"]) for s in space.setups}
    floors = {
        f: (_floor(rows["family", f]), rows["family", f]["seconds"]) for f in Floors(space).families
    }
    return Table(space=space, outcomes=outcomes, floors=floors)


def _timed(work: Callable[[], dict[str, Any] | None]) -> tuple[dict[str, Any] | None, float]:
    begun = time.process_time()
    found = work()
    return found, time.process_time() - begun


def _row(kind: str, setup: Setup, found: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
    return {"kind": kind, "setup": setup.to_json(), "found": found, "seconds": seconds}


def _searched(pricer: Pricer, setup: Setup) -> dict[str, Any] | None:
    try:
        found = pricer.solve(setup)
    except (InfeasibleError, NoPlanFoundError):
        return None
    return {"facts": found.facts.to_json(), "bound_s": found.bound_s, "sync_s": found.sync_s}


def _proven(pricer: Pricer, family: Setup) -> dict[str, Any] | None:
    try:
        return asdict(pricer.floor(family))
    except InfeasibleError:
        return None


def _outcome(row: dict[str, Any]) -> Outcome | None:
    found = row["found"]
    if found is None:
        return None
    facts = Facts(**found["facts"])
    return Outcome(
        facts=facts,
        sync_s=found["sync_s"],
        bound_s=found["bound_s"],
        evaluations=0,
        is_cut=False,
    )


def _floor(row: dict[str, Any]) -> Floor | None:
    return None if row["found"] is None else Floor(**row["found"])


# ------------------------------------------------------------------ replays


@dataclass(kw_only=True)
class Clock:
    """Seconds spent by a replay, and the values that it has seen when."""

    goal: str
    spent_s: float = 0.0
    seen: list[tuple[float, float]] = field(default_factory=list)

    def best_at(self, seconds: float) -> float:
        """The least value seen by then."""
        return min((v for at, v in self.seen if at <= seconds), default=math.inf)

    def reaches(self, value: float) -> float:
        """Seconds until a value is reached; infinite if never."""
        return next((at for at, v in self.seen if v <= value), math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed(Pricer):
    """Prices setups from a table."""

    table: Table
    clock: Clock
    proves: bool

    def solve(self, setup: Setup, should_stop: StopCallback | None = None) -> Outcome:
        """What the search found, at its time."""
        del should_stop
        found, seconds = self.table.outcomes[setup]
        self.clock.spent_s += seconds
        if found is None:
            message = "nothing fits"
            raise NoPlanFoundError(message)
        value = GOALS[self.clock.goal].value(found.facts)
        self.clock.seen.append((self.clock.spent_s, value))
        return found

    def floor(self, setup: Setup, should_stop: StopCallback | None = None) -> Floor:
        """What was proven, at its time."""
        del should_stop
        if not self.proves:
            return NO_BOUND
        found, seconds = self.table.floors[self.space.loosest(setup)]
        self.clock.spent_s += seconds
        if found is None:
            message = "nothing fits"
            raise InfeasibleError(message, shortfall_bytes=0.0)
        return found


def replay(
    table: Table, case: Case, sampler: str, *, proves: bool, seed: int, best: float
) -> Clock:
    """One study on a table, until it has the best or its share of a full enumeration's time."""
    clock = Clock(goal=case.goal)
    limit_s = max(SHARES) * table.total_s

    def is_over() -> bool:
        return clock.spent_s > limit_s or clock.best_at(limit_s) <= best

    pricer = Replayed(space=table.space, table=table, clock=clock, proves=proves)
    if sampler == "grid":
        for setup in table.space.setups:
            if is_over():
                break
            try:
                pricer.solve(setup)
            except NoPlanFoundError:
                continue
        return clock
    effort = Effort(trials=len(table.space.setups), sampler=sampler, seed=seed)
    study = Study(table.space, effort, goals=(case.goal,), pricer=pricer)
    study.run(should_stop=is_over)
    return clock


WAYS = (
    ("bounds", True),
    ("tpe", True),
    ("tpe", False),
    ("nsga2", True),
    ("nsga2", False),
    ("random", True),
    ("random", False),
    ("grid", False),
)
"""Samplers, with and without bounds that rule setups out."""


def lines(case: Case, table: Table) -> Iterator[str]:
    """A heading and a line per way."""
    values = [GOALS[case.goal].value(o.facts) for o, _ in table.outcomes.values() if o is not None]
    best, total_s = min(values), table.total_s
    near = sum(v <= best * (1 + NEAR) for v in values)
    proofs_s = sum(seconds for _, seconds in table.floors.values())
    yield (
        f"\n{case.name}: {len(table.outcomes):,} setups, {near} within 1 % of the best by "
        f"{case.goal}; all searches {total_s:.0f} s, all {len(table.floors)} bounds "
        f"{proofs_s:.0f} s"
    )
    shares = "".join(f"{f'gap at {share:.0%} of it':>24}" for share in SHARES)
    yield f"{'way':16}{'time to within 1 %':>24}{shares}"
    for sampler, proves in WAYS:
        clocks = [
            replay(table, case, sampler, proves=proves, seed=seed, best=best)
            for seed in range(1 if sampler in ("bounds", "grid") else SEEDS)
        ]
        name = f"{sampler} + bounds" if proves and sampler != "bounds" else sampler
        reached = [c.reaches(best * (1 + NEAR)) / total_s for c in clocks]
        gaps = [[c.best_at(share * total_s) / best - 1 for c in clocks] for share in SHARES]
        cells = "".join(f"{_quartiles(column):>24}" for column in (reached, *gaps))
        yield f"{name:16}{cells}"
    yield ended(case, table, best)


def ended(case: Case, table: Table, best: float) -> str:
    """When a study by bounds ends by itself, with what, and what it then claims."""
    clock = Clock(goal=case.goal)
    pricer = Replayed(space=table.space, table=table, clock=clock, proves=True)
    effort = Effort(trials=len(table.space.setups), sampler="bounds")
    study = Study(table.space, effort, goals=(case.goal,), pricer=pricer)
    study.run()
    known = study.known
    ratio = None if known is None else known.proof_ratio
    gap = clock.best_at(math.inf) / best - 1
    return (
        f"bounds end by themselves after {100 * clock.spent_s / table.total_s:.1f} % of it and "
        f"{len(study.looks)} searches, {100 * gap:.1f} % from the best, proven within "
        f"{'-' if ratio is None else f'{100 * ratio:.1f}'} %"
    )


def _quartiles(ratios: list[float]) -> str:
    """``3.1 % (2.0 .. 4.4)``: median and quartiles; ``-`` for what was not reached."""
    if len(ratios) == 1:
        return _percent(ratios[0]) + (" %" if math.isfinite(ratios[0]) else "")
    ordered = sorted(ratios)
    low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    middle = statistics.median_low(ordered)
    return f"{_percent(middle)} % ({_percent(low)} .. {_percent(high)})"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f}" if math.isfinite(ratio) else "-"


def main(arguments: list[str] | None = None) -> None:
    """Measure what is missing in the tables, and print the replays."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search.tuning", description=__doc__)
    parser.add_argument("--tables", type=Path, required=True, help="folder of measured tables")
    parser.add_argument("--only", choices=[case.name for case in CASES], help="one design space")
    parser.add_argument("--evaluations", type=int, help="plans priced per setup")
    asked = parser.parse_args(arguments)
    asked.tables.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        if asked.only in (None, case.name):
            own = replace(case, evaluations=asked.evaluations or case.evaluations)
            for line in lines(own, measured(own, asked.tables)):
                print(line, flush=True)


if __name__ == "__main__":
    main()
