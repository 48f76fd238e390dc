"""Every option that TorchRec's default planner looks at, priced by TorchRec's estimates."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

import numpy as np

from costmodels.sharding import ComputeKernel, ShardingOption, ShardingType, row_block_columns
from costmodels.torchrec_estimates import (
    TorchrecMachine,
    TorchrecTable,
    constants,
    shard_perf,
    shard_storage,
)
from costmodels.workload import Table
from planner.options.cuts import torchrec_widths
from planner.options.torchrec_rules import COLUMN_MULTIPLE, legal_types_and_kernels
from planner.problem import PlanningProblem

DEFAULT_TYPES: Final = (
    ShardingType.DATA_PARALLEL,
    ShardingType.TABLE_WISE,
    ShardingType.COLUMN_WISE,
    ShardingType.TABLE_COLUMN_WISE,
    ShardingType.ROW_WISE,
    ShardingType.TABLE_ROW_WISE,
)
"""Sharding types in the order of TorchRec's enumerator, which leaves out ``grid_shard``."""


_Item = TypeVar("_Item")


class Shard(NamedTuple):
    """Seconds, device bytes and host bytes of one shard, as TorchRec estimates them."""

    seconds: float
    hbm: float
    ddr: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DefaultOption:
    """One option of a table with the seconds and bytes of its shards.

    Sums are taken shard by shard, as TorchRec does, so that they are rounded in the same way.

    Attributes:
        table: index of the table.
        option: the option.
        runs: each of the different shards, with the number of neighbours that are equal to it. A
            table that is cut by rows over 1024 ranks has at most three runs.
        num_shards: number of all shards.
        size: device bytes of the largest shard and of all shards, then the same of host bytes.
        total_s: seconds of all shards together.
        largest_s: seconds of the slowest shard.
    """

    table: int
    option: ShardingOption
    runs: tuple[tuple[Shard, int], ...]
    num_shards: int = field(init=False)
    size: tuple[float, float, float, float] = field(init=False)
    total_s: float = field(init=False)
    largest_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Compute what walks compare: the number of shards, their bytes and their seconds."""
        shards, counts = zip(*self.runs, strict=True)
        columns = tuple(zip(*shards, strict=True))
        most = Shard(*map(max, columns))
        total = Shard(*(sum(_repeated(zip(column, counts, strict=True))) for column in columns))
        object.__setattr__(self, "num_shards", sum(counts))
        object.__setattr__(self, "size", (most.hbm, total.hbm, most.ddr, total.ddr))
        object.__setattr__(self, "total_s", total.seconds)
        object.__setattr__(self, "largest_s", most.seconds)

    def shards(self) -> Iterator[Shard]:
        """Every shard, in TorchRec's order."""
        return _repeated(self.runs)


def _repeated(runs: Iterable[tuple[_Item, int]]) -> Iterator[_Item]:
    """Each item, repeated as often as its number says."""
    return itertools.chain.from_iterable(itertools.starmap(itertools.repeat, runs))


class _Cut(NamedTuple):
    """How an option cuts its table.

    ``widths`` are those of column pieces; ``rows`` has pairs of the rows of a shard and the number
    of neighbouring shards with as many.
    """

    table: int
    name: str
    kind: ShardingType
    kernel: ComputeKernel
    widths: tuple[int, ...]
    rows: tuple[tuple[int, int], ...]

    def sizes(self) -> Iterator[tuple[int, int, int]]:
        """(columns, rows, number) of each run of neighbouring shards of equal size."""
        return ((width, rows, count) for width in self.widths for rows, count in self.rows)


_Figures = dict[tuple[ShardingType, ComputeKernel], dict[tuple[int, int, int], Shard]]
"""For each sharding type and kernel: from (table, columns, rows) of a shard to its figures."""


def _option(cut: _Cut, figures: _Figures) -> DefaultOption:
    known = figures[cut.kind, cut.kernel]
    runs = tuple((known[cut.table, width, rows], count) for width, rows, count in cut.sizes())
    cached = cut.kernel is ComputeKernel.FUSED_UVM_CACHING
    option = ShardingOption(
        table=cut.name,
        sharding_type=cut.kind,
        kernel=cut.kernel,
        column_widths=cut.widths,
        cache_load_factor_ratio=constants.CACHE_LOAD_FACTOR if cached else None,
    )
    return DefaultOption(table=cut.table, option=option, runs=runs)


def default_options(
    problem: PlanningProblem, machine: TorchrecMachine, stop: Callable[[], None]
) -> list[list[DefaultOption]]:
    """The options of each table, in the order of TorchRec's enumerator.

    Args:
        problem: workload, system and constraints.
        machine: the system as TorchRec's topology describes it.
        stop: called for every table; what it raises ends the listing.
    """
    cuts = []
    for index, table in enumerate(problem.workload.tables):
        stop()
        cuts.append(list(_cuts(problem, index, table)))
    figures = _figures(problem, machine, itertools.chain(*cuts))
    listed = []
    for own in cuts:
        stop()
        listed.append([_option(cut, figures) for cut in own])
    return listed


def _cuts(problem: PlanningProblem, index: int, table: Table) -> Iterator[_Cut]:
    constraints, topology = problem.constraints, problem.topology
    rules = constraints.for_table(table.name)
    legal = legal_types_and_kernels(table, topology.compute_device)
    least = max([COLUMN_MULTIPLE, *(r.min_column_width for r in rules)])
    parts = {
        ShardingType.ROW_WISE: topology.world_size,
        ShardingType.TABLE_ROW_WISE: topology.local_world_size,
    }
    for kind in DEFAULT_TYPES:
        named = all(not r.sharding_types or kind in r.sharding_types for r in rules)
        if kind not in legal or kind not in constraints.sharding_types or not named:
            continue
        splits = kind in (ShardingType.COLUMN_WISE, ShardingType.TABLE_COLUMN_WISE)
        widths = torchrec_widths(table.embedding_dim, least if splits else table.embedding_dim)
        rows: tuple[tuple[int, int], ...] = ((table.num_embeddings, 1),)
        if kind is ShardingType.DATA_PARALLEL:
            rows = ((table.num_embeddings, topology.world_size),)
        elif kind in parts:
            rows = _row_runs(table.num_embeddings, parts[kind])
        for kernel in legal[kind]:
            allowed = all(not r.kernels or kernel in r.kernels for r in rules)
            if allowed and kernel in constraints.kernels:
                yield _Cut(index, table.name, kind, kernel, widths, rows)


def _row_runs(num_embeddings: int, parts: int) -> tuple[tuple[int, int], ...]:
    """(rows, number of neighbouring parts with as many) for a table cut into ``parts`` by rows."""
    _, rows = row_block_columns(num_embeddings, parts)
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    counts = np.diff(first, append=parts)
    return tuple(zip(rows[first].tolist(), counts.tolist(), strict=True))


def _figures(problem: PlanningProblem, machine: TorchrecMachine, cuts: Iterable[_Cut]) -> _Figures:
    """Price every shard; all shards of one sharding type and kernel are priced in one call."""
    groups: dict[tuple[ShardingType, ComputeKernel], list[tuple[int, int, int]]] = {}
    for cut in cuts:
        shards = groups.setdefault((cut.kind, cut.kernel), [])
        shards += [(cut.table, width, rows) for width, rows, _ in cut.sizes()]
    if not groups:
        return {}
    read_tables = [TorchrecTable.of(t, problem.workload) for t in problem.workload.tables]
    every = TorchrecTable.stacked(read_tables)
    found: _Figures = {}
    for (kind, kernel), shards in groups.items():
        tables, width, rows = np.array(shards, dtype=np.int64).T
        read, columns = every.take(tables.tolist()), width.astype(np.float64)
        perf = shard_perf(read, machine, kind, kernel, num_cols=columns)
        held = shard_storage(
            *(read, machine, kind, kernel),
            num_rows=rows.astype(np.float64),
            num_cols=columns,
        )
        figures = (perf.total_s, held.hbm_bytes, held.ddr_bytes)
        lists = (np.broadcast_to(f, len(shards)).tolist() for f in figures)
        found[kind, kernel] = dict(zip(shards, map(Shard, *lists), strict=True))
    return found
