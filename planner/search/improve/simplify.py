"""Finds a plan of the same objective that cuts no table, and keeps none far away, without need.

If the host or the data source sets the iteration time, many plans are equally fast, and a search
may end with one that spreads a table of 24 rows over every rank. Therefore each cut table is tried
whole on some ranks. It stays whole if neither the objective nor the fullest device gets worse.
Before that, each table in host memory goes to device memory where it fits and the objective gets no
worse.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.sharding import ComputeKernel, ShardingType, Spread
from planner.options.table_limits import HOST_KERNELS
from planner.space.evaluation import Assignment, Evaluator, SearchSpace

EQUAL: Final = 1.0 + 1e-9
"""Factor up to which an objective, or bytes, count as no worse; it allows for rounding."""
_TINY_RATIO: Final = 1e-3
"""Share of the largest device up to which a whole table may make the fullest device fuller, since
nobody would see that."""
_MOST_RANKS: Final = 16
"""Ranks on which a table is tried whole, those with the fewest bytes. More take longer to price."""


def simplified(space: SearchSpace, evaluate: Evaluator, start: Assignment) -> Assignment:
    """A plan like ``start`` in nearer memory with fewer cuts, if one has the same objective.

    Args:
        space: options and places.
        evaluate: prices the plans that are tried.
        start: a plan that fits and keeps the rules.
    """
    value = evaluate.value(start)
    now = _in_device_memory(space, evaluate, start, value)
    work = space.work(now)
    for table in range(space.num_tables):
        whole = _whole_option(space, table, now.options[table])
        if whole is None:
            continue
        rest = space.work_without(work, table, now.options[table], now.places[table])
        found = _placed(space, evaluate, rest, work, (table, whole))
        if found is None or found[1] > value * EQUAL:
            continue
        options, places = list(now.options), list(now.places)
        options[table], places[table] = whole, (found[0],)
        changed = Assignment(options=tuple(options), places=tuple(places))
        if space.keeps_rules(changed):
            now, work = changed, space.work(changed)
    return now


def _in_device_memory(
    space: SearchSpace, evaluate: Evaluator, start: Assignment, value: float
) -> Assignment:
    """The plan with each table that is in host memory in the same pieces in device memory."""
    now = start
    for table, index in enumerate(start.options):
        own = space.option(table, index)
        if own.kernel not in HOST_KERNELS:
            continue
        nearer = replace(own, kernel=ComputeKernel.FUSED, cache_load_factor_ratio=None)
        options = space.tables[table].options
        if nearer not in options:
            continue
        kinds = (*now.options[:table], options.index(nearer), *now.options[table + 1 :])
        changed = Assignment(options=kinds, places=now.places)
        if space.keeps_rules(changed) and evaluate.value(changed) <= value * EQUAL:
            now = changed
    return now


def _whole_option(space: SearchSpace, table: int, index: int) -> int | None:
    """Index of the option with the table in one piece and the same kernel.

    None if there is none, or if the table is whole or replicated already.
    """
    own = space.option(table, index)
    is_cut = own.spread is not Spread.RANKS or own.num_pieces > 1
    if not is_cut or own.sharding_type is ShardingType.DATA_PARALLEL:
        return None
    mine = own.kernel, own.cache_load_factor_ratio
    for other, option in enumerate(space.tables[table].options):
        alike = (option.kernel, option.cache_load_factor_ratio) == mine
        if alike and option.spread is Spread.RANKS and option.num_pieces == 1:
            return other
    return None


def _placed(
    space: SearchSpace,
    evaluate: Evaluator,
    rest: FloatArray,
    before: FloatArray,
    choice: tuple[int, int],
) -> tuple[int, float] | None:
    """The best rank for a whole table, and the objective with it there.

    Args:
        space: options and places.
        evaluate: prices the plans that are tried.
        rest: ``[W, F]`` the work without the table.
        before: ``[W, F]`` the work with it as it is now.
        choice: the table, and the index of its whole option.

    Returns:
        None if the fullest device would get fuller on every rank.
    """
    table, index = choice
    piece = space.pool[space.rows[int(space.first[table]) + index]][0]
    size = float(piece @ space.device)
    device = rest @ space.device
    ranks = np.flatnonzero(space.may_use_rank[table])
    ranks = ranks[np.argsort(device[ranks], kind="stable")][:_MOST_RANKS]
    limits = np.broadcast_to(space.pipeline.device_limits, device.shape)
    most = float((before @ space.device).max()) * EQUAL
    if size > _TINY_RATIO * float(limits.max()):
        ranks = ranks[device[ranks] + size <= most]
    if not len(ranks):
        return None
    tried = np.repeat(rest[None], len(ranks), axis=0)
    tried[np.arange(len(ranks)), ranks] += piece
    values = evaluate.values(tried)
    at = int(values.argmin())
    return int(ranks[at]), float(values[at])
