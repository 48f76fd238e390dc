"""Moves of pieces that are cut by rows over the ranks of a host: from one host to another.

All moves are scored together. Only the ranks of two hosts change, so that the largest loads over
all other hosts are looked up.
"""

from __future__ import annotations

import itertools

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from planner.search.improve.moves import (
    Neighbourhood,
    Scored,
    largest_elsewhere,
    least_entries,
    top_three,
)
from planner.search.improve.state import Change, Move


def block_moves(around: Neighbourhood, ranks: list[int], count: int) -> list[Scored]:
    """The ``count`` best moves of a piece on a host of ``ranks`` to another host.

    Args:
        around: the plan, and what its moves are measured by.
        ranks: the ranks whose hosts the pieces leave.
        count: most moves.
    """
    space, state = around.space, around.state
    if space.num_hosts < 2 or not state.host_tables:
        return []
    places = [state.places[t] for t in state.host_tables]
    table = np.repeat(state.host_tables, [len(p) for p in places])
    piece = np.concatenate([np.arange(len(p)) for p in places])
    host = np.concatenate([np.array(p, dtype=np.int64) for p in places])
    rows = np.concatenate([space.rows[state.flat(t)] for t in state.host_tables])  # [pieces, L]
    there = np.isin(host, np.array(ranks) // space.local_world_size)
    table, piece, host, rows = table[there], piece[there], host[there], rows[there]
    if not len(table):
        return []
    allowed = space.may_use_host[table]
    allowed[np.arange(len(table)), host] = False
    score = np.where(allowed, _scores(around, rows, host), np.inf)

    def move(i: int, to: int) -> Move:
        new = list(state.places[table[i]])
        new[piece[i]] = to
        t = int(table[i])
        return (Change(table=t, option=state.options[t], places=tuple(new)),)

    most = count if around.usage is None else score.size
    found = ((float(score[i, h]), move(i, h)) for i, h in least_entries(score, most))
    return list(itertools.islice((f for f in found if around.keeps_rules(f[1])), count))


def _scores(around: Neighbourhood, rows: IntArray, host: IntArray) -> FloatArray:
    """``[n, H]`` the score of moving each of n pieces to each host; its own is not left out.

    Args:
        around: the plan.
        rows: ``[n, L]`` rows of ``space.pool`` of the pieces, for each rank of a host.
        host: ``[n]`` the host of each piece.
    """
    space, model, tangents = around.space, around.model, around.tangents
    shape = space.num_hosts, space.local_world_size
    rank = np.arange(space.world_size).reshape(shape)
    now = around.state.loads.reshape(*shape, -1)
    moved = model.columns[rows]
    left = now[host] - model.at(moved, rank[host])  # [n, L, P + 2]
    right = now + model.at(moved[:, None], rank)  # [n, H, L, P + 2]
    top_host, top_load = top_three(now[..., :tangents].max(axis=1))
    peaks = np.maximum(
        largest_elsewhere(top_host, top_load, host, space.num_hosts),
        left[:, None, :, :tangents].max(axis=2),
    )
    peaks = np.maximum(peaks, right[..., :tangents].max(axis=2))
    pressure = around.pressure.reshape(shape).sum(axis=1)
    more = around.measure.of(left).sum(axis=1)[:, None] + around.measure.of(right).sum(axis=2)
    more -= pressure[host][:, None] + pressure
    grown = _grown_bytes(around, left, right, host)
    score = model.value(peaks) - around.now + around.tie * more + around.relief * grown
    return np.asarray(np.where(grown > 0, np.inf, score))


def _grown_bytes(
    around: Neighbourhood, left: FloatArray, right: FloatArray, host: IntArray
) -> FloatArray:
    """``[n, H]`` by how many bytes each move fills memory further beyond its limits.

    Args:
        around: the plan.
        left: ``[n, L, P + 2]`` loads of the piece's host without it.
        right: ``[n, H, L, P + 2]`` loads of each host with it.
        host: ``[n]`` the host of each piece.
    """
    shape = around.space.num_hosts, around.space.local_world_size
    limits, over = around.limits.reshape(shape), around.over.reshape(shape).sum(axis=1)
    grown = np.maximum(left[..., -2] - limits[host], 0.0).sum(axis=1)[:, None] - over[host][:, None]
    grown = grown + np.maximum(right[..., -2] - limits, 0.0).sum(axis=2) - over
    most = around.host_limits
    over = np.maximum(-around.host_room, 0.0)
    used = left[..., -1].sum(axis=1)
    grown += (np.maximum(used - most[host], 0.0) - over[host])[:, None]
    return np.asarray(grown + np.maximum(right[..., -1].sum(axis=2) - most, 0.0) - over)
