"""From a problem to the options of its tables: every option that can be part of the best plan.

Sharding types that another one stands for are left out; see :mod:`planner.options.cuts`. In large
problems kernels that keep weights in host memory are left out too: for all tables if device memory
is far from full, and otherwise for the smallest ones. No table is looked up faster from host
memory, so these kernels help only where device memory is short. A bound that ignores memory then
holds for them as well, unless other tables are listed with such kernels; see
:attr:`Listing.bounds_hold_beyond`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

import numpy as np

from costmodels.pipeline import CostPipeline
from costmodels.sharding import (
    SPREAD,
    ComputeKernel,
    ShardingOption,
    ShardingType,
    Spread,
    option_of,
)
from costmodels.topology import Topology
from planner.errors import refuse_any
from planner.options.cuts import ListingProgress, Names, names_to_list, priced, table_cuts
from planner.options.memory import TableOptions, crowded
from planner.options.table_limits import HOST_KERNELS, TableLimits, table_limits
from planner.problem import PlanningProblem

_EVERY: Final = 1000
"""Every kernel is listed, whatever memory there is, if tables have at most this many options in
addition to the first of each table."""

_SMALL_RATIO: Final = 1e-3
"""The smallest tables that together take this share of device memory are not worth moving."""

_WHOLE_RATIO: Final = 0.35
"""A table that takes at most this share of the smallest device fits there, with its buffers."""

_MANY: Final = 100_000
"""With more options than this, kernels in host memory are listed only for tables whose columns are
not cut, and only with one cache size."""

_COUNTED: Final = 200
"""The options of about this many tables are counted, to estimate how many there are in all."""

_ONE_FACTOR: Final = 0.2
"""The cache load factor that is listed if there is to be only one: TorchRec's default."""


class HostMenu(Enum):
    """The kernels in host memory that a table is listed with, in addition to those it needs."""

    NONE = "none"
    UNCUT = "uncut columns, one cache size"
    EVERY = "every"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listing:
    """Options of every table, in the workload's order, and what was left out.

    Attributes:
        tables: the options of each table; some can be too large for every rank.
        names: which sharding types stand for others.
        left_out_tables: tables that are listed without the kernels in host memory that they may
            have. A bound that ignores memory holds for these kernels too, if
            :attr:`bounds_hold_beyond`.
        is_crowded: whether device memory is scarce; the tables left out are then the smallest.
        has_uncut_alone: whether kernels in host memory are listed only for uncut columns and only
            with one cache size.
    """

    tables: tuple[TableOptions, ...]
    names: Names
    left_out_tables: tuple[str, ...] = ()
    is_crowded: bool = False
    has_uncut_alone: bool = False

    @property
    def bounds_hold_beyond(self) -> bool:
        """Whether no kernel that was left out can make a plan faster if memory is ignored.

        A table that is looked up from device memory, together with the other tables there, adds no
        more time than in a call of its own from host memory. But if other tables are looked up from
        host memory, one more can add less to their fused call than to the call from device memory:
        it needs no launch, and its writes to device memory are hidden by the link to the host.
        """
        listed = {o.kernel for table in self.tables for o in table.options}
        return not self.left_out_tables or listed.isdisjoint(HOST_KERNELS)

    @property
    def has_every_kernel(self) -> bool:
        """Whether no option was left out that could fit where the listed options do not."""
        return not self.left_out_tables and not self.has_uncut_alone


def enumerate_options(
    problem: PlanningProblem,
    pipeline: CostPipeline,
    *,
    every_kernel: bool = False,
    every_name: bool = False,
    progress: ListingProgress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Listing:
    """List the options of every table, with their work.

    Args:
        problem: tables, topology and constraints.
        pipeline: counts the work of the options.
        every_kernel: list all kernels in host memory even if device memory is far from full.
        every_name: list a cut under every sharding type that gives it.
        progress: as in :func:`planner.options.cuts.priced`.
        should_stop: as there.

    Raises:
        InvalidInputError: constraints match no table or no rank, or leave a table no option.
        StoppedError: ``should_stop`` was True.
    """
    limits = table_limits(problem)
    names = {} if every_name else names_to_list(limits, pipeline.alike_types)
    count = _all_options(problem, limits, names)
    wide = HostMenu.UNCUT if count > _MANY and not every_kernel else HostMenu.EVERY
    sizes, is_crowded = [problem.workload.trained_bytes(x.table) for x in limits], False
    if (
        every_kernel
        or count - len(limits) <= _EVERY
        or not pipeline.lookup.prefers_device(problem.topology)
    ):
        menus = [wide] * len(limits)
    elif is_crowded := crowded(problem, limits, sizes, pipeline.device_limits):
        menus = _menus_by_size(sizes, pipeline, wide)
    else:
        fitting = _WHOLE_RATIO * float(pipeline.device_limits.min())
        menus = [HostMenu.NONE if size <= fitting else wide for size in sizes]
    found = _priced_options(
        problem, pipeline, names, limits, menus, progress=progress, should_stop=should_stop
    )
    _require_options(problem, limits, names, found)
    lacking = (x for x, menu in zip(limits, menus, strict=True) if _lacks_host_kernels(x, menu))
    return Listing(
        tables=found,
        names=names,
        left_out_tables=tuple(x.table.name for x in lacking),
        is_crowded=is_crowded,
        has_uncut_alone=HostMenu.UNCUT in menus,
    )


def _all_options(problem: PlanningProblem, limits: Sequence[TableLimits], names: Names) -> float:
    """About how many options there are with every kernel, estimated from some of the tables."""
    some = limits[:: max(len(limits) // _COUNTED, 1)]
    count = 0
    for limit in some:
        kinds = {t: len(list(kernel_choices(limit, t))) for t in limit.kernels}
        count += sum(kinds[cut[0]] for cut in table_cuts(problem, limit, names))
    return count * len(limits) / max(len(some), 1)


def _menus_by_size(
    sizes: Sequence[float], pipeline: CostPipeline, wide: HostMenu
) -> list[HostMenu]:
    """The menu of each table if device memory is scarce: none for tables too small to matter.

    These are the smallest tables, as many as together free next to no device memory. A bound that
    shall hold for their kernels in host memory too allows that much more memory than there is. On a
    thousand ranks :data:`_SMALL_RATIO` is more than one device holds, so that each of these tables
    has to fit into a device by itself as well.
    """
    limits, order = np.maximum(pipeline.device_limits, 0.0), np.argsort(sizes, kind="stable")
    together = np.cumsum(np.asarray(sizes)[order])
    few = order[together <= _SMALL_RATIO * float(limits.sum())]
    small = {int(t) for t in few if sizes[t] <= _WHOLE_RATIO * float(limits.min())}
    return [HostMenu.NONE if t in small else wide for t in range(len(sizes))]


def _lacks_host_kernels(limit: TableLimits, menu: HostMenu) -> bool:
    """Whether the menu leaves out a kernel in host memory that some sharding type may have."""
    optional = (kernels for kind, kernels in limit.kernels.items() if not limit.needs_host(kind))
    return menu is HostMenu.NONE and any(k in HOST_KERNELS for own in optional for k in own)


def _require_options(
    problem: PlanningProblem,
    limits: Sequence[TableLimits],
    names: Names,
    found: tuple[TableOptions, ...],
) -> None:
    """Refuse rules on groups and counts that leave a table without any option."""
    problems = []
    for limit, options in zip(limits, found, strict=True):
        if not options.options:
            every = _cut_options(problem, limit, names, HostMenu.EVERY)
            tried = {str(o.sharding_type): limit.obstacle(o) for o in every}
            rule = " and ".join(dict.fromkeys(filter(None, tried.values())))
            problems.append(
                f"table {limit.table.name!r}: constraint {rule} rules out every sharding type left "
                f"to it ({', '.join(tried)}); allow table_wise for it, or drop it from the rule"
            )
    refuse_any(problems)


# ------------------------------------------------------------------ cuts


def _priced_options(
    problem: PlanningProblem,
    pipeline: CostPipeline,
    names: Names,
    limits: Sequence[TableLimits],
    menus: Sequence[HostMenu],
    **callbacks: Any,
) -> tuple[TableOptions, ...]:
    """Options of each table with their work; ``callbacks`` are those of :func:`priced`."""
    known: dict[tuple[object, ...], list[ShardingOption]] = {}
    options = []
    for limit, menu in zip(limits, menus, strict=True):
        key = (  # tables with equal columns and limits share one list
            *(limit.table.embedding_dim, limit.min_column_width, tuple(limit.kernels.items())),
            *(limit.cache_load_factors, limit.names_load_factors, menu),
        )
        if key not in known:
            known[key] = list(_cut_options(problem, limit, names, menu))
        own = [replace(option, table=limit.table.name) for option in known[key]]
        own = [option for option in own if limit.obstacle(option) is None]
        options.append((*own, *_given(problem, names, limit, own)))
    works = priced(pipeline, options, **callbacks)
    return tuple(
        TableOptions(
            table=limit.table.name,
            options=listed,
            works=work,
            kernels=limit.kernels,
            ranks=limit.ranks,
            hosts=limit.hosts,
        )
        for limit, listed, work in zip(limits, options, works, strict=True)
    )


def _given(
    problem: PlanningProblem, names: Names, limit: TableLimits, listed: Sequence[ShardingOption]
) -> Iterator[ShardingOption]:
    """The option of the plan in use, if it is allowed and not listed yet.

    It is added under every sharding type that gives the same shards. Each type is replaced by the
    one that stands for it, so that the table shares the collectives of the others.
    """
    if problem.move_limit is None:
        return
    topology, placement = problem.topology, problem.move_limit.start.placement(limit.table.name)
    sizes = {"world_size": topology.world_size, "local_world_size": topology.local_world_size}
    given = option_of(placement, limit.table, **sizes)
    if given is None:
        return
    found: list[ShardingOption] = []
    for kind in _same_shards(given.sharding_type, topology):
        general = names.get(kind, kind)
        splits = SPREAD[general] is not Spread.UNIFORM or len(given.column_widths) == 1
        option = replace(given, sharding_type=general if splits else kind)
        allowed = _is_allowed(option, limit) and limit.obstacle(option) is None
        if allowed and option not in (*listed, *found):
            found.append(option)
    yield from found


def _same_shards(kind: ShardingType, topology: Topology) -> list[ShardingType]:
    """The sharding type, then the others that cut and place a table in the same way.

    On hosts of one rank, a piece of a grid is not cut by rows. On a single host, the pieces of
    ``table_column_wise`` may be on all ranks.
    """
    grid = topology.local_world_size == 1
    near = topology.num_hosts == 1
    same = {ShardingType.COLUMN_WISE}
    same |= {ShardingType.GRID_SHARD} if grid else set()
    same |= {ShardingType.TABLE_COLUMN_WISE} if near else set()
    return [kind, *sorted(same - {kind})] if kind in same else [kind]


def _is_allowed(option: ShardingOption, limit: TableLimits) -> bool:
    """Whether the constraints on a table allow an option that was not listed for it."""
    factor, widths = option.cache_load_factor_ratio, option.column_widths
    kernel = option.kernel in limit.kernels.get(option.sharding_type, ())
    wide = len(widths) == 1 or min(widths) >= limit.min_column_width
    cached = factor is None or not limit.names_load_factors or factor in limit.cache_load_factors
    return kernel and wide and cached


def _cut_options(
    problem: PlanningProblem, limit: TableLimits, names: Names, menu: HostMenu
) -> Iterator[ShardingOption]:
    """The options of a table, with those kernels in host memory that it needs or its menu has."""
    kinds = {kind: list(kernel_choices(limit, kind)) for kind in limit.kernels}
    for sharding_type, widths in table_cuts(problem, limit, names):
        for kernel, factor in kinds[sharding_type]:
            is_usual = limit.names_load_factors or factor in (None, _ONE_FACTOR)
            is_uncut = menu is HostMenu.UNCUT and len(widths) == 1 and is_usual
            is_listed = menu is HostMenu.EVERY or is_uncut or limit.needs_host(sharding_type)
            if is_listed or kernel not in HOST_KERNELS:
                yield ShardingOption(
                    table=limit.table.name,
                    sharding_type=sharding_type,
                    kernel=kernel,
                    column_widths=widths,
                    cache_load_factor_ratio=factor,
                )


def kernel_choices(
    limit: TableLimits, sharding_type: ShardingType
) -> Iterator[tuple[ComputeKernel, float | None]]:
    """The kernels that a table may have with a sharding type, with their cache load factors."""
    for kernel in limit.kernels[sharding_type]:
        if kernel is ComputeKernel.FUSED_UVM_CACHING:
            yield from ((kernel, factor) for factor in limit.cache_load_factors)
        else:
            yield kernel, None
