"""Local search: descents on the minorant, then on the objective itself.

The minorant (see ``linear.py``) of a move is computed so fast that all moves from a few ranks are
compared. The objective prices a short list of the best ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from planner.search.base import Record
from planner.search.bounds.relaxation import Relaxation, uses
from planner.search.common.linear import LinearModel
from planner.search.improve.moves import Neighbourhood, PlanState, Ruler, Scored
from planner.space.effort import neighbours_s
from planner.space.evaluation import Assignment


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Guide:
    """What the bound says about each option.

    Attributes:
        reduced_costs: ``[n]`` by how much the bound rises if a plan has the option; where that is
            not known, the sum of the option's mean loads, which also says what is cheap.
        allowed: ``[n]`` True for options that can be part of a plan better than the best one.
    """

    reduced_costs: FloatArray
    allowed: BoolArray


def guide_of(
    model: LinearModel, relaxation: Relaxation, known: Iterable[Relaxation], incumbent: float
) -> Guide:
    """Read reduced costs and allowed options off the solutions of the bound.

    Args:
        model: tangents and options.
        relaxation: the solution for the sharding types in question. Options of other types cost
            more than all of these.
        known: the solutions of all sets of sharding types. An option is allowed if, in
            any of them, the bound plus its reduced cost is not above the incumbent.
        incumbent: the objective of the best plan.
    """
    space = model.space
    prices = model.mean[:, : model.num_tangents].sum(axis=1)
    if relaxation.reduced_costs is not None:
        spread = float(prices.max()) * space.num_tables
        inside = uses(relaxation.types, space)
        prices = np.where(inside, relaxation.reduced_costs, spread + prices)
    allowed = np.zeros(len(space.options), dtype=bool)
    for other in known:
        if other.reduced_costs is None:
            continue
        lifted = other.bound + np.maximum(other.reduced_costs, 0.0)
        allowed |= uses(other.types, space) & (lifted <= incumbent)
    return Guide(reduced_costs=prices, allowed=allowed if allowed.any() else np.ones_like(allowed))


_CRITICAL_RANKS: Final = 3
"""Ranks from which moves are looked at in each step: those that set the longest phases."""
_DESCENT_TRIES: Final = (8, 4)
_POLISH_TRIES: Final = (12, 6)
"""Tables whose options are tried in a step, and options of each. Polishing ends a descent and is
worth more of them."""
_SHORTLIST: Final = 48
"""Most moves that the objective prices in a step, those of least minorant. They are priced
together, so that a longer list costs little per move, but most of it is useless."""
_DESCENT_LOOKS: Final = 2
_POLISH_LOOKS: Final = 8
"""Times that all moves from some ranks are counted as looked at in a step: an estimate of its
work."""
_GAIN: Final = 1e-6
"""Share of the objective by which a plan has to be better to count as better, so that a descent
does not go on for gains that nobody sees."""
_DESCENT_GAIN: Final = 1e-8
"""Share of the minorant by which the score of a move has to fall. It is smaller than the other one,
since a move that only lowers the pressure can open the way for a real gain."""


class LocalSearch:
    """Improves assignments of one search space.

    Args:
        model: tangents and cuts.
        record: is offered the plans that are found.
        guide: says which options are cheap, and which can be part of a better plan.
        rng: of all random choices.
    """

    def __init__(
        self, model: LinearModel, record: Record, guide: Guide, rng: np.random.Generator
    ) -> None:
        """Keep the parts; nothing is searched yet."""
        self.model = model
        self.space = model.space
        self.record = record
        self.guide = guide
        self.rng = rng
        self._meter = record.evaluate.meter
        self._look_s = neighbours_s(self.space.world_size * (model.num_tangents + 2))

    def improve(self, start: Assignment, phase: str) -> None:
        """Descend from a plan on the minorant, then on the objective.

        Args:
            start: the plan.
            phase: the part of the search, for the history of the record.
        """
        state = PlanState(self.model, start)
        self.record.consider(start, phase)
        self.descend(state)
        self.polish(state)
        self.record.consider(state.assignment, phase)

    # -- descent on the minorant ------------------------------------------------------------------

    def descend(self, state: PlanState) -> None:
        """Steepest descent on the minorant; the pressure breaks ties.

        Each step makes the best move of a shard or a swap; if none helps, another option of a
        table.
        """
        ruler = Ruler.at(state)
        threshold = -_DESCENT_GAIN * ruler.scale
        while not self.record.stopped:
            self._meter.spend(_DESCENT_LOOKS * self._look_s)
            around = Neighbourhood(state, ruler)
            ranks = around.critical_ranks(_CRITICAL_RANKS)
            best = self._best_shard_move(around, ranks)
            if best is None or best[0] > threshold:
                best = _least(self._recuts(around, ranks, _DESCENT_TRIES))
            if best is None or best[0] > threshold:
                return
            state.apply(best[1])

    def _best_shard_move(self, around: Neighbourhood, ranks: list[int]) -> Scored | None:
        """The best move of one shard off one of these ranks, or swap of one with another shard."""
        found: list[Scored] = []
        for rank in ranks:
            found += around.relocations(rank, 1)
            found += around.swaps(rank, 1, around.near_ranks(rank, self.rng))
        return _least(found)

    def _recuts(
        self, around: Neighbourhood, ranks: list[int], tries: tuple[int, int]
    ) -> list[Scored]:
        """Other options for some tables that are on these ranks, and for a few others.

        Args:
            around: the plan.
            ranks: the ranks.
            tries: most tables on these ranks, and most options of each table.
        """
        most, options = tries
        tables = list(dict.fromkeys(t for r in ranks for t in around.state.on_rank(r)))
        if len(tables) > most:
            tables = [int(t) for t in self.rng.permutation(tables)[:most]]
        others = self.rng.integers(0, self.space.num_tables, most // 2)
        tables = list(dict.fromkeys([*tables, *(int(t) for t in others)]))
        return around.recuts(tables, self.guide.reduced_costs, self.guide.allowed, options)

    # -- polishing on the objective ---------------------------------------------------------------

    def polish(self, state: PlanState) -> None:
        """Descent on the objective itself, over a short list of moves in each step."""
        value = self._value(state)
        if not np.isfinite(value):
            return
        ruler = Ruler.at(state)
        while not self.record.stopped:
            moves = self._shortlist(state, ruler)
            if not moves:
                return
            works = state.work + np.stack([state.work_change(m) for _, m in moves])
            values = self.record.evaluate.values(works)
            at = int(np.argmin(values))
            if values[at] > value * (1 - _GAIN):
                return
            state.apply(moves[at][1])
            value = float(values[at])

    def _shortlist(self, state: PlanState, ruler: Ruler) -> list[Scored]:
        """The moves of all kinds with the least scores."""
        self._meter.spend(_POLISH_LOOKS * self._look_s)
        around = Neighbourhood(state, ruler)
        ranks = around.critical_ranks(_CRITICAL_RANKS)
        found: list[Scored] = []
        for rank in ranks:
            found += around.relocations(rank, _SHORTLIST // 6)
            found += around.swaps(rank, _SHORTLIST // 6, around.near_ranks(rank, self.rng))
        found += self._recuts(around, ranks, _POLISH_TRIES)
        return sorted((s for s in found if np.isfinite(s[0])), key=lambda s: s[0])[:_SHORTLIST]

    def _value(self, state: PlanState) -> float:
        return float(self.record.evaluate.values(state.work[None])[0])


def _least(found: list[Scored]) -> Scored | None:
    return min(found, key=lambda s: s[0], default=None)
