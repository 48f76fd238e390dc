"""A good plan of a problem with too many plans to price them all: any plan bounds the optimum.

Plain coordinate descent over a random part of the placements: each table in turn goes where the
plan is cheapest with the others as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from costmodels.datatypes import IntArray
from costmodels.sharding import TablePlacement
from tests.differential.judging.enumerator import Enumerator, Optimum

FEW = 12
"""Ways to cut and place a table that are looked at, at most; each with every kernel."""

_RANDOM = 4
_STARTS = 2
_ROUNDS = 8


def best_known(space: Enumerator, seed: int = 0) -> Optimum:
    """The best plan that descents from plain and from random plans find."""
    if not all(space.choices):
        return Optimum(value=math.inf, plan=None, num_allowed=0, num_fitting=0, is_exact=False)
    rng = np.random.default_rng(seed)
    starts = np.array(list(_starts(space, rng)), dtype=np.int64)
    values = space.priced(list(starts.T))
    best, value, count = starts[0], math.inf, int(np.isfinite(values).sum())
    for start in starts[np.argsort(values, kind="stable")[:_STARTS]]:
        found, reached = _descended(space, start, rng)
        if reached < value:
            best, value = found, reached
    plan = None if math.isinf(value) else space.plan([int(i) for i in best])
    return Optimum(value=value, plan=plan, num_allowed=count, num_fitting=count, is_exact=False)


def _starts(space: Enumerator, rng: np.random.Generator) -> Iterator[list[int]]:
    """Plans of one kind of placement for all tables, as far as they have it; and random ones."""
    kinds = [[_kind(p) for p in found] for found in space.choices]
    for kind in dict.fromkeys(k for found in kinds for k in found):
        yield [found.index(kind) if kind in found else 0 for found in kinds]
    for _ in range(_RANDOM):
        yield [int(rng.integers(len(found))) for found in kinds]


def _kind(placement: TablePlacement) -> tuple[object, ...]:
    ratio = placement.cache_load_factor_ratio
    return placement.sharding_type, placement.kernel, ratio, placement.ranks


def _descended(
    space: Enumerator, start: IntArray, rng: np.random.Generator
) -> tuple[IntArray, float]:
    at, value = start.copy(), float(space.priced([np.array([i]) for i in start])[0])
    for _ in range(_ROUNDS):
        before = value
        for table in rng.permutation(len(at)):
            count = len(space.choices[table])
            index = [np.full(count, i) for i in at]
            index[table] = np.arange(count)
            values = space.priced(index)
            if values.min() < value:
                at[table], value = int(np.argmin(values)), float(values.min())
        if value >= before:
            break
    return at, value
