"""Commands: a field of a dataclass, or a parameter of a function, is a flag with its type and help.

:func:`command` makes a command of a function. Flags that several commands share are here.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast, get_type_hints

import click
from click.core import ParameterSource

from planner.cli import types as kinds

if TYPE_CHECKING:
    from planner.settings import SearchSettings


def option(text: str, names: str = "", *, default: Any = None, **more: Any) -> Any:
    """A field that a flag sets; the type of the field says how its value is read.

    Args:
        text: the help.
        names: the names of the flag, with blanks between them; else that of the field.
        default: the value without the flag; a text is read as if it was given.
        more: further arguments of ``click.Option``, which replace what the type says.
    """
    if default is not None:
        more = {"default": default, "show_default": True} | more
    return _field(text, names, None if isinstance(default, str) else default, more)


def many(text: str, names: str = "", **more: Any) -> Any:
    """A field with all values of a flag that can be repeated."""
    return _field(text, names, (), {"multiple": True, **more})


def switch(text: str, names: str = "") -> Any:
    """A field that a flag without a value makes true."""
    return _field(text, names, False, {"is_flag": True, "type": None, "metavar": None})


def argument(**more: Any) -> Any:
    """A parameter that words without a flag set; ``more`` are arguments of ``click.Argument``."""
    return field(metadata={"argument": more})


def _field(text: str, names: str, default: object, more: Mapping[str, Any]) -> Any:
    return field(default=default, metadata={"names": names, "option": {"help": text, **more}})


class Flags:
    """A dataclass whose fields are made by :func:`option` and the functions beside it."""

    __slots__ = ()

    def check(self) -> None:
        """Refuse flags that contradict each other, or have no effect without another one."""


def command(
    short_help: str,
    group: click.Group | None = None,
    headings: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., int]], StrictCommand]:
    """Make a command of a function, whose first parameter gets the output flags.

    Every other parameter is a dataclass of flags; or a flag, if :func:`option` or a function beside
    it makes its default; or an argument, which is a file unless :func:`argument` says otherwise.

    Args:
        short_help: a line about the command.
        group: the group that gets the command under the name of the function.
        headings: the long names of the flags under each heading of the help; others come first.
    """

    def made(function: Callable[..., int]) -> StrictCommand:
        hints = get_type_hints(function, include_extras=True)
        params: list[click.Parameter] = []
        taken: dict[str, type[Flags]] = {}
        for given in list(signature(function).parameters.values())[1:]:
            hint = hints[given.name]
            if isinstance(hint, type) and issubclass(hint, Flags):
                taken[given.name] = hint
                params += _options(hint)
            else:
                params.append(_parameter(given.name, hint, given.default))

        def called(**values: Any) -> int:
            for name, cls in taken.items():
                own = fields(cast("Any", cls))
                values[name] = cls(**{one.name: values.pop(one.name) for one in own})
                values[name].check()
            return function(click.get_current_context().obj, **values)

        found = StrictCommand(
            function.__name__.replace("_", "-"),
            callback=called,
            params=[*params, *OUTPUT],
            help=function.__doc__,
            short_help=short_help,
        )
        found.headings = headings or {}
        if group is not None:
            group.add_command(found)
        return found

    return made


def _options(cls: type[Flags]) -> list[click.Parameter]:
    """The flag of each field."""
    hints = get_type_hints(cls, include_extras=True)
    return [_parameter(one.name, hints[one.name], one) for one in fields(cast("Any", cls))]


def _parameter(name: str, hint: Any, given: Any) -> click.Parameter:
    """What reads a field or parameter from the command line."""
    said = given.metadata if isinstance(given, Field) else {}
    if "option" not in said:
        more = said.get("argument", {"required": given is Parameter.empty})
        return click.Argument([name], **{"type": kinds.FILE, **more})
    usual = (kinds.FILE, "FILE") if hint is Path else (click.STRING,)
    kind, *shown = getattr(hint, "__metadata__", usual)
    names = said["names"] or f"--{name.replace('_', '-')}"
    more = {"type": kind, "metavar": next(iter(shown), None), **said["option"]}
    return click.Option([*names.split(), name], **more)


def refuse(when: object, message: str) -> None:
    """Refuse flags that do not go together, when they are given."""
    if when:
        raise click.UsageError(message, click.get_current_context())


def is_given(parameter: str) -> bool:
    """Whether the user gave a flag of the running command, so that its default is not used."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is ParameterSource.COMMANDLINE


class StrictCommand(click.Command):
    """A command that refuses a flag given twice, of which click would drop the first in silence."""

    headings: Mapping[str, str] = {}
    """The long names of the flags under each heading of the help; those not named come first."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, and refuse flags of one value that are there more than once."""
        left = super().parse_args(ctx, list(args))
        given = Counter(self.make_parser(ctx).parse_args(args=list(args))[2])
        for param, times in given.items():
            is_value = isinstance(param, click.Option) and not (param.multiple or param.is_flag)
            if is_value and times > 1:
                several = isinstance(param.type, kinds.Several)
                do = f"put the values into one, as in {param.metavar}"
                ctx.fail(
                    f"{param.opts[-1]} is given {times} times; {do if several else 'give it once'}"
                )
        return left

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags, each under its heading."""
        under = {
            flag: heading for heading, flags in self.headings.items() for flag in flags.split()
        }
        names = ("Options", *self.headings)
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in names}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                heading = next((under[flag] for flag in param.opts if flag in under), "Options")
                sections[heading].append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


# ------------------------------------------------------------------ the problem

SET: Final = "Change one value of the workload file, such as tables.3.embedding_dim=64."
MODEL: Final = "Price with this cost model; FAMILY is lookup, collective or dense."
CONSTRAINTS: Final = "YAML file of constraints, in addition to those of the workload."
MOVED_BYTES: Final = "Maximum bytes to move, such as '200 GiB'."
MOVED_TABLES: Final = "Maximum number of tables to move."
CLOCK: Final = "a safety by the clock.  [default: none; the budget of work ends a search]"
WORK: Final = "N priced plans.  [default: by the size of the problem]"
"""The help of flags that several commands have."""

_BATCH: Final = "training.batch_size_per_rank"
_KEYS: Final = {
    "--batch-size": _BATCH,
    "--global-batch-size": _BATCH,
    "--reserve": "memory.reserve",
}
"""The key of a workload file in whose place a flag gives the value."""


def refuse_said_twice(overrides: Sequence[str], given: Mapping[str, object]) -> None:
    """Refuse two flags, or a flag and ``--set``, that give the same value.

    Args:
        overrides: the values of ``--set``.
        given: the values of flags; None or an empty tuple for those that were not given.

    Raises:
        UsageError: something is said twice; the message names both ways.
    """
    flags = [flag for flag, value in given.items() if value not in (None, ())]
    refuse(
        {"--batch-size", "--global-batch-size"} <= set(flags),
        "--batch-size (per rank) and --global-batch-size exclude each other; give one",
    )
    keys = [text.partition("=")[0] for text in overrides]
    for flag in flags:
        same = f"{flag} and --set {_KEYS[flag]} give the same value; drop one of them"
        refuse(_KEYS[flag] in keys, same)
    for key, times in Counter(keys).items():
        refuse(times > 1, f"--set {key}: {times} values are given; give one")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemFlags(Flags):
    """The shared flags on workload and system; None for flags that were not given."""

    system: kinds.System = option("System to plan for; see 'shardplan systems'.")
    gpus: kinds.Number = option("Ranks in all.  [default: one host]")
    hosts: kinds.Number = option("Full hosts, instead of --gpus.")
    gpus_per_host: kinds.Number = option("Ranks per host.  [default: system's]")
    batch_size: kinds.Samples = option(
        "Samples per rank; 32k is 32,768, and 0.5 one on two ranks of tensor_parallel.  [default: "
        "workload's]"
    )
    global_batch_size: kinds.Batch = option(
        "Samples of all ranks in one step, instead of --batch-size."
    )
    reserve: kinds.Reserve = option(
        "Device memory to keep free, such as '6 GiB' or 10%.  [default: workload's]"
    )
    price_usd_per_hour: kinds.Price = option(
        "Price of one GPU, such as '4.5 USD/h'.  [default: system's]", "--price"
    )
    overrides: kinds.Texts = many(SET, "--set", metavar="KEY=VALUE")
    models: kinds.Texts = many(MODEL, "--model", metavar="FAMILY=NAME|FILE.py")

    def check(self) -> None:
        """Refuse what is said twice."""
        batches = {"--batch-size": self.batch_size, "--global-batch-size": self.global_batch_size}
        refuse_said_twice(self.overrides, {**batches, "--reserve": self.reserve})
        both = "--hosts and --gpus both say how many ranks there are; give one"
        refuse(self.hosts is not None and self.gpus is not None, both)


# ------------------------------------------------------------------ the search


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFlags(Flags):
    """The flags on the search; None for values that follow from the problem."""

    strategy: kinds.Strategy = option(
        "How to search: auto, exhaustive, random, or greedily as torchrec_greedy does.",
        default="auto",
    )
    objective: kinds.Objective = option(
        "What to minimize: iteration, phases, torchrec or torchrec-critical-path.",
        default="iteration",
    )
    time_limit_s: kinds.Duration = option(
        f"End after this time with the best plan so far; {CLOCK}", "--time-limit"
    )
    max_evaluations: kinds.Evaluations = option(f"Budget of work: {WORK}", "--evaluations")
    seed: kinds.Seed = option("Random seed.", default=0)

    def settings(self) -> SearchSettings:
        """The settings of the search."""
        from planner.settings import SearchSettings

        return SearchSettings(**asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioFlags(Flags):
    """Flags besides the objective on which the value of a plan depends."""

    scenarios: Annotated[tuple[Path, ...], kinds.FILE, "FILE"] = many(
        "Another workload or statistics file that the plan must serve too (repeatable).",
        "--scenario",
    )
    robust: Annotated[str | None, click.Choice(("worst", "mean"))] = option(
        "Minimize the worst or the mean of all scenarios.  [default: worst]"
    )
    torchrec_defaults: bool = switch(
        "For TorchRec's objectives: its bandwidths and memories, not the system's."
    )

    def check(self) -> None:
        """Refuse ``--robust`` without scenarios."""
        needs = "--robust needs --scenario, what to plan for beside the workload"
        refuse(self.robust is not None and not self.scenarios, needs)

    def check_figures(self, objective: str) -> None:
        """Refuse ``--torchrec-defaults`` for an objective that does not use them."""
        refuse(
            self.torchrec_defaults and not objective.startswith("torchrec"),
            "--torchrec-defaults are figures for TorchRec's estimates; add --objective torchrec or "
            "torchrec-critical-path",
        )


# ------------------------------------------------------------------ the output


def _store(name: str, ctx: click.Context, param: click.Parameter, value: bool) -> None:
    del param
    if value:
        setattr(ctx.obj, name, True)


OUTPUT: Final = tuple(
    click.Option(
        names.split(),
        is_flag=True,
        expose_value=False,
        is_eager=True,
        help=text,
        callback=functools.partial(_store, names.split("--")[1]),
    )
    for names, text in {
        "--json": "Print one JSON document to stdout; remarks go to stderr.",
        "-q --quiet": "Print only results: no progress, no remarks.",
        "-v --verbose": "Print every section of the report.",
        "--debug": "Show the traceback of an error.",
    }.items()
)
"""The flags on how much is printed, which change the first argument of a command."""
