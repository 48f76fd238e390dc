"""Proven gaps where every cost adds up: two compute phases, one exchange over two link levels.

    python -m benchmarks.search.additive                      the usual cases, 10 s each
    python -m benchmarks.search.additive --case 26x16 --time-limit 60

The objective is the slowest rank's forward, plus the slowest rank's backward, plus twice the
slowest of both link levels; device and host memory are limited. There are no latencies, launches
or index distributions: what is measured is the search and its proof alone. Tables are the 26 of
MLPerf's DLRMv2 or drawn; the laws of the loads are in :func:`_loads` and :func:`options_of`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from costmodels.distribution.uniform import Uniform
from costmodels.memory import by_host
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.cells import OptionWork
from costmodels.sharding import ComputeKernel, ShardingOption, ShardingType, Spread
from costmodels.topology import Topology
from costmodels.workload import DenseArch, Feature, Table, Workload
from planner import load_system
from planner.options.enumeration import Listing
from planner.options.table_limits import CACHE_LOAD_FACTORS, TableOptions
from planner.options.torchrec_rules import COLUMN_MULTIPLE
from planner.problem import PlanningProblem
from planner.search.auto import Auto
from planner.search.base import Record, SearchOutcome
from planner.space.budget import default_evaluations
from planner.space.evaluation import Budget, Evaluator, SearchSpace
from planner.space.objective import AbstractObjective, Cut

CASES: Final = tuple(f"{t}x{r}" for t in (26, 100, 300, 856) for r in (8, 16, 64, 128))
HBM, DDR, FORWARD, BACKWARD, INTRA, INTER = range(6)
COLUMNS: Final = 6

_LOCAL: Final = 8
_LOCAL_BATCH: Final = 1024
_HBM_GB, _DDR_GB = 48.0, 180.0
_MEMORY_RATE: Final = 0.9 * 3.35e12
_HOST_LINK: Final = 50e9
_INTRA_RATE, _INTER_RATE = 400e9, 45e9
_REPLICATED_BYTES: Final = 128e6
_OFFLOADED_GB: Final = 0.5
_CACHED: Final = 0.2
_ROWS: Final = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956),
    *(405_282, 10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152),
    *(12_973, 108, 36),
)
_POOLING: Final = (
    3,
    2,
    1,
    2,
    6,
    1,
    1,
    1,
    1,
    7,
    3,
    8,
    1,
    6,
    9,
    5,
    1,
    1,
    1,
    12,
    100,
    27,
    10,
    3,
    1,
    1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One table: rows, columns, pooling factor, and how its rows are found in caches."""

    rows: float
    dim: int
    pooling: float
    skew: float
    efficiency: float
    distinct: float


def drawn(count: int, seed: int = 0) -> list[Drawn]:
    """MLPerf's 26 tables, or ``count`` with log-normal rows, columns and pooling factors."""
    rng = np.random.default_rng(seed)
    if count == len(_ROWS):
        rows, pooling = np.array(_ROWS, dtype=float), np.array(_POOLING, dtype=float)
        dim = np.full(count, 128)
    else:
        rows = np.clip(np.exp(rng.normal(np.log(3e5), 2.2, count)), 1e3, 1e8).round()
        widths = 4 * np.round(np.exp(rng.normal(np.log(64), 0.7, count)) / 4)
        dim = np.clip(widths, 4, 256).astype(int)
        pooling = np.clip(np.exp(rng.normal(np.log(6), 1.3, count)), 1, 200)
    skew = rng.uniform(0.0, 1.0, count)
    cached = 1.0 / (1.0 + rows * dim * 4 / 50e6)
    hits = np.clip(0.15 + 0.6 * skew + 0.5 * cached, 0, 0.95)
    efficiency = (0.45 + 0.45 * dim / (dim + 32.0)) * (1 + 1.2 * hits)
    distinct = np.clip(1 - 0.8 * skew * np.minimum(1, pooling / 10 + 0.3), 0.1, 1.0)
    return [
        Drawn(
            rows=float(rows[i]),
            dim=int(dim[i]),
            pooling=float(pooling[i]),
            skew=float(skew[i]),
            efficiency=float(efficiency[i]),
            distinct=float(distinct[i]),
        )
        for i in range(count)
    ]


@dataclass(frozen=True, slots=True)
class _Cluster:
    world: int
    local: int

    @property
    def hosts(self) -> int:
        return self.world // self.local

    @property
    def samples(self) -> float:
        return float(_LOCAL_BATCH * self.world)

    def exchanged(self, dim: float) -> tuple[float, float]:
        """Seconds on both link levels of a flat all-to-all of fp16 vectors."""
        size = self.samples * dim * 2 / self.world
        return size * (self.local - 1) / _INTRA_RATE, size * (self.world - self.local) / _INTER_RATE


def _loads(table: Drawn, columns: float, share: float, rows: float, samples: float) -> FloatArray:
    """Memory and compute of a shard: a share of the columns, lookups and rows.

    Forward reads each looked-up row once, at an efficiency that falls with narrow rows and rises
    with cache hits; backward reads and writes each distinct row and reads the bags' gradients.
    """
    width = table.dim * columns
    lookups = samples * table.pooling * share
    load = np.zeros(COLUMNS)
    load[HBM] = table.rows * rows * (width * 4 + 4)
    load[FORWARD] = lookups * width * 4 / table.efficiency + lookups * 8 + samples * 8
    load[BACKWARD] = 2 * table.distinct * lookups * width * 4 / table.efficiency
    load[BACKWARD] += lookups * 16 + samples * width * 4
    load[FORWARD : BACKWARD + 1] /= _MEMORY_RATE
    return load


def _halves(dim: int, most: int, least: int) -> Iterator[int]:
    """1, 2, 4 ... column pieces of at least ``least`` columns, a multiple of four each."""
    k = 1
    while k <= most and dim % k == 0 and (dim // k) % 4 == 0 and (k == 1 or dim // k >= least):
        yield k
        k *= 2


def options_of(name: str, table: Drawn, at: _Cluster) -> list[tuple[ShardingOption, FloatArray]]:
    """Every option with its rows, ``[W | pieces | pieces x L, COLUMNS]``."""
    found: list[tuple[ShardingOption, FloatArray]] = []

    def add(kind: ShardingType, pieces: int, load: FloatArray, shape: tuple[int, ...]) -> None:
        option = ShardingOption(
            table=name,
            sharding_type=kind,
            kernel=ComputeKernel.FUSED,
            column_widths=(table.dim // pieces,) * pieces,
        )
        found.append((option, np.broadcast_to(load, (*shape, COLUMNS))))
        if load[HBM] * pieces < _OFFLOADED_GB * 1e9:
            return
        missed = float(np.clip((1 - table.skew) * 0.5, 0.02, 0.5))
        slower = load.copy()
        slower[[FORWARD, BACKWARD]] += load[FORWARD] * missed * _MEMORY_RATE / _HOST_LINK * 0.12
        slower[[HBM, DDR]] = _CACHED * load[HBM], load[HBM]
        cached = replace(
            option, kernel=ComputeKernel.FUSED_UVM_CACHING, cache_load_factor_ratio=_CACHED
        )
        found.append((cached, np.broadcast_to(slower, (*shape, COLUMNS))))

    for k in _halves(table.dim, at.world, 16):
        load = _loads(table, 1 / k, 1, 1, at.samples)
        load[[INTRA, INTER]] = at.exchanged(table.dim / k)
        add(ShardingType.COLUMN_WISE, k, load, (k,))
    if at.hosts > 1:
        uneven = 1 + 0.25 * table.skew
        for k in _halves(table.dim, min(at.hosts, 4), 32):
            load = _loads(table, 1 / k, uneven / at.local, 1 / at.local, at.samples)
            size = at.samples * table.dim / k * 2
            load[INTRA] = size * (at.local - 1) / at.local / _INTRA_RATE
            load[INTER] = size / at.local * (at.world - at.local) / at.world / _INTER_RATE
            add(ShardingType.GRID_SHARD, k, load, (k, at.local))
    uneven = 1 + 0.9 * table.skew * np.log2(max(at.world, 2)) / 7
    load = _loads(table, 1, uneven / at.world, 1 / at.world, at.samples)
    load[[INTRA, INTER]] = at.exchanged(table.dim)
    add(ShardingType.ROW_WISE, 1, load, (at.world,))
    size = table.rows * table.dim * 4
    if size < _REPLICATED_BYTES:
        load = _loads(table, 1, 1, 1, float(_LOCAL_BATCH))
        load[BACKWARD] += 3 * size / _MEMORY_RATE
        load[INTRA] = size * (at.local - 1) / at.local / _INTRA_RATE
        load[INTER] = size / at.local * (at.hosts - 1) / at.hosts / _INTER_RATE
        option = ShardingOption(
            table=name,
            sharding_type=ShardingType.DATA_PARALLEL,
            kernel=ComputeKernel.DENSE,
            column_widths=(table.dim,),
        )
        found.append((option, np.broadcast_to(load, (at.world, COLUMNS))))
    return found


@final
class AdditivePipeline(CostPipeline):
    """Counts work in the columns above; nothing of the real models is used."""

    def __init__(self, workload: Workload, topology: Topology) -> None:
        """Keep the tables and the ranks."""
        super().__init__(workload, topology)
        self.num_features = COLUMNS

    @cached_property
    def device_limits(self) -> FloatArray:
        """Bytes of each rank's device, ``[W]``."""
        return np.full(self.topology.world_size, 1e9 * _HBM_GB)

    @cached_property
    def host_limits(self) -> FloatArray:
        """Bytes of each host, ``[H]``."""
        local = self.topology.local_world_size
        return np.full(self.topology.num_hosts, 1e9 * _DDR_GB * local)

    def device_bytes(self, work: FloatArray) -> FloatArray:
        """Device bytes of each rank, ``[..., W]``."""
        return np.asarray(work[..., HBM])

    def host_bytes(self, work: FloatArray) -> FloatArray:
        """Host bytes of each host, ``[..., H]``."""
        return by_host(work[..., DDR], self.topology)


@final
class AdditivePhases(AbstractObjective):
    """Slowest forward, slowest backward, and twice the slowest exchange of either link level."""

    name = "additive"

    @property
    def weights(self) -> FloatArray:
        """The exchange comes twice."""
        return np.array([1.0, 1.0, 2.0])

    def values(self, work: FloatArray) -> FloatArray:
        """Seconds."""
        largest = work.max(axis=-2)
        exchange = np.maximum(largest[..., INTRA], largest[..., INTER])
        return np.asarray(largest[..., FORWARD] + largest[..., BACKWARD] + 2 * exchange)

    def gradient(self, row: FloatArray) -> FloatArray:
        """Exchanges have two tangents, one for each link level."""
        slower = INTRA if row[INTRA] >= row[INTER] else INTER
        gradient = np.zeros((3, COLUMNS))
        gradient[[0, 1, 2], [FORWARD, BACKWARD, slower]] = 1.0
        return gradient

    def always(self) -> Cut:
        """The value is the sum of the phases."""
        return Cut(base=0.0, slopes=self.weights)


def space_of(case: str, seed: int = 0) -> SearchSpace:
    """The search space of ``TABLESxRANKS``."""
    count, _, ranks = case.partition("x")
    world = int(ranks)
    topology = load_system("h100_sxm", gpus=world)
    at = _Cluster(world, min(_LOCAL, world))
    tables = drawn(int(count), seed)
    listed = []
    for i, table in enumerate(tables):
        found = options_of(f"t{i}", table, at)
        listed.append(
            TableOptions(
                table=_table(f"t{i}", table),
                options=tuple(o for o, _ in found),
                works=tuple(OptionWork.of(rows) for _, rows in found),
                kernels={},
                min_column_width=COLUMN_MULTIPLE,
                ranks=tuple(range(world)),
                hosts=tuple(range(at.hosts)),
                cache_load_factors=CACHE_LOAD_FACTORS,
                obstacle=lambda _: None,
            )
        )
    workload = Workload(
        name=case,
        tables=tuple(t.table for t in listed),
        batch_size_per_rank=_LOCAL_BATCH,
        dense=DenseArch(num_dense_features=1, bottom_mlp=(8,), top_mlp=(1,)),
    )
    problem = PlanningProblem(workload=workload, topology=topology)
    listing = Listing(tables=tuple(listed), names={})
    return SearchSpace(problem, AdditivePipeline(workload, topology), listing)


def _table(name: str, table: Drawn) -> Table:
    rows = int(table.rows)
    return Table(
        name=name,
        num_embeddings=rows,
        embedding_dim=table.dim,
        features=(Feature(name=f"of_{name}", pooling_factor=table.pooling),),
        distribution=Uniform(num_embeddings=rows),
    )


def search(space: SearchSpace, time_limit_s: float, seed: int = 0) -> SearchOutcome:
    """What the default strategy finds and proves with the budget that ``plan`` gives it."""
    most = default_evaluations(space, time_limit_s)
    budget = Budget(time_limit_s=time_limit_s, max_evaluations=most)
    evaluate = Evaluator(space, AdditivePhases(), budget)
    return Auto().search(Record(evaluate), seed=seed)


def shards_per_rank(space: SearchSpace, options: IntArray) -> float:
    """Shards of a plan that have a rank of their own, over ranks."""
    chosen = [space.options[int(space.first[t]) + i] for t, i in enumerate(options.tolist())]
    return float(sum(o.num_pieces for o in chosen if o.spread is Spread.RANKS)) / space.world_size


def main() -> None:
    """Search every case and print value, bound and gap."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--case", action="append", metavar="TABLESxRANKS")
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"{'case':>8} {'value':>11} {'bound':>11} {'gap':>8} {'shards/rank':>12} seconds  ended")
    for case in options.case or CASES:
        space = space_of(case)
        started = time.perf_counter()
        found = search(space, options.time_limit, options.seed)
        seconds = time.perf_counter() - started
        value, bound = found.values[0], found.bound or 0.0
        shards = shards_per_rank(space, np.array(found.assignments[0].options))
        gap = 100 * (1 - bound / value)
        print(
            f"{case:>8} {1e3 * value:8.5f} ms {1e3 * bound:8.5f} ms {gap:6.2f} % {shards:12.1f} "
            f"{seconds:7.1f}  {found.termination.value}",
            flush=True,
        )


if __name__ == "__main__":
    main()
