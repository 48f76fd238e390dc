"""Every assignment of a tiny search space, in batches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from costmodels.sharding import ShardingType, Spread
from planner.evaluation import Assignment, FloatArray, SearchSpace

_BATCH: Final = 1024

Choice = tuple[int, tuple[int, ...]]
"""An option of a table and its places."""


def table_choices(space: SearchSpace, table: int) -> Iterator[Choice]:
    """Every option of a table with every way to place it; equal pieces are interchangeable."""
    for index, option in enumerate(space.tables[table].options):
        if option.spread is Spread.UNIFORM:
            yield index, ()
            continue
        hosts = option.spread is Spread.HOSTS
        mask = space.may_use_host[table] if hosts else space.may_use_rank[table]
        allowed = [int(p) for p in np.flatnonzero(mask)]
        for places in _placings(option.column_widths, allowed):
            near = {p // space.local_world_size for p in places}
            if option.sharding_type is not ShardingType.TABLE_COLUMN_WISE or len(near) == 1:
                yield index, places


def count_assignments(space: SearchSpace, most: int) -> int:
    """Number of assignments; anything above ``most`` if there are more."""
    total = 1
    for t in range(space.num_tables):
        total *= sum(1 for _ in itertools.islice(table_choices(space, t), most + 1))
        if total > most:
            return total
    return total


def every_assignment(space: SearchSpace) -> Iterator[tuple[list[Assignment], FloatArray]]:
    """Batches of assignments with their work ``[N, W, F]``."""
    choices = [list(table_choices(space, t)) for t in range(space.num_tables)]
    works = [_works(space, t, found) for t, found in enumerate(choices)]
    sizes = [len(c) for c in choices]
    for start in range(0, math.prod(sizes), _BATCH):
        stop = min(start + _BATCH, math.prod(sizes))
        index = np.unravel_index(np.arange(start, stop), sizes)
        total = sum((w[i] for w, i in zip(works, index, strict=True)), start=np.zeros(1))
        yield [_assignment(choices, at) for at in zip(*index, strict=True)], total


def _assignment(choices: list[list[Choice]], at: tuple[np.int64, ...]) -> Assignment:
    picked = [found[int(i)] for found, i in zip(choices, at, strict=True)]
    return Assignment(options=tuple(o for o, _ in picked), places=tuple(p for _, p in picked))


def _works(space: SearchSpace, table: int, choices: list[Choice]) -> FloatArray:
    works = np.zeros((len(choices), space.world_size, space.pipeline.num_features))
    for work, (index, places) in zip(works, choices, strict=True):
        ranks, rows = space.placed_rows(table, index, places)
        np.add.at(work, ranks, rows)
    return works


def _placings(widths: tuple[int, ...], allowed: list[int]) -> Iterator[tuple[int, ...]]:
    """Places for each piece; runs of equal width in ascending order only."""
    runs = [len(list(group)) for _, group in itertools.groupby(widths)]
    parts = [itertools.combinations_with_replacement(allowed, n) for n in runs]
    for combined in itertools.product(*parts):
        yield tuple(p for part in combined for p in part)
