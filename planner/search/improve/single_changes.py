"""Plans that are changed one table at a time, as long as that helps.

Searches compare moves by a function below the objective, and a search that is cut has not compared
all. Here every option of a table is placed piece by piece where the whole objective is least, as
``shardplan explain`` does with a finished plan. A search under a limit on moves begins so from the
plan in use, and every search ends so.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.sharding import ComputeKernel, ShardingOption, Spread
from planner.search.base import Record
from planner.search.improve.best_place import BestPlace, Cut, Placed
from planner.space.effort import priced_s
from planner.space.evaluation import Assignment, Evaluator, SearchSpace

_GAIN: Final = 1e-6
"""Share of the objective by which a change at the end of a search has to help; smaller gains nobody
sees."""
_LEAST_GAIN: Final = 1e-9
"""The same share for changes of the plan in use; less is rounding."""
_SHARE: Final = 0.25
"""Most work at the end of a search, as a share of that of the search before it."""
_STEP_SHARE: Final = 0.5
"""Share of the work left to a chain of changes that one of them may take. A step that looks at more
options finds a better change, and leaves less for the steps after it."""
_MOST_PIECES: Final = 4
"""Options with more pieces take too long to place at the end of a search for what they gain."""
_BATCH: Final = 64
"""Quick placements that are priced together. More of them take more memory, fewer take more
calls."""
_TOGETHER: Final = 256
"""Options times ranks whose next piece is placed at the same time. More of them are priced in fewer
calls, but a step can only end after all of them."""


def single_changes(
    space: SearchSpace,
    evaluate: Evaluator,
    start: Assignment,
    late: Callable[[], bool],
    *,
    most_s: float | None = None,
    runs: Callable[[Assignment], bool] | None = None,
) -> Assignment:
    """A plan that no change of one table betters, as far as there is work left to look.

    A step prices a piece on every rank; it is left out where no work is left for that much.
    Copied tables come first: they have moved nowhere yet, and searches leave them for last.

    Args:
        space: options and places.
        evaluate: prices the plans that are tried.
        start: a plan that fits and keeps the rules.
        late: whether the clock ends this step too.
        most_s: nominal seconds after which it ends; None for a share of those of the search.
        runs: whether a plan may be taken; None if every plan may that keeps the rules.
    """
    most_s = most_s or (1.0 + _SHARE) * evaluate.meter.spent_s
    start = kernel_changes(space, evaluate, start, late, runs)
    now = _Changing(space, evaluate, start, runs)
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
    space: SearchSpace,
    evaluate: Evaluator,
    start: Assignment,
    late: Callable[[], bool],
    runs: Callable[[Assignment], bool] | None = None,
) -> Assignment:
    """A plan that is not bettered where all tables of one kernel take another one at once.

    A kernel costs a call for all its tables together, so that no table leaves it alone: five tables
    that have to lie together stayed in host memory without a cache, and took 36 % longer.

    Args:
        space: options and places.
        evaluate: prices the plans that are tried.
        start: a plan that fits and keeps the rules; places stay as they are.
        late: whether to look at no more kernels.
        runs: whether a plan may be taken; None if every plan may that keeps the rules.
    """
    kinds = _kernels(space.options)
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


def follow_chain(space: SearchSpace, record: Record, start: Assignment, *, until_s: float) -> None:
    """Make the best change of one table again and again, and offer the plans on the way.

    Args:
        space: options, places and rules.
        record: is offered every plan.
        start: the plan in use.
        until_s: reading of the meter, in nominal seconds, at which the chain ends.
    """
    now, meter = _Changing(space, record.evaluate, start), record.evaluate.meter
    while not record.stopped and meter.spent_s < until_s:
        step_s = meter.spent_s + _STEP_SHARE * (until_s - meter.spent_s)
        cuts = now.by_quick_value(record.evaluate)
        best = now.best(cuts, _LEAST_GAIN, lambda: record.stopped or meter.spent_s >= step_s)  # noqa: B023
        if best is None:
            return
        now.take(best)
        record.keep_if_good(now.assignment, now.value, "moves from the plan in use")


class _Changing:
    """A plan of which one table at a time is changed."""

    def __init__(
        self,
        space: SearchSpace,
        evaluate: Evaluator,
        start: Assignment,
        runs: Callable[[Assignment], bool] | None = None,
    ) -> None:
        self._space, self._runs = space, runs
        self._options, self._places = list(start.options), list(start.places)
        self._usage = space.usage(start)
        self._work = space.work(start)
        self._placer = BestPlace(space, evaluate, self._usage)
        self.value = float(evaluate.values(self._work[None])[0])

    @property
    def assignment(self) -> Assignment:
        """The present plan."""
        return Assignment(options=tuple(self._options), places=tuple(self._places))

    def take(self, placed: Placed) -> None:
        """Make a change."""
        self._options[placed.table], self._places[placed.table] = placed.index, placed.places
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

    def by_quick_value(self, evaluate: Evaluator) -> list[Cut]:
        """The options of all tables, best ones first when placed on the emptiest ranks."""
        space, objective = self._space, evaluate.objective
        price = objective.always().slopes @ objective.gradient(space.mean_work.mean(axis=0))
        cuts: list[Cut] = []
        values: list[FloatArray] = []
        for table in range(space.num_tables):
            rest = self._without(table)
            order = [np.argsort(rest @ price, kind="stable")]
            order.append(np.argsort((rest @ price).reshape(space.num_hosts, -1).max(axis=-1)))
            allowed = space.may_use_rank[table], space.may_use_host[table]
            free = [places[ok[places]] for places, ok in zip(order, allowed, strict=True)]
            works = []
            for index, option in enumerate(space.tables[table].options):
                near = free[option.spread is Spread.HOSTS]
                if len(near) or option.is_uniform:
                    where = () if option.is_uniform else np.resize(near, option.num_pieces)
                    ranks, rows = space.placed_rows(table, index, tuple(where))
                    works.append(rest.copy())
                    np.add.at(works[-1], ranks, rows)
                    cuts.append((table, index))
            parts = (works[begin : begin + _BATCH] for begin in range(0, len(works), _BATCH))
            values += [evaluate.values(np.stack(part)) for part in parts]
        best_first = np.argsort(np.concatenate([np.zeros(0), *values]), kind="stable")
        return [cuts[i] for i in best_first]

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
        options, places = list(self._options), list(self._places)
        options[placed.table], places[placed.table] = placed.index, placed.places
        return Assignment(options=tuple(options), places=tuple(places))

    def _without(self, table: int) -> FloatArray:
        """``[W, F]`` the work of all other tables."""
        own = self._options[table], self._places[table]
        return self._space.work_without(self._work, table, *own)
