"""A plan of the same tables on the same ranks as one of a space that lists other options.

A plan that TorchRec cannot run is where the search for a runnable one begins. Each table gets the
listed option that is most like its own, with pieces near where they were. Tables on every rank,
and tables cut by rows inside a host, are cut into as many parts as there are ranks, in all or in a
host.
"""

import math
from collections.abc import Sequence

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.sharding import Plan, ShardingOption, Spread, option_of
from planner.space.evaluation import Assignment, SearchSpace
from planner.space.objective import AbstractObjective


def translated(space: SearchSpace, plan: Plan, objective: AbstractObjective) -> Assignment | None:
    """The plan of a space that is most like a given one; None if an option cuts no table so.

    Rules that couple tables, limits of memory, and pieces of unequal widths, which are not listed,
    are not looked at.

    Args:
        space: the options and places.
        plan: of the same tables on the same ranks.
        objective: says how heavy a piece is, by the cut that always holds.
    """
    local, tables = space.local_world_size, space.problem.workload.tables
    now = [plan.placement(table.name) for table in tables]
    cuts = [
        option_of(placement, table, world_size=space.world_size, local_world_size=local)
        for placement, table in zip(now, tables, strict=True)
    ]
    given = [cut for cut in cuts if cut is not None]
    if len(given) < len(cuts):
        return None
    options = [_nearest(space, t, own) for t, own in enumerate(given)]
    flats = space.first[:-1] + np.array(options, dtype=np.int64)
    prices = objective.always().slopes @ objective.gradient(space.mean_work.mean(axis=0))
    weights = space.mean_work[flats] @ prices / np.maximum(space.pieces[flats], 1)
    loads = np.zeros(space.world_size)
    places: list[tuple[int, ...]] = [()] * len(options)
    for table in np.argsort(-weights, kind="stable").tolist():
        option, own = space.option(table, options[table]), given[table]
        if option.is_uniform:
            continue
        step = local if own.spread is Spread.HOSTS else 1
        old, count = [rank // step for rank in now[table].ranks[::step]], space.world_size // step
        if own.is_uniform:  # such tables are spread over the ranks
            old, count = [table], space.num_tables
        where = places[table] = _placed(space, table, option, old, count, loads)
        ranks = space.host_ranks(where) if option.spread is Spread.HOSTS else np.array(where)
        np.add.at(loads, ranks, weights[table] * len(where) / len(ranks))
    return Assignment(options=tuple(options), places=tuple(places))


def _nearest(space: SearchSpace, table: int, given: ShardingOption) -> int:
    """Index of the option of a table that is most like ``given``; the first one of equals.

    Spread counts more than type, type more than kernel, and each of them more than the number of
    pieces, which counts by the logarithm of its ratio.
    """
    listed = space.listing.names.get(given.sharding_type, given.sharding_type)
    factor = given.cache_load_factor_ratio or 0.0

    def unlike(option: ShardingOption) -> tuple[bool, bool, bool, float]:
        pieces = abs(math.log(len(option.column_widths) / len(given.column_widths)))
        return (
            option.spread is not given.spread,
            option.sharding_type not in (given.sharding_type, listed),
            option.kernel is not given.kernel,
            pieces + 0.1 * abs((option.cache_load_factor_ratio or 0.0) - factor),
        )

    choices = space.tables[table].options
    return min(range(len(choices)), key=lambda i: unlike(choices[i]))


def _placed(
    space: SearchSpace,
    table: int,
    option: ShardingOption,
    old: Sequence[int],
    before: int,
    loads: FloatArray,
) -> tuple[int, ...]:
    """The places of an option's pieces, each near that of an old piece.

    For each that is not allowed the next allowed one after it is taken.

    Args:
        space: the options and places.
        table: whose pieces they are.
        option: the table's new option.
        old: the places of the pieces before.
        before: how many such places there were.
        loads: ``[W]`` weight of the pieces that are placed already, per rank.
    """
    hosts = option.spread is Spread.HOSTS
    count = space.num_hosts if hosts else space.world_size
    loads = loads.reshape(count, -1).sum(axis=1)
    wanted: list[int] = []
    for piece in range(option.num_pieces):
        place = old[piece * len(old) // option.num_pieces]
        first = place * count // before
        near = range(first, max((place + 1) * count // before, first + 1))
        wanted.append(min(near, key=lambda p: (wanted.count(p), loads[p])))
    allowed, local = space.allowed(table, option.spread), space.local_world_size
    if option.keeps_pieces_on_host and len(wanted) > 1:  # the next host with an allowed rank
        free = np.roll(allowed.reshape(-1, local).any(axis=1), -(wanted[0] // local))
        host = (wanted[0] // local + int(free.argmax())) % len(free)
        inside = np.zeros_like(allowed)
        inside[host * local : (host + 1) * local] = True
        allowed = allowed & inside
        wanted = [host * local + rank % local for rank in wanted]
    every = np.flatnonzero(allowed)
    at = np.searchsorted(every, wanted) % len(every)
    return tuple(every[at].tolist())
