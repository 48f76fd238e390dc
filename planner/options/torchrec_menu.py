"""Every option that TorchRec's default planner looks at, in its own estimates."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from costmodels.sharding import ComputeKernel, ShardingOption, ShardingType, row_blocks
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
"""In the order of TorchRec's enumerator, which leaves out ``grid_shard``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DefaultOption:
    """One option of a table with the seconds and bytes of each of its shards.

    ``size`` is the largest shard and the sum on devices, then the same in host memory; ``total_s``
    and ``largest_s`` are of all shards and of the costliest.
    """

    table: int
    option: ShardingOption
    seconds: tuple[float, ...]
    hbm: tuple[float, ...]
    ddr: tuple[float, ...]
    size: tuple[float, float, float, float] = field(init=False)
    total_s: float = field(init=False)
    largest_s: float = field(init=False)

    def __post_init__(self) -> None:
        """What the walks compare."""
        size = (max(self.hbm), sum(self.hbm), max(self.ddr), sum(self.ddr))
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "total_s", sum(self.seconds))
        object.__setattr__(self, "largest_s", max(self.seconds))


class _Cut(NamedTuple):
    """How an option cuts its table; ``sizes`` are the different (columns, rows) of its shards."""

    table: int
    name: str
    kind: ShardingType
    kernel: ComputeKernel
    widths: tuple[int, ...]
    rows: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]


_Figures = dict[
    tuple[ShardingType, ComputeKernel], dict[tuple[int, int, int], tuple[float, float, float]]
]
"""For each type and kernel: (table, columns, rows) of a shard to its seconds and bytes."""


def _option(cut: _Cut, figures: _Figures) -> DefaultOption:
    known = figures[cut.kind, cut.kernel]
    by_size = {size: known[cut.table, *size] for size in cut.sizes}
    shards = map(by_size.__getitem__, itertools.product(cut.widths, cut.rows))
    seconds, hbm, ddr = zip(*shards, strict=True)
    cached = cut.kernel is ComputeKernel.FUSED_UVM_CACHING
    option = ShardingOption(
        table=cut.name,
        sharding_type=cut.kind,
        kernel=cut.kernel,
        column_widths=cut.widths,
        cache_load_factor_ratio=constants.CACHE_LOAD_FACTOR if cached else None,
    )
    return DefaultOption(table=cut.table, option=option, seconds=seconds, hbm=hbm, ddr=ddr)


def default_options(
    problem: PlanningProblem, machine: TorchrecMachine
) -> list[list[DefaultOption]]:
    """The options of each table, in the order of TorchRec's enumerator.

    Args:
        problem: workload, system and constraints.
        machine: the system as TorchRec sees it.
    """
    cuts = [list(_cuts(problem, i, t)) for i, t in enumerate(problem.workload.tables)]
    figures = _figures(problem, machine, itertools.chain(*cuts))
    return [[_option(cut, figures) for cut in own] for own in cuts]


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
        rows: tuple[int, ...] = (table.num_embeddings,)
        if kind is ShardingType.DATA_PARALLEL:
            rows *= topology.world_size
        elif kind in parts:
            rows = tuple(size for _, size in row_blocks(table.num_embeddings, parts[kind]))
        sizes = tuple(itertools.product(set(widths), set(rows)))
        for kernel in legal[kind]:
            allowed = all(not r.kernels or kernel in r.kernels for r in rules)
            if allowed and kernel in constraints.kernels:
                yield _Cut(index, table.name, kind, kernel, widths, rows, sizes)


def _figures(problem: PlanningProblem, machine: TorchrecMachine, cuts: Iterable[_Cut]) -> _Figures:
    """Seconds, device bytes and host bytes of every shard, one pass per type and kernel."""
    groups: dict[tuple[ShardingType, ComputeKernel], list[tuple[int, int, int]]] = {}
    for cut in cuts:
        shards = groups.setdefault((cut.kind, cut.kernel), [])
        shards += [(cut.table, width, rows) for width, rows in cut.sizes]
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
        found[kind, kernel] = dict(zip(shards, zip(*lists, strict=True), strict=True))
    return found
