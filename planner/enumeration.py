"""Problem in, options out: every way to cut each table that could be part of the best plan.

Names that another one stands for are left out, see :mod:`planner.cuts`. Kernels that keep weights
in host memory are left out of large problems, as long as device memory is far from full: a table is
never looked up faster from host memory, so they could only help where device memory binds. A bound
without any limit on memory then holds for them too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.pipeline import CostPipeline
from costmodels.sharding import SPREAD, ComputeKernel, ShardingOption, ShardingType, Spread
from planner.cuts import Names, names_to_list, table_cuts
from planner.errors import InvalidInputError
from planner.given_plan import option_of
from planner.option_work import ListingProgress, OptionWork, priced
from planner.problem import Level, PlanningProblem
from planner.table_limits import CACHE_LOAD_FACTORS, HOST_KERNELS, TableLimits, table_limits

__all__ = [
    "CACHE_LOAD_FACTORS",
    "HOST_KERNELS",
    "Listing",
    "TableOptions",
    "drop_unfit",
    "enumerate_options",
    "kernel_choices",
    "memory_coefficients",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_EVERY: Final = 1000
"""Up to this many options every kernel is listed whatever memory there is."""

_CROWDED_RATIO: Final = 0.7
"""Host kernels are listed from this share of the device memory on; below it, tables fit without."""

_SMALL_RATIO: Final = 1e-3
"""Tables below this share of one device's memory free too little of it to be worth moving."""

_ROUNDING: Final = 1.0 + 1e-12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableOptions:
    """Options of one table with their work, and where its shards may go.

    ``works[i]`` is that of ``options[i]``, see :class:`planner.option_work.OptionWork`.
    """

    table: str
    options: tuple[ShardingOption, ...]
    works: tuple[OptionWork, ...]
    ranks: tuple[int, ...]
    hosts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listing:
    """Options of every table, in the workload's order, and what they stand for.

    Attributes:
        tables: options, some of them perhaps too large for any rank.
        names: sharding types that are listed under another name.
        left_out_tables: tables without the host kernels that they may have. Bounds hold for these
            kernels too if they leave memory out.
        is_pruned: options were dropped that are in no better plan than one already known.
    """

    tables: tuple[TableOptions, ...]
    names: Names
    left_out_tables: tuple[str, ...] = ()
    is_pruned: bool = False


def enumerate_options(
    problem: PlanningProblem,
    pipeline: CostPipeline,
    *,
    every_kernel: bool = False,
    progress: ListingProgress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Listing:
    """Options of every table.

    Args:
        problem: tables, topology and constraints.
        pipeline: prices the options.
        every_kernel: list host kernels even where device memory is far from full.
        progress: told how many of how many tables are priced, again and again.
        should_stop: asked again and again; True ends the listing.

    Raises:
        InvalidInputError: constraints that match no table, name ranks that do not exist, or leave a
            table without any option.
        StoppedError: ``should_stop`` said so.
    """
    limits = table_limits(problem)
    names = listed_names(pipeline, limits)
    whole = every_kernel or _needs_every_kernel(problem, pipeline, limits, names)
    pricing = _Pricing(problem, pipeline, names, progress, should_stop)
    found = pricing.of(limits, host_kernels=whole)
    _require_options(problem, limits, names, found)
    if not whole and _crowded(problem, found, pipeline):
        smallest = _SMALL_RATIO * float(pipeline.device_limits.max())
        wider = [limit for limit in limits if limit.table.weight_bytes >= smallest]
        again = {t.table: t for t in pricing.of(wider, host_kernels=True)}
        found = tuple(again.get(options.table, options) for options in found)
    if problem.move_limit is not None:
        given = zip(limits, found, strict=True)
        found = tuple(
            _with_given(problem, pipeline, limit, names, options) for limit, options in given
        )
    left_out = [
        limit.table.name
        for limit, options in zip(limits, found, strict=True)
        if _lacks_host_kernels(limit, options)
    ]
    return Listing(tables=found, names=names, left_out_tables=tuple(left_out))


def listed_names(pipeline: CostPipeline, limits: Sequence[TableLimits]) -> Names:
    """Sharding types by which cuts are listed."""
    return names_to_list(limits, pipeline.alike_types)


def _needs_every_kernel(
    problem: PlanningProblem,
    pipeline: CostPipeline,
    limits: Sequence[TableLimits],
    names: Names,
) -> bool:
    """Whether host kernels may matter, or are few enough to be listed anyway."""
    if not pipeline.models.lookup.prefers_device(problem.topology):
        return True
    count = 0
    for limit in limits:
        kinds = {t: len(list(kernel_choices(limit, t))) for t in limit.kernels}
        count += sum(kinds[cut[0]] for cut in table_cuts(problem, limit, names))
        if count > _EVERY:
            return False
    return True


def _lacks_host_kernels(limit: TableLimits, found: TableOptions) -> bool:
    may = any(k in HOST_KERNELS for kernels in limit.kernels.values() for k in kernels)
    has = any(
        o.kernel in HOST_KERNELS and not limit.needs_host(o.sharding_type) for o in found.options
    )
    never = all(limit.needs_host(t) for t in limit.kernels if t is not ShardingType.DATA_PARALLEL)
    return may and not has and not never


def _require_options(
    problem: PlanningProblem,
    limits: tuple[TableLimits, ...],
    names: Names,
    found: tuple[TableOptions, ...],
) -> None:
    """Refuse group rules under which some table can only break them."""
    problems = []
    for limit, options in zip(limits, found, strict=True):
        if not options.options:
            free = replace(limit, obstacle=_nothing)
            cuts = _options(problem, free, names, host_kernels=True)
            tried = {str(o.sharding_type): limit.obstacle(o) for o in cuts}
            types = ", ".join(tried)
            rule = " and ".join(dict.fromkeys(text for text in tried.values() if text))
            problems.append(
                f"table {limit.table.name!r}: constraint {rule} rules out every sharding type left "
                f"to it ({types}); allow table_wise for it, or drop it from the rule"
            )
    if problems:
        raise InvalidInputError(problems)


def _nothing(option: ShardingOption) -> str | None:
    del option
    return None


# ------------------------------------------------------------------ cuts


class _Pricing:
    """Lists and prices the options of tables, many tables at a time."""

    def __init__(
        self,
        problem: PlanningProblem,
        pipeline: CostPipeline,
        names: Names,
        progress: ListingProgress | None,
        should_stop: Callable[[], bool] | None,
    ) -> None:
        self._problem, self._pipeline, self._names = problem, pipeline, names
        self._progress, self._should_stop = progress, should_stop

    def of(self, limits: Sequence[TableLimits], *, host_kernels: bool) -> tuple[TableOptions, ...]:
        """Options of each table with their work."""
        options = [
            tuple(_options(self._problem, x, self._names, host_kernels=host_kernels))
            for x in limits
        ]
        works = priced(
            self._pipeline, options, progress=self._progress, should_stop=self._should_stop
        )
        return tuple(
            TableOptions(
                table=limit.table.name,
                options=listed,
                works=work,
                ranks=limit.ranks,
                hosts=limit.hosts,
            )
            for limit, listed, work in zip(limits, options, works, strict=True)
        )


def _with_given(
    problem: PlanningProblem,
    pipeline: CostPipeline,
    limit: TableLimits,
    names: Names,
    found: TableOptions,
) -> TableOptions:
    """With the option of the plan in use, if the constraints allow it and it is not listed.

    It goes by the name that stands for it, so that its table shares the collectives of the others.
    """
    if problem.move_limit is None:
        return found
    topology = problem.topology
    option = option_of(
        problem.move_limit.start.placement(limit.table.name),
        limit.table,
        world_size=topology.world_size,
        local_world_size=topology.local_world_size,
    )
    if option is None or limit.obstacle(option) is not None:
        return found
    listed = names.listed(option.sharding_type)
    splits = SPREAD[listed] is not Spread.UNIFORM or len(option.column_widths) == 1
    option = replace(option, sharding_type=listed) if splits else option
    if option in found.options or not _is_allowed(option, limit):
        return found
    return replace(
        found,
        options=(*found.options, option),
        works=(*found.works, *pipeline.options_work((option,))),
    )


def _is_allowed(option: ShardingOption, limit: TableLimits) -> bool:
    """Whether constraints on the table itself allow an option that is not in the menu."""
    factor, widths = option.cache_load_factor_ratio, option.column_widths
    kernel = option.kernel in limit.kernels.get(option.sharding_type, ())
    wide = len(widths) == 1 or min(widths) >= limit.min_column_width
    cached = factor is None or not limit.names_load_factors or factor in limit.cache_load_factors
    return kernel and wide and cached


def _options(
    problem: PlanningProblem, limit: TableLimits, names: Names, *, host_kernels: bool
) -> Iterator[ShardingOption]:
    for sharding_type, widths in table_cuts(problem, limit, names):
        host = host_kernels or limit.needs_host(sharding_type)
        for kernel, factor in kernel_choices(limit, sharding_type):
            if kernel in HOST_KERNELS and not host:
                continue
            option = ShardingOption(
                table=limit.table.name,
                sharding_type=sharding_type,
                kernel=kernel,
                column_widths=widths,
                cache_load_factor_ratio=factor,
            )
            if limit.obstacle(option) is None:
                yield option


def kernel_choices(
    limit: TableLimits, sharding_type: ShardingType
) -> Iterator[tuple[ComputeKernel, float | None]]:
    """Kernels a table may have with a sharding type, with their cache load factors."""
    for kernel in limit.kernels[sharding_type]:
        if kernel is ComputeKernel.FUSED_UVM_CACHING:
            yield from ((kernel, factor) for factor in limit.cache_load_factors)
        else:
            yield kernel, None


# ------------------------------------------------------------------ memory


def memory_coefficients(pipeline: CostPipeline) -> tuple[FloatArray, FloatArray]:
    """(device, host) bytes per unit of each work column; memory is linear in work.

    Returns:
        Two arrays ``[features]``: a work row ``y`` takes ``device @ y`` and ``host @ y`` bytes.
    """
    size = pipeline.num_features
    device, host = np.zeros((2, size))
    probe = np.zeros((pipeline.topology.world_size, size))
    for column in range(size):
        probe[0, column] = 1.0
        device[column] = pipeline.device_bytes(probe)[0]
        host[column] = pipeline.host_bytes(probe)[0]
        probe[0, column] = 0.0
    return device, host


def _crowded(
    problem: PlanningProblem, found: Sequence[TableOptions], pipeline: CostPipeline
) -> bool:
    """Whether device memory could keep tables from their fastest option.

    Looked at: all ranks together, the largest shard, the ranks that tables are tied to, and those
    that tables kept together share.
    """
    limits = pipeline.device_limits
    if limits.min() <= 0:
        return True
    total, largest = np.zeros(len(found)), 0.0
    for t, table in enumerate(found):
        rows, first = _joined(table.works)
        sizes = pipeline.device_bytes(rows)
        counts = np.concatenate([np.bincount(w.index.ravel()) for w in table.works])
        total[t] = float(np.add.reduceat(sizes * counts, first).min())
        largest = max(largest, float(np.maximum.reduceat(sizes, first).min()))
    if largest > _CROWDED_RATIO * float(limits.min()) / 2:
        return True
    local = problem.topology.local_world_size
    bytes_on: dict[tuple[int, ...], float] = defaultdict(float)
    for t, table in enumerate(found):
        bytes_on[table.ranks] += float(total[t])
    places = {ranks: frozenset(ranks) for ranks in bytes_on}
    for ranks, every in places.items():
        inside = sum(bytes_on[p] for p, these in places.items() if these <= every)
        if inside > _CROWDED_RATIO * float(limits[list(ranks)].sum()):
            return True
    for group in problem.constraints.together:
        members = [t for t, table in enumerate(found) if group.matches(table.table)]
        room = float(limits.min()) * (1 if group.level is Level.RANK else local)
        if total[members].sum() > _CROWDED_RATIO * room:
            return True
    return False


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
    rows, _ = _joined(table.works)
    if len(rows) and _fit_anywhere(rows @ device, rows @ host, pipeline):
        return table
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


def _joined(works: Sequence[OptionWork]) -> tuple[FloatArray, IntArray]:
    """Rows of several options one after the other, and where each option's begin."""
    counts = np.array([len(w.rows) for w in works], dtype=np.int64)
    rows = np.concatenate([w.rows for w in works]) if works else np.zeros((0, 0))
    return rows, np.cumsum(counts) - counts


def _fit_anywhere(device: FloatArray, host: FloatArray, pipeline: CostPipeline) -> bool:
    """Whether the smallest device holds the largest shard, and the smallest host one per rank.

    Then every option fits on empty devices and hosts.
    """
    limit, host_limit = pipeline.device_limits.min(), pipeline.host_limits.min()
    together = host.max() * pipeline.topology.local_world_size
    return bool(device.max() <= limit and together <= host_limit)


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
