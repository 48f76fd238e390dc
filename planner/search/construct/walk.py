"""Lists and prices every assignment of a tiny search space, in batches."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import ShardingOption, ShardingType
from planner.search.base import Record
from planner.search.common.schedule import USUAL
from planner.space.effort import priced_s
from planner.space.evaluation import Assignment, Choice, SearchSpace

_BATCH: Final = 1024
"""Assignments priced in one call. More of them take memory, fewer take more calls."""

_COUNTED_ONE_BY_ONE: Final = 2_000
"""Most choices of a table that are counted one by one, at 5 to 10 microseconds each."""


def table_choices(space: SearchSpace, table: int) -> Iterator[Choice]:
    """Every option of a table with every way to place its pieces.

    Pieces of equal width can be exchanged without a difference, so that only one order of their
    places is listed. Under a limit on moves all orders are, since they move different bytes, but
    for those that alone move more bytes than all tables together may.
    """
    budget = space.rules.budget
    for index, option in enumerate(space.tables[table].options):
        ways = (
            placings(option.column_widths, allowed, ordered=budget is not None)
            for allowed in _allowed(space, table, option)
        )
        for places in [()] if option.is_uniform else itertools.chain.from_iterable(ways):
            if budget is None or budget.table_bytes(option, places) <= budget.max_bytes:
                yield index, places


def _allowed(space: SearchSpace, table: int, option: ShardingOption) -> list[list[int]]:
    """The places that the pieces of an option may have; those of each host if they share one."""
    every = np.flatnonzero(space.allowed(table, option.spread)).tolist()
    if not option.keeps_pieces_on_host:
        return [every]
    hosts = itertools.groupby(every, key=lambda rank: rank // space.local_world_size)
    return [list(ranks) for _, ranks in hosts]


def count_assignments(space: SearchSpace, most: int) -> int:
    """Number of assignments of a space; some number above ``most`` if there are more than that."""
    total = 1
    for t in range(space.num_tables):
        total *= count_choices(space, t)
        if total > most:
            return total
    return total


def count_choices(space: SearchSpace, table: int) -> int:
    """Number of choices that :func:`table_choices` lists for a table, or of more than these.

    Under a limit on moved bytes they are counted one by one if they are few; if they are many, some
    that move too much are counted too.
    """
    budget, most = space.rules.budget, 0
    for option in space.tables[table].options:
        places = [] if option.is_uniform else map(len, _allowed(space, table, option))
        ways = (most_placings(option.column_widths, p, ordered=budget is not None) for p in places)
        most += 1 if option.is_uniform else sum(ways)
    if budget is None or math.isinf(budget.max_bytes) or most > _COUNTED_ONE_BY_ONE:
        return most
    return sum(1 for _ in table_choices(space, table))


def can_price_all(space: SearchSpace, left_s: float) -> bool:
    """Whether every assignment can be priced within the work and memory that this may take.

    Args:
        space: the space of assignments.
        left_s: nominal seconds of work left.
    """
    entries = space.world_size * space.pipeline.num_features
    most_s = min(USUAL.exhaustive_s, left_s)
    most = int(most_s / (priced_s(_BATCH, entries) / _BATCH))
    if count_assignments(space, most) > most:
        return False
    each = sum(count_choices(space, t) for t in range(space.num_tables))
    return each * entries <= USUAL.most_entries


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assignments:
    """A batch of assignments, each of which is made only when it is asked for.

    Many are priced, and few are asked for.

    Attributes:
        choices: the choices of each table.
        index: for each table, which of its choices each of the N assignments has, ``[N]``.
    """

    choices: list[list[Choice]]
    index: tuple[IntArray, ...]

    def __len__(self) -> int:
        """Number of assignments, N."""
        return len(self.index[0])

    def __getitem__(self, at: int) -> Assignment:
        """The assignment at a position."""
        pairs = zip(self.choices, self.index, strict=True)
        return Assignment.of(found[own[at]] for found, own in pairs)

    def __iter__(self) -> Iterator[Assignment]:
        """All assignments in order."""
        return map(self.__getitem__, range(len(self)))


def every_assignment(space: SearchSpace) -> Iterator[tuple[Assignments, FloatArray]]:
    """Batches of all N assignments that keep the rules, with their work, ``[N, W, F]``."""
    choices = [list(table_choices(space, t)) for t in range(space.num_tables)]
    keeps_rules = _rule_check(space, choices) if space.rules else None
    works = [choice_works(space, t, found) for t, found in enumerate(choices)]
    sizes = [len(c) for c in choices]
    for start in range(0, math.prod(sizes), _BATCH):
        stop = min(start + _BATCH, math.prod(sizes))
        index = _digits(np.arange(start, stop), sizes)
        if keeps_rules is not None:
            kept = keeps_rules(index)
            if not kept.any():
                continue
            index = tuple(i[kept] for i in index)
        total = sum((w[i] for w, i in zip(works, index, strict=True)), start=np.zeros(1))
        yield Assignments(choices=choices, index=index), total


def _digits(numbers: IntArray, sizes: Sequence[int]) -> tuple[IntArray, ...]:
    """Which choice each table has in the assignments with these numbers, ``[N]`` per table.

    The choice of the last table changes fastest. ``numpy.unravel_index`` does the same, but for at
    most 64 tables.

    Args:
        numbers: ``[N]`` numbers of assignments, from 0.
        sizes: number of choices of each table.
    """
    digits = []
    for size in reversed(sizes):
        numbers, digit = np.divmod(numbers, size)
        digits.append(digit)
    return tuple(reversed(digits))


def _rule_check(
    space: SearchSpace, choices: list[list[Choice]]
) -> Callable[[tuple[IntArray, ...]], BoolArray]:
    """What says of N combinations, ``[N]``, whether they keep the rules.

    Its argument is for each table which of its choices each combination has, ``[N]``.
    """
    rules, budget = space.rules, space.rules.budget
    placed = [[(space.option(t, i), where) for i, where in own] for t, own in enumerate(choices)]
    counts = [np.array([rules.table_counts(o.spread, where) for o, where in own]) for own in placed]
    moved = [np.array([budget.table_bytes(*i) if budget else 0.0 for i in own]) for own in placed]

    def kept(index: tuple[IntArray, ...]) -> BoolArray:
        shards = np.stack([c[i] for c, i in zip(counts, index, strict=True)], axis=-2)
        received = np.stack([m[i] for m, i in zip(moved, index, strict=True)], axis=-1)
        keeps = rules.excess(shards) <= 0
        return keeps if budget is None else keeps & budget.keeps(received)

    return kept


def price_all(record: Record) -> None:
    """Price every assignment; if the search has not to end before, the best one is proven optimal.

    In the list of options a sharding type may stand for others with the same shards. The bound
    holds for those too, by the proven values of the objective. These are the values themselves for
    plans of which at most one table has such a type, since its name then changes no collective.
    """
    least, space, objective = np.inf, record.evaluate.space, record.evaluate.objective
    general = set(space.listing.names.values())
    for assignments, works in every_assignment(space):
        values = record.evaluate.values(works)
        best = int(np.argmin(values))
        record.keep_if_good(assignments[best], float(values[best]), "exhaustive")
        proven = values
        if general:
            shared = np.isfinite(values) & _shares_a_type(space, assignments, general)
            proven = np.where(shared, objective.proven_values(works, values), values)
        least = min(least, float(proven.min()))
        if record.stopped:
            return
    record.raise_bound(least, "exhaustive")


def _shares_a_type(
    space: SearchSpace, assignments: Assignments, types: Iterable[ShardingType]
) -> BoolArray:
    """``[N]`` True for assignments in which several tables have the same one of some types."""
    shared = np.zeros(len(assignments), dtype=bool)
    for kind in types:
        users = np.zeros(len(assignments), dtype=np.int64)
        for t, (found, own) in enumerate(zip(assignments.choices, assignments.index, strict=True)):
            has = [space.option(t, option).sharding_type is kind for option, _ in found]
            users += np.array(has, dtype=np.int64)[own]
        shared |= users > 1
    return shared


def choice_works(space: SearchSpace, table: int, choices: list[Choice]) -> FloatArray:
    """``[choices, W, F]`` work that each choice of a table puts on each rank."""
    works = np.zeros((len(choices), space.world_size, space.pipeline.num_features))
    if not choices:
        return works
    placed = [space.placed_rows(table, index, places) for index, places in choices]
    ranks, rows = (np.concatenate(parts) for parts in zip(*placed, strict=True))
    which = np.repeat(np.arange(len(choices)), [len(own) for own, _ in placed])
    np.add.at(works, (which, ranks), rows)
    return works


def placings(
    widths: tuple[int, ...], allowed: list[int], *, ordered: bool
) -> Iterator[tuple[int, ...]]:
    """All ways to place the pieces of an option, no two widths on one place.

    Args:
        widths: columns of each piece.
        allowed: places to choose from.
        ordered: whether to list all orders of the places of equal pieces, or only ascending ones.
    """
    counts = Counter(widths)
    choices = (
        itertools.product(allowed, repeat=n)
        if ordered
        else itertools.combinations_with_replacement(allowed, n)
        for n in counts.values()
    )
    for combined in itertools.product(*choices):
        on = {(p, width) for part, width in zip(combined, counts, strict=True) for p in part}
        if len({p for p, _ in on}) == len(on):
            left = {width: iter(part) for width, part in zip(counts, combined, strict=True)}
            yield tuple(next(left[width]) for width in widths)


def most_placings(widths: tuple[int, ...], places: int, *, ordered: bool) -> int:
    """How many ways :func:`placings` lists; more than that where pieces have several widths.

    Args:
        widths: columns of each piece.
        places: number of places to choose from.
        ordered: as there.
    """
    if ordered:
        return int(places ** len(widths))
    return math.prod(math.comb(places + n - 1, n) for n in Counter(widths).values())
