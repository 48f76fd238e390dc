"""All ways to share out the pieces of two ranks, or of two hosts, between them, priced at once.

Putting back one table after the other cannot exchange several pieces for several others. Two ranks
with n pieces have 2^n ways to share them out, which is few enough to look at all of them. The same
is done with the pieces that are cut by rows over the ranks of a host.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from costmodels.sharding import Spread
from planner.search.improve.partial_plan import PartialPlan
from planner.space.effort import Meter, sharing_s

_MOST_ENTRIES: Final = 2**15
"""Most loads that are computed, over all ways to share pieces out. One more piece doubles it."""
_LEAST_PIECES, _MOST_PIECES = 4, 11
"""Most pieces that are shared out lie between these two, depending on how many loads each has. Of
more pieces, so many are drawn."""
_BETTER: Final = 1e-9
"""Share of the smooth objective by which a way has to be better than the present one."""


def share_out(
    field: PartialPlan,
    places: tuple[int, int],
    spread: Spread,
    rng: np.random.Generator,
    meter: Meter,
) -> bool:
    """Share out the pieces of two ranks or hosts in the best way by the smooth objective.

    Tables keep their options, and pieces that may not be on both stay. Rules that couple tables are
    not looked at.

    Args:
        field: a plan, which is changed if there is a better way.
        places: the two ranks or hosts.
        spread: whether pieces on ranks or pieces on hosts are shared out.
        rng: draws pieces, where there are too many.
        meter: is told of the work done.

    Returns:
        Whether there was a better way.
    """
    pieces = [(*p, k) for k in (0, 1) for p in _movable(field, places[k], places[1 - k], spread)]
    ranks = _ranks(field, places, spread)
    entries = ranks.size * len(field.loads)
    most = min(max(int(np.log2(_MOST_ENTRIES / entries)), _LEAST_PIECES), _MOST_PIECES)
    if len(pieces) > most:
        pieces = [pieces[i] for i in rng.permutation(len(pieces))[:most]]
    if not pieces:
        return False
    meter.spend(sharing_s(entries << len(pieces)))
    rows = np.array([row for _, _, row, _ in pieces]).reshape(len(pieces), -1)
    there = np.array([k for _, _, _, k in pieces])
    values = field.values_with(ranks.ravel(), _shared(field, ranks, field.columns[rows], there))
    way = int(np.argmin(values))
    if values[way] >= field.smooth * (1 - _BETTER):
        return False
    moved: dict[int, list[int]] = {}
    for i, (table, piece, _, _) in enumerate(pieces):
        new = moved.setdefault(table, list(field.places[table]))
        new[piece] = places[(way >> i) & 1]
    field.move({table: tuple(new) for table, new in moved.items()})
    return True


def _ranks(field: PartialPlan, places: tuple[int, int], spread: Spread) -> IntArray:
    """``[2, L]`` the ranks of two hosts, or ``[2, 1]`` two ranks."""
    ranks = np.array(places) if spread is Spread.RANKS else field.space.host_ranks(places)
    return np.asarray(ranks.reshape(2, -1))


def _movable(
    field: PartialPlan, place: int, other: int, spread: Spread
) -> list[tuple[int, int, IntArray]]:
    """Table, number and rows of work of each piece on ``place`` that may also be on ``other``.

    Pieces that must keep apart from others stay where they are; so do pieces that must share a host
    with others, where the two ranks are on two hosts.
    """
    space, local = field.space, field.space.local_world_size
    on_ranks = spread is Spread.RANKS
    may = space.may_use_rank if on_ranks else space.may_use_host
    same_host = on_ranks and place // local == other // local
    found: list[tuple[int, int, IntArray]] = []
    for table in sorted(field.on_rank[place if on_ranks else place * local]):
        flat = int(space.first[table]) + field.options[table]
        option = space.options[flat]
        stays = option.keeps_pieces_apart or (option.keeps_pieces_on_host and not same_host)
        if option.spread is not spread or stays or not may[table, other]:
            continue
        pieces = zip(field.places[table], space.rows[flat], strict=True)
        found += [(table, i, rows) for i, (at, rows) in enumerate(pieces) if at == place]
    return found


def _shared(field: PartialPlan, ranks: IntArray, rows: FloatArray, there: IntArray) -> FloatArray:
    """Loads of the ranks of two places for each way to share out pieces.

    Args:
        field: the plan.
        ranks: ``[2, L]`` ranks of the two places.
        rows: ``[n, L, P + 2]`` loads of each piece on the fastest device.
        there: ``[n]`` which of the two places each piece is on.

    Returns:
        ``[P + 2, 2 L, 2^n]``; bit i of a way says which of the places gets piece i.
    """
    model = field.model
    second = np.zeros((1, *rows.shape[1:]))
    for row in rows:
        second = np.concatenate([second, second + row])
    loads = np.empty((rows.shape[2], *ranks.shape, len(second)))
    for k, part in enumerate((rows.sum(axis=0) - second, second)):
        own = field.loads[:, ranks[k]].T - model.at(rows[there == k].sum(axis=0), ranks[k])
        loads[:, k] = (own + model.at(part, ranks[k])).transpose(2, 1, 0)
    return np.maximum(loads, 0.0, out=loads).reshape(len(loads), ranks.size, -1)
