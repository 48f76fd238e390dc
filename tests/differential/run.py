"""Many random problems against their true optima: ``python -m tests.differential.run --help``.

``--unusual`` draws settings that the others leave as they are: sharded dense parts, unequal
batches, caches that look ahead, links with pods, fitted factors, pairs of types and kernels, and
more (:mod:`tests.differential.drawing.unusual`). ``--rare`` draws what those lack: 2D groups, dense
parts of operators, days trained in another way, and more
(:mod:`tests.differential.drawing.rare`). ``--replanned`` begins from plans in use, under rules that
couple tables; ``--calibrated`` has ranks that are cores of machines with measured constants;
``--dense`` has dense parts of every kind that hide what the tables take, or nearly
(:mod:`tests.differential.drawing.dense_parts`); ``--days`` has one plan for several days that
differ in dense part, pipeline, batch and laws (:mod:`tests.differential.drawing.days`);
``--slow-links`` has indices and cached rows that arrive last, which pipelines hide as a rule
(:mod:`tests.differential.drawing.slow_links`); ``--hot`` has hot rows, batches that repeat ids and
domains of unequal size (:mod:`tests.differential.drawing.hot_rows`); ``--together`` has settings of
all kinds at once, and sizes at the ends of what is allowed
(:mod:`tests.differential.drawing.together`).
``--only cut`` interrupts each search at some moment. What bounds are made of is looked at without a
search by :mod:`tests.differential.laws`.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.differential.as_large import as_large
from tests.differential.asking import UNCUT, Run
from tests.differential.case import Case
from tests.differential.check import Kind, Verdict, check
from tests.differential.drawing.problems import DRAWINGS
from tests.differential.named import has_every_plan, named
from tests.differential.show import verdict_text
from tests.differential.stored import save

EXCESS = (1e-6, 1e-3)
"""Shares above the optimum up to which the engine is said to have found it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What stays of one verdict: small enough to be sent between processes."""

    name: str
    objective: str
    num_fitting: int
    faults: tuple[tuple[Run, Kind, str], ...]
    excess: dict[Run, float | None]
    proven: dict[Run, bool]
    seconds: dict[Run, float]
    wide: tuple[tuple[Run, str], ...]
    was_wide: bool

    @classmethod
    def of(cls, verdict: Verdict) -> Line:
        """The line of a verdict."""
        return cls(
            name=verdict.case.name,
            objective=verdict.case.objective,
            num_fitting=verdict.optimum.num_fitting,
            faults=tuple((f.run, f.kind, f.text) for f in verdict.faults),
            excess={a.run: verdict.excess(a.run) for a in verdict.answers},
            proven={a.run: a.is_optimal for a in verdict.answers},
            seconds={a.run: a.seconds for a in verdict.answers},
            wide=tuple((f.run, f.text) for f in verdict.wide_faults()),
            was_wide=verdict.wide is not None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How each problem is checked."""

    max_evaluations: int = 2000
    most_wide: int = 0
    runs: tuple[Run, ...] = UNCUT
    kind: str = "usual"
    as_large: bool = False
    twice: bool = False

    def drawn(self, seed: int) -> Case:
        """The problem of a seed."""
        return DRAWINGS[self.kind](seed)

    @property
    def prices_all(self) -> bool:
        """Whether problems of this kind have so few plans that all are priced."""
        return self.kind != "larger"


def checked(case: Case, settings: Settings, *, exact: bool = True) -> Verdict:
    """The verdict on a case; warnings of the planner are faults, as they are in tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return check(
            case,
            runs=settings.runs,
            max_evaluations=settings.max_evaluations,
            most_wide=settings.most_wide,
            exact=exact,
            twice=settings.twice,
        )


def check_seed(seed: int, settings: Settings) -> Line:
    """Draw and check one problem."""
    case = settings.drawn(seed)
    with as_large(seed) if settings.as_large else nullcontext():
        return Line.of(checked(case, settings, exact=settings.prices_all))


def lines_of(seeds: Iterable[int], settings: Settings, jobs: int) -> Iterator[Line]:
    """The line of each seed, as they come."""
    if jobs == 1:
        yield from (check_seed(seed, settings) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(check_seed, s, settings) for s in seeds]):
            yield done.result()


def summary(lines: list[Line]) -> Table:
    """One table of counts."""
    table = Table(title="Answers held against every plan (or the best known)")
    runs = [run for run in Run if any(run in line.excess for line in lines)]
    table.add_column("")
    for run in runs:
        table.add_column(run.value, justify="right")

    def row(title: str, counts: dict[Run, str]) -> None:
        table.add_row(title, *(counts.get(run, "") for run in runs))

    row("problems", {run: str(len(lines)) for run in runs})
    fitting = [line for line in lines if line.num_fitting]
    row("of them with a plan that fits", {run: str(len(fitting)) for run in runs})
    faults = Counter((run, kind) for line in lines for run, kind in {f[:2] for f in line.faults})
    for kind in (k for k in Kind if k is not Kind.WIDE):
        row(kind.value, {run: str(faults[run, kind]) for run in runs})
    for most in EXCESS:
        shares = {}
        for run in runs:
            found = [x for line in fitting if (x := line.excess[run]) is not None and x <= most]
            shares[run] = f"{len(found) / max(len(fitting), 1):.2%}"
        row(f"optimum found within {most:g}", shares)
    proven = {run: sum(line.proven[run] for line in fitting) for run in runs}
    row("called optimal", {run: f"{proven[run] / max(len(fitting), 1):.2%}" for run in runs})
    times = {run: sum(line.seconds[run] for line in lines) / len(lines) for run in runs}
    row("mean seconds", {run: f"{times[run]:.2f}" for run in runs})
    wide = [line for line in lines if line.was_wide]
    if wide:
        row("wide menus priced", {run: str(len(wide)) for run in runs})
        above = Counter(run for line in wide for run, _ in line.wide)
        row("bound above their optimum only", {run: str(above[run]) for run in runs})
    return table


def main(arguments: list[str] | None = None) -> int:
    """Check problems; 1 if any promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential.run", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="number of problems")
    parser.add_argument("--start", type=int, default=0, help="seed of the first")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--evaluations", type=int, default=2000, help="most plans priced each")
    parser.add_argument("--wide", type=int, default=0, metavar="PLANS", help="price wide menus")
    kinds = parser.add_mutually_exclusive_group()
    of_kind = partial(kinds.add_argument, action="store_const", dest="kind", default="usual")
    of_kind("--larger", const="larger", help="too many plans to price them all")
    of_kind("--unusual", const="unusual", help="settings seldom met together")
    of_kind("--rare", const="rare", help="settings that the others lack")
    of_kind("--calibrated", const="calibrated", help="cores of machines with measured constants")
    of_kind("--days", const="days", help="scenarios that differ in nearly everything")
    of_kind("--dense", const="dense", help="dense parts of every kind, short and long")
    of_kind("--replanned", const="replanned", help="a plan in use, and rules that couple tables")
    of_kind("--slow-links", const="slow links", help="indices and cached rows that come last")
    of_kind("--hot", const="hot", help="hot rows, repeated ids, domains of unequal size")
    of_kind("--together", const="together", help="all of these met together, and odd sizes")
    parser.add_argument("--as-large", action="store_true", help="plan in the ways of large ones")
    parser.add_argument("--twice", action="store_true", help="ask again; expect the same bytes")
    parser.add_argument("--only", choices=[r.value for r in Run], help="ask in one way only")
    parser.add_argument("--seed", type=int, help="one problem, with all details")
    parser.add_argument("--case", help="one named case, with all details")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write failing problems there")
    flags = parser.parse_args(arguments)
    settings = Settings(
        max_evaluations=flags.evaluations,
        most_wide=flags.wide,
        runs=(Run(flags.only),) if flags.only else UNCUT,
        kind=flags.kind,
        as_large=flags.as_large,
        twice=flags.twice,
    )
    console = Console(width=110)
    if flags.seed is not None or flags.case is not None:
        case = settings.drawn(flags.seed) if flags.case is None else named(flags.case)
        exact = has_every_plan(flags.case) if flags.case else settings.prices_all
        with as_large(flags.seed) if flags.as_large and flags.case is None else nullcontext():
            verdict = checked(case, settings, exact=exact)
        console.print(verdict_text(verdict), highlight=False, markup=False, soft_wrap=True)
        return 1 if verdict.faults else 0
    seeds = range(flags.start, flags.start + flags.count)
    lines = []
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("problems", total=len(seeds))
        for line in lines_of(seeds, settings, flags.jobs):
            lines.append(line)
            failing = sum(bool(x.faults) for x in lines)
            progress.update(task, advance=1, description=f"problems, {failing} fail")
    lines.sort(key=lambda line: int(line.name.split()[-1]))
    failed = [line for line in lines if line.faults]
    for line in failed:
        _print_failed(console, line)
        if flags.save is not None:
            seed = int(line.name.split()[-1])
            texts = [f"{run}: {kind}: {text}" for run, kind, text in line.faults]
            save(settings.drawn(seed), flags.save / f"seed-{seed}.json", texts)
    for line in lines:
        for run, text in line.wide:
            shown = f"{line.name} [{line.objective}] {run}: {Kind.WIDE}: {text}"
            console.print(shown, highlight=False, markup=False, soft_wrap=True)
    console.print(summary(lines))
    return 1 if failed else 0


def _print_failed(console: Console, line: Line) -> None:
    """One line for each failing seed: the kinds of fault, and the first in words."""
    kinds = Counter((kind, text) for _, kind, text in line.faults)
    more = f" (and {len(kinds) - 1} more)" if len(kinds) > 1 else ""
    run, kind, text = line.faults[0]
    shown = f"{line.name} [{line.objective}] {run}: {kind}: {text}{more}"
    console.print(shown, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
