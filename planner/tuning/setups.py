"""A setup: one choice of everything around a plan; the menus; and the workload under a setup."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from costmodels.errors import InvalidValueError
from costmodels.topology import Topology, group_topology
from costmodels.training.communication import Communication, Precision
from costmodels.workload import Pipeline, Workload
from planner.errors import InvalidInputError
from planner.support.kinds import check_fields

OWN_CODECS: Final = "workload"
"""The name that stands for the workload's own codecs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One choice of everything that surrounds a plan.

    Attributes:
        system: name of the system.
        gpus: number of all ranks.
        batch_size: samples per rank.
        pipeline: training pipeline.
        lookahead_batches: batches that the caches of pipeline ``lookahead`` are filled from.
        group_size: ranks that share one copy of the tables; the world size means a single copy.
        sync_interval: iterations between two averagings of the copies.
        communication: codecs of the exchanges, as ``fp16`` or ``fp16/bf16`` (forward/backward).
        reserved_bytes: device memory to keep free.
        min_column_width: least columns of a piece.
        cache_load_factors: shares of a cached table on the device; empty for the usual ones.
    """

    system: str
    gpus: int
    batch_size: int
    pipeline: Pipeline
    group_size: int
    lookahead_batches: int = 0
    sync_interval: int = 1
    communication: str = OWN_CODECS
    reserved_bytes: float = 0.0
    min_column_width: int = 4
    cache_load_factors: tuple[float, ...] = ()

    @property
    def cluster(self) -> str:
        """System and number of ranks, such as ``h100_sxm x 16``."""
        return f"{self.system} x {self.gpus}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "pipeline": self.pipeline.value}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Setup:
        """The inverse of :meth:`to_json`."""
        pipeline, factors = Pipeline(values["pipeline"]), tuple(values["cache_load_factors"])
        setup = cls(**{**values, "pipeline": pipeline, "cache_load_factors": factors})
        check_fields(setup)
        return setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Menu:
    """The values that may be chosen, the usual one first; an empty list keeps the workload's.

    ``tries_groups`` says whether groups of ranks may each have a copy of all tables.
    """

    pipelines: tuple[Pipeline, ...] = ()
    lookaheads: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    communications: tuple[str, ...] = ()
    tries_groups: bool = False
    sync_intervals: tuple[int, ...] = (1,)
    reserves_bytes: tuple[float, ...] = ()
    min_column_widths: tuple[int, ...] = ()
    cache_menus: tuple[tuple[float, ...], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "pipelines": [p.value for p in self.pipelines]}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Menu:
        """The inverse of :meth:`to_json`."""
        kept: dict[str, Any] = {f.name: values[f.name] for f in fields(cls)}
        lists = {k: tuple(v) for k, v in kept.items() if isinstance(v, list | tuple)}
        pipelines = tuple(Pipeline(p) for p in kept["pipelines"])
        menus = tuple(tuple(m) for m in kept["cache_menus"])
        return cls(**{**kept, **lists, "pipelines": pipelines, "cache_menus": menus})


def changed(workload: Workload, setup: Setup) -> Workload:
    """The workload under a setup.

    Raises:
        InvalidInputError: the values contradict each other or the workload.
    """
    try:
        made = replace(
            workload,
            local_batch_size=setup.batch_size,
            pipeline=setup.pipeline,
            lookahead_batches=setup.lookahead_batches,
            reserved_bytes=setup.reserved_bytes,
        )
    except InvalidValueError as error:
        message = f"{setup.pipeline.value}, {setup.batch_size:,} samples per rank: {error}"
        raise InvalidInputError(message) from error
    if setup.pipeline is Pipeline.LOOKAHEAD and not setup.lookahead_batches:
        message = "pipeline lookahead needs a number of batches, such as --lookahead 8"
        raise InvalidInputError(message)
    codecs = setup.communication
    return made if codecs == OWN_CODECS else made.communicating(codecs_named(codecs))


def codecs_named(name: str) -> Communication:
    """The codecs of all exchanges, from a name: ``fp16``, or ``fp16/bf16`` (forward/backward).

    Raises:
        InvalidInputError: there is no such precision.
    """
    forward, _, backward = name.partition("/")
    try:
        return Communication.of(Precision(forward), Precision(backward or forward))
    except ValueError as error:
        known = ", ".join(p.value for p in Precision)
        message = (
            f"codecs {name!r}: write {OWN_CODECS}, one of {known}, or two of them as fp16/bf16 "
            "(forward/backward)"
        )
        raise InvalidInputError(message) from error


def cluster_name(topology: Topology) -> str:
    """The name of a system with its number of ranks, as in :attr:`Setup.cluster`."""
    return f"{topology.name} x {topology.world_size}"


def group_sizes(topology: Topology) -> tuple[int, ...]:
    """Sizes of groups that divide the world size and fit to hosts, the largest first."""
    world, local = topology.world_size, topology.local_world_size
    sizes = [s for s in range(world, 0, -1) if world % s == 0]
    copies = {s: world // s for s in sizes}
    nested = (s for s in sizes if local % copies[s] == 0 or copies[s] % local == 0)
    return tuple(s for s in nested if group_topology(topology, s) is not None)
