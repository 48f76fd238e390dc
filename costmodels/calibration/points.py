"""The points of a calibration: what each kind of microbenchmark measured, and which are measured.

A point is made without times by the functions at the end, at random, from small tables and models
to large ones, and with times once it is measured. All seconds are processor seconds of a rank.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self, TypeVar

import numpy as np

from costmodels import sharding
from costmodels.datatypes import FloatArray
from costmodels.distribution.zipf import Zipf
from costmodels.measured.cpu_constants import CpuKernel
from costmodels.operators import Operator
from costmodels.workload import DenseArch, Feature, Interaction, Pipeline, Pooling, Table, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupPoint:
    """One table that is looked up and updated by a call of its own.

    Attributes:
        kernel: fused (row-wise Adagrad in the backward pass), dense (a gradient of the whole
            table), or sequence (as fused, but indices are not pooled).
        table: the table.
        num_bags: bags in the call.
        forward_s: measured seconds of the lookup.
        backward_s: measured seconds of its backward pass, with the update.
    """

    kernel: CpuKernel
    table: Table
    num_bags: int
    forward_s: float = 0.0
    backward_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePoint:
    """One collective without the copies that TorchRec makes around it.

    Attributes:
        operation: ``all_to_all``, ``reduce_scatter``, ``all_gather`` or ``all_reduce``.
        sent_bytes: ``[world_size]`` bytes that each rank sends to all other ranks together, in
            equal parts.
        kept_bytes: ``[world_size]`` bytes of each rank's message to itself.
        time_s: measured seconds of the slowest rank.
    """

    operation: str
    sent_bytes: tuple[float, ...]
    kept_bytes: tuple[float, ...]
    time_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """A training step of a small random model.

    Its stages are measured inside a step, because code and data are then as cold as in training. A
    fit uses the stages one by one and never their sum.

    Attributes:
        workload: the model.
        plan: where its tables are.
        stages_s: ``[world_size][stages]`` measured seconds of each rank, in the order of
            :data:`costmodels.cpu.exchange.STAGES`.
    """

    workload: Workload
    plan: sharding.Plan
    stages_s: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPoint:
    """One operator, or a chain of a few: forward, backward, and a step of the optimizer.

    Attributes:
        name: kind of the operator, or ``CHAIN`` of :mod:`costmodels.calibration.fit_machine`.
        operators: the operators that a trace of the measured module lists.
        forward_s: measured seconds of the forward pass.
        backward_s: measured seconds of the backward pass.
        update_s: measured seconds of a step of the optimizer; 0 without parameters.
    """

    name: str
    operators: tuple[Operator, ...]
    forward_s: float = 0.0
    backward_s: float = 0.0
    update_s: float = 0.0


def exchanges(
    world_size: int, *, sent_bytes: float, kept_bytes: float, reduced_bytes: float
) -> list[CollectivePoint]:
    """Balanced collectives of a size, and all-to-alls in which ranks send unequal amounts.

    In the latter the first rank sends ``sent_bytes``, every other rank a share of 0, 0.2 or 0.5 of
    that, and nobody keeps anything.

    Args:
        world_size: ranks.
        sent_bytes: what each rank sends.
        kept_bytes: each rank's message to itself.
        reduced_bytes: the buffer of each rank in an all-reduce.
    """
    shares = [(name, 1.0, kept_bytes) for name in ("all_to_all", "reduce_scatter", "all_gather")]
    shares += [("all_reduce", 1.0, reduced_bytes)]
    shares += [("all_to_all", share, 0.0) for share in (0.0, 0.2, 0.5)]
    return [
        CollectivePoint(
            operation=operation,
            sent_bytes=(sent_bytes, *(share * sent_bytes for _ in range(world_size - 1))),
            kept_bytes=(size,) * world_size,
        )
        for operation, share, size in shares
    ]


Point = TypeVar("Point", LookupPoint, CollectivePoint, StepPoint, OperatorPoint)


def scaled(point: Point, factor: float) -> Point:
    """The point with all its measured seconds (the fields that end in ``_s``) times ``factor``."""
    seconds = {f.name: getattr(point, f.name) for f in fields(point) if f.name.endswith("_s")}
    return replace(point, **{name: _times(value, factor) for name, value in seconds.items()})


def _times(seconds: Any, factor: float) -> Any:
    """Seconds, or nested tuples of seconds, times ``factor``."""
    if isinstance(seconds, tuple):
        return tuple(_times(s, factor) for s in seconds)
    return seconds * factor


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationPoints:
    """Everything that was measured on one machine.

    The same fixed work is timed beside the points, and tells how slow the machine is at that
    moment: its *pace*. The seconds of all points are converted to the pace that is typical.

    Attributes:
        lookups: lookups of single tables.
        steps: training steps.
        collectives: collectives.
        operators: operators of dense parts, and chains of them.
        pace_s: seconds of the fixed work at the pace of the points: what it typically took beside
            training steps, as the geometric mean over ranks. None in calibrations that are older
            than its measurement.
        pace_sigma_ratio: standard deviation of ln(pace) from one half minute to another.
    """

    lookups: tuple[LookupPoint, ...]
    steps: tuple[StepPoint, ...]
    collectives: tuple[CollectivePoint, ...]
    operators: tuple[OperatorPoint, ...] = ()
    pace_s: float | None = None
    pace_sigma_ratio: float = 0.0


# ------------------------------------------------------------------ which points are measured


# Sizes are limited so that a full calibration fits into the memory of a small host and into some
# minutes. Inside the limits, points are spread over orders of magnitude.
_DIMS = (4, 8, 16, 32, 64, 128)
"""Columns of tables."""
_MAX_TABLE_BYTES = 2e8
"""Largest table that is looked up alone."""
_MAX_DENSE_BYTES = 3e7
"""Largest replicated table that is looked up alone: its backward pass writes a whole gradient."""
_MAX_STEP_BYTES = 2.5e8
"""All tables of a training step together; a single one has at most half of that."""
_MAX_STEP_INDICES = 5e5
"""All indices of a rank's batch in a training step."""
_MAX_REPLICATED_BYTES = 8e6
"""Largest replicated table of a training step: its gradient is reduced in every step."""
_BAGS, _FEW_BAGS = (1024, 2048, 4096, 8192), (256, 512, 1024, 2048, 4096)
"""Bags of a lookup, and bags of a lookup of an unpooled table."""
_MAX_UNPOOLED = 1e5
"""Indices of a lookup of an unpooled table, each of which gives a vector."""
_LEAST_SHARE = 0.25
"""Smallest share of the points of an effort that a rank measures, however many ranks there are."""
_MOST_WHOLE_BYTES = 32 * 2**20
"""Largest collective: bytes of the parts of all ranks together."""
_SMALLEST = 10
"""Smallest part of a rank in a collective as a power of two: 2^10 bytes are 1 KiB."""
KINDS: Final = (
    sharding.ShardingType.TABLE_WISE,
    sharding.ShardingType.ROW_WISE,
    sharding.ShardingType.COLUMN_WISE,
    sharding.ShardingType.DATA_PARALLEL,
)
"""Sharding types of the tables of a training step, the one of all other tables first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringEffort:
    """How much is measured if there are two ranks.

    Each rank measures lookups and operators of its own; both measure training steps together.

    Attributes:
        num_lookups: tables that a rank looks up, of each :class:`CpuKernel`: pooled, replicated and
            unpooled ones.
        num_steps: training steps.
        num_passes: how often each lookup is measured, each time among other tables and at another
            place in memory. The times at two such places differ by 12 to 25 %.
        num_operators: single operators that a rank measures.
        num_chains: chains of operators that a rank measures.
        num_blocks: blocks in which the iterations of a training step are measured.
    """

    num_lookups: tuple[int, int, int]
    num_steps: int
    num_passes: int
    num_operators: int
    num_chains: int
    num_blocks: int = 3

    def shared_by(self, world_size: int) -> Self:
        """The effort of each rank if there are ``world_size`` ranks.

        More ranks measure about as many points in all as two ranks do, so that each measures fewer.
        A rank measures at least a quarter of the points, so that it still has points of each kind.
        """
        share = min(1.0, max(2.0 / world_size, _LEAST_SHARE))
        names = ("num_steps", "num_operators", "num_chains")
        fewer: dict[str, Any] = {name: math.ceil(share * getattr(self, name)) for name in names}
        fewer["num_lookups"] = tuple(math.ceil(share * count) for count in self.num_lookups)
        return replace(self, **fewer)


FULL = MeasuringEffort(
    num_lookups=(140, 90, 50), num_steps=140, num_passes=8, num_operators=320, num_chains=160
)
"""A full calibration, which takes some five minutes."""
QUICK = MeasuringEffort(
    num_lookups=(36, 12, 16),
    num_steps=36,
    num_passes=3,
    num_operators=120,
    num_chains=60,
    num_blocks=2,
)
"""A calibration of about a minute: fewer points, each of them measured fewer times."""


def lookup_points(count: int, kernel: CpuKernel, rng: np.random.Generator) -> list[LookupPoint]:
    """Random tables of 100 to 2 million rows, each looked up alone.

    Args:
        count: how many tables.
        kernel: what looks them up; it limits the size of a table or the number of indices.
        rng: draws the tables.
    """
    limit = _MAX_DENSE_BYTES if kernel is CpuKernel.DENSE else _MAX_TABLE_BYTES
    few = kernel is CpuKernel.SEQUENCE
    points: list[LookupPoint] = []
    while len(points) < count:
        table = random_table(len(points), rng, limit, scattered=True)
        bags = int(rng.choice(_FEW_BAGS if few else _BAGS))
        table = replace(table, pooling=Pooling.NONE if few else Pooling.SUM)
        if not few or bags * table.pooling_factor <= _MAX_UNPOOLED:
            points.append(LookupPoint(kernel=kernel, table=table, num_bags=bags))
    return points


def step_points(count: int, world_size: int, rng: np.random.Generator) -> list[StepPoint]:
    """Training steps of small random models with 1 to 14 tables.

    Some have tables of one sharding type, others of all; some load the ranks evenly, others load
    mostly one rank.

    Args:
        count: how many steps.
        world_size: ranks that measure them together.
        rng: draws models and plans.
    """
    return [_step(f"step-{i}", world_size, rng) for i in range(count)]


def _step(name: str, world_size: int, rng: np.random.Generator) -> StepPoint:
    """A random model and a random plan for it."""
    batch = int(rng.choice([512, 1024, 2048, 4096]))
    # The parameter of a Dirichlet law says how even its draws are: 0.3 gives nearly everything to
    # one rank, 20 nearly the same to each. So do 0.1 and 3 for sharding types.
    leaning = rng.dirichlet(np.full(world_size, rng.choice([0.3, 2.0, 20.0])))
    mix = rng.dirichlet(np.full(len(KINDS), rng.choice([0.1, 0.5, 3.0])))
    room_bytes, room_indices = _MAX_STEP_BYTES, _MAX_STEP_INDICES / batch
    tables: list[Table] = []
    for i in range(int(rng.integers(1, 15))):
        table = random_table(i, rng, _MAX_STEP_BYTES / 2)
        room_bytes -= table.weight_bytes
        room_indices -= table.pooling_factor
        if tables and min(room_bytes, room_indices) < 0:
            break
        tables.append(table)
    workload = small_workload(name, tables, batch, _widths(rng), (*_widths(rng), 1))
    plan = random_plan(workload, world_size, mix[1:], rng, leaning)
    return StepPoint(workload=workload, plan=plan)


def small_workload(
    name: str, tables: Sequence[Table], batch: int, bottom: tuple[int, ...], top: tuple[int, ...]
) -> Workload:
    """A model with tables and MLPs whose vectors are concatenated, trained without a pipeline."""
    return Workload(
        name=name,
        tables=tuple(tables),
        batch_size_per_rank=batch,
        dense=DenseArch(
            num_dense_features=13, bottom_mlp=bottom, top_mlp=top, interaction=Interaction.CAT
        ),
        pipeline=Pipeline.NONE,
    )


def zipf_table(
    number: int, rows: int, dim: int, length: float, exponent: float, *, scattered: bool = True
) -> Table:
    """A pooled table of one feature, whose indices follow a Zipf law."""
    return Table(
        name=f"t{number}",
        num_embeddings=rows,
        embedding_dim=dim,
        features=(Feature(name=f"f{number}", pooling_factor=length),),
        distribution=Zipf(num_embeddings=rows, exponent=exponent, scattered=scattered),
    )


def random_table(
    number: int,
    rng: np.random.Generator,
    most_bytes: float,
    *,
    dim: int | None = None,
    pooling_factor: float | None = None,
    scattered: bool | None = None,
) -> Table:
    """A pooled table of one feature, 100 to 2 million rows in so many bytes, and a Zipf law.

    Args:
        number: of the table, for its name.
        rng: draws what is not given.
        most_bytes: largest weights.
        dim: columns.
        pooling_factor: mean indices of a bag.
        scattered: whether hot rows are spread over all ids.
    """
    while True:
        rows, cols = int(10 ** rng.uniform(2.0, 6.3)), dim or int(rng.choice(_DIMS))
        if 4 * rows * cols <= most_bytes:
            break
    # A law in seven is uniform. Bags have 1 to 50 indices in the mean, log-uniformly.
    exponent = 0.0 if rng.random() < 0.15 else float(rng.uniform(0.0, 1.4))
    length = float(np.round(np.exp(rng.uniform(0.0, math.log(50.0))), 1))
    hashed = bool(rng.random() < 0.5) if scattered is None else scattered
    return zipf_table(number, rows, cols, pooling_factor or length, exponent, scattered=hashed)


def random_plan(
    workload: Workload,
    world_size: int,
    shares: Sequence[float] | FloatArray,
    rng: np.random.Generator,
    leaning: FloatArray | None = None,
) -> sharding.Plan:
    """A plan with a random sharding type and random ranks for each table.

    Args:
        workload: the model.
        world_size: number of ranks, all on one host.
        shares: probabilities of row-wise, column-wise and replicated tables; all others are
            table-wise. Large tables are never replicated, and narrow ones never cut into halves.
        rng: draws types and ranks.
        leaning: ``[world_size]`` probability of each rank to get a table; None for equal ones.
    """
    drawn = rng.choice(len(KINDS), len(workload.tables), p=[max(0.0, 1.0 - sum(shares)), *shares])
    placements = []
    for table, kind in zip(workload.tables, (KINDS[i] for i in drawn.tolist()), strict=True):
        replicated = kind is sharding.ShardingType.DATA_PARALLEL
        halves = kind is sharding.ShardingType.COLUMN_WISE
        too_large = replicated and table.weight_bytes > _MAX_REPLICATED_BYTES
        if too_large or (halves and table.embedding_dim < 2 * min(_DIMS)):
            kind, replicated, halves = KINDS[0], False, False
        option = sharding.ShardingOption(
            table=table.name,
            sharding_type=kind,
            kernel=sharding.ComputeKernel.DENSE if replicated else sharding.ComputeKernel.FUSED,
            column_widths=(table.embedding_dim // 2,) * 2 if halves else (table.embedding_dim,),
        )
        chances = None if halves else leaning
        where = rng.choice(world_size, option.num_pieces, replace=not halves, p=chances)
        ranks, rows = tuple(where.tolist()), table.num_embeddings
        placements.append(
            sharding.place(option, rows, ranks, world_size=world_size, local_world_size=world_size)
        )
    return sharding.Plan(placements=tuple(placements))


def collective_points(world_size: int) -> list[CollectivePoint]:
    """Collectives of 1 KiB per rank up to 32 MiB over all ranks, by powers of two.

    In all collectives but the uneven ones of :func:`exchanges` ranks send and keep the same.
    """
    largest = max(_MOST_WHOLE_BYTES // world_size, 2**_SMALLEST)
    sizes = [float(2**exponent) for exponent in range(_SMALLEST, largest.bit_length())]
    return [
        point
        for size in sizes
        for point in exchanges(world_size, sent_bytes=size, kept_bytes=size, reduced_bytes=size)
    ]


def _widths(rng: np.random.Generator) -> tuple[int, ...]:
    """The widths of one to three random layers of an MLP."""
    layers = int(rng.integers(1, 4))
    return tuple(int(w) for w in rng.choice([8, 16, 32, 64, 128], layers))
