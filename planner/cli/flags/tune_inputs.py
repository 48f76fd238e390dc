"""The flags of ``tune``: what may be chosen around a plan, and the clusters to choose from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from planner.cli.flags.common import (
    CHANGES,
    MAX_EVALUATIONS,
    MAX_RANKS,
    MAX_SAMPLES,
    Command,
    Count,
    Option,
    PartShare,
    Percent,
    ProblemFlags,
    Quantity,
    gathered,
)
from planner.cli.flags.said_twice import refuse_said_twice
from planner.cli.flags.sweep_inputs import Price, Several, prices_of
from planner.cli.names import complete_system
from planner.support.digits import significant

if TYPE_CHECKING:
    from planner.tuning import DesignSpace, Effort, Menu

PIPELINES = ("sparse_dist", "prefetch_sparse_dist", "none", "hugectr", "lookahead")
GOALS = ("iteration", "throughput", "cost", "headroom")
SAMPLERS = ("bounds", "tpe", "nsga2", "random")


class AnyPrice(Price):
    """A value such as ``h100_sxm=2.10`` for one system, or ``2.10 USD/h`` for all."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        """Refuse values that are neither."""
        if isinstance(value, tuple) or "=" in str(value):
            return super().convert(value, param, ctx)
        return "", Quantity("usd_per_hour", positive=True).convert(value, param, ctx)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneFlags:
    """The flags on the study: clusters, menus, objectives and effort."""

    systems: tuple[str, ...]
    gpus: tuple[int, ...]
    gpus_per_host: int | None
    budget_usd_per_hour: float | None
    prices: tuple[tuple[str, float], ...]
    batch_sizes: tuple[int, ...]
    global_batch_size: int | None
    pipelines: tuple[tuple[str, ...], ...]
    lookaheads: tuple[int, ...]
    groups: bool
    sync_intervals: tuple[int, ...]
    communications: tuple[str, ...]
    cache_menus: tuple[tuple[float, ...], ...]
    reserves_bytes: tuple[float, ...]
    column_widths: tuple[int, ...]
    overrides: tuple[str, ...]
    models: tuple[str, ...]
    goals: tuple[str, ...]
    trials: int
    trial_limit: float
    trial_evaluations: int | None
    sampler: str
    within_ratio: float
    seed: int

    @property
    def files(self) -> tuple[Path, ...]:
        """The values of flags that can be files."""
        named = (*self.systems, *(text.partition("=")[2] for text in self.models))
        return tuple(Path(name) for name in named if name)

    def menu(self) -> Menu:
        """The values that the flags name."""
        from costmodels.workload import Pipeline
        from planner.tuning import Menu

        named = dict.fromkeys(p for several in self.pipelines for p in several)
        return Menu(
            pipelines=tuple(Pipeline(p) for p in named),
            lookaheads=self.lookaheads,
            batch_sizes=self.batch_sizes,
            communications=self.communications,
            tries_groups=self.groups,
            sync_intervals=self.sync_intervals,
            reserves_bytes=self.reserves_bytes,
            min_column_widths=self.column_widths,
            cache_menus=self.cache_menus,
        )

    def effort(self) -> Effort:
        """How much the study shall do."""
        from planner.tuning import Effort

        return Effort(
            trials=self.trials,
            trial_limit_s=self.trial_limit,
            trial_evaluations=self.trial_evaluations,
            sampler=self.sampler,
            within_ratio=self.within_ratio,
            seed=self.seed,
        )


def tune_options(command: Command) -> Command:
    """Add these flags to a command, which gets them as ``flags``."""
    return gathered(command, _OPTIONS, TuneFlags, "flags", _check)


def _check(flags: TuneFlags) -> None:
    given = {
        "--batch-size": flags.batch_sizes,
        "--global-batch-size": flags.global_batch_size,
        "--reserve": flags.reserves_bytes,
        "--pipeline": flags.pipelines,
        "--lookahead": flags.lookaheads,
    }
    refuse_said_twice(flags.overrides, given)
    if flags.sync_intervals != (1,) and not flags.groups:
        message = "--sync-interval says how often copies of the tables are averaged; add --groups"
        raise click.UsageError(message, click.get_current_context())


_OPTIONS: tuple[Option, ...] = (
    click.option(
        "--system", "systems", type=Several(click.STRING), required=True, metavar="A,B",
        shell_complete=complete_system,
        help="Systems to choose from, by name or file; the usual one first.",
    ),
    click.option(
        "--gpus", type=Several(Count(MAX_RANKS)), default=(), metavar="N,N",
        help="Numbers of ranks, the usual one first.  [default: one host; with --budget, 1, 2, 4 "
        "... hosts]",
    ),
    click.option(
        "--gpus-per-host", type=Count(MAX_RANKS), metavar="N",
        help="Ranks per host.  [default: each system's]",
    ),
    click.option(
        "--budget", "budget_usd_per_hour", type=Quantity("usd_per_hour", positive=True),
        metavar="PRICE", help="Leave out clusters that cost more, such as '100 USD/h'.",
    ),
    click.option(
        "--price", "prices", type=AnyPrice(), multiple=True, metavar="PRICE",
        help="Price of one GPU: '4.5 USD/h', or SYSTEM=4.5 for one system.  [default: system's]",
    ),
    click.option(
        "--batch-size", "batch_sizes", type=Several(Count(MAX_SAMPLES)), default=(),
        metavar="N,N", help="Samples per rank to choose from.  [default: workload's]",
    ),
    click.option(
        "--global-batch-size", type=Count(MAX_SAMPLES), metavar="N",
        help="Samples of all ranks in one step, the same on every cluster.",
    ),
    click.option(
        "--pipeline", "pipelines", type=Several(click.Choice(PIPELINES)), multiple=True,
        metavar="NAME,NAME",
        help=f"Training pipelines to choose from, the usual one first: {', '.join(PIPELINES)}.  "
        "[default: the first three, that of the workload first; only its own if it is another]",
    ),
    click.option(
        "--lookahead", "lookaheads", type=Several(Count(10_000)), default=(), metavar="N,N",
        help="How many batches ahead pipeline lookahead fills caches.  [default: workload's]",
    ),
    click.option(
        "--groups", is_flag=True,
        help="Also try 2D parallelism: copies of all tables on smaller groups of ranks.",
    ),
    click.option(
        "--sync-interval", "sync_intervals", type=Several(Count(10**6)), default="1",
        show_default=True, metavar="N,N", help="The copies are averaged every N iterations.",
    ),
    click.option(
        "--communication", "communications", type=Several(click.STRING), default=(),
        metavar="CODEC,CODEC",
        help="Codecs of the exchanges: 'workload' for its own, fp32, fp16, bf16, fp8, int8, mx4, "
        "or two such as fp16/bf16 (forward/backward).  [default: workload's]",
    ),
    click.option(
        "--cache-sizes", "cache_menus", type=Several(PartShare()), multiple=True,
        metavar="5%,20%",
        help="Cache sizes that plans may use, as shares of a table; give it again for another list "
        "to try.  [default: the usual ones, and others where device memory is short]",
    ),
    click.option(
        "--reserve", "reserves_bytes", type=Several(Quantity("bytes")), default=(),
        metavar="SIZE,SIZE",
        help="Device memory to keep free, such as '4 GiB,8 GiB'.  [default: workload's]",
    ),
    click.option(
        "--column-width", "column_widths", type=Several(Count(16_384)), default=(),
        metavar="N,N",
        help="Least widths of a column piece.  [default: those that make a difference]",
    ),
    *CHANGES,
    click.option(
        "--objective", "goals", type=Several(click.Choice(GOALS)), default=(),
        metavar="NAME,NAME",
        help=f"What is best: {', '.join(GOALS)}; with several, a star marks the setups that no "
        "other dominates.  [default: iteration; throughput where setups have unequal batches]",
    ),
    click.option(
        "--trials", type=click.IntRange(1, 100_000), default=24, show_default=True, metavar="N",
        help="Most searches, one for each setup; fewer if bounds rule out all others.",
    ),
    click.option(
        "--trial-limit", type=Quantity("s", positive=True), default="2min", show_default=True,
        metavar="TIME", help="Of the search of one setup; a safety by the clock.",
    ),
    click.option(
        "--trial-evaluations", type=Count(MAX_EVALUATIONS), metavar="N",
        help="Budget of one setup: N priced plans.  [default: by the size of the problem]",
    ),
    click.option(
        "--within", "within_ratio", type=Percent(), default="0%", show_default=True,
        metavar="PERCENT",
        help="Leave out setups that are proven to gain at most this over the best so far.",
    ),
    click.option(
        "--sampler", type=click.Choice(SAMPLERS), default="bounds", show_default=True,
        help="What chooses the next setup: proven bounds, or a sampler of Optuna, whose choices "
        "are still checked by their bounds.",
    ),
    click.option(
        "--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, metavar="N",
        help="Of random choices.",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """The flags of the problem on each cluster, and remarks on the clusters."""

    flags: tuple[ProblemFlags, ...]
    remarks: tuple[str, ...] = ()


def clusters_of(flags: TuneFlags) -> Clusters:
    """The clusters that the flags allow, sorted by system.

    Raises:
        InvalidInputError: a system does not exist or has no price, a price names a system that is
            not used, or the budget is too small for every cluster.
    """
    from planner import io
    from planner.errors import InvalidInputError

    prices = prices_of(flags.prices, flags.systems)
    kept: list[ProblemFlags] = []
    dear: list[str] = []
    for system in flags.systems:
        own = ProblemFlags(
            system=str(Path(system).absolute()) if Path(system).is_file() else system,
            gpus_per_host=flags.gpus_per_host,
            batch_size=flags.batch_sizes[0] if flags.batch_sizes else None,
            global_batch_size=flags.global_batch_size,
            reserve_bytes=flags.reserves_bytes[0] if flags.reserves_bytes else None,
            price_usd_per_hour=prices.get(system, prices.get("")),
            overrides=flags.overrides,
            models=flags.models,
        )
        if flags.budget_usd_per_hour is None:
            sizes: Sequence[int | None] = flags.gpus or (None,)
            kept += [_sized(own, gpus) for gpus in sizes]
            continue
        host = io.load_smallest(system, gpus_per_host=flags.gpus_per_host)
        price = own.price_usd_per_hour or host.price_per_device_usd_per_hour
        if price is None:
            message = (
                f"--budget: the system {system!r} has no price; add price: 4.5 USD/h to its file, "
                f"or give --price {system}=4.5"
            )
            raise InvalidInputError(message)
        if price == 0 and not flags.gpus:
            message = (
                f"--budget: the system {system!r} costs nothing, so that no budget limits it; name "
                "its sizes with --gpus"
            )
            raise InvalidInputError(message)
        ranks = flags.budget_usd_per_hour / price * (1 + 1e-9) if price else math.inf
        most = int(min(ranks, MAX_RANKS))
        doubled = [host.local_world_size << k for k in range(MAX_RANKS.bit_length())]
        doubled = [n for n in doubled if n >= host.world_size]
        kept += [_sized(own, gpus) for gpus in flags.gpus or doubled if gpus <= most]
        least = flags.gpus or doubled[:1]
        dear += [f"{system} x {n} ({significant(n * price, 4)} USD/h)" for n in least if n > most]
    if not kept:
        budget = significant(flags.budget_usd_per_hour or 0.0, 6)
        message = f"--budget {budget} USD/h pays for none of {', '.join(dear)}"
        raise InvalidInputError(message)
    left_out = f"--budget leaves out {', '.join(dear)}"
    return Clusters(flags=tuple(kept), remarks=(left_out,) if dear else ())


def sharing_batch(workload: Path, clusters: Clusters) -> Clusters:
    """The clusters whose ranks can share the global batch evenly; a remark names the others.

    Args:
        workload: the workload file.
        clusters: the clusters that the other flags allow.

    Raises:
        InvalidInputError: no cluster can share it evenly, or a file or value breaks a rule.
    """
    from planner.cli.flags.inputs import load_problem
    from planner.errors import InvalidInputError
    from planner.options.global_batch import rank_batch
    from planner.tuning.setups import cluster_name

    kept: list[ProblemFlags] = []
    left_out: list[str] = []
    problems: list[str] = []
    for flags in clusters.flags:
        if flags.global_batch_size is None:
            return clusters
        problem = load_problem(workload, replace(flags, global_batch_size=None)).problem
        try:
            rank_batch(flags.global_batch_size, problem.workload, problem.topology.world_size)
        except InvalidInputError as error:
            problems += error.problems
            left_out.append(f"leaves out {cluster_name(problem.topology)}: {error}")
        else:
            kept.append(flags)
    if not kept:
        raise InvalidInputError(list(dict.fromkeys(problems)))
    return Clusters(flags=tuple(kept), remarks=(*clusters.remarks, *left_out))


def _sized(flags: ProblemFlags, gpus: int | None) -> ProblemFlags:
    return ProblemFlags(**{**asdict(flags), "gpus": gpus})


def load_space(
    workload: Path, clusters: Sequence[ProblemFlags], menu: Menu
) -> tuple[DesignSpace, tuple[str, ...]]:
    """The design space on these clusters, and warnings on what is left open or ruled out.

    Args:
        workload: the workload file.
        clusters: the flags of the problem on each cluster.
        menu: the values to choose from.

    Raises:
        InvalidInputError: a file or value breaks a rule.
    """
    from planner.cli.flags.inputs import load_problem
    from planner.tuning import design_space

    inputs = [load_problem(workload, flags) for flags in clusters]
    problems = tuple(i.problem for i in inputs)
    warnings = tuple(dict.fromkeys(text for i in inputs for text in i.warnings))
    space = design_space(*problems, menu=menu)
    return space, warnings + space.refused_groups
