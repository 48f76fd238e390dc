"""The default: a proven bound, plans rounded from it, and local search on the full objective."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Final, final

import numpy as np

from costmodels.sharding import ShardingOption, ShardingType
from planner.evaluation import Assignment, Evaluator, SearchSpace
from planner.search.base import (
    AbstractStrategy,
    ProgressCallback,
    Record,
    SearchOutcome,
    StopCallback,
)
from planner.search.parts.bound import RankFreeBound, Relaxation, TypeSet, type_sets
from planner.search.parts.construct import POWERS, Pressure, place_options
from planner.search.parts.greedy import (
    list_greedy,
    lookup_cost,
    size_cost,
    size_lookup_cost,
    split_walk,
    torchrec_walk,
)
from planner.search.parts.linear import LinearModel
from planner.search.parts.local_search import Guide, LocalSearch
from planner.search.parts.state import State
from planner.search.parts.walk import count_assignments, every_assignment

_TINY: Final = 4000
"""Spaces with at most this many assignments are searched exhaustively."""
_WORTH_ROUNDING: Final = 1.10
"""Sets of sharding types whose bound is within this factor of the least are rounded to plans."""
_SLACKS: Final = (0.02, 0.15)
"""How far above the bound's loads options are sought that can be packed."""
_STARTS: Final = 3
"""Plans that are improved before the best one is searched around."""
_PATIENCE: Final = 25
"""Kicks in a row without a better plan after which the search ends; half as many as tables, if
that is more."""
_WHOLE_SHARE: Final = 0.05
"""Share of the time limit for one mixed-integer program."""
_WHOLE_S: Final = 5.0
"""The same without a time limit, in seconds."""
_EXACT_TABLES: Final = 150
"""Above this many tables one more kernel launch is not worth twice the linear programs."""
_WHOLE_TABLES: Final = 400
"""Above this many tables the linear bound is within a per mille of the mixed-integer one."""


@final
class Auto(AbstractStrategy):
    """Rank-free bound, LP rounding with vector LPT, greedy starts, iterated local search.

    Ends by itself when the gap is closed or kicks stop helping. The modules of
    ``planner.search.parts`` say how each part works.
    """

    __slots__ = ()

    def search(
        self,
        space: SearchSpace,
        evaluate: Evaluator,
        *,
        seed: int,
        progress: ProgressCallback | None = None,
        should_stop: StopCallback | None = None,
    ) -> SearchOutcome:
        """Search until optimal, stuck, or out of budget."""
        record = Record(evaluate, progress, should_stop)
        if count_assignments(space, _TINY) <= _TINY:
            _price_all(space, record)
        else:
            _Run(space, record, seed).search()
        return record.outcome(proves=True)


def _price_all(space: SearchSpace, record: Record) -> None:
    for assignments, works in every_assignment(space):
        record.offer_all(assignments, record.evaluate.values(works), "exhaustive")
    record.raise_bound(record.value, "exhaustive")


class _Run:
    """One search."""

    def __init__(self, space: SearchSpace, record: Record, seed: int) -> None:
        self.space = space
        self.record = record
        self.rng = np.random.default_rng(seed)
        self.model = LinearModel(space, record.evaluate.objective)
        self._merged = space.num_tables > _EXACT_TABLES
        self.bounds = RankFreeBound(self.model, merged=self._merged)
        self.relaxed: dict[TypeSet | None, Relaxation] = {}
        self.best_state: State | None = None

    def search(self) -> None:
        """Bound, greedy plans, rounding, descent, tighter bound and its plans, local search."""
        self._relax()
        if math.isinf(self._least().bound):
            return
        starts = self._greedy_starts()
        for relaxation in self._promising():
            starts += self._round(relaxation)
            for slack in _SLACKS:
                if not self.record.stopped:
                    starts += self._round(self.bounds.packable(relaxation, slack))
        self._improve(starts)
        if self.space.num_tables <= _WHOLE_TABLES:
            self._improve(self._tighten())
        if self.best_state is not None and not self.record.proven:
            search = self._local_search(self.best_state.assignment)
            patience = max(_PATIENCE, self.space.num_tables // 2)
            search.iterate(self.best_state, "local search", patience=patience)

    # -- bounds -----------------------------------------------------------------------------------

    def _relax(self) -> None:
        """Linear bound for each set of sharding types; a general one first, for it is quick."""
        self.relaxed = {None: self.bounds.relax(None)}
        self.record.raise_bound(self._least().bound, "linear bound")
        found: dict[TypeSet | None, Relaxation] = {}
        for types in type_sets(self.space, merged=self._merged):
            if types is None or self.record.stopped:
                return
            found[types] = self.bounds.relax(types)
        self.relaxed = found
        self.record.raise_bound(self._least().bound, "linear bound")

    def _tighten(self) -> list[Assignment]:
        """Whole options instead of shares where the bound is least, until that lifts it no more."""
        budget = self.record.evaluate.budget.time_limit_s
        limit_s = _WHOLE_S if budget is None else min(_WHOLE_S, _WHOLE_SHARE * budget)
        starts: list[Assignment] = []
        done: set[TypeSet | None] = set()
        while not self.record.stopped:
            least = self._least()
            if least.types in done or least.bound >= self.record.value:
                break
            done.add(least.types)
            whole = self.bounds.solve_whole(least.types, time_limit_s=limit_s, rounds=2)
            self.relaxed[least.types] = replace(least, bound=max(least.bound, whole.bound))
            self.record.raise_bound(self._least().bound, "whole options")
            if whole.shares is not None:
                starts += self._round(whole)
        return starts

    def _least(self) -> Relaxation:
        return min(self.relaxed.values(), key=lambda r: r.bound)

    def _promising(self) -> list[Relaxation]:
        limit = min(self._least().bound * _WORTH_ROUNDING, self.record.value)
        close = [r for r in self.relaxed.values() if r.bound <= limit and r.shares is not None]
        return sorted(close, key=lambda r: r.bound)

    # -- plans ------------------------------------------------------------------------------------

    def _greedy_starts(self) -> list[Assignment]:
        """Plans of the greedy planners; the best is a start."""
        tables = self.space.problem.workload.tables
        for cost in (size_lookup_cost, lookup_cost, size_cost):
            costs = np.array([cost(t) for t in tables])
            self.record.consider(list_greedy(self.space, costs), "greedy")
        for proposal in itertools.chain(split_walk(self.model), torchrec_walk(self.model)):
            if self.record.stopped:
                break
            self.record.consider(proposal, "greedy")
        return [] if self.record.best is None else [self.record.best]

    def _round(self, relaxation: Relaxation) -> list[Assignment]:
        """Plans from the options of a relaxation."""
        choice = relaxation.choice(self.space)
        self.model.follow(self.bounds.cuts.get(relaxation.types, []))
        peaks = self.model.mean[self.space.first[:-1] + choice].sum(axis=0)
        targets = self.model.targets(peaks)
        found = []
        for power in POWERS:
            if self.record.stopped:
                break
            pressure = Pressure(targets=targets, power=power)
            found.append(place_options(self.model, choice, pressure))
            self.record.consider(found[-1], "rounding")
        return found

    def _improve(self, starts: list[Assignment]) -> None:
        """Descend from the best starts, each with other options than the ones before."""
        value = self.record.evaluate.value
        tried: set[tuple[int, ...]] = set()
        for start in sorted(dict.fromkeys(starts), key=lambda a: (value(a), a.options)):
            if self.record.stopped or self.record.proven or len(tried) == _STARTS:
                return
            if start.options in tried:
                continue
            tried.add(start.options)
            state = self._local_search(start).improve(start, "descent")
            if self.best_state is None or value(state.assignment) < value(
                self.best_state.assignment
            ):
                self.best_state = state

    def _local_search(self, start: Assignment) -> LocalSearch:
        """A local search that looks at the paths of the start's sharding types."""
        types = frozenset(
            self.space.option(t, i).sharding_type for t, i in enumerate(start.options)
        )
        if self._merged and types not in self.relaxed:
            types |= {ShardingType.DATA_PARALLEL}
        known = self.relaxed.get(types) or self._least()
        self.model.follow(self.bounds.cuts.get(types, []))
        return LocalSearch(self.model, self.record, self._guide(known), self.rng)

    def _guide(self, relaxation: Relaxation) -> Guide:
        """Reduced costs, and which options can be part of a plan better than the incumbent."""
        count = len(self.space.options)
        prices = self.model.mean[:, : self.model.num_tangents].sum(axis=1)
        if relaxation.reduced_costs is not None:
            inside = np.array([_uses(relaxation.types, o) for o in self.space.options])
            spread = float(prices.max()) * self.space.num_tables
            prices = np.where(inside, relaxation.reduced_costs, spread + prices)
        allowed = np.zeros(count, dtype=bool)
        for known in self.relaxed.values():
            if known.reduced_costs is None:
                continue
            inside = np.array([_uses(known.types, o) for o in self.space.options])
            lifted = known.bound + np.maximum(known.reduced_costs, 0.0)
            allowed |= inside & (lifted <= self.record.value)
        return Guide(
            prices=prices, allowed=allowed if allowed.any() else np.ones(count, dtype=bool)
        )


def _uses(types: TypeSet | None, option: ShardingOption) -> bool:
    return types is None or option.sharding_type in types
