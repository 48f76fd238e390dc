"""Counts and sums over the ranks of a host or of a scale-up domain."""

from __future__ import annotations

import functools

import numpy as np

from costmodels.datatypes import FloatArray


@functools.cache
def num_peers(world: int, local: int, domain: int) -> FloatArray:
    """How many ranks each rank reaches over each link level, ``[world, NUM_LEVELS]``.

    Args:
        world: number of ranks.
        local: ranks per host.
        domain: ranks per scale-up domain.
    """
    in_domain = group_sums(np.ones(world), domain)
    counts = (np.full(world, local - 1.0), in_domain - local, world - in_domain)
    return np.stack(counts, axis=-1)


def group_sums(values: FloatArray, size: int) -> FloatArray:
    """For each rank, the sum over its group of ``size`` consecutive ranks, ``[..., R]``.

    The last group is smaller if ``size`` does not divide R.
    """
    ranks = values.shape[-1]
    if size == 1:
        return values
    whole = ranks - ranks % size
    grouped = values[..., :whole].reshape(*values.shape[:-1], -1, size)
    sums = np.repeat(grouped.sum(axis=-1), size, axis=-1)
    if whole == ranks:
        return sums
    rest = values[..., whole:]
    tail = np.broadcast_to(rest.sum(axis=-1, keepdims=True), rest.shape)
    return np.concatenate([sums, tail], axis=-1)
