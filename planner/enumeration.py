"""Problem in, options out: every way to cut each table that could be part of the best plan.

Left out, because another option does the same or better:

- ``table_wise`` where ``column_wise`` is allowed: one column piece on one rank is the same shard,
  and one sharding type means one set of collectives. Likewise ``table_row_wise``, ``grid_shard``.
- ``table_column_wise`` where ``column_wise`` is allowed: its places are a subset.
- splits over hosts when there is one host and rows can be split over all ranks.
- more column pieces than ranks (or hosts).
- kernels that keep weights in host memory, as long as device memory is far from full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, ShardingOption, ShardingType, Spread
from costmodels.workload import Table
from planner.errors import InvalidInputError
from planner.problem import PlanningProblem
from planner.torchrec_rules import COLUMN_MULTIPLE, legal_types_and_kernels

FloatArray = NDArray[np.float64]

CACHE_LOAD_FACTORS: Final = (0.05, 0.1, 0.2, 0.4)
"""Shares of a cached table that may be kept on the device."""

HOST_KERNELS: Final = (ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING)

_CROWDED_RATIO: Final = 0.7
"""Host kernels are listed from this share of the device memory on; below it, tables fit without."""

_SMALL_RATIO: Final = 1e-3
"""Tables below this share of one device's memory free too little of it to be worth moving."""

_UNEVEN_COUNTS: Final = (2, 3, 4, 8, 16)
"""Numbers of column pieces tried with unequal widths where equal ones do not exist."""

_ROUNDING: Final = 1.0 + 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLimits:
    """The constraints of one table put together."""

    table: Table
    kernels: dict[ShardingType, tuple[ComputeKernel, ...]]
    min_column_width: int
    ranks: tuple[int, ...]
    hosts: tuple[int, ...]
    cache_load_factors: tuple[float, ...]
    keeps_host_kernels: bool

    def allows(self, sharding_type: ShardingType) -> bool:
        """Whether the type is left."""
        return bool(self.kernels.get(sharding_type))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableOptions:
    """Options of one table with their work, and where its shards may go.

    ``works[i]`` is :meth:`CostPipeline.option_work` of ``options[i]``.
    """

    table: str
    options: tuple[ShardingOption, ...]
    works: tuple[FloatArray, ...]
    ranks: tuple[int, ...]
    hosts: tuple[int, ...]


def enumerate_options(
    problem: PlanningProblem, pipeline: CostPipeline, *, device: str = "cuda"
) -> tuple[TableOptions, ...]:
    """Options of every table, in the workload's order; some may be too large for any rank.

    Args:
        problem: tables, topology and constraints.
        pipeline: prices the options.
        device: what TorchRec runs on, ``cuda`` or ``cpu``.

    Raises:
        InvalidInputError: constraints that match no table, name ranks that do not exist, or leave a
            table without any option.
    """
    limits = _limits(problem, device)
    found = tuple(_table_options(problem, pipeline, limit) for limit in limits)
    if _crowded(found, pipeline):
        smallest = _SMALL_RATIO * float(pipeline.device_limits.max())
        found = tuple(
            options
            if limit.keeps_host_kernels or limit.table.weight_bytes < smallest
            else _table_options(problem, pipeline, limit, host_kernels=True)
            for limit, options in zip(limits, found, strict=True)
        )
    return found


# ------------------------------------------------------------------ constraints


def _limits(problem: PlanningProblem, device: str) -> tuple[TableLimits, ...]:
    problems = _unmatched(problem)
    limits = []
    for table in problem.workload.tables:
        limit, wrong = _limit(problem, table, device)
        limits.append(limit)
        problems += wrong
    if problems:
        raise InvalidInputError(problems)
    return tuple(limits)


def _unmatched(problem: PlanningProblem) -> list[str]:
    names = [t.name for t in problem.workload.tables]
    lines = [
        f"constraint {c.pattern!r} matches no table; tables are {', '.join(names[:5])}"
        + (", ..." if len(names) > 5 else "")
        for c in problem.constraints.tables
        if not any(c.matches(n) for n in names)
    ]
    for c in problem.constraints.tables:
        for kind, values, count in (
            ("ranks", c.ranks, problem.topology.world_size),
            ("hosts", c.hosts, problem.topology.num_hosts),
        ):
            bad = [v for v in values if not 0 <= v < count]
            if bad:
                lines.append(
                    f"constraint {c.pattern!r}: {kind} {bad[:5]} are outside 0..{count - 1}"
                )
    return lines


def _limit(problem: PlanningProblem, table: Table, device: str) -> tuple[TableLimits, list[str]]:
    topology, constraints = problem.topology, problem.constraints
    rules = constraints.for_table(table.name)
    legal = legal_types_and_kernels(table, device)
    kernels: dict[ShardingType, tuple[ComputeKernel, ...]] = {}
    for sharding_type, choices in legal.items():
        if sharding_type not in constraints.sharding_types:
            continue
        if any(r.sharding_types and sharding_type not in r.sharding_types for r in rules):
            continue
        left = tuple(k for k in choices if _kernel_allowed(problem, table, k))
        if left:
            kernels[sharding_type] = left
    hosts = _common(range(topology.num_hosts), [r.hosts for r in rules])
    ranks = _common(range(topology.world_size), [r.ranks for r in rules])
    ranks = tuple(r for r in ranks if topology.host_of(r) in hosts)
    local = topology.local_world_size
    hosts = tuple(h for h in hosts if set(range(h * local, (h + 1) * local)) <= set(ranks))
    if len(ranks) < topology.world_size:
        kernels.pop(ShardingType.DATA_PARALLEL, None)
        kernels.pop(ShardingType.ROW_WISE, None)
    if not hosts:
        kernels.pop(ShardingType.TABLE_ROW_WISE, None)
        kernels.pop(ShardingType.GRID_SHARD, None)
    limit = TableLimits(
        table=table,
        kernels=kernels,
        min_column_width=max([COLUMN_MULTIPLE, *(r.min_column_width for r in rules)]),
        ranks=ranks,
        hosts=hosts,
        cache_load_factors=_load_factors([r.cache_load_factors for r in rules]),
        keeps_host_kernels=not _any_device_kernel(kernels),
    )
    if kernels and ranks and limit.cache_load_factors:
        return limit, []
    named = ", ".join(repr(r.pattern) for r in rules) or "the general constraints"
    types = ", ".join(legal)
    return limit, [
        f"table {table.name!r}: {named} leave it no option; TorchRec knows {types} for it, "
        f"ranks left: {len(ranks)}; allow more sharding types, kernels or ranks"
    ]


def _kernel_allowed(problem: PlanningProblem, table: Table, kernel: ComputeKernel) -> bool:
    rules = problem.constraints.for_table(table.name)
    named = all(not r.kernels or kernel in r.kernels for r in rules)
    return named and kernel in problem.constraints.kernels


def _any_device_kernel(kernels: dict[ShardingType, tuple[ComputeKernel, ...]]) -> bool:
    return any(k not in HOST_KERNELS for choices in kernels.values() for k in choices)


def _common(every: range, limits: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(i for i in every if all(not chosen or i in chosen for chosen in limits))


def _load_factors(limits: list[tuple[float, ...]]) -> tuple[float, ...]:
    named = [set(factors) for factors in limits if factors]
    return tuple(sorted(set.intersection(*named))) if named else CACHE_LOAD_FACTORS


# ------------------------------------------------------------------ cuts


def _table_options(
    problem: PlanningProblem,
    pipeline: CostPipeline,
    limit: TableLimits,
    *,
    host_kernels: bool = False,
) -> TableOptions:
    options, works = [], []
    for option in _options(problem, limit, host_kernels=host_kernels or limit.keeps_host_kernels):
        options.append(option)
        works.append(pipeline.option_work(option))
    return TableOptions(
        table=limit.table.name,
        options=tuple(options),
        works=tuple(works),
        ranks=limit.ranks,
        hosts=limit.hosts,
    )


def _options(
    problem: PlanningProblem, limit: TableLimits, *, host_kernels: bool
) -> Iterator[ShardingOption]:
    for sharding_type, widths in _cuts(problem, limit):
        for kernel in limit.kernels[sharding_type]:
            if kernel in HOST_KERNELS and not host_kernels:
                continue
            factors: tuple[float | None, ...] = (None,)
            if kernel is ComputeKernel.FUSED_UVM_CACHING:
                factors = limit.cache_load_factors
            for factor in factors:
                yield ShardingOption(
                    table=limit.table.name,
                    sharding_type=sharding_type,
                    kernel=kernel,
                    column_widths=widths,
                    cache_load_factor_ratio=factor,
                )


def _cuts(
    problem: PlanningProblem, limit: TableLimits
) -> Iterator[tuple[ShardingType, tuple[int, ...]]]:
    """Sharding types with column widths, dominated ones left out (see the module)."""
    topology, whole = problem.topology, (limit.table.embedding_dim,)
    for sharding_type in (ShardingType.DATA_PARALLEL, ShardingType.ROW_WISE):
        if limit.allows(sharding_type):
            yield sharding_type, whole
    yield from _rank_cuts(problem, limit)
    columns, rows = limit.allows(ShardingType.COLUMN_WISE), limit.allows(ShardingType.ROW_WISE)
    if (topology.num_hosts == 1 and rows) or (topology.local_world_size == 1 and columns):
        return
    if limit.allows(ShardingType.GRID_SHARD):
        for widths in _splits(limit, len(limit.hosts), uneven=False):
            yield ShardingType.GRID_SHARD, widths
    elif limit.allows(ShardingType.TABLE_ROW_WISE):
        yield ShardingType.TABLE_ROW_WISE, whole


def _rank_cuts(
    problem: PlanningProblem, limit: TableLimits
) -> Iterator[tuple[ShardingType, tuple[int, ...]]]:
    """Cuts whose pieces go to one rank each."""
    if limit.allows(ShardingType.COLUMN_WISE):
        for widths in _splits(limit, len(limit.ranks)):
            yield ShardingType.COLUMN_WISE, widths
        return
    table_wise = limit.allows(ShardingType.TABLE_WISE)
    if table_wise:
        yield ShardingType.TABLE_WISE, (limit.table.embedding_dim,)
    if limit.allows(ShardingType.TABLE_COLUMN_WISE):
        for widths in _splits(limit, problem.topology.local_world_size):
            if len(widths) > 1 or not table_wise:
                yield ShardingType.TABLE_COLUMN_WISE, widths


def _splits(limit: TableLimits, most: int, *, uneven: bool = True) -> Iterator[tuple[int, ...]]:
    dim = limit.table.embedding_dim
    return column_splits(dim, limit.min_column_width, most, uneven=uneven)


def column_splits(
    dim: int, min_width: int, most: int, *, uneven: bool = True
) -> Iterator[tuple[int, ...]]:
    """Column widths of 1 to ``most`` pieces: multiples of 4, at least ``min_width`` wide.

    Every number of equal pieces; where the columns do not divide, a few numbers of pieces whose
    widths differ by 4.
    """
    yield (dim,)
    units = dim // COLUMN_MULTIPLE
    if dim % COLUMN_MULTIPLE:
        return
    for count in range(2, min(most, units) + 1):
        small, larger = divmod(units, count)
        if small * COLUMN_MULTIPLE < min_width:
            return
        if larger == 0 or (uneven and count in _UNEVEN_COUNTS):
            wide = ((small + 1) * COLUMN_MULTIPLE,) * larger
            yield wide + (small * COLUMN_MULTIPLE,) * (count - larger)


# ------------------------------------------------------------------ memory


def memory_coefficients(pipeline: CostPipeline) -> tuple[FloatArray, FloatArray]:
    """(device, host) bytes per unit of each work column; memory is linear in work.

    Returns:
        Two arrays ``[features]``: a work row ``y`` takes ``device @ y`` and ``host @ y`` bytes.
    """
    size = pipeline.num_features
    probe = np.zeros((size, pipeline.topology.world_size, size))
    probe[np.arange(size), 0, np.arange(size)] = 1.0
    return pipeline.device_bytes(probe)[:, 0], pipeline.host_bytes(probe)[:, 0]


def _crowded(found: tuple[TableOptions, ...], pipeline: CostPipeline) -> bool:
    """Whether device memory could keep tables from their fastest option."""
    limits = pipeline.device_limits
    if limits.min() <= 0:
        return True
    total = largest = 0.0
    for table in found:
        sizes = [pipeline.device_bytes(work) for work in table.works]
        total += min(float(s.sum()) for s in sizes)
        largest = max(largest, min(float(s.max()) for s in sizes))
    share = _CROWDED_RATIO * float(limits.min())
    return total > _CROWDED_RATIO * float(limits.sum()) or largest > share / 2


def drop_unfit(
    table: TableOptions, pipeline: CostPipeline, device: FloatArray, host: FloatArray
) -> TableOptions:
    """Without the options that do not fit even on empty devices and hosts.

    Args:
        table: all options.
        pipeline: knows the limits.
        device: device bytes per unit of work, from :func:`memory_coefficients`.
        host: host bytes per unit of work.
    """
    kept = [
        i
        for i, (option, work) in enumerate(zip(table.options, table.works, strict=True))
        if _fits_empty(option, work @ device, work @ host, table, pipeline)
    ]
    return replace(
        table,
        options=tuple(table.options[i] for i in kept),
        works=tuple(table.works[i] for i in kept),
    )


def _fits_empty(
    option: ShardingOption,
    device: FloatArray,
    host: FloatArray,
    table: TableOptions,
    pipeline: CostPipeline,
) -> bool:
    limits, host_limits = pipeline.device_limits * _ROUNDING, pipeline.host_limits * _ROUNDING
    local = pipeline.topology.local_world_size
    if option.spread is Spread.UNIFORM:
        per_host = host.reshape(-1, local).sum(axis=-1)
        return bool((device <= limits).all() and (per_host <= host_limits).all())
    if option.spread is Spread.RANKS:
        ranks = list(table.ranks)
        host_ok = host.max() <= host_limits[np.array(ranks) // local].max()
        return bool(device.max() <= limits[ranks].max() and host_ok)
    hosts = list(table.hosts)
    room = limits.reshape(-1, local)[hosts]
    fits = (device[:, None, :] <= room[None]).all(axis=-1)
    fits &= host.sum(axis=-1)[:, None] <= host_limits[hosts][None]
    return bool(fits.any(axis=-1).all())
