"""The flags of ``sweep`` and ``size``, and the tasks that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from planner.cli.flags.common import (
    MAX_EVALUATIONS,
    MAX_RANKS,
    MAX_SAMPLES,
    Command,
    Count,
    Option,
    Quantity,
    gathered,
    is_given,
    time_limit_option,
)
from planner.cli.flags.said_twice import refuse_said_twice
from planner.cli.names import complete_system

if TYPE_CHECKING:
    from costmodels.topology import Topology
    from planner.io import WorkloadFile
    from planner.sweep import Grid, Operation, Point, PointResult
    from planner.sweep.runner import Task

PIPELINES = ("sparse_dist", "prefetch_sparse_dist", "none")


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


class Alone(Several):
    """A single value, in a tuple like the several values of other commands."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        """Refuse several values."""
        found = super().convert(value, param, ctx)
        if len(found) > 1:
            self.fail(f"{value!r} is several values; 'shardplan sweep' compares them", param, ctx)
        return found


class Price(click.ParamType[tuple[str, float]]):
    """A value such as ``h100_sxm=2.10``: a system, and US dollars per device and hour."""

    name = "price"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        """Refuse values that are not such pairs."""
        if isinstance(value, tuple):
            return value
        system, equals, text = str(value).partition("=")
        try:
            number = float(text.strip())
        except ValueError:
            number = -1.0
        if not equals or not system.strip() or not 0 < number < 1e6:
            message = (
                f"{value!r} is not like 'h100_sxm=2.10', a system and USD per GPU and hour, which "
                "are above 0 and below 1,000,000"
            )
            self.fail(message, param, ctx)
        return system.strip(), number


def prices_of(given: tuple[tuple[str, float], ...], systems: tuple[str, ...]) -> dict[str, float]:
    """Prices by system; a price for all systems has an empty name.

    Raises:
        InvalidInputError: a price names a system that is not used, or a system has two prices.
    """
    from planner.errors import InvalidInputError

    names = [name for name, _ in given]
    unknown = [name for name in names if name and name not in systems]
    if unknown:
        message = f"--price {unknown[0]}=...: no such system in --system"
        raise InvalidInputError(message)
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        message = f"--price: two prices for {twice[0] or 'all systems'}; give one"
        raise InvalidInputError(message)
    return dict(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFlags:
    """The flags that both commands share."""

    systems: tuple[str, ...]
    gpus_per_host: int | None
    batch_sizes: tuple[int, ...]
    global_batch_sizes: tuple[int, ...]
    pipelines: tuple[str, ...]
    reserve_bytes: float | None
    overrides: tuple[str, ...]
    prices: tuple[tuple[str, float], ...]
    mtbf_s: float | None
    restart_s: float
    time_limit_s: float | None
    evaluations: int | None
    seed: int


def sweep_options(command: Command) -> Command:
    """Add the flags of ``sweep``; the command gets them as ``flags``."""
    options = (*_SYSTEMS, *_axes(Several, "N,N", "NAME,NAME"), *_OPTIONS)
    return gathered(command, options, SweepFlags, "flags", _check)


def size_options(command: Command) -> Command:
    """Add the flags of ``size``, which takes only one batch and one pipeline."""
    options = (*_SYSTEMS, *_axes(Alone, "N", "NAME"), *_OPTIONS)
    return gathered(command, options, SweepFlags, "flags", _check)


def _check(flags: SweepFlags) -> None:
    """Refuse flags that contradict each other, or that have no effect without another one."""
    if flags.mtbf_s is None and is_given("restart_s"):
        message = "--restart says what a failure costs; say with --mtbf how often failures come"
        raise click.UsageError(message, click.get_current_context())
    given = {
        "--batch-size": flags.batch_sizes,
        "--global-batch-size": flags.global_batch_sizes,
        "--reserve": flags.reserve_bytes,
        "--pipeline": flags.pipelines,
    }
    refuse_said_twice(flags.overrides, given)


_SYSTEMS: tuple[Option, ...] = (
    click.option(
        "--system",
        "systems",
        type=Several(click.STRING),
        required=True,
        metavar="A,B",
        shell_complete=complete_system,
        help="Systems, by name or file; see 'shardplan systems'.",
    ),
    click.option(
        "--gpus-per-host",
        type=Count(MAX_RANKS),
        metavar="N",
        help="Ranks per host.  [default: each system's]",
    ),
)


def _axes(values: type[Several], numbers: str, names: str) -> tuple[Option, ...]:
    """The flags for batch and pipeline; ``values`` makes their types, texts are for the help."""
    title = "Training pipeline" if values is Alone else "Training pipelines"
    return (
        click.option(
            "--batch-size", "batch_sizes", type=values(Count(MAX_SAMPLES)), default=(),
            metavar=numbers, help="Samples per rank.  [default: workload's]",
        ),
        click.option(
            "--global-batch-size", "global_batch_sizes", type=values(Count(MAX_SAMPLES)),
            default=(), metavar=numbers, help="Samples of all ranks in one step.",
        ),
        click.option(
            "--pipeline", "pipelines", type=values(click.Choice(PIPELINES)), default=(),
            metavar=names, help=f"{title}: {', '.join(PIPELINES)}.  [default: workload's]",
        ),
    )  # fmt: skip


_OPTIONS: tuple[Option, ...] = (
    click.option(
        "--reserve", "reserve_bytes", type=Quantity("bytes"), metavar="SIZE",
        help="Device memory to keep free.  [default: workload's]",
    ),
    click.option(
        "--set", "overrides", multiple=True, metavar="KEY=VALUE",
        help="Change one value of the workload file.",
    ),
    click.option(
        "--price", "prices", type=Price(), multiple=True, metavar="SYSTEM=USD",
        help="Price of a GPU in USD per hour.  [default: the dated list price in the system]",
    ),
    click.option(
        "--mtbf", "mtbf_s", type=Quantity("s", positive=True), metavar="TIME",
        help="Mean time between failures, or spot interruptions, of one host.  [default: none]",
    ),
    click.option(
        "--restart", "restart_s", type=Quantity("s"), default="5min", show_default=True,
        metavar="TIME", help="Time from a failure to the next iteration.",
    ),
    time_limit_option("--time-limit", "For each search, ", "time_limit_s"),
    click.option(
        "--evaluations", type=Count(MAX_EVALUATIONS), metavar="N",
        help="Budget of each search: N priced plans.  [default: by the size of the problem]",
    ),
    click.option(
        "--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, metavar="N",
        help="Of random choices.",
    ),
)  # fmt: skip


class Questions:
    """Makes tasks of points; each file is read once.

    Raises:
        InvalidInputError: a file or flag breaks a rule, or a price names a system that is not used.
    """

    def __init__(self, workload: Path, flags: SweepFlags) -> None:
        """Read the workload, and check the prices."""
        from planner import io
        from planner.cli.flags.inputs import override_pairs

        self._prices = prices_of(flags.prices, flags.systems)
        self.flags = flags
        self.file: WorkloadFile = io.load_workload_file(
            workload, overrides=override_pairs(flags.overrides)
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings on values that neither the workload file, nor a flag, nor a system gives."""
        from costmodels.dense.base import unrated_remark
        from planner.cli.flags.inputs import left_open

        batch = bool(self.flags.batch_sizes or self.flags.global_batch_sizes)
        found = left_open(self.file, reserve=self.flags.reserve_bytes is not None, batch=batch)
        systems = [self.smallest(name) for name in self.flags.systems]
        remarks = [
            unrated_remark(
                self.file.workload, system.device, is_calibrated=bool(system.calibration)
            )
            for system in systems
        ]
        return (*found, *(text for text in remarks if text is not None))

    @property
    def operation(self) -> Operation:
        """Failures and restarts."""
        from planner.sweep import Operation

        mtbf_s = self.flags.mtbf_s
        restart_s = self.flags.restart_s
        if mtbf_s is None:
            return Operation(restart_s=restart_s)
        return Operation(mtbf_s=mtbf_s, restart_s=restart_s)

    def grid(self, gpus: tuple[int, ...]) -> Grid:
        """The grid with these numbers of ranks."""
        from costmodels.workload import Pipeline
        from planner.sweep import Grid

        return Grid(
            systems=self.flags.systems,
            gpus=gpus,
            batch_sizes=self.flags.batch_sizes,
            global_batch_sizes=self.flags.global_batch_sizes,
            pipelines=tuple(Pipeline(p) for p in self.flags.pipelines),
        )

    def sizes(self, system: str, max_gpus: int) -> tuple[int, ...]:
        """The numbers of ranks up to ``max_gpus`` that fill hosts and share a global batch evenly.

        They have all ranks and hosts that the system names.

        Raises:
            InvalidInputError: there is no such number.
        """
        from planner.errors import InvalidInputError
        from planner.options.global_batch import is_shared_evenly

        least = self.smallest(system)
        per_host = least.local_world_size
        hosts = range(least.world_size, max_gpus + 1, per_host)
        if not hosts:
            one = f"one host of {system}, which has"
            several = f"the {least.num_hosts} hosts that {system} names, which have"
            message = (
                f"--max-gpus {max_gpus} is less than {one if least.num_hosts == 1 else several} "
                f"{least.world_size} ranks; raise it, or give hosts fewer ranks with "
                "--gpus-per-host"
            )
            raise InvalidInputError(message)
        if not self.flags.global_batch_sizes:
            return tuple(hosts)
        whole, workload = self.flags.global_batch_sizes[0], self.file.workload
        found = tuple(gpus for gpus in hosts if is_shared_evenly(whole, workload, gpus))
        if not found:
            message = (
                f"--global-batch-size {whole} is not a multiple of the ranks of any number of "
                f"hosts of {per_host} ranks up to --max-gpus {max_gpus}"
            )
            raise InvalidInputError(message)
        return found

    def smallest(self, system: str) -> Topology:
        """A system at its smallest size, for what is asked before any size."""
        from planner import io

        return io.load_smallest(system, gpus_per_host=self.flags.gpus_per_host)

    def topology(self, system: str, gpus: int) -> Topology:
        """A system at a size, with the user's price."""
        from planner import io

        found = io.load_system(system, gpus=gpus, gpus_per_host=self.flags.gpus_per_host)
        price = self._prices.get(system, found.price_per_device_usd_per_hour)
        return replace(found, price_per_device_usd_per_hour=price)

    def tasks(self, points: Sequence[Point]) -> tuple[list[Task], list[PointResult]]:
        """The tasks of possible points, and results that say what is wrong with impossible ones.

        Raises:
            InvalidInputError: a system does not exist, or all points are impossible.
        """
        from planner.errors import InvalidInputError
        from planner.sweep.outcome import impossible

        for system in self.flags.systems:
            self.smallest(system)
        tasks: list[Task] = []
        others: list[PointResult] = []
        problems: list[str] = []
        for point in points:
            try:
                tasks.append(self.task(point))
            except InvalidInputError as error:
                others.append(impossible(point, str(error)))
                problems += error.problems
        if not tasks:
            raise InvalidInputError(list(dict.fromkeys(problems)))
        return tasks, others

    def task(self, point: Point) -> Task:
        """The task of a point."""
        from planner.sweep.runner import Task

        workload = self.file.workload
        if self.flags.reserve_bytes is not None:
            workload = replace(workload, reserved_bytes=self.flags.reserve_bytes)
        topology = self.topology(point.system, point.gpus)
        return Task(
            point=point,
            problem=point.problem(workload, self.file.constraints, topology),
            operation=self.operation,
            time_limit_s=self.flags.time_limit_s,
            max_evaluations=self.flags.evaluations,
            seed=self.flags.seed,
        )
