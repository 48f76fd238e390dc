"""Random models and plans that a small machine can train, for ``validate torchrec``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.calibration.points import placed, small_workload, zipf_table
from costmodels.errors import CostModelError
from costmodels.sharding import ComputeKernel, Plan, ShardingType
from costmodels.topology import Topology
from costmodels.workload import Pooling, Table, Workload
from planner import api
from planner.errors import PlannerError
from planner.problem import Constraints
from planner.result import TORCHREC_BASELINE

_MODEL_BYTES = 6e8
"""All tables of a model together have less than this many bytes of weights, so that a small machine
can hold several models."""
_REPLICATED_BYTES = 4e6
"""Tables with more bytes are not replicated in random plans, because the gradients of a replicated
table are exchanged whole."""
_TYPES = (
    ShardingType.TABLE_WISE,
    ShardingType.ROW_WISE,
    ShardingType.COLUMN_WISE,
    ShardingType.DATA_PARALLEL,
)
"""The sharding types that plans may have."""
CONSTRAINTS = Constraints(sharding_types=_TYPES, kernels=(ComputeKernel.FUSED, ComputeKernel.DENSE))
"""The constraints of searched plans."""
_BASELINES = (TORCHREC_BASELINE, "size_lookup_greedy")
"""The baselines whose plans are run."""
MIXES = ((0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.3, 0.2, 0.2), (0.4, 0.0, 0.3))
"""Shares of row-wise, column-wise and replicated tables in random plans, used one after the other;
all other tables are table-wise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPlan:
    """A plan and where it comes from.

    Attributes:
        origin: ``searched``, the name of a baseline, or ``random``.
        plan: the plan.
    """

    origin: str
    plan: Plan


def random_workload(seed: int) -> Workload:
    """A random model with 6 to 12 tables of different widths, pooling factors and skews."""
    rng = np.random.default_rng([seed, 7919])
    tables: list[Table] = []
    room = _MODEL_BYTES
    for i in range(int(rng.integers(6, 13))):
        rows, dim = int(10 ** rng.uniform(2.5, 6.2)), int(rng.choice([8, 16, 32, 64, 128]))
        while rows * dim * 4 > room / 2:
            rows //= 2
        room -= rows * dim * 4
        exponent = _exponent(rng)
        pooling = float(np.round(np.exp(rng.uniform(0.0, np.log(50.0)))))
        scattered = bool(rng.random() < 0.6)
        tables.append(zipf_table(i, rows, dim, pooling, exponent, scattered=scattered))
    batch = int(rng.choice([1024, 2048, 4096]))
    return _with_mlps(f"random-{seed}", tables, batch, (8, 16, 32), rng)


def choose_plans(workload: Workload, topology: Topology, count: int, seed: int) -> list[NamedPlan]:
    """Different plans of a model: the searched plan, the plans of two baselines, and random plans.

    If the search fails, all plans are random.

    Args:
        workload: the model.
        topology: the system.
        count: number of plans; fewer if there are not as many different ones.
        seed: decides the search and the random plans.
    """
    found: list[NamedPlan] = []

    def add(origin: str, plan: Plan) -> None:
        if len(found) < count and all(plan != other.plan for other in found):
            found.append(NamedPlan(origin=origin, plan=plan))

    try:
        result = api.plan(workload, topology, constraints=CONSTRAINTS, time_limit_s=5.0, seed=seed)
        add("searched", result.best.plan)
        for baseline in result.baselines:
            if baseline.name in _BASELINES:
                add(baseline.name, baseline.plan)
    except (PlannerError, CostModelError):
        pass
    rng = np.random.default_rng([seed, 104729])
    for attempt in range(20 * count):
        row, column, replicated = MIXES[attempt % len(MIXES)]
        plan = random_plan(workload, topology.world_size, (row, column, replicated), rng)
        add("random", plan)
    return found


def random_plan(
    workload: Workload,
    world_size: int,
    shares: tuple[float, float, float],
    rng: np.random.Generator,
) -> Plan:
    """A plan with a random sharding type and random ranks for each table.

    Args:
        workload: the model.
        world_size: number of ranks, all on one host.
        shares: probabilities of row-wise, column-wise and replicated tables; the rest is
            table-wise. Large tables are never replicated.
        rng: random numbers.
    """
    others = (ShardingType.ROW_WISE, ShardingType.COLUMN_WISE, ShardingType.DATA_PARALLEL)
    kinds, probabilities = (*others, ShardingType.TABLE_WISE), (*shares, 1.0 - sum(shares))
    return Plan(
        placements=tuple(
            placed(
                table,
                kinds[int(rng.choice(4, p=probabilities))],
                rng,
                world_size=world_size,
                most_replicated_bytes=_REPLICATED_BYTES,
            )
            for table in workload.tables
        )
    )


_TABLE_BYTES = 1e8
"""A table has at most this many bytes of weights, so that a small machine can hold all tables."""
_MOST_WORK = 5e8
"""Multiply-adds of all blocks of a forward pass are at most about this many, so that a training
step takes well below a second."""
_LEAST_BATCH = 32
"""The batch is not halved below this: then there are fewer blocks instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Transformer blocks above the tables, of the same width as these.

    Attributes:
        layers: number of blocks.
        heads: heads of attention.
        ffn: inner width of the feed-forward networks.
        positions: positions per sample: one for the pooled vector of each table, or the length to
            which sequences are padded or cut.
    """

    layers: int
    heads: int
    ffn: int
    positions: int


def over_fields(seed: int) -> tuple[Workload, Blocks]:
    """A random model with attention between the pooled vectors of 4 to 12 tables."""
    rng = np.random.default_rng([seed, 15101])
    width, heads = _widths(rng)
    count, batch = int(rng.integers(4, 13)), int(rng.choice([256, 512, 1024, 2048]))
    tables = [
        _random_table(i, width, float(np.round(np.exp(rng.uniform(0.0, np.log(30.0))))), rng)
        for i in range(count)
    ]
    batch, blocks = _blocks(width, heads, count, batch, rng)
    return _with_mlps(f"fields-{seed}", tables, batch, (16, 32, 64), rng), blocks


def over_sequences(seed: int) -> tuple[Workload, Blocks]:
    """A random model with attention along histories, which 1 to 4 unpooled tables describe."""
    rng = np.random.default_rng([seed, 15107])
    width, heads = _widths(rng)
    mean, batch = int(rng.integers(8, 65)), int(rng.choice([64, 128, 256, 512]))
    tables = [
        replace(
            _random_table(i, width, float(mean), rng),
            pooling=Pooling.NONE,
            module="embedding_collection",
        )
        for i in range(int(rng.integers(1, 5)))
    ]
    positions = int(np.ceil(mean * rng.uniform(1.0, 1.4)))
    batch, blocks = _blocks(width, heads, positions, batch, rng)
    return _with_mlps(f"sequences-{seed}", tables, batch, (16, 32, 64), rng), blocks


def _widths(rng: np.random.Generator) -> tuple[int, int]:
    """A random width of all tables and blocks, and a number of heads that divides it."""
    heads = int(rng.choice([1, 2, 4]))
    return heads * int(rng.choice([16, 24, 32])), heads


def _random_table(number: int, width: int, length: float, rng: np.random.Generator) -> Table:
    """A random table with so many columns, and ``length`` indices per sample in the mean."""
    rows = min(int(10 ** rng.uniform(2.5, 6.0)), int(_TABLE_BYTES / (4 * width)))
    exponent = _exponent(rng)
    return zipf_table(number, rows, width, length, exponent, scattered=bool(rng.random() < 0.6))


def _exponent(rng: np.random.Generator) -> float:
    """The exponent of a random Zipf law; 0 for one law in seven."""
    return 0.0 if rng.random() < 0.15 else float(np.round(rng.uniform(0.2, 1.4), 2))


def _blocks(
    width: int, heads: int, positions: int, batch: int, rng: np.random.Generator
) -> tuple[int, Blocks]:
    """A batch size and one to four random blocks; less of both if a step would take too long.

    Args:
        width: elements of a position.
        heads: heads of attention.
        positions: positions per sample.
        batch: batch size that is wanted.
        rng: random numbers.
    """
    ffn, layers = width * int(rng.choice([1, 2, 4])), int(rng.integers(1, 5))
    sample = positions * (4 * width * width + 2 * width * ffn + 2 * width * positions)
    while batch > _LEAST_BATCH and batch * sample > _MOST_WORK:
        batch //= 2
    layers = min(layers, max(1, int(_MOST_WORK / (batch * sample))))
    return batch, Blocks(layers=layers, heads=heads, ffn=ffn, positions=positions)


def _with_mlps(
    name: str, tables: list[Table], batch: int, tops: tuple[int, ...], rng: np.random.Generator
) -> Workload:
    """The workload with these tables and random MLPs of one hidden layer."""
    bottom, top = int(rng.choice([16, 32])), int(rng.choice(tops))
    return small_workload(name, tables, batch, (bottom,), (top, 1))


BLOCK_TASKS: Final[dict[str, Callable[[int], tuple[Workload, Blocks]]]] = {
    "transformer": over_fields,
    "sequence": over_sequences,
}
"""The kinds of models, by the names that ``validate torchrec --models`` knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One plan of one task: what was predicted, what was measured, and what simpler models say.

    Attributes:
        task: number of the task.
        skew: ``random``, or the type in which vectors and gradients travel.
        num_tables: number of tables.
        batch_size_per_rank: samples per rank.
        origin: where the plan comes from: searched, a baseline, or random.
        kinds: a letter for the sharding type of each table: T, R, C or D (data parallel).
        predicted_s: predicted seconds per iteration.
        low_s, high_s: 90 % interval of the prediction.
        measured_s: measured seconds per iteration, without the work of other processes.
        spread_ratio: how far the medians of blocks of iterations are from it, as a share (median).
        wall_s: measured seconds per iteration by the clock.
        foreign_ratio: load of other processes on the machine during the run, in cores.
        stages_predicted_s, stages_measured_s: seconds of each stage of
            :data:`costmodels.cpu.exchange.STAGES` on its slowest rank. Measured ones leave out
            the time of network threads.
        network_measured_s: seconds of network threads in all stages together.
        iterations_inside_ratio: share of measured iterations inside the 90 % interval.
        bytes_model_bytes: bytes of rows looked up on the busiest rank; a model that counts nothing
            else predicts times proportional to them.
        torchrec_rating_s: TorchRec's rating of the plan, in seconds on TorchRec's own scale.
        pace_ratio: how long fixed work took compared with the calibration; None if the calibration
            did not record this.
    """

    task: int
    skew: str
    num_tables: int
    batch_size_per_rank: int
    origin: str
    kinds: str
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    spread_ratio: float
    wall_s: float
    foreign_ratio: float
    stages_predicted_s: tuple[float, ...]
    stages_measured_s: tuple[float, ...]
    network_measured_s: float
    iterations_inside_ratio: float
    bytes_model_bytes: float
    torchrec_rating_s: float
    pace_ratio: float | None = None
