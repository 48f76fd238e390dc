"""Plans handed on to another problem with the same tables but other ranks, batch or system.

What is handed on is how each table is cut, and roughly where its pieces are. Rank ``r`` of ``n``
old ranks stands for the new ranks from ``r m / n`` to ``(r + 1) m / n`` of ``m``. If these are
several, the pieces that were together on the old rank are spread over them, the heaviest first.
Tables on every rank, and tables cut by rows inside a host, are cut into as many parts as the new
problem has ranks, in all or in a host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from costmodels.sharding import Plan, ShardingOption, Spread, option_of
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.search.base import Record
from planner.space.evaluation import Assignment, SearchSpace
from planner.space.objective import AbstractObjective

_OTHER_TYPE: Final = 100.0
_OTHER_SPREAD: Final = 1000.0
_OTHER_KERNEL: Final = 10.0
"""How much unlike two options are if they differ in type, spread or kernel. Only the order matters:
spread counts more than type, type more than kernel, and each of them more than the number of
pieces, which counts by the logarithm of its ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedPlan:
    """A plan without the problem that it was made for.

    Attributes:
        world_size: number of its ranks.
        local_world_size: number of ranks of each of its hosts.
        options: the option of each table, in the order of the workload.
        places: ranks (or hosts) of the pieces of each table; empty for a table on every rank.
    """

    world_size: int
    local_world_size: int
    options: tuple[ShardingOption, ...]
    places: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, plan: Plan, workload: Workload, topology: Topology) -> HandedPlan | None:
        """A plan of a workload on a system; None if no option cuts a table as the plan does."""
        local = topology.local_world_size
        options, places = [], []
        for table in workload.tables:
            placement = plan.placement(table.name)
            option = option_of(
                placement, table, world_size=topology.world_size, local_world_size=local
            )
            if option is None:
                return None
            options.append(option)
            places.append(option.places_of(placement.ranks, local))
        return cls(
            world_size=topology.world_size,
            local_world_size=local,
            options=tuple(options),
            places=tuple(places),
        )


def offered(handed: Sequence[HandedPlan], space: SearchSpace, record: Record) -> list[Assignment]:
    """Translate handed plans into a space, and offer them to the record.

    Returns:
        All of them, also those that do not fit.
    """
    found = [translated(space, plan, record.evaluate.objective) for plan in handed]
    for plan in found:
        record.consider(plan, "plan handed on")
    return found


def translated(space: SearchSpace, handed: HandedPlan, objective: AbstractObjective) -> Assignment:
    """The plan of a space that is most like a handed plan of the same tables.

    Each table gets the listed option that is most like its own. Its pieces go near where they were,
    as far as constraints of the table allow it. Rules that couple tables, limits of memory, and
    pieces of unequal widths, which are not listed, are not looked at.

    Args:
        space: the options and places of the new problem.
        handed: the plan.
        objective: says how heavy a piece is, by the cut that always holds.
    """
    options = [_nearest(space, t, given) for t, given in enumerate(handed.options)]
    flats = space.first[:-1] + np.array(options, dtype=np.int64)
    prices = objective.always().slopes @ objective.gradient(space.mean_work.mean(axis=0))
    weights = space.mean_work[flats] @ prices / np.maximum(space.pieces[flats], 1)
    loads = np.zeros(space.world_size)
    places: list[tuple[int, ...]] = [()] * len(options)
    for table in np.argsort(-weights, kind="stable").tolist():
        option = space.option(table, options[table])
        if option.is_uniform:
            continue
        places[table] = _placed(space, table, handed, option, loads)
        where = places[table]
        ranks = space.host_ranks(where) if option.spread is Spread.HOSTS else np.array(where)
        np.add.at(loads, ranks, weights[table] * len(where) / len(ranks))
    return Assignment(options=tuple(options), places=tuple(places))


def _nearest(space: SearchSpace, table: int, given: ShardingOption) -> int:
    """Index of the option of a table that is most like ``given``; the first one of equals."""
    listed = space.listing.names.get(given.sharding_type, given.sharding_type)
    factor = given.cache_load_factor_ratio or 0.0

    def unlike(option: ShardingOption) -> float:
        pieces = abs(math.log(len(option.column_widths) / len(given.column_widths)))
        return (
            _OTHER_TYPE * (option.sharding_type not in (given.sharding_type, listed))
            + _OTHER_SPREAD * (option.spread is not given.spread)
            + _OTHER_KERNEL * (option.kernel is not given.kernel)
            + pieces
            + 0.1 * abs((option.cache_load_factor_ratio or 0.0) - factor)
        )

    choices = space.tables[table].options
    return min(range(len(choices)), key=lambda i: unlike(choices[i]))


def _placed(
    space: SearchSpace,
    table: int,
    handed: HandedPlan,
    option: ShardingOption,
    loads: FloatArray,
) -> tuple[int, ...]:
    """The places of an option's pieces in the new problem.

    Args:
        space: the options and places of the new problem.
        table: whose pieces they are.
        handed: the old plan.
        option: the table's new option.
        loads: ``[W]`` weight of the pieces that are placed already, per rank.
    """
    hosts = option.spread is Spread.HOSTS
    count = space.num_hosts if hosts else space.world_size
    loads = loads.reshape(count, -1).sum(axis=1)
    old, before = handed.places[table], handed.world_size
    if not old:  # it was on every rank: spread such tables over the new ranks
        old, before = (table,), len(handed.places)
    elif handed.options[table].spread is Spread.HOSTS:
        before //= handed.local_world_size
    wanted: list[int] = []
    for piece in range(option.num_pieces):
        place = old[piece * len(old) // option.num_pieces]
        first = place * count // before
        near = range(first, max((place + 1) * count // before, first + 1))
        wanted.append(min(near, key=lambda p: (wanted.count(p), loads[p])))
    allowed = space.may_use_host[table] if hosts else space.may_use_rank[table]
    return _legal(option, wanted, allowed, space.local_world_size)


def _legal(
    option: ShardingOption, wanted: Sequence[int], allowed: BoolArray, local: int
) -> tuple[int, ...]:
    """The wanted places, or for each that is not allowed the next allowed one after it.

    Args:
        option: whose pieces are placed.
        wanted: the place of each piece.
        allowed: True for every place where the table may be.
        local: number of ranks of a host.
    """
    if option.keeps_pieces_on_host and len(wanted) > 1:
        free = np.roll(allowed.reshape(-1, local).any(axis=1), -(wanted[0] // local))
        host = (wanted[0] // local + int(free.argmax())) % len(free)
        inside = np.zeros_like(allowed)
        inside[host * local : (host + 1) * local] = True
        allowed = allowed & inside
        wanted = [host * local + rank % local for rank in wanted]
    every = np.flatnonzero(allowed)
    at = np.searchsorted(every, wanted) % len(every)
    return tuple(every[at].tolist())
