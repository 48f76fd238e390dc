"""Commands: a field of a dataclass, or a parameter of a function, is a flag with its type and help.

The type says how the value is read. After that stand what the help shows for the value, and the
names of the flag where they are not that of the field. The help is what the docstring says of the
field. :func:`command` makes a command of a function. Flags that several commands share are here.

Names and files are completed for the shell. It waits for the answer at every press of the tab key,
so that folders are listed directly, and nothing is imported that reads or checks files.
"""

import inspect
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, dataclass_transform, get_origin, get_type_hints

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

import planner
from costmodels import discovery, units
from costmodels.errors import require

Names = Callable[[], tuple[str, ...]]

MAX_RANKS: Final = 65_536
_MAX_SAMPLES: Final = 100_000_000
_WORKLOAD_FILES: Final = frozenset({".yaml", ".yml", ".csv", ".tsv"})
_UNITS: Final = {"s": "s", "bytes": " GiB", "bytes_per_s": " GB/s", "usd_per_hour": " USD/h"}
"""What a bare number of each dimension lacks."""


class Parsed(click.ParamType[Any]):
    """A value that a function reads from its text; a ``ValueError`` says what is wrong with it."""

    def __init__(self, name: str, read: Callable[[str], Any], names: Names | None = None) -> None:
        """Keep the arguments; ``names`` are the values that a shell completes."""
        self.name = name
        self.read = read
        self.names = names

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Read a text; what was read already passes through."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, _ctx: Any, _param: Any, incomplete: str) -> list[CompletionItem]:
        """The names that begin with what was typed; files if there are none."""
        if self.names is None:
            return []
        return matching(self.names(), incomplete) or [CompletionItem(incomplete, type="file")]


def quantity(dimension: str, *, positive: bool = False) -> Parsed:
    """A number with its unit in SI units; ``dimension`` is one of :mod:`costmodels.units`."""

    def read(text: str) -> float:
        bare = f"{text!r} has no unit; write {text.strip() + _UNITS[dimension]!r}"
        require(_number(text) is None, bare)
        number = units.parse_quantity(text, dimension)
        require(number > 0 or not positive, f"{text!r} must be above 0")
        return number

    return Parsed(dimension, read)


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return float(text)
    return None


def count(maximum: int, name: str = "count") -> Parsed:
    """A whole number from 1 to a limit, which protects from typing errors that fill the memory."""
    return Parsed(name, lambda text: _count(text, maximum))


def _count(text: str, maximum: int) -> int:
    """Underscores may group the digits; ``int`` fails on thousands of them."""
    text = text.strip()
    digits = text.replace("_", "")
    is_whole = digits.isascii() and digits.isdigit() and 1 <= float(digits) <= maximum
    require(is_whole, f"{text!r} is not a whole number from 1 to {maximum:,}")
    return int(float(digits))


def _batch(text: str) -> int:
    """A number of samples; ``32k`` is 32,768."""
    found = re.fullmatch(r"\s*([0-9]{1,9})[kK]\s*", text)
    return _count(text if found is None else str(1024 * int(found[1])), _MAX_SAMPLES)


def _samples(text: str) -> float:
    """Samples per rank: a whole number, or such a part of one as 0.5."""
    part = re.fullmatch(r"[0-9]{0,9}\.[0-9]{1,9}", text.strip())
    return _batch(text) if part is None else float(text)


def _percent(text: str) -> float:
    """``3%`` is 0.03; without the sign, 0.03 could mean 3 % or 0.03 %."""
    text = text.strip()
    found = _number(text.removesuffix("%")) if text.endswith("%") else None
    number = math.inf if found is None else found
    require(0 <= number < math.inf, f"{text!r} is not a percentage such as '3%'")
    return number / 100


@dataclass(frozen=True, slots=True)
class Share:
    """A part, 0..1, of something that is known later."""

    ratio: float


def _reserve(text: str) -> float | Share:
    """An amount of memory such as ``6 GiB``, or a share of each device's such as ``10%``."""
    if not text.strip().endswith("%"):
        read: float = quantity("bytes").read(text)
        return read
    ratio = _percent(text)
    require(0 < ratio < 1, f"{text!r} must be above 0% and below 100%")
    return Share(ratio)


def system_price(text: str) -> tuple[str, float]:
    """``h100_sxm=2.10`` for one system, or ``2.10 USD/h`` for all, whose name is empty."""
    system, equals, amount = text.partition("=")
    if not equals:
        return "", quantity("usd_per_hour", positive=True).read(text)
    number = _number(amount.strip().removesuffix("USD/h")) or 0.0
    require(
        bool(system.strip()) and 0 < number < 1e6,
        f"{text!r} is not like 'h100_sxm=2.10', a system and USD per GPU and hour, which are above "
        "0 and below 1,000,000",
    )
    return system.strip(), number


def samples_per_s(text: str) -> float:
    """Samples per second: ``20e6``, ``20_000_000`` or ``20M``."""
    digits = text.strip().replace("_", "")
    factor = {"k": 1e3, "M": 1e6, "G": 1e9}.get(digits[-1:], 1.0)
    number = (_number(digits[:-1] if factor > 1 else digits) or 0.0) * factor
    like = "a rate above 0 and below 1e15 samples/s, such as 20e6 or 20M"
    require(0 < number < 1e15, f"{text!r} is not {like}")
    return number


def name_of(known: Names) -> Parsed:
    """A name out of a list, which is made only when the flag is read."""

    def read(text: str) -> str:
        require(text in known(), f"{text!r} is not one of {', '.join(known())}")
        return text

    return Parsed("name", read, known)


class Several(click.ParamType[tuple[Any, ...]]):
    """Values with commas between them, each of which another type reads."""

    def __init__(self, one: click.ParamType[Any]) -> None:
        """Keep the type that reads a single value."""
        self.one = one
        self.name = f"{one.name} list"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Refuse an empty list, and values that the other type refuses; equal values count once."""
        if isinstance(value, tuple):
            return value
        texts = [text.strip() for text in str(value).split(",")]
        if not all(texts):
            self.fail(f"{value!r} has an empty entry between its commas", param, ctx)
        return tuple(dict.fromkeys(self.one.convert(text, param, ctx) for text in texts))

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        """The completions of the other type for what follows the last comma."""
        before, comma, last = incomplete.rpartition(",")
        found = self.one.shell_complete(ctx, param, last)
        return [CompletionItem(f"{before}{comma}{item.value}", type=item.type) for item in found]


# ------------------------------------------------------------------ files


class AnyFile(click.Path):
    """A path; for workloads, the names of shipped ones are completed too."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Refuse ``-``, which stands for a stream in other programs."""
        if os.fspath(value) == "-":
            self.fail("'-' names no file; streams are /dev/stdin and /dev/stdout", param, ctx)
        return super().convert(value, param, ctx)

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        """Shipped workloads and files in the working directory; the shell does other folders."""
        if param.name != "workload" or "/" in incomplete:
            return super().shell_complete(ctx, param, incomplete)
        here = (path.name for path in sorted(Path().iterdir()) if path.suffix in _WORKLOAD_FILES)
        found = matching((*shipped("workloads"), *here), incomplete)
        return found or super().shell_complete(ctx, param, incomplete)


def matching(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """The names that begin with what was typed."""
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def shipped(kind: str) -> dict[str, Path]:
    """Shipped files by name, of ``systems``, ``workloads`` and so on; empty if they are missing."""
    package = Path(planner.__file__).parent
    folders = (package / "_configs" / kind, package.parent / "configs" / kind)
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.*"))}


FILE: Final = AnyFile(path_type=Path)
RANKS: Final = count(MAX_RANKS)
PERCENT: Final = Parsed("percent", _percent)
SYSTEM: Final = Parsed("text", str, lambda: tuple(shipped("systems")))
OBJECTIVE: Final = name_of(lambda: import_module("planner.objectives").objective_names())
_STRATEGY: Final = name_of(lambda: tuple(discovery.names(import_module("planner.search"))))
_BATCH: Final = Parsed("samples", _batch)


# ------------------------------------------------------------------ fields that flags set


# The type of a flag says how its value is read, then what the help shows for it, then its names.

File = Annotated[Path | None, FILE, "FILE"]
Output = Annotated[File, "-o --output"]
Folder = Annotated[Path | None, FILE, "DIR", "-o --output"]
Text = Annotated[str | None, click.STRING]
Texts = Annotated[tuple[str, ...], click.STRING]
Overrides = Annotated[Texts, "KEY=VALUE", "--set"]
Models = Annotated[Texts, "FAMILY=NAME|FILE.py", "--model"]
System = Annotated[str | None, SYSTEM, "NAME|FILE"]
Number = Annotated[int | None, RANKS, "N"]
Numbers = Annotated[tuple[int, ...], Several(RANKS), "N,N"]
Tables = Annotated[int | None, count(100_000), "N"]
Evaluations = Annotated[int | None, count(10**12), "N", "--evaluations"]
Batch = Annotated[int | None, _BATCH, "N"]
Batches = Annotated[tuple[int, ...], Several(_BATCH), "N,N"]
Seed = Annotated[int, click.IntRange(min=0, max=2**31 - 1), "N"]
Bytes = Annotated[float | None, quantity("bytes"), "SIZE"]
Duration = Annotated[float | None, quantity("s", positive=True), "TIME"]
TimeLimit = Annotated[Duration, "--time-limit"]
Percent = Annotated[float, PERCENT, "PERCENT"]
MaybePercent = Annotated[float | None, PERCENT, "PERCENT"]
Price = Annotated[float | None, quantity("usd_per_hour", positive=True), "PRICE"]


# ------------------------------------------------------------------ commands


def argument(**more: Any) -> Any:
    """A parameter that words without a flag set; ``more`` are arguments of ``click.Argument``."""
    return more


_TOLD: Final = {
    "needs": "{} needs {}; give both or none",
    "excludes": "{} and {} exclude each other; give one",
}


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Flags:
    """A frozen dataclass whose fields are flags; one without a default has to be given.

    ``rules`` says what goes together, as in ``--curve needs --from``, ``--hosts excludes --gpus``.
    """

    rules: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Make a dataclass of each kind of flags."""
        dataclass(frozen=True, kw_only=True)(cls)

    def check(self) -> None:
        """Refuse flags that break one of the rules."""
        given = given_flags()
        for flag, verb, *others in map(str.split, self.rules):
            found = [other for other in others if other in given]
            is_broken = flag in given and bool(found) is (verb == "excludes")
            refuse(is_broken, _TOLD[verb].format(flag, (found or others)[0]))


def command(
    short_help: str, group: click.Group | None = None, headings: Mapping[str, str] | None = None
) -> Callable[[Callable[..., int | None]], "StrictCommand"]:
    """Make a command of a function.

    Each parameter is a dataclass of flags; or a flag, if its type is annotated; or an argument,
    which is a file unless :func:`argument` says otherwise.

    Args:
        short_help: a line about the command.
        group: the group that gets the command under the name of the function.
        headings: the long names of the flags under each heading of the help; others come first.
    """

    def made(function: Callable[..., int | None]) -> "StrictCommand":
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
            yield click.Argument([name], **{"type": FILE, **given.default})
        else:
            nargs, is_needed = -1 if get_origin(hint) is tuple else 1, given.default is given.empty
            yield click.Argument([name], type=FILE, required=is_needed, nargs=nargs)


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
        multiple=get_origin(base) is tuple and not isinstance(kind, Several),
        show_default=base is not bool and isinstance(default, int | str),
        **given,
    )


def refuse(when: object, message: str) -> None:
    """Refuse flags that do not go together, when they are given."""
    if when:
        raise click.UsageError(message, click.get_current_context())


def given_flags() -> set[str]:
    """The flags of the running command that the user gave, and as ``--set=KEY`` what was set."""
    context = click.get_current_context()
    sources = ((p, context.get_parameter_source(p.name or "")) for p in context.command.params)
    given = {name for p, at in sources if at is ParameterSource.COMMANDLINE for name in p.opts}
    texts = (*context.params.get("overrides", ()), *context.params.get("vary", ()))
    return given | {f"--set={text.partition('=')[0]}" for text in texts}


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
                several = isinstance(param.type, Several)
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

    rules = (
        "--batch-size excludes --global-batch-size --set=training.batch_size_per_rank",
        "--global-batch-size excludes --set=training.batch_size_per_rank",
        *("--hosts excludes --gpus", "--reserve excludes --set=memory.reserve"),
    )

    system: System = None
    gpus: Number = None
    hosts: Number = None
    gpus_per_host: Number = None
    batch_size: Annotated[float | None, Parsed("samples", _samples), "N"] = None
    global_batch_size: Batch = None
    reserve: Annotated[float | Share | None, Parsed("bytes", _reserve), "SIZE"] = None
    price_usd_per_hour: Annotated[Price, "--price"] = None
    overrides: Overrides = ()
    models: Models = ()


# ------------------------------------------------------------------ the search


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

    strategy: Annotated[str, _STRATEGY, "NAME"] = "auto"
    objective: Annotated[str, OBJECTIVE, "NAME"] = "iteration"
    time_limit_s: TimeLimit = None
    max_evaluations: Evaluations = None
    seed: Seed = 0

    def settings(self) -> "planner.SearchSettings":
        """The settings of the search."""
        return planner.SearchSettings(**asdict(self))


class ScenarioFlags(Flags):
    """Flags besides the objective on which the value of a plan depends.

    Attributes:
        scenarios: Another workload or statistics file that the plan must serve too (repeatable).
        robust: Minimize the worst or the mean of all scenarios.  [default: worst]
        torchrec_defaults: For TorchRec's objectives: its bandwidths and memories, not the system's.
    """

    rules: ClassVar[tuple[str, ...]] = ("--robust needs --scenario",)

    scenarios: Annotated[tuple[Path, ...], FILE, "FILE", "--scenario"] = ()
    robust: Annotated[str | None, click.Choice(("worst", "mean"))] = None
    torchrec_defaults: bool = False

    def check_figures(self, objective: str) -> None:
        """Refuse ``--torchrec-defaults`` for an objective that does not use them."""
        refuse(
            self.torchrec_defaults and not objective.startswith("torchrec"),
            "--torchrec-defaults are figures for TorchRec's estimates; add --objective torchrec or "
            "torchrec-critical-path",
        )


# ------------------------------------------------------------------ the output


def _store(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        setattr(ctx.obj, str(param.name), True)


OUTPUT: Final = tuple(
    click.Option(
        names.split(),
        is_flag=True,
        expose_value=False,
        is_eager=True,
        help=text,
        callback=_store,
    )
    for names, text in {
        "--json": "Print one JSON document to stdout; remarks go to stderr.",
        "-q --quiet": "Print only results: no progress, no remarks.",
        "-v --verbose": "Print every section of the report.",
        "--debug": "Show the traceback of an error.",
    }.items()
)
"""The flags on how much is printed, which :func:`planner.cli.console.settings` tells."""
