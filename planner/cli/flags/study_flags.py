"""The flags of ``study``, and the types of their values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from planner.cli.flags.common import (
    CHANGES,
    MAX_EVALUATIONS,
    MAX_RANKS,
    MAX_SAMPLES,
    Batch,
    Command,
    Count,
    Option,
    Percent,
    Quantity,
    gathered,
    is_given,
    time_limit_option,
)
from planner.cli.flags.said_twice import refuse_said_twice
from planner.cli.names import complete_system

if TYPE_CHECKING:
    from planner.study import Effort

GOALS = ("iteration", "throughput", "cost", "headroom")
SAMPLERS = ("bounds", "tpe", "nsga2", "random")


class Several(click.ParamType[tuple[Any, ...]]):
    """Values with commas between them, each of which another type reads."""

    def __init__(self, one: click.ParamType[Any]) -> None:
        """Keep the type that reads a single value."""
        self.one = one
        self.name = f"{one.name} list"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        """Refuse an empty list, and values that the other type refuses; equal values count once."""
        if isinstance(value, tuple):
            return value
        texts = [text.strip() for text in str(value).split(",")]
        if not all(texts):
            self.fail(f"{value!r} has an empty entry between its commas", param, ctx)
        return tuple(dict.fromkeys(self.one.convert(text, param, ctx) for text in texts))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The completions of the other type for what follows the last comma."""
        before, comma, last = incomplete.rpartition(",")
        found = self.one.shell_complete(ctx, param, last)
        return [CompletionItem(f"{before}{comma}{item.value}", type=item.type) for item in found]


class Price(click.ParamType[tuple[str, float]]):
    """A value such as ``h100_sxm=2.10`` for one system, or ``2.10 USD/h`` for all."""

    name = "price"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        """Refuse values that are neither."""
        if isinstance(value, tuple):
            return value
        system, equals, text = str(value).partition("=")
        if not equals:
            return "", Quantity("usd_per_hour", positive=True).convert(value, param, ctx)
        try:
            number = float(text.strip().removesuffix("USD/h"))
        except ValueError:
            number = -1.0
        if not system.strip() or not 0 < number < 1e6:
            message = (
                f"{value!r} is not like 'h100_sxm=2.10', a system and USD per GPU and hour, which "
                "are above 0 and below 1,000,000"
            )
            self.fail(message, param, ctx)
        return system.strip(), number


class Rate(click.ParamType[float]):
    """Samples per second: ``20e6``, ``20_000_000`` or ``20M``."""

    name = "rate"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Refuse everything that is not above 0."""
        text = str(value).strip().replace("_", "")
        factor = {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1:], 1.0)
        try:
            number = float(text[:-1] if factor > 1 else text) * factor
        except ValueError:
            number = 0.0
        if not 0 < number < 1e15:
            message = (
                f"{value!r} is not a rate above 0 and below 1e15 samples/s, such as 20e6 or 20M"
            )
            self.fail(message, param, ctx)
        return number


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFlags:
    """The flags on the study: clusters, knobs, objectives and effort."""

    systems: tuple[str, ...]
    gpus: tuple[int, ...]
    gpus_per_host: int | None
    batch_sizes: tuple[int, ...]
    global_batch_sizes: tuple[int, ...]
    vary: tuple[str, ...]
    overrides: tuple[str, ...]
    models: tuple[str, ...]
    budget_usd_per_hour: float | None
    prices: tuple[tuple[str, float], ...]
    mtbf_s: float | None
    restart_s: float
    goals: tuple[str, ...]
    grid: bool
    smallest_for: float | None
    max_gpus: int
    trials: int
    evaluations: int | None
    time_limit_s: float | None
    within_ratio: float
    sampler: str | None
    seed: int

    @property
    def files(self) -> tuple[Path, ...]:
        """The values of flags that can be files."""
        named = (*self.systems, *(text.partition("=")[2] for text in self.models))
        return tuple(Path(name) for name in named if name)

    def effort(self) -> Effort:
        """How much the study shall do."""
        from planner.study import Effort

        return Effort(
            trials=self.trials,
            evaluations=self.evaluations,
            time_limit_s=self.time_limit_s,
            seed=self.seed,
            sampler=self.sampler,
            within_ratio=self.within_ratio,
            is_grid=self.grid,
        )


def study_options(command: Command) -> Command:
    """Add these flags to a command, which gets them as ``flags``."""
    return gathered(command, _OPTIONS, StudyFlags, "flags", _check)


def _check(flags: StudyFlags) -> None:
    """Refuse flags that contradict each other, or that have no effect without another one."""
    context = click.get_current_context()
    varied = tuple(text for text in flags.vary if "=" in text)
    given = {"--batch-size": flags.batch_sizes, "--global-batch-size": flags.global_batch_sizes}
    refuse_said_twice((*flags.overrides, *varied), given)
    unpaired = {
        "--restart says what a failure costs; say with --mtbf how often failures come": (
            flags.mtbf_s is None and is_given("restart_s")
        ),
        "--grid searches every setup; drop --smallest-for, --sampler, --trials or --within": (
            flags.grid
            and bool(
                flags.smallest_for
                or flags.sampler
                or is_given("trials")
                or is_given("within_ratio")
            )
        ),
        "--max-gpus is about --smallest-for; add it, or list sizes with --gpus": (
            is_given("max_gpus") and flags.smallest_for is None
        ),
    }
    for message, is_wrong in unpaired.items():
        if is_wrong:
            raise click.UsageError(message, context)


_OPTIONS: tuple[Option, ...] = (
    click.option(
        "--system", "systems", type=Several(click.STRING), required=True, metavar="A,B",
        shell_complete=complete_system,
        help="Systems to choose from, by name or file; the usual one first.",
    ),
    click.option(
        "--gpus", type=Several(Count(MAX_RANKS)), default=(), metavar="N,N",
        help="Numbers of GPUs.  [default: one host; with --budget, 1, 2, 4 ... hosts; with "
        "--smallest-for, all numbers of hosts]",
    ),
    click.option(
        "--gpus-per-host", type=Count(MAX_RANKS), metavar="N",
        help="GPUs per host.  [default: each system's]",
    ),
    click.option(
        "--batch-size", "batch_sizes", type=Several(Batch(MAX_SAMPLES)), default=(), metavar="N,N",
        help="Samples per GPU; 32k is 32,768.  [default: workload's]",
    ),
    click.option(
        "--global-batch-size", "global_batch_sizes", type=Several(Batch(MAX_SAMPLES)), default=(),
        metavar="N,N", help="Samples of all GPUs in one step.",
    ),
    click.option(
        "--vary", multiple=True, metavar="KEY=V,V",
        help="Values of a key of the workload (training.pipeline), of the system "
        "(system.links.network.bandwidth), or of copies, sync_interval, column_width or "
        "cache_sizes; the usual one first.",
    ),
    *CHANGES,
    click.option(
        "--budget", "budget_usd_per_hour", type=Quantity("usd_per_hour", positive=True),
        metavar="PRICE", help="Leave out clusters that cost more, such as '100 USD/h'.",
    ),
    click.option(
        "--price", "prices", type=Price(), multiple=True, metavar="PRICE",
        help="Price of one GPU: '4.5 USD/h', or SYSTEM=4.5 for one system.  [default: system's]",
    ),
    click.option(
        "--mtbf", "mtbf_s", type=Quantity("s", positive=True), metavar="TIME",
        help="Mean time between failures, or spot interruptions, of one host.  [default: none]",
    ),
    click.option(
        "--restart", "restart_s", type=Quantity("s"), default="5min", show_default=True,
        metavar="TIME", help="Time from a failure to the next iteration.",
    ),
    click.option(
        "--objective", "goals", type=Several(click.Choice(GOALS)), default=(),
        metavar="NAME,NAME",
        help=f"What is best: {', '.join(GOALS)}.  [default: iteration; throughput where setups "
        "have unequal batches]",
    ),
    click.option("--grid", is_flag=True, help="Search every setup, also those ruled out."),
    click.option(
        "--smallest-for", type=Rate(), metavar="RATE",
        help="Find the fewest GPUs that train so many samples per second, such as 20M.",
    ),
    click.option(
        "--max-gpus", type=Count(MAX_RANKS), default="512", show_default=True, metavar="N",
        help="Largest number of GPUs that --smallest-for tries.",
    ),
    click.option(
        "--trials", type=click.IntRange(1, 100_000), default=24, show_default=True, metavar="N",
        help="Most setups to search; fewer if bounds rule out all others.",
    ),
    click.option(
        "--evaluations", type=Count(MAX_EVALUATIONS), metavar="N",
        help="Budget of each search: N priced plans.  [default: by the size of the problem]",
    ),
    time_limit_option("--time-limit", "For each search, ", "time_limit_s"),
    click.option(
        "--within", "within_ratio", type=Percent(), default="0%", show_default=True,
        metavar="PERCENT",
        help="Leave out setups that are proven to gain at most this over the best so far.",
    ),
    click.option(
        "--sampler", type=click.Choice(SAMPLERS),
        help="What chooses the next setup: proven bounds, or a sampler of Optuna, whose choices "
        "are still checked by their bounds.  [default: bounds; tpe for spaces too large to list]",
    ),
    click.option(
        "--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, metavar="N",
        help="Random seed.",
    ),
)  # fmt: skip
