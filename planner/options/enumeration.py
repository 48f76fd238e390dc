"""From a problem to the options of its tables: every option that can be part of the best plan.

Sharding types that another one stands for are left out. In large problems kernels that keep weights
in host memory are left out too: for all tables if device memory is far from full, and otherwise for
the smallest ones. No table is looked up faster from host memory, so these kernels help only where
device memory is short. A bound that ignores memory then holds for them as well, unless other tables
are listed with such kernels; see :attr:`Listing.bounds_hold_beyond`.

Also the ways to cut a table, without kernels and places.

Some sharding types can give the same shards: a whole table on one rank is ``table_wise``,
``column_wise`` with one piece, and ``table_column_wise`` with one piece. Each of these names has
collectives of its own, and two collectives never take less time than one with the bytes of both.
If every table may have the most general name of such a group, only that name is listed
(:func:`names_to_list`). Bounds hold for the other names as well, because they price the group by a
subadditive model, and without the slow-down of compute beside communication, which more names can
make smaller. Otherwise every name is listed for every table that may have it.

Two more kinds of cuts are left out: those with more column pieces than there are ranks (or hosts),
and those with pieces of unequal widths, which TorchRec trains but cannot load from a checkpoint
(:mod:`planner.options.torchrec_rules`). A table that may use only some of the ranks is cut into
as many pieces as any other, because two pieces on one rank do not cost the same as one.
"""

import glob
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels import sharding
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.cells import OptionWork
from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType
from costmodels.topology import Topology
from costmodels.torchrec_estimates import MIN_COLUMN_WIDTH
from costmodels.workload import Pooling, Workload
from planner.errors import refuse, refuse_any
from planner.options import torchrec_rules as runtime
from planner.options.table_limits import (
    CACHE_LOAD_FACTORS,
    HOST_KERNELS,
    TableOptions,
    crowded,
    table_limits,
)
from planner.problem import PlanningProblem, TableConstraint

PLAIN_NAMES: Final = {
    ShardingType.COLUMN_WISE: ShardingType.TABLE_WISE,
    ShardingType.GRID_SHARD: ShardingType.TABLE_ROW_WISE,
}
"""For each general type its plain name, which it has in a plan if it splits no columns."""


Names = Mapping[ShardingType, ShardingType]
"""From each type that is not listed to the type that is listed in its place."""


def names_to_list(limits: Sequence[TableOptions], alike: Sequence[Sequence[ShardingType]]) -> Names:
    """Choose which of several sharding types that give the same shards are listed.

    A type stands for another one if it leaves every table the kernels that the other leaves it.

    Args:
        limits: what constraints leave to every table.
        alike: groups of types that cost the same for the same shards, the most general one first.
    """
    stands_for: dict[ShardingType, ShardingType] = {}
    for general, *others in alike:
        users = [limit for limit in limits if any(t in limit.kernels for t in (general, *others))]
        if general in stands_for or not all(general in limit.kernels for limit in users):
            continue
        for other in others:
            pairs = ((x.kernels.get(other, ()), x.kernels.get(general, ())) for x in users)
            if all(set(theirs) <= set(own) for theirs, own in pairs):
                stands_for.setdefault(other, general)
    return stands_for


def column_splits(dim: int, min_width: int, most: int) -> Iterator[tuple[int, ...]]:
    """Column widths of 1 to ``most`` equal pieces: multiples of 4, at least ``min_width`` wide."""
    yield (dim,)
    for count in range(2, min(most, dim // runtime.COLUMN_MULTIPLE) + 1):
        width, rest = divmod(dim, count)
        if width < min_width:
            return
        if not rest and width % runtime.COLUMN_MULTIPLE == 0:
            yield (width,) * count


def torchrec_widths(dim: int, min_width: int) -> tuple[int, ...]:
    """TorchRec's cut of ``dim`` columns: the narrowest equal pieces that its rule allows.

    Multiples of 4 that divide the columns and are no narrower than 128, or than ``min_width``.
    """
    least = max(min_width, MIN_COLUMN_WIDTH)
    widths = range(least + -least % runtime.COLUMN_MULTIPLE, dim, runtime.COLUMN_MULTIPLE)
    width = next((w for w in widths if dim % w == 0), dim)
    return (width,) * (dim // width)


# ------------------ work
#
# The work of all options, counted for many tables in one call.

ListingProgress = Callable[[int, int], None]
"""Called with how many of how many tables are done; what it raises ends the listing."""

_AT_ONCE: Final = 4096
"""How many options are counted in one call; more would take gigabytes if all ranks differ."""


def priced(
    pipeline: CostPipeline,
    options: Sequence[Sequence[ShardingOption]],
    *,
    progress: ListingProgress | None = None,
) -> list[tuple[OptionWork, ...]]:
    """Count the work of every option of every table.

    Args:
        pipeline: counts the work.
        options: the options of each table.
        progress: called before each part, and at the end, with the number of tables done and of
            all tables.
    """
    works: list[tuple[OptionWork, ...]] = []
    part: list[ShardingOption] = []
    for number, table in enumerate(options, start=1):
        part += table
        if len(part) < _AT_ONCE and number < len(options):
            continue
        if progress is not None:
            progress(len(works), len(options))
        found, part = iter(pipeline.options_work(part)), []
        works += [tuple(next(found) for _ in own) for own in options[len(works) : number]]
    if progress is not None:
        progress(len(works), len(options))
    return works


# ------------------ global batch
#
# From the samples of a step over all ranks to those of one micro-batch of one rank.


def rank_batch(samples: int, workload: Workload, num_ranks: int) -> float:
    """Samples of one micro-batch of one rank, if a step has ``samples`` over all ranks.

    Raises:
        InvalidInputError: ranks and micro-batches cannot share the samples evenly.
    """
    parts, count = num_ranks * workload.gradient_accumulation, workload.gradient_accumulation
    shared = samples * workload.tensor_parallel
    if shared < parts or shared % parts:
        micro = f" times {count} micro-batches (gradient_accumulation)" if count > 1 else ""
        ranks = f"{num_ranks} ranks"
        if workload.tensor_parallel > 1:
            ranks += f" over {workload.tensor_parallel} (tensor_parallel)"
        refuse(f"--global-batch-size {samples} is not a multiple of {ranks}{micro}")
    return samples / parts


# ------------------ narrowing
#
# Narrower rules, under which TorchRec runs every plan and computes what the module computes.
#
# They exclude two kinds of plans of :mod:`planner.options.torchrec_rules`: those that cut some of
# the mean-pooled tables of a module by rows and others not, and those that cut unpooled tables of a
# module into column pieces of several widths. Rules are one :class:`TableConstraint` for each
# table, in the workload's order.

Rules = tuple[TableConstraint, ...]


def rules_of(problem: PlanningProblem) -> Rules:
    """What the constraints of a problem leave each table: sharding types and widths.

    Raises:
        InvalidInputError: in the cases of :func:`planner.options.table_limits.table_limits`.
    """
    return tuple(
        TableConstraint(
            pattern=glob.escape(limit.table.name),
            sharding_types=tuple(limit.kernels),
            min_column_width=limit.min_column_width,
        )
        for limit in table_limits(problem)
    )


def without_types(rule: TableConstraint, gone: Collection[ShardingType]) -> TableConstraint | None:
    """The rule of a table without some sharding types; None if no type is left."""
    left = tuple(t for t in rule.sharding_types if t not in gone)
    return replace(rule, sharding_types=left) if left else None


def pooled_alike(workload: Workload, rules: Rules, *, by_rows: bool) -> Rules:
    """Rules that treat the mean-pooled tables of a module alike.

    With ``by_rows``, all tables of such a module are cut by rows; otherwise none of them is. A
    module whose rules do not allow this gets the other of the two, and a module whose rules allow
    neither keeps its rules.
    """
    found = dict(zip((t.name for t in workload.tables), rules, strict=True))
    for tables in runtime.tables_by_module(workload).values():
        if all(t.pooling is not Pooling.MEAN for t in tables):
            continue
        gone = {t.name: runtime.SUMS_ROWS if t.pooling is Pooling.MEAN else () for t in tables}
        whole = {name: without_types(found[name], types) for name, types in gone.items()}
        rows = {name: without_types(found[name], runtime.NOT_DIVIDED) for name in gone}
        if runtime.rows_change(tables):
            rows = dict.fromkeys(gone)
        for way in (rows, whole) if by_rows else (whole, rows):
            left = {name: rule for name, rule in way.items() if rule is not None}
            if len(left) == len(way):
                found |= left
                break
    return tuple(found.values())


def pieces_of_one_width(
    workload: Workload, rules: Rules, plan: Plan, widths: Mapping[str, int]
) -> Rules:
    """Rules under which the column pieces of the unpooled tables of some modules are alike.

    Tables may have pieces of this width or wider ones. They lose ``column_wise`` if their columns
    are no multiple of the width, or if the plan has all columns in one piece of another width.

    If no columns are to be cut, they do without ``column_wise`` too, because a whole table in the
    exchange of pieces is a piece as well.

    Args:
        workload: the tables, with the module of each.
        rules: the rules to narrow. A table whose rule allows ``column_wise`` alone keeps it.
        plan: the plan that was found under these rules.
        widths: from the path of each module to the columns of one piece; 0 if none is to be cut.
    """
    placements = {p.table: p for p in plan.placements}
    found = []
    for table, rule in zip(workload.tables, rules, strict=True):
        width = widths.get(table.module) if table.pooling is Pooling.NONE else None
        placed, columns = placements[table.name], table.embedding_dim
        is_one_piece = placed.sharding_type is ShardingType.COLUMN_WISE and len(placed.shards) == 1
        if width and not columns % width and not (is_one_piece and columns != width):
            rule = replace(rule, min_column_width=max(rule.min_column_width, width))
        elif width is not None:
            rule = without_types(rule, (ShardingType.COLUMN_WISE,)) or rule
            rule = rule if width else replace(rule, min_column_width=columns)
        found.append(rule)
    return tuple(found)


# ------------------ the listing

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

_ONE_FACTOR: Final = 0.2
"""The cache load factor that is listed if there is to be only one: TorchRec's default."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listing:
    """Options of every table, in the workload's order, and what was left out.

    Attributes:
        tables: the options of each table; some can be too large for every rank.
        names: which sharding types stand for others.
        left_out_tables: tables that are listed without the kernels in host memory that they may
            have. A bound that ignores memory holds for these kernels too, if
            :attr:`bounds_hold_beyond`.
        has_uncut_alone: whether kernels in host memory are listed only for uncut columns and only
            with one cache size.
        is_pruned: whether options were dropped because no plan with them is better than a plan that
            is already known.
    """

    tables: tuple[TableOptions, ...]
    names: Names
    left_out_tables: tuple[str, ...] = ()
    has_uncut_alone: bool = False
    is_pruned: bool = False

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
) -> Listing:
    """List the options of every table, with their work.

    Args:
        problem: tables, topology and constraints.
        pipeline: counts the work of the options.
        every_kernel: list all kernels in host memory even if device memory is far from full.
        every_name: list a cut under every sharding type that gives it.
        progress: as in :func:`planner.options.enumeration.priced`.

    Raises:
        InvalidInputError: constraints match no table or no rank, or leave a table no option.
    """
    limits = table_limits(problem)
    names = {} if every_name else names_to_list(limits, pipeline.alike_types)
    every = _every_option(problem, limits, names)
    most = [math.inf] * len(limits)
    if not every_kernel:
        most = _pieces_in_host(problem, pipeline, limits, sum(map(len, every)))
    options, left_out, problems = [], [], []
    for limit, pieces, alike in zip(limits, most, every, strict=True):
        kept = [option for option in alike if _is_listed(option, limit, pieces)]
        if not pieces and len(kept) < len(alike):
            left_out.append(limit.table.name)
        own = [replace(o, table=limit.table.name) for o in kept if limit.obstacle(o) is None]
        options.append((*own, *_given(problem, names, limit, own)))
        problems += [] if options[-1] else [_nothing_left(limit, alike)]
    refuse_any(problems)
    works = priced(pipeline, options, progress=progress)
    tables = zip(limits, options, works, strict=True)
    return Listing(
        tables=tuple(replace(own, options=listed, works=work) for own, listed, work in tables),
        names=names,
        left_out_tables=tuple(left_out),
        has_uncut_alone=1 in most,
    )


def _every_option(
    problem: PlanningProblem, limits: Sequence[TableOptions], names: Names
) -> list[list[ShardingOption]]:
    """The options of each table with every kernel; tables with equal columns and limits share them.

    Sharding types are those under which cuts are listed; the module says which cuts are left out.
    """
    topology = problem.topology
    most_pieces = {
        ShardingType.COLUMN_WISE: topology.world_size,
        ShardingType.TABLE_COLUMN_WISE: topology.local_world_size,
        ShardingType.GRID_SHARD: topology.num_hosts,
    }
    known: dict[tuple[object, ...], list[ShardingOption]] = {}
    found = []
    for limit in limits:
        dim, factors = limit.table.embedding_dim, limit.cache_load_factors
        key = dim, limit.min_column_width, tuple(limit.kernels.items()), factors
        if key not in known:
            known[key] = [
                ShardingOption(
                    table=limit.table.name,
                    sharding_type=kind,
                    kernel=kernel,
                    column_widths=widths,
                    cache_load_factor_ratio=factor,
                )
                for kind in ShardingType
                if kind in limit.kernels and kind not in names
                for widths in column_splits(dim, limit.min_column_width, most_pieces.get(kind, 1))
                for kernel in limit.kernels[kind]
                for factor in (factors if kernel is ComputeKernel.FUSED_UVM_CACHING else (None,))
            ]
        found.append(known[key])
    return found


def _is_listed(option: ShardingOption, limit: TableOptions, pieces: float) -> bool:
    """Whether an option has a kernel that its table needs, or at most so many pieces.

    With one piece, one cache size is listed, unless constraints name others.
    """
    if option.kernel not in HOST_KERNELS or limit.needs_host(option.sharding_type):
        return True
    is_usual = option.cache_load_factor_ratio in (None, _ONE_FACTOR)
    has_usual = pieces > 1 or is_usual or limit.cache_load_factors is not CACHE_LOAD_FACTORS
    return len(option.column_widths) <= pieces and has_usual


def _pieces_in_host(
    problem: PlanningProblem, pipeline: CostPipeline, limits: Sequence[TableOptions], count: int
) -> list[float]:
    """How many column pieces each table may have in host memory, for so many options in all.

    Kernels in host memory that a table needs are listed in any case.

    If devices are scarce, tables too small to matter have none: the smallest tables, as many as
    together free next to no device memory. A bound that shall hold for their kernels in host memory
    too allows that much more memory than there is. On a thousand ranks :data:`_SMALL_RATIO` is more
    than one device holds, so that each of these tables has to fit into a device by itself as well.
    """
    wide = 1.0 if count > _MANY else math.inf
    if count - len(limits) <= _EVERY or not pipeline.lookup.prefers_device(problem.topology):
        return [wide] * len(limits)
    sizes = np.array([problem.workload.trained_bytes(limit.table) for limit in limits])
    room = np.maximum(pipeline.device_limits, 0.0)
    has_none = sizes <= _WHOLE_RATIO * float(room.min())
    if crowded(problem, limits, sizes.tolist(), pipeline.device_limits):
        order = np.argsort(sizes, kind="stable")
        has_none[order[np.cumsum(sizes[order]) > _SMALL_RATIO * float(room.sum())]] = False
    return [0.0 if none else wide for none in has_none]


def _nothing_left(limit: TableOptions, tried: Sequence[ShardingOption]) -> str:
    """Which rules on groups and counts leave a table without any option."""
    reasons = {str(o.sharding_type): limit.obstacle(o) for o in tried}
    rule = " and ".join(dict.fromkeys(filter(None, reasons.values())))
    return (
        f"table {limit.table.name!r}: constraint {rule} rules out every sharding type left to it "
        f"({', '.join(reasons)}); allow table_wise for it, or drop it from the rule"
    )


def _given(
    problem: PlanningProblem, names: Names, limit: TableOptions, listed: Sequence[ShardingOption]
) -> Iterator[ShardingOption]:
    """The option of the plan in use, if it is allowed and not listed yet.

    It is added under every sharding type that gives the same shards. Each type is replaced by the
    one that stands for it, so that the table shares the collectives of the others.
    """
    if problem.move_limit is None:
        return
    topology, placement = problem.topology, problem.move_limit.start.placement(limit.table.name)
    sizes = {"world_size": topology.world_size, "local_world_size": topology.local_world_size}
    given = sharding.option_of(placement, limit.table, **sizes)
    if given is None:
        return
    seen = list(listed)
    for kind in _same_shards(given.sharding_type, topology):
        general = names.get(kind, kind)
        is_whole = len(given.column_widths) == 1
        splits = is_whole or sharding.SPREAD[general] is not sharding.Spread.UNIFORM
        option = replace(given, sharding_type=general if splits else kind)
        allowed = _is_allowed(option, limit) and limit.obstacle(option) is None
        if allowed and option not in seen:
            seen.append(option)
            yield option


def _same_shards(kind: ShardingType, topology: Topology) -> list[ShardingType]:
    """The sharding type, then the others that cut and place a table in the same way.

    On hosts of one rank, a piece of a grid is not cut by rows. On a single host, the pieces of
    ``table_column_wise`` may be on all ranks.
    """
    same = {ShardingType.COLUMN_WISE}
    if topology.local_world_size == 1:
        same.add(ShardingType.GRID_SHARD)
    if topology.num_hosts == 1:
        same.add(ShardingType.TABLE_COLUMN_WISE)
    return [kind, *sorted(same - {kind})] if kind in same else [kind]


def _is_allowed(option: ShardingOption, limit: TableOptions) -> bool:
    """Whether the constraints on a table allow an option that was not listed for it."""
    factor, widths = option.cache_load_factor_ratio, option.column_widths
    kernel = option.kernel in limit.kernels.get(option.sharding_type, ())
    wide = len(widths) == 1 or min(widths) >= limit.min_column_width
    factors = limit.cache_load_factors
    return kernel and wide and (factors is CACHE_LOAD_FACTORS or factor in (None, *factors))
