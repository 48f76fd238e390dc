"""Rows about limits on the number of shards or tables per rank or host.

If a limit allows each place so many, all places together have at most that times their number. An
option adds to this sum at least what it counts in the places where it counts least: pieces of a
table that share a place count there as one table.
"""

from __future__ import annotations

import math

import numpy as np

from costmodels.datatypes import IntArray
from planner.problem import Level
from planner.rules.placement_rules import Cap
from planner.search.common.milp import Rows
from planner.space.evaluation import SearchSpace


def counted(space: SearchSpace) -> Rows:
    """A row ``counts @ y <= most * number of places`` for each limit."""
    caps = space.rules.caps
    counts = [np.where(c.members[space.table_of], _least(space, c), 0) for c in caps]
    matrix = np.array(counts, dtype=float).reshape(len(caps), len(space.options))
    places = {Level.RANK: space.world_size, Level.HOST: space.num_hosts}
    most = np.array([float(c.most * places[c.level]) for c in caps])
    return Rows.dense(matrix, np.full(len(caps), -math.inf), most)


def _least(space: SearchSpace, cap: Cap) -> IntArray:
    """``[n]`` what each option adds at least to the sum of a limit over all places."""
    world, local = space.world_size, space.local_world_size
    blocks = np.where(space.is_on_hosts, local, 1)
    if not cap.distinct:
        return np.where(space.is_uniform, world, space.pieces * blocks)
    if cap.level is Level.RANK:
        return np.where(space.is_uniform, world, blocks)
    return np.where(space.is_uniform, space.num_hosts, 1)
