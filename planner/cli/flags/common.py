"""Flags that several commands share; each is described once, here."""

from __future__ import annotations

import functools
import importlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, cast

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from costmodels import discovery, units
from costmodels.errors import UnitError
from planner.cli.flags.said_twice import refuse_said_twice
from planner.cli.names import AnyFile, complete_system, matching

if TYPE_CHECKING:
    from planner.settings import SearchSettings

Command = TypeVar("Command", bound=Callable[..., Any])

MAX_RANKS = 65_536
MAX_SAMPLES = 100_000_000
MAX_EVALUATIONS = 10**12
FILE = AnyFile()


class Quantity(click.ParamType[float]):
    """A number with its unit, which is converted to SI units."""

    def __init__(self, dimension: str, *, positive: bool = False) -> None:
        """Keep the arguments; ``dimension`` is one of :mod:`costmodels.units`."""
        self.dimension = dimension
        self.positive = positive
        self.name = {"s": "time", "usd_per_hour": "price"}.get(dimension, dimension)

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Refuse bare numbers and unknown units."""
        if isinstance(value, float):
            return value
        try:
            if _is_bare(str(value)):
                unit = {"s": "s", "bytes": " GiB", "usd_per_hour": " USD/h"}.get(
                    self.dimension, " ..."
                )
                self.fail(f"{value!r} has no unit; write {str(value).strip() + unit!r}", param, ctx)
            number = units.parse_quantity(value, self.dimension)
        except UnitError as error:
            self.fail(str(error), param, ctx)
        if self.positive and number == 0:
            self.fail(f"{value!r} must be above 0", param, ctx)
        return number


def _is_bare(text: str) -> bool:
    """Whether a text is a number without a unit."""
    try:
        float(text)
    except ValueError:
        return False
    return True


class Count(click.ParamType[int]):
    """A whole number from 1 to a limit; underscores may group its digits."""

    name = "count"

    def __init__(self, maximum: int) -> None:
        """Keep the limit, which protects from typing errors that would fill the memory."""
        self.maximum = maximum

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Refuse everything that is not such a number; ``int`` fails on thousands of digits."""
        text = str(value).strip()
        digits = text.replace("_", "")
        if not digits.isascii() or not digits.isdigit() or not 1 <= float(digits) <= self.maximum:
            self.fail(f"{text!r} is not a whole number from 1 to {self.maximum:,}", param, ctx)
        return int(float(digits))


class Batch(Count):
    """A number of samples; ``32k`` is 32,768."""

    name = "samples"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Refuse everything that is no such number."""
        text = str(value).strip()
        thousands = text[:-1] if text[-1:] in ("k", "K") else ""
        if thousands.isascii() and thousands.isdigit() and len(thousands) < 10:
            text = str(1024 * int(thousands))
        return super().convert(text, param, ctx)


class Samples(Batch):
    """A number of samples per rank: a whole number, or such a part of one as 0.5."""

    name = "samples"

    def convert(  # type: ignore[override]
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Refuse everything else; whether ranks share the samples, the workload says."""
        text = str(value).strip()
        if re.fullmatch(r"[0-9]{0,9}\.[0-9]{1,9}", text):
            return float(text)
        return super().convert(value, param, ctx)


@dataclass(frozen=True, slots=True)
class Share:
    """A part, 0..1, of something that is known later."""

    ratio: float


class Reserve(Quantity):
    """An amount of memory such as ``6 GiB``, or a share of each device's such as ``10%``."""

    def __init__(self) -> None:
        """A quantity of bytes."""
        super().__init__("bytes")

    def convert(  # type: ignore[override]
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | Share:
        """Refuse everything else."""
        if isinstance(value, Share):
            return value
        if str(value).strip().endswith("%"):
            return Share(PartShare().convert(value, param, ctx))
        return super().convert(value, param, ctx)


class Percent(click.ParamType[float]):
    """A percentage such as ``3%``, which is read as the ratio 0.03."""

    name = "percent"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Refuse a number without the percent sign, because 0.03 could mean 3 % or 0.03 %."""
        if isinstance(value, float):
            return value
        text = str(value).strip()
        try:
            number = float(text.removesuffix("%")) if text.endswith("%") else math.nan
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            self.fail(f"{value!r} is not a percentage such as '3%'", param, ctx)
        return number / 100


class PartShare(Percent):
    """A percentage above 0 and below 100."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Refuse 0 % and 100 %."""
        ratio = super().convert(value, param, ctx)
        if not 0 < ratio < 1:
            self.fail(f"{value!r} must be above 0% and below 100%", param, ctx)
        return ratio


class AbstractName(click.ParamType[str], ABC):
    """A name out of a list, which is made only when the flag is read."""

    name = "name"

    @abstractmethod
    def known(self) -> tuple[str, ...]:
        """Every name that is accepted."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Refuse unknown names; the message lists the known ones."""
        if value not in self.known():
            self.fail(f"{value!r} is not one of {', '.join(self.known())}", param, ctx)
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names that begin with what was typed."""
        del ctx, param
        return matching(self.known(), incomplete)


class PluginName(AbstractName):
    """The name of a file in a package of plug-ins; the files are listed, not imported."""

    def __init__(self, package: str, *, also: tuple[str, ...] = ()) -> None:
        """Keep the arguments; ``also`` are further names, for which there are no files."""
        self.package = package
        self.also = also

    def known(self) -> tuple[str, ...]:
        """Every name that is accepted."""
        found = discovery.names(importlib.import_module(self.package))
        return tuple(dict.fromkeys((*self.also, *found)))


class ObjectiveName(AbstractName):
    """The name of an objective of the search."""

    def known(self) -> tuple[str, ...]:
        """The names of all objectives."""
        from planner.objectives import objective_names

        return objective_names()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemFlags:
    """The shared flags on workload and system; None for flags that were not given."""

    system: str | None = None
    gpus: int | None = None
    hosts: int | None = None
    gpus_per_host: int | None = None
    batch_size: float | None = None
    global_batch_size: int | None = None
    reserve: float | Share | None = None
    price_usd_per_hour: float | None = None
    overrides: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


CHANGES: Final = (
    click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change one value of the workload file, such as tables.3.embedding_dim=64.",
    ),
    click.option(
        "--model",
        "models",
        multiple=True,
        metavar="FAMILY=NAME|FILE.py",
        help="Price with this cost model; FAMILY is lookup, collective or dense.",
    ),
)
"""Flags that change what files say, or which models price plans."""


Option = Callable[[Any], Any]
"""A flag as click makes it: a decorator of a command."""


def with_options(command: Command, options: Sequence[Option]) -> Command:
    """Add flags to a command, each as an argument of its own, in this order in the help."""
    wrapped: Any = command
    for option in reversed(options):
        wrapped = option(wrapped)
    return cast("Command", wrapped)


class HeadedCommand(click.Command):
    """A command whose help lists the usual flags first, and the others under headings."""

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The long names of the flags under each heading; those not named here come first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags, each under its heading."""
        sections: dict[str, list[tuple[str, str]]] = {
            "Options": [],
            **{h: [] for h in self.headings},
        }
        under = {flag: heading for heading, flags in self.headings.items() for flag in flags}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and not isinstance(param, click.Argument):
                heading = next((under[flag] for flag in param.opts if flag in under), "Options")
                sections[heading].append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def is_given(parameter: str) -> bool:
    """Whether the user gave a flag of the running command, so that its default is not used."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is ParameterSource.COMMANDLINE


def gathered(
    command: Command,
    options: Sequence[Option],
    cls: type[Any],
    name: str,
    check: Callable[[Any], None] | None = None,
) -> Command:
    """Add flags to a command, which gets them as one argument.

    Args:
        command: the command.
        options: the flags.
        cls: a dataclass with a field for each flag.
        name: the name of the argument.
        check: refuses flags that contradict each other.
    """

    @functools.wraps(command)
    def called(*args: Any, **kwargs: Any) -> Any:
        flags = cls(**{field: kwargs.pop(field) for field in cls.__dataclass_fields__})
        if check is not None:
            check(flags)
        return command(*args, **{name: flags}, **kwargs)

    return cast("Command", with_options(called, options))


def problem_options(command: Command) -> Command:
    """Add the flags that choose system and batch; the command gets them as ``flags``."""
    options = (
        click.option(
            "--system",
            metavar="NAME|FILE",
            shell_complete=complete_system,
            help="System to plan for; see 'shardplan systems'.",
        ),
        click.option(
            "--gpus", type=Count(MAX_RANKS), metavar="N", help="Ranks in all.  [default: one host]"
        ),
        click.option(
            "--hosts", type=Count(MAX_RANKS), metavar="N", help="Full hosts, instead of --gpus."
        ),
        click.option(
            "--gpus-per-host",
            type=Count(MAX_RANKS),
            metavar="N",
            help="Ranks per host.  [default: system's]",
        ),
        click.option(
            "--batch-size",
            type=Samples(MAX_SAMPLES),
            metavar="N",
            help="Samples per rank; 32k is 32,768, and 0.5 one on two ranks of tensor_parallel.  "
            "[default: workload's]",
        ),
        click.option(
            "--global-batch-size",
            type=Batch(MAX_SAMPLES),
            metavar="N",
            help="Samples of all ranks in one step, instead of --batch-size.",
        ),
        click.option(
            "--reserve",
            type=Reserve(),
            metavar="SIZE",
            help="Device memory to keep free, such as '6 GiB' or 10%.  [default: workload's]",
        ),
        click.option(
            "--price",
            "price_usd_per_hour",
            type=Quantity("usd_per_hour", positive=True),
            metavar="PRICE",
            help="Price of one GPU, such as '4.5 USD/h'.  [default: system's]",
        ),
        *CHANGES,
    )
    return gathered(command, options, ProblemFlags, "flags", _check)


def _check(flags: ProblemFlags) -> None:
    batches = {"--batch-size": flags.batch_size, "--global-batch-size": flags.global_batch_size}
    refuse_said_twice(flags.overrides, {**batches, "--reserve": flags.reserve})
    if flags.hosts is not None and flags.gpus is not None:
        message = "--hosts and --gpus both say how many ranks there are; give one"
        raise click.UsageError(message, click.get_current_context())


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFlags:
    """The flags on the search; None for values that follow from the problem."""

    strategy: str
    objective: str
    time_limit_s: float | None
    evaluations: int | None
    seed: int

    def settings(self) -> SearchSettings:
        """The settings of the search."""
        from planner.settings import SearchSettings

        return SearchSettings(
            strategy=self.strategy,
            objective=self.objective,
            time_limit_s=self.time_limit_s,
            max_evaluations=self.evaluations,
            seed=self.seed,
        )


def search_options(command: Command) -> Command:
    """Add the flags on the search; the command gets them as ``search``."""
    options = (
        click.option(
            "--strategy",
            type=PluginName("planner.search", also=("auto",)),
            default="auto",
            show_default=True,
            metavar="NAME",
            help="How to search: auto, exhaustive, random, or greedily as torchrec_greedy does.",
        ),
        click.option(
            "--objective",
            type=ObjectiveName(),
            default="iteration",
            show_default=True,
            metavar="NAME",
            help="What to minimize: iteration, phases, torchrec or torchrec-critical-path.",
        ),
        time_limit_option(
            "--time-limit", "End after this time with the best plan so far; ", "time_limit_s"
        ),
        click.option(
            "--evaluations",
            type=Count(MAX_EVALUATIONS),
            metavar="N",
            help="Budget of work: N priced plans.  [default: by the size of the problem]",
        ),
        click.option(
            "--seed",
            type=click.IntRange(min=0, max=2**31 - 1),
            default=0,
            show_default=True,
            metavar="N",
            help="Random seed.",
        ),
    )
    return gathered(command, options, SearchFlags, "search")


def time_limit_option(flag: str, text: str, *names: str) -> Callable[[Any], Any]:
    """A flag for a time limit; without it a search ends by its budget of work, on any machine."""
    return click.option(
        flag,
        *names,
        type=Quantity("s", positive=True),
        metavar="TIME",
        help=f"{text}a safety by the clock.  [default: none; the budget of work ends a search]",
    )


def output_options(command: Command) -> Command:
    """Add the flags on how much is printed; the command gets them as ``settings``."""
    options = (
        _setting("--json", "json", "Print one JSON document to stdout; remarks go to stderr."),
        _setting("-q", "quiet", "Print only results: no progress, no remarks.", "--quiet"),
        _setting("-v", "verbose", "Print every section of the report.", "--verbose"),
        _setting("--debug", "debug", "Show the traceback of an error."),
    )
    return with_options(command, options)


def _setting(flag: str, name: str, text: str, *more: str) -> Callable[[Command], Command]:
    def store(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        del param
        if value:
            setattr(ctx.obj, name, True)

    return click.option(
        flag, *more, is_flag=True, expose_value=False, is_eager=True, callback=store, help=text
    )
