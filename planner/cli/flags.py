"""Commands: a field of a dataclass, or a parameter of a function, is a flag with its type and help.

The type says how the value is read. After that stand what the help shows for the value, and the
names of the flag where they are not that of the field. The help is what the docstring says of the
field. :func:`command` makes a command of a function. Flags that several commands share are here.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, get_origin, get_type_hints

import click
from click.core import ParameterSource

from planner.cli import types as kinds

if TYPE_CHECKING:
    from planner.settings import SearchSettings


def argument(**more: Any) -> Any:
    """A parameter that words without a flag set; ``more`` are arguments of ``click.Argument``."""
    return more


class Flags:
    """A dataclass whose fields are flags; one without a default has to be given."""

    __slots__ = ()

    def check(self) -> None:
        """Refuse flags that contradict each other, or have no effect without another one."""


def command(
    short_help: str, group: click.Group | None = None, headings: Mapping[str, str] | None = None
) -> Callable[[Callable[..., int | None]], StrictCommand]:
    """Make a command of a function.

    Each parameter is a dataclass of flags; or a flag, if its type is annotated; or an argument,
    which is a file unless :func:`argument` says otherwise.

    Args:
        short_help: a line about the command.
        group: the group that gets the command under the name of the function.
        headings: the long names of the flags under each heading of the help; others come first.
    """

    def made(function: Callable[..., int | None]) -> StrictCommand:
        hints = get_type_hints(function)
        taken = {name: hint for name, hint in hints.items() if _is_flags(hint)}

        def called(**values: Any) -> int | None:
            for name, cls in taken.items():
                values[name] = cls(**{n: values.pop(n) for n in inspect.signature(cls).parameters})
                values[name].check()
            return function(**values)

        found = StrictCommand(
            function.__name__.replace("_", "-"),
            callback=called,
            params=[*_parameters(function), *OUTPUT],
            help=re.sub(r"\n\nArgs:(\n {4}.*)+", "", inspect.getdoc(function) or "").strip(),
            short_help=short_help,
        )
        found.headings = headings or {}
        if group is not None:
            group.add_command(found)
        return found

    return made


def _is_flags(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Flags)


def _parameters(made: Any) -> Iterator[click.Parameter]:
    """The flags and arguments of a function, or the flags of a dataclass and its bases."""
    hints, told = get_type_hints(made, include_extras=True), dict[str, str]()
    for one in reversed(getattr(made, "__mro__", (made,))):
        said = re.findall(
            r"^ {4}(\w+): (.+(?:\n {8}.+)*)", inspect.cleandoc(one.__doc__ or ""), re.M
        )
        told |= {name: re.sub(r"\n +", " ", text) for name, text in said}
    for name, given in inspect.signature(made).parameters.items():
        hint = hints[name]
        if _is_flags(hint):
            yield from _parameters(hint)
        elif hint is bool or get_origin(hint) is Annotated:
            yield _option(name, hint, given.default, told.get(name, ""))
        elif isinstance(given.default, dict):
            yield click.Argument([name], **{"type": kinds.FILE, **given.default})
        else:
            nargs, is_required = (
                -1 if get_origin(hint) is tuple else 1,
                given.default is given.empty,
            )
            yield click.Argument([name], type=kinds.FILE, required=is_required, nargs=nargs)


def _option(name: str, hint: Any, default: Any, text: str) -> click.Option:
    """The flag of a field; a bool is a switch, and a tuple a flag that may be repeated."""
    base, (kind, *words) = getattr(hint, "__origin__", hint), getattr(hint, "__metadata__", (None,))
    names = [word for word in words if word.startswith("-")] or [f"--{name.replace('_', '-')}"]
    shown = [None, *(word for word in words if not word.startswith("-"))]
    is_required = default is inspect.Parameter.empty
    given = {"required": True} if is_required else {"default": default}
    return click.Option(
        [*names[-1].split(), name],
        type=kind,
        metavar=shown[-1],
        help=text,
        is_flag=base is bool,
        multiple=get_origin(base) is tuple and not isinstance(kind, kinds.Several),
        show_default=base is not bool and isinstance(default, int | str),
        **given,
    )


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
    """The shared flags on workload and system; None for flags that were not given.

    Attributes:
        system: System to plan for; see 'shardplan systems'.
        gpus: Ranks in all.  [default: one host]
        hosts: Full hosts, instead of --gpus.
        gpus_per_host: Ranks per host.  [default: system's]
        batch_size: Samples per rank; 32k is 32,768, and 0.5 one on two ranks of
            tensor_parallel.  [default: workload's]
        global_batch_size: Samples of all ranks in one step, instead of --batch-size.
        reserve: Device memory to keep free, such as '6 GiB' or 10%.  [default: workload's]
        price_usd_per_hour: Price of one GPU, such as '4.5 USD/h'.  [default: system's]
        overrides: Change one value of the workload file, such as tables.3.embedding_dim=64.
        models: Price with this cost model; FAMILY is lookup, collective or dense.
    """

    system: kinds.System = None
    gpus: kinds.Number = None
    hosts: kinds.Number = None
    gpus_per_host: kinds.Number = None
    batch_size: kinds.Samples = None
    global_batch_size: kinds.Batch = None
    reserve: kinds.Reserve = None
    price_usd_per_hour: Annotated[kinds.Price, "--price"] = None
    overrides: kinds.Overrides = ()
    models: kinds.Models = ()

    def check(self) -> None:
        """Refuse what is said twice."""
        batches = {"--batch-size": self.batch_size, "--global-batch-size": self.global_batch_size}
        refuse_said_twice(self.overrides, {**batches, "--reserve": self.reserve})
        both = "--hosts and --gpus both say how many ranks there are; give one"
        refuse(self.hosts is not None and self.gpus is not None, both)


# ------------------------------------------------------------------ the search


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFlags(Flags):
    """The flags on the search; None for values that follow from the problem.

    Attributes:
        strategy: How to search: auto, exhaustive, random, or greedily as torchrec_greedy does.
        objective: What to minimize: iteration, phases, torchrec or torchrec-critical-path.
        time_limit_s: End after this time with the best plan so far; a safety by the
            clock.  [default: none; the budget of work ends a search]
        max_evaluations: Budget of work: N priced plans.  [default: by the size of the problem]
        seed: Random seed.
    """

    strategy: kinds.Strategy = "auto"
    objective: kinds.Objective = "iteration"
    time_limit_s: kinds.TimeLimit = None
    max_evaluations: kinds.Evaluations = None
    seed: kinds.Seed = 0

    def settings(self) -> SearchSettings:
        """The settings of the search."""
        from planner.settings import SearchSettings

        return SearchSettings(**asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioFlags(Flags):
    """Flags besides the objective on which the value of a plan depends.

    Attributes:
        scenarios: Another workload or statistics file that the plan must serve too (repeatable).
        robust: Minimize the worst or the mean of all scenarios.  [default: worst]
        torchrec_defaults: For TorchRec's objectives: its bandwidths and memories, not the system's.
    """

    scenarios: kinds.Scenarios = ()
    robust: kinds.Robust = None
    torchrec_defaults: bool = False

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


def _store(name: str, ctx: click.Context, _param: click.Parameter, value: bool) -> None:
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
"""The flags on how much is printed, which :func:`planner.cli.console.settings` tells."""
