"""Every assignment of a tiny search space, in batches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import Spread
from planner.rules.placement_rules import PlacementRules
from planner.search.base import Record
from planner.search.common.schedule import USUAL, Schedule
from planner.space.effort import priced_s
from planner.space.evaluation import Assignment, SearchSpace

_BATCH: Final = 1024

Choice = tuple[int, tuple[int, ...]]
"""An option of a table and its places."""


def table_choices(space: SearchSpace, table: int) -> Iterator[Choice]:
    """Every option of a table with every way to place it.

    Equal pieces are interchangeable, but for what has to move to get there.
    """
    ordered = space.rules.budget is not None
    for index, option in enumerate(space.tables[table].options):
        if option.is_uniform:
            yield index, ()
            continue
        hosts = option.spread is Spread.HOSTS
        mask = space.may_use_host[table] if hosts else space.may_use_rank[table]
        allowed = [int(p) for p in np.flatnonzero(mask)]
        for places in _placings(option.column_widths, allowed, ordered=ordered):
            near = {p // space.local_world_size for p in places}
            if not option.keeps_pieces_on_host or len(near) == 1:
                yield index, places


def count_assignments(space: SearchSpace, most: int) -> int:
    """Number of assignments; anything above ``most`` if there are more."""
    total = 1
    for t in range(space.num_tables):
        total *= count_choices(space, t)
        if total > most:
            return total
    return total


def count_choices(space: SearchSpace, table: int) -> int:
    """Number of :func:`table_choices`, without listing them."""
    ordered = space.rules.budget is not None
    total = 0
    for option in space.tables[table].options:
        if option.is_uniform:
            total += 1
            continue
        runs = tuple(len(list(group)) for _, group in itertools.groupby(option.column_widths))
        hosts = option.spread is Spread.HOSTS
        mask = space.may_use_host[table] if hosts else space.may_use_rank[table]
        near = mask.reshape(-1, space.local_world_size) if option.keeps_pieces_on_host else [mask]
        total += sum(_count_placings(int(np.sum(part)), runs, ordered=ordered) for part in near)
    return total


def can_price_all(space: SearchSpace, left_s: float, schedule: Schedule = USUAL) -> bool:
    """Whether pricing every assignment takes no more work than a search is worth.

    Args:
        space: what to price.
        left_s: nominal seconds left.
        schedule: how much work and memory it may take.
    """
    entries = space.world_size * space.pipeline.num_features
    most_s = min(schedule.exhaustive_s, left_s)
    most = int(most_s / (priced_s(_BATCH, entries) / _BATCH))
    if count_assignments(space, most) > most:
        return False
    each = sum(count_choices(space, t) for t in range(space.num_tables))
    return each * entries <= schedule.exhaustive_entries


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assignments:
    """Assignments of which each is made when it is asked for; of many priced ones few are.

    Attributes:
        choices: the choices of each table.
        index: which of them each assignment has, ``[N]`` for each table.
    """

    choices: list[list[Choice]]
    index: tuple[IntArray, ...]

    def __len__(self) -> int:
        """Number of assignments."""
        return len(self.index[0])

    def __getitem__(self, at: int) -> Assignment:
        """One of them."""
        picked = [found[own[at]] for found, own in zip(self.choices, self.index, strict=True)]
        return Assignment(options=tuple(o for o, _ in picked), places=tuple(p for _, p in picked))

    def __iter__(self) -> Iterator[Assignment]:
        """All of them in turn."""
        return map(self.__getitem__, range(len(self)))


def every_assignment(space: SearchSpace) -> Iterator[tuple[Assignments, FloatArray]]:
    """Batches of assignments that keep the rules, with their work ``[N, W, F]``."""
    choices = [list(table_choices(space, t)) for t in range(space.num_tables)]
    taken = Taken.of(space, choices) if space.rules else None
    works = [choice_works(space, t, found) for t, found in enumerate(choices)]
    sizes = [len(c) for c in choices]
    for start in range(0, math.prod(sizes), _BATCH):
        stop = min(start + _BATCH, math.prod(sizes))
        index = _digits(np.arange(start, stop), sizes)
        if taken is not None:
            kept = taken.kept(index)
            if not kept.any():
                continue
            index = tuple(i[kept] for i in index)
        total = sum((w[i] for w, i in zip(works, index, strict=True)), start=np.zeros(1))
        yield Assignments(choices=choices, index=index), total


def _digits(numbers: IntArray, sizes: Sequence[int]) -> tuple[IntArray, ...]:
    """The choice of each table in the assignments of these numbers, ``[N]`` for each table.

    The last table changes fastest, as with ``numpy.unravel_index``, which takes no more than 64
    tables.
    """
    digits = []
    for size in reversed(sizes):
        numbers, digit = np.divmod(numbers, size)
        digits.append(digit)
    return tuple(reversed(digits))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Taken:
    """What each choice of each table takes of the rules.

    ``counts[t]`` is ``[choices, W]`` shards, ``moved[t]`` ``[choices]`` bytes.
    """

    rules: PlacementRules
    counts: list[IntArray]
    moved: list[FloatArray]

    @classmethod
    def of(cls, space: SearchSpace, choices: list[list[Choice]]) -> Taken:
        """Count every choice alone."""
        rules = space.rules
        counts, moved = [], []
        for table, found in enumerate(choices):
            placed = [(space.option(table, index), places) for index, places in found]
            counts.append(np.array([rules.table_counts(*item) for item in placed]))
            budget = rules.budget
            moved.append(np.array([budget.table_bytes(*i) if budget else 0.0 for i in placed]))
        return cls(rules=rules, counts=counts, moved=moved)

    def kept(self, index: tuple[IntArray, ...]) -> BoolArray:
        """Which combinations keep the rules, ``[N]``, from the choice of each table, ``[N]``."""
        counts = np.stack([c[i] for c, i in zip(self.counts, index, strict=True)], axis=-2)
        kept = self.rules.excess(counts) <= 0
        if self.rules.budget is not None:
            moved = np.stack([m[i] for m, i in zip(self.moved, index, strict=True)], axis=-1)
            kept &= self.rules.budget.keeps(moved)
        return kept


def price_all(space: SearchSpace, record: Record) -> None:
    """Price every assignment until the search has to end; then the best one is proven optimal.

    Sharding types that another one stands for are covered by the objective's proven values.
    """
    least = np.inf
    objective = record.evaluate.objective
    for assignments, works in every_assignment(space):
        values = record.evaluate.values(works)
        best = int(np.argmin(values))
        record.keep_if_good(assignments[best], float(values[best]), "exhaustive")
        proven = values
        if space.listing.names.stands_for:
            proven = np.where(np.isfinite(values), objective.proven_values(works, values), np.inf)
        least = min(least, float(proven.min()))
        if record.stopped:
            return
    record.raise_bound(least, "exhaustive")


def choice_works(space: SearchSpace, table: int, choices: list[Choice]) -> FloatArray:
    """Work that each choice of a table puts on the ranks, ``[choices, W, F]``."""
    works = np.zeros((len(choices), space.world_size, space.pipeline.num_features))
    if not choices:
        return works
    placed = [space.placed_rows(table, index, places) for index, places in choices]
    ranks, rows = (np.concatenate(parts) for parts in zip(*placed, strict=True))
    which = np.repeat(np.arange(len(choices)), [len(own) for own, _ in placed])
    np.add.at(works, (which, ranks), rows)
    return works


def _placings(
    widths: tuple[int, ...], allowed: list[int], *, ordered: bool
) -> Iterator[tuple[int, ...]]:
    """Places for each piece; runs of equal width in ascending order only, unless ``ordered``.

    TorchRec keeps pieces of different widths apart.
    """
    runs = [(width, len(list(group))) for width, group in itertools.groupby(widths)]
    choices = (
        itertools.product(allowed, repeat=n)
        if ordered
        else itertools.combinations_with_replacement(allowed, n)
        for _, n in runs
    )
    for combined in itertools.product(*choices):
        on = {(p, width) for part, (width, _) in zip(combined, runs, strict=True) for p in part}
        if len({p for p, _ in on}) == len(on):
            yield tuple(p for part in combined for p in part)


@lru_cache(maxsize=4096)
def _count_placings(places: int, runs: tuple[int, ...], *, ordered: bool) -> int:
    """How many :func:`_placings` there are of runs of so many equal pieces on so many places."""
    if not runs:
        return 1
    first, *rest = runs
    return sum(
        math.comb(places, used)
        * (_onto(first, used) if ordered else math.comb(first - 1, used - 1))
        * _count_placings(places - used, tuple(rest), ordered=ordered)
        for used in range(1, min(first, places) + 1)
    )


def _onto(pieces: int, places: int) -> int:
    """Ways to put pieces that differ on places, none of which stays empty."""
    return sum((-1) ** i * math.comb(places, i) * (places - i) ** pieces for i in range(places + 1))
