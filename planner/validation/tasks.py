"""Random models and plans that a small machine can train, for ``validate torchrec``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from costmodels.calibration.points import KINDS, random_plan, random_table, small_workload
from costmodels.errors import CostModelError
from costmodels.sharding import ComputeKernel, Plan
from costmodels.topology import Topology
from costmodels.workload import Pooling, Table, Workload
from planner import api
from planner.errors import PlannerError
from planner.problem import Constraints
from planner.result import TORCHREC_BASELINE

_TABLE_BYTES = 5e7
"""A table has at most this many bytes of weights, so that a small machine can hold all tables of
several models."""
CONSTRAINTS = Constraints(sharding_types=KINDS, kernels=(ComputeKernel.FUSED, ComputeKernel.DENSE))
_BASELINES = (TORCHREC_BASELINE, "size_lookup_greedy")
MIXES = ((0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.3, 0.2, 0.2), (0.4, 0.0, 0.3))
"""Shares of row-wise, column-wise and replicated tables in random plans, used one after the other;
all other tables are table-wise."""


def random_workload(seed: int) -> Workload:
    """A random model with 6 to 12 tables of different widths, pooling factors and skews."""
    rng = np.random.default_rng([seed, 7919])
    tables = [
        random_table(i, rng, _TABLE_BYTES, dim=int(rng.choice([8, 16, 32, 64, 128])))
        for i in range(int(rng.integers(6, 13)))
    ]
    batch = int(rng.choice([1024, 2048, 4096]))
    return _with_mlps(f"random-{seed}", tables, batch, (8, 16, 32), rng)


def choose_plans(
    workload: Workload, topology: Topology, count: int, seed: int
) -> list[tuple[Plan, str]]:
    """Different plans of a model: the searched plan, the plans of two baselines, and random plans.

    If the search fails, all plans are random.

    Args:
        workload: the model.
        topology: the system.
        count: number of plans; fewer if there are not as many different ones.
        seed: decides the search and the random plans.

    Returns:
        Plans, and where they come from: ``searched``, the name of a baseline, or ``random``.
    """
    origins: dict[Plan, str] = {}
    try:
        result = api.plan(workload, topology, constraints=CONSTRAINTS, time_limit_s=5.0, seed=seed)
        origins[result.best.plan] = "searched"
        for baseline in result.baselines:
            if baseline.name in _BASELINES:
                origins.setdefault(baseline.plan, baseline.name)
    except (PlannerError, CostModelError):
        pass
    rng = np.random.default_rng([seed, 104729])
    for attempt in range(20 * count):
        mix = MIXES[attempt % len(MIXES)]
        origins.setdefault(random_plan(workload, topology.world_size, mix, rng), "random")
    return [*origins.items()][:count]


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


def _with_blocks(kind: str, seed: int) -> tuple[Workload, Blocks]:
    """A random model with attention, whose blocks and batch are such that steps do not take long.

    A ``transformer`` has it between the pooled vectors of 4 to 12 tables, a ``sequence`` along
    histories, which 1 to 4 unpooled tables describe.
    """
    along = kind == "sequence"
    rng = np.random.default_rng([seed, 15107 if along else 15101])
    heads = int(rng.choice([1, 2, 4]))
    width = heads * int(rng.choice([16, 24, 32]))
    mean = float(rng.integers(8, 65)) if along else None
    tables = [
        random_table(i, rng, _TABLE_BYTES, dim=width, pooling_factor=mean)
        for i in range(int(rng.integers(*((1, 5) if along else (4, 13)))))
    ]
    positions = len(tables)
    batch = int(rng.choice([64, 128, 256, 512])) * (1 if along else 4)
    if mean is not None:
        unpooled: dict[str, Any] = {"pooling": Pooling.NONE, "module": "embedding_collection"}
        tables = [replace(table, **unpooled) for table in tables]
        positions = int(np.ceil(mean * rng.uniform(1.0, 1.4)))
    ffn, layers = width * int(rng.choice([1, 2, 4])), int(rng.integers(1, 5))
    sample = positions * (4 * width * width + 2 * width * ffn + 2 * width * positions)
    while batch > _LEAST_BATCH and batch * sample > _MOST_WORK:
        batch //= 2
    layers = min(layers, max(1, int(_MOST_WORK / (batch * sample))))
    workload = _with_mlps(f"{kind}-{seed}", tables, batch, (16, 32, 64), rng)
    return workload, Blocks(layers=layers, heads=heads, ffn=ffn, positions=positions)


def _with_mlps(
    name: str, tables: list[Table], batch: int, tops: tuple[int, ...], rng: np.random.Generator
) -> Workload:
    """The workload with these tables and random MLPs of one hidden layer."""
    bottom, top = int(rng.choice([16, 32])), int(rng.choice(tops))
    return small_workload(name, tables, batch, (bottom,), (top, 1))


BLOCK_TASKS: Final[dict[str, Callable[[int], tuple[Workload, Blocks]]]] = {
    kind: partial(_with_blocks, kind) for kind in ("transformer", "sequence")
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
