"""Plans that are changed one table at a time, as long as that helps.

Searches compare moves by a function below the objective, and a search that is cut has not compared
all. Here every option of a table is placed piece by piece where the whole objective is least, as
``shardplan explain`` does with a finished plan. A search under a limit on moves begins so from the
plan in use, and every search ends so.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.sharding import ComputeKernel, ShardingOption, Spread
from planner.rules.placement_rules import Usage
from planner.search.base import Record
from planner.search.construct.walk import most_placings, placings
from planner.space.effort import priced_s
from planner.space.evaluation import ROUNDED, Assignment, Evaluator, SearchSpace
from planner.space.objective import AbstractObjective

# ------------------ places for the shards of one table
#
# If there are few ways to place the shards of an option, all of them are tried. Otherwise the
# shards are placed one after the other, each where the whole objective is then least. Another
# placement of all shards together can be a few per cent better than that.

_FEWEST: Final = 64
"""Plans are priced in groups of at least this many, because each call has a fixed cost."""
_MOST_NUMBERS: Final = 2_000_000
"""Larger groups of plans have at most this many numbers of work, so that they do not take much
memory."""
_FEW_WAYS: Final = 64
"""If there are at most this many ways to place an option's pieces, all are tried. 3 equal pieces
on 6 ranks have 56."""
_OVERFULL: Final = 1e30
"""Objective that stands for a plan that does not fit in memory; others are far below it."""

Cut = tuple[int, int]
"""A table, and the index of one of its options."""
RunsCallback = Callable[[Assignment], bool]
"""Says whether a plan may be taken."""


@dataclass(slots=True, kw_only=True)
class Placed:
    """An option of a table of which some or all pieces are placed, with the rest of the plan.

    Attributes:
        table: which table.
        index: which of its options.
        option: the option.
        pieces: work of all its pieces, ``[pieces, F]``, or ``[pieces, L, F]`` on hosts of L ranks.
        work: ``[W, F]`` work of the whole plan.
        places: ranks (or hosts, depending on the option's spread) of the pieces that are placed.
        value: the objective of the whole plan; infinite if it does not fit in memory, if TorchRec
            cannot run the pieces on these places, or before all pieces are placed.
        is_stuck: whether rules leave the next piece no place.
    """

    table: int
    index: int
    option: ShardingOption
    pieces: FloatArray
    work: FloatArray
    places: tuple[int, ...] = ()
    value: float = np.inf
    is_stuck: bool = False


class BestPlace:
    """Finds places for the options of a table beside the rest of one plan.

    A place that would break a constraint on places, groups or counts is not tried.

    Args:
        space: options, places and rules.
        evaluate: prices the plans that are tried.
        usage: what the plan uses of the rules that couple tables.
    """

    def __init__(self, space: SearchSpace, evaluate: Evaluator, usage: Usage) -> None:
        """Nothing is placed yet."""
        self._space, self._evaluate, self._usage = space, evaluate, usage
        self._is_ruled = bool(space.rules.caps or space.rules.unions)

    def best(
        self,
        cuts: Sequence[Cut],
        rest: Mapping[int, FloatArray],
        most_bytes: Mapping[int, float] | None = None,
        *,
        tries_all: bool = False,
    ) -> list[Placed | None]:
        """Place options, the pieces of each one after the other where the objective is least.

        All options are placed at the same time, because pricing many plans in one call takes
        hardly longer than pricing one.

        Args:
            cuts: the options.
            rest: for each of their tables the work of the plan without it, ``[W, F]``.
            most_bytes: for each of their tables what its shards may receive; each takes its part
                of it, or as little as it can. None for no limit.
            tries_all: whether to try also all ways to place an option's pieces, if they are few.

        Returns:
            None for options whose pieces have no places under the rules.
        """
        begun = [self._begun(*cut, rest[cut[0]]) for cut in cuts]
        while open_ := [b for b in begun if not b.is_stuck and len(b.places) < b.option.num_pieces]:
            self._place_next(open_, most_bytes)
        found: list[list[Placed]] = []
        for one in begun:
            ways = self._every_way(one) if tries_all else []
            found.append([] if one.is_stuck else [one])
            found[-1] += [self._placed_at(one, way, rest[one.table]) for way in ways]
        self._price([way for ways in found for way in ways])
        return [min(ways, key=lambda way: way.value, default=None) for ways in found]

    def moved(self, cut: Cut, own: tuple[int, ...], rest: FloatArray) -> list[Placed]:
        """Every way to put one piece of an option on another place than it has.

        Args:
            cut: the option.
            own: the places that its pieces have.
            rest: ``[W, F]`` work of the plan without the table.
        """
        begun = self._begun(*cut, rest)
        found = [
            self._placed_at(begun, (*own[:i], at, *own[i + 1 :]), rest)
            for i, mine in enumerate(own)
            for at in self._places_left(begun, own[:i] + own[i + 1 :])
            if at != mine
        ]
        self._price(found)
        return found

    # -- private ----------------------------------------------------------------------------------

    def _places_left(self, begun: Placed, taken: Sequence[int]) -> list[int]:
        """The places that constraints leave to one more piece, beside the pieces already placed."""
        table, hosts = self._space.tables[begun.table], begun.option.spread is Spread.HOSTS
        places = table.hosts if hosts else table.ranks
        if not self._is_ruled:
            return list(places)
        free = self._usage.free_for(begun.table, begun.option.spread, taken)
        return [p for p in places if free[p]]

    def _begun(self, table: int, index: int, rest: FloatArray) -> Placed:
        """An option before its first piece is placed."""
        space = self._space
        option = space.option(table, index)
        pieces = np.asarray(space.pool[space.rows[int(space.first[table]) + index]])
        begun = Placed(table=table, index=index, option=option, pieces=pieces, work=rest)
        if option.is_uniform:
            begun.work = rest + pieces
            begun.is_stuck = len(self._places_left(begun, ())) < space.world_size
        return begun

    def _every_way(self, begun: Placed) -> list[tuple[int, ...]]:
        """Every way to place an option's pieces that can run; empty if there are too many ways.

        Pieces of one width are equal, so that only one of their orders is listed. The list is empty
        for a single piece too, because that is tried on every place when it is placed.
        """
        option = begun.option
        places = self._places_left(begun, ()) if option.num_pieces > 1 else []
        if most_placings(option.column_widths, len(places), ordered=False) > _FEW_WAYS:
            return []
        return [
            way
            for way in placings(option.column_widths, places, ordered=False)
            if option.may_be_at(way, self._space.local_world_size)
            and all(at in self._places_left(begun, way[:i]) for i, at in enumerate(way))
        ]

    def _placed_at(self, begun: Placed, places: Sequence[int], rest: FloatArray) -> Placed:
        """The option with all its pieces on these places."""
        way = replace(begun, work=rest, places=(), is_stuck=False)
        for at in places:
            self._add(way, at)
        return way

    def _place_next(self, begun: list[Placed], most_bytes: Mapping[int, float] | None) -> None:
        """Put the next piece of each option on the place where the objective is then least.

        If the plan fits in memory with none of them, the place that leaves memory least overfull is
        taken.
        """
        local, allowed = self._space.local_world_size, []
        for one in begun:
            left = self._places_left(one, one.places)
            if most_bytes is not None:
                left = self._receiving_little(one, left, most_bytes[one.table])
            runs = [p for p in left if one.option.may_be_at((*one.places, p), local)]
            one.is_stuck = not left
            allowed.append(runs or left)
        values = self.values(
            self._added(b, p) for b, places in zip(begun, allowed, strict=True) for p in places
        )
        ends = np.cumsum([len(places) for places in allowed])
        for one, places, own in zip(begun, allowed, np.split(values, ends[:-1]), strict=True):
            if places:
                self._add(one, places[int(own.argmin())])

    def _receiving_little(self, one: Placed, left: list[int], most_bytes: float) -> list[int]:
        """The places where the next piece receives its part of the bytes that a table may receive.

        If it receives more everywhere, the places where it receives least.
        """
        budget = self._space.rules.budget
        if budget is None or not left:
            return left
        received, at = budget.piece_bytes(one.option), len(one.places)
        spent = sum(float(received[i, p]) for i, p in enumerate(one.places))
        part = (most_bytes - spent) / (len(one.pieces) - at)
        return [p for p in left if received[at, p] <= max(part, received[at, left].min())]

    def _price(self, ways: Sequence[Placed]) -> None:
        """Price options with all their pieces placed."""
        local = self._space.local_world_size
        for one, value in zip(ways, self.values(w.work for w in ways), strict=True):
            runs = one.option.may_be_at(one.places, local) and value < _OVERFULL
            one.value = float(value) if runs else np.inf

    def values(self, plans: Iterable[FloatArray]) -> FloatArray:
        """The objective of plans ``[W, F]``, priced in groups.

        A plan that does not fit gets a larger value than any that fits, and the larger, the more
        bytes are missing.
        """
        found, plans = [np.zeros(0)], iter(plans)
        for first in plans:
            some = itertools.islice(plans, max(_FEWEST, _MOST_NUMBERS // first.size) - 1)
            work = np.stack([first, *some])
            values = self._evaluate.values(work)
            if not np.isfinite(values).all():
                overfull = _OVERFULL * (1.0 + self._space.overflow_ratio(work))
                values = np.where(np.isfinite(values), values, overfull)
            found.append(values)
        return np.concatenate(found)

    def _add(self, begun: Placed, at: int) -> None:
        """Put the next piece of an option on a place."""
        begun.work = self._added(begun, at)
        begun.places = (*begun.places, at)

    def _added(self, begun: Placed, at: int) -> FloatArray:
        """``[W, F]`` work of the plan with the next piece of an option on a place."""
        step = self._space.local_world_size if begun.option.spread is Spread.HOSTS else 1
        changed = begun.work.copy()
        changed[at * step : (at + 1) * step] += begun.pieces[len(begun.places)]
        return changed


# ------------------ changes of one table at a time

_GAIN: Final = 1e-6
"""Share of the objective by which a change at the end of a search has to help; smaller gains nobody
sees."""
_SHARE: Final = 0.25
"""Most work at the end of a search, as a share of that of the search before it."""
_STEP_SHARE: Final = 0.5
"""Share of the work left to a chain of changes that one of them may take. A step that looks at more
options finds a better change, and leaves less for the steps after it."""
_MOST_PIECES: Final = 4
"""Options with more pieces take too long to place at the end of a search for what they gain."""
_TOGETHER: Final = 256
"""Options times ranks whose next piece is placed at the same time. More of them are priced in fewer
calls, but a step can only end after all of them."""


def single_changes(
    evaluate: Evaluator,
    start: Assignment,
    late: Callable[[], bool],
    *,
    most_s: float | None = None,
    runs: RunsCallback | None = None,
) -> Assignment:
    """A plan that no change of one table betters, as far as there is work left to look.

    A step prices a piece on every rank; it is left out where no work is left for that much.
    Copied tables come first: they have moved nowhere yet, and searches leave them for last.

    Args:
        evaluate: prices the plans that are tried.
        start: a plan that fits and keeps the rules.
        late: whether the clock ends this step too.
        most_s: nominal seconds after which it ends; None for a share of those of the search.
        runs: whether a plan may be taken; None if every plan may that keeps the rules.
    """
    space = evaluate.space
    most_s = most_s or (1.0 + _SHARE) * evaluate.meter.spent_s
    start = kernel_changes(evaluate, start, late, runs)
    now = _Changing(evaluate, start, runs)
    copied = [space.option(t, i).is_uniform for t, i in enumerate(start.options)]
    order = sorted(range(space.num_tables), key=lambda t: not copied[t])
    everywhere_s = priced_s(space.world_size, space.world_size * space.pool.shape[-1])

    def ended() -> bool:
        return late() or evaluate.meter.spent_s + everywhere_s >= most_s

    helps = True
    while helps:
        helps = False
        for table in order:
            if ended():
                return now.assignment
            few = [
                (table, i)
                for i, option in enumerate(space.tables[table].options)
                if option.is_uniform or option.num_pieces <= _MOST_PIECES
            ]
            best = now.best(few, _GAIN, ended)
            if best is not None:
                now.take(best)
                helps = True
    return now.assignment


def kernel_changes(
    evaluate: Evaluator,
    start: Assignment,
    late: Callable[[], bool],
    runs: RunsCallback | None = None,
) -> Assignment:
    """A plan that is not bettered where all tables of one kernel take another one at once.

    A kernel costs a call for all its tables together, so that no table leaves it alone: five tables
    that have to lie together stayed in host memory without a cache, and took 36 % longer.

    Args:
        evaluate: prices the plans that are tried.
        start: a plan that fits and keeps the rules; places stay as they are.
        late: whether to look at no more kernels.
        runs: whether a plan may be taken; None if every plan may that keeps the rules.
    """
    space, kinds = evaluate.space, _kernels(evaluate.space.options)
    best, least, helps = start, np.inf, len(kinds) > 1
    if helps:
        least = float(evaluate.values(space.work(start)[None])[0])
    while helps:
        helps = False
        own = [space.option(table, index) for table, index in enumerate(best.options)]
        for old, new in itertools.product(_kernels(own), kinds):
            if late():
                break
            options = tuple(
                space.with_kernel(table, index, *new) if _kernel(own[table]) == old else index
                for table, index in enumerate(best.options)
            )
            other = Assignment(options=options, places=best.places)
            if options == best.options or not space.keeps_rules(other):
                continue
            value = float(evaluate.values(space.work(other)[None])[0])
            if value < least * (1 - _GAIN) and (runs is None or runs(other)):
                found, least, helps = other, value, True
        best = found if helps else best
    return best


def _kernel(option: ShardingOption) -> tuple[ComputeKernel, float | None]:
    """The kernel of an option, and the share of its rows in a cache; None without one."""
    return option.kernel, option.cache_load_factor_ratio


def _kernels(options: Iterable[ShardingOption]) -> list[tuple[ComputeKernel, float | None]]:
    """The kernels of options, without that of replicated tables, which goes with these alone."""
    found = {_kernel(o) for o in options if o.kernel is not ComputeKernel.DENSE}
    return sorted(found, key=lambda kernel: (kernel[0].value, kernel[1] or 0.0))


def follow_chain(record: Record, start: Assignment, *, until_s: float) -> None:
    """Make the best change of one table again and again, and offer the plans on the way.

    Args:
        record: is offered every plan.
        start: the plan in use.
        until_s: reading of the meter, in nominal seconds, at which the chain ends.
    """
    now, meter = _Changing(record.evaluate, start), record.evaluate.meter
    while not record.stopped and meter.spent_s < until_s:
        step_s = meter.spent_s + _STEP_SHARE * (until_s - meter.spent_s)
        cuts = now.by_quick_value(record.evaluate.objective)
        best = now.best(cuts, ROUNDED, lambda: record.stopped or meter.spent_s >= step_s)  # noqa: B023
        if best is None:
            return
        now.take(best)
        record.keep_if_good(now.assignment, now.value, "moves from the plan in use")


class _Changing:
    """A plan of which one table at a time is changed."""

    def __init__(
        self, evaluate: Evaluator, start: Assignment, runs: RunsCallback | None = None
    ) -> None:
        space = evaluate.space
        self._space, self._runs = space, runs
        self.assignment = start
        self._usage = space.usage(start)
        self._work = space.work(start)
        self._placer = BestPlace(space, evaluate, self._usage)
        self.value = float(evaluate.values(self._work[None])[0])

    def take(self, placed: Placed) -> None:
        """Make a change."""
        self.assignment = self._after(placed)
        self._usage.put(placed.table, (placed.option, placed.places))
        self._work, self.value = placed.work, placed.value

    def best(self, cuts: Sequence[Cut], gain: float, late: Callable[[], bool]) -> Placed | None:
        """The change to one of these options with the least objective that keeps the rules.

        None if no change helps. It is not asked whether it is late before the first options are
        placed.

        Args:
            cuts: the options.
            gain: share of the objective by which a change has to help.
            late: whether to look at no more options.
        """
        best, least = None, self.value * (1 - gain)
        together = max(_TOGETHER // self._space.world_size, 1)
        for begin in range(0, len(cuts), together):
            for placed in self._placed(cuts[begin : begin + together]):
                if placed.value < least and self._is_allowed(placed):
                    best, least = placed, placed.value
            if late():
                break
        return best

    def by_quick_value(self, objective: AbstractObjective) -> list[Cut]:
        """The options of all tables, best ones first when placed on the emptiest ranks."""
        price = objective.always().slopes @ objective.gradient(self._space.mean_work.mean(axis=0))
        cuts: list[Cut] = []
        values = self._placer.values(self._quick_works(price, cuts))
        return [cuts[i] for i in np.argsort(values, kind="stable")]

    def _quick_works(self, price: FloatArray, cuts: list[Cut]) -> Iterator[FloatArray]:
        """The work of the plan with each option on the emptiest ranks; adds it to ``cuts``."""
        space, sizes = self._space, {Spread.RANKS: 1, Spread.HOSTS: self._space.local_world_size}
        for table in range(space.num_tables):
            rest, emptiest = self._without(table), {}
            for spread, size in sizes.items():
                allowed = np.flatnonzero(space.allowed(table, spread))
                full = (rest @ price).reshape(-1, size).max(axis=-1)[allowed]
                emptiest[spread] = allowed[np.argsort(full, kind="stable")]
            for index, option in enumerate(space.tables[table].options):
                near = emptiest.get(option.spread, ())
                if len(near) or option.is_uniform:
                    where = () if option.is_uniform else np.resize(near, option.num_pieces)
                    work = rest.copy()
                    np.add.at(work, *space.placed_rows(table, index, tuple(where)))
                    cuts.append((table, index))
                    yield work

    def _placed(self, cuts: Sequence[Cut]) -> Iterator[Placed]:
        """The options on their best places; those that move too much also where they move less."""
        rest = {table: self._without(table) for table, _ in cuts}
        found = [placed for placed in self._placer.best(cuts, rest) if placed is not None]
        yield from found
        budget = self._space.rules.budget
        if budget is not None and np.isfinite(budget.max_bytes):
            over = [(p.table, p.index) for p in found if not self._is_allowed(p)]
            moved = self._usage.moved
            left = {t: budget.max_bytes - float(moved.sum() - moved[t]) for t in rest}
            yield from filter(None, self._placer.best(over, rest, left))

    def _is_allowed(self, placed: Placed) -> bool:
        """Whether a change keeps the rules that couple tables, and the limit on moves."""
        rules, change = self._space.rules, (placed.table, placed.option, placed.places)
        if rules and not self._usage.allows([change]):
            return False
        return self._runs is None or self._runs(self._after(placed))

    def _after(self, placed: Placed) -> Assignment:
        """The plan after a change."""
        return self.assignment.changed({placed.table: (placed.index, placed.places)})

    def _without(self, table: int) -> FloatArray:
        """``[W, F]`` the work of all other tables."""
        return self._space.work_without(self._work, table, *self.assignment.choice(table))
