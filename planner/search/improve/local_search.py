"""Local search: descents on the minorant, then on the objective itself, and restarts by kicks.

The minorant (see ``linear.py``) of a move is computed so fast that all moves from a few ranks are
compared. The objective prices a short list of the best ones.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.sharding import ShardingType
from planner.search.base import Record
from planner.search.common.linear import LinearModel
from planner.search.improve.block_moves import block_moves
from planner.search.improve.guide import Guide
from planner.search.improve.moves import Neighbourhood, Ruler, Scored
from planner.search.improve.state import Move, PlanState
from planner.space.effort import neighbours_s
from planner.space.evaluation import Assignment

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
_WORSE: Final = 1e-3
"""Share of the objective by which a kick may end above the plan it left and still be followed.
Plans up to twice as far above the best one are polished."""
_RETURN: Final = 20
"""Kicks without a better plan after which kicks begin with the best plan again."""


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

    def improve(self, start: Assignment, phase: str) -> PlanState:
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
        return state

    def iterate(self, state: PlanState, phase: str, *, patience: int) -> PlanState:
        """Kick, descend and polish, again and again.

        Args:
            state: the plan to begin with.
            phase: the part of the search, for the history of the record.
            patience: kicks in a row without a better plan after which this ends.

        Returns:
            The best plan that was met.
        """
        best = current = state
        best_value = current_value = self._value(state)
        idle = 0
        while idle < patience and not self.record.stopped and not self.record.proven:
            trial = current.copy()
            self._kick(trial)
            self.descend(trial)
            value = self._value(trial)
            if value < best_value * (1 + 2 * _WORSE):
                self.polish(trial)
                value = self._value(trial)
            idle += 1
            if value < best_value * (1 - _GAIN):
                best, best_value, idle = trial, value, 0
                self.record.consider(trial.assignment, phase)
            if value < current_value * (1 + _WORSE):
                current, current_value = trial, value
            elif idle % _RETURN == _RETURN - 1:
                current, current_value = best, best_value
        return best

    # -- descent on the minorant ------------------------------------------------------------------

    def descend(self, state: PlanState) -> None:
        """Steepest descent on the minorant; the pressure breaks ties.

        Each step makes the best move of a shard or a swap; if none helps, of a block of columns; if
        none helps, another option of a table.
        """
        ruler = Ruler.at(state)
        threshold = -_DESCENT_GAIN * ruler.scale
        while not self.record.stopped:
            self._meter.spend(_DESCENT_LOOKS * self._look_s)
            around = Neighbourhood(state, ruler)
            ranks = around.critical_ranks(_CRITICAL_RANKS)
            best = self._best_shard_move(around, ranks)
            if best is None or best[0] > threshold:
                best = _least(block_moves(around, ranks, 1))
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
        first = True
        while not self.record.stopped:
            moves = self._shortlist(state, ruler)
            if first:
                around = Neighbourhood(state, ruler)
                moves += [s for s in self._without_a_type(around) if np.isfinite(s[0])]
                first = False
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
        found += block_moves(around, ranks, _SHORTLIST // 2)
        found += self._recuts(around, ranks, _POLISH_TRIES)
        return sorted((s for s in found if np.isfinite(s[0])), key=lambda s: s[0])[:_SHORTLIST]

    def _without_a_type(self, around: Neighbourhood) -> list[Scored]:
        """For each sharding type in use: the move that gives all its tables other types.

        Each table gets its cheapest option of another type. Every type in use has collectives of
        its own, and the minorant does not see that their fixed costs go away.
        """
        state, space = around.state, self.space
        users: dict[ShardingType, list[int]] = {}
        for t in range(space.num_tables):
            users.setdefault(space.options[state.flat(t)].sharding_type, []).append(t)
        found = []
        for sharding_type in sorted(users):
            options = [self._cheapest(t, without=sharding_type) for t in users[sharding_type]]
            if len(users) > 1 and all(o is not None for o in options):
                chosen = [o for o in options if o is not None]
                found.append(around.replace(users[sharding_type], chosen))
        return found

    def _cheapest(self, table: int, *, without: ShardingType) -> int | None:
        """Index of the table's option of least reduced cost that has another type; None if none."""
        first, last = int(self.space.first[table]), int(self.space.first[table + 1])
        left = [i for i in range(first, last) if self.space.options[i].sharding_type is not without]
        if not left:
            return None
        return min(left, key=lambda i: (self.guide.reduced_costs[i], i)) - first

    # -- kicks ------------------------------------------------------------------------------------

    def _kick(self, state: PlanState) -> None:
        """Make one to four random changes, mostly on the critical ranks."""
        around = Neighbourhood(state, Ruler.at(state))
        ranks = around.critical_ranks(_CRITICAL_RANKS)
        for _ in range(int(self.rng.integers(1, 5))):
            if self.rng.random() < 0.5:
                self._kick_option(state, ranks)
            else:
                self._kick_swap(state, ranks)

    def _kick_option(self, state: PlanState, ranks: list[int]) -> None:
        """Give a random table a random allowed option, more likely a cheap one."""
        tables = [t for r in ranks for t in state.on_rank(r)]
        table = int(self.rng.integers(self.space.num_tables))
        if tables and self.rng.random() < 0.6:
            table = int(self.rng.choice(tables))
        first, last = int(self.space.first[table]), int(self.space.first[table + 1])
        allowed = np.flatnonzero(self.guide.allowed[first:last])
        if not len(allowed):
            return
        prices = self.guide.reduced_costs[first:last][allowed]
        rank_of = np.argsort(np.argsort(prices, kind="stable"), kind="stable")
        option = int(self.rng.choice(allowed, p=_geometric(rank_of)))
        score, move = Neighbourhood(state, Ruler.at(state)).recut(table, option)
        if np.isfinite(score):
            state.apply(move)

    def _kick_swap(self, state: PlanState, ranks: list[int]) -> None:
        """Swap two random shards of different tables, if constraints, rules and memory allow it."""
        if not len(state.shard_rank):
            return
        critical = np.flatnonzero(np.isin(state.shard_rank, ranks))
        pool = critical if len(critical) and self.rng.random() < 0.6 else None
        a = int(self.rng.choice(pool)) if pool is not None else self._any_shard(state)
        b = self._any_shard(state)
        if state.shard_table[a] == state.shard_table[b]:
            return
        move = state.moved([(a, int(state.shard_rank[b])), (b, int(state.shard_rank[a]))])
        if self._permitted(state, a, b) and self._fits(state, move):
            state.apply(move)

    def _any_shard(self, state: PlanState) -> int:
        return int(self.rng.integers(len(state.shard_rank)))

    def _permitted(self, state: PlanState, a: int, b: int) -> bool:
        """Whether each of two shards may be on the rank of the other."""
        local = self.space.local_world_size
        rank_a, rank_b = int(state.shard_rank[a]), int(state.shard_rank[b])
        allowed = self.space.may_use_rank
        free = allowed[state.shard_table[a], rank_b] and allowed[state.shard_table[b], rank_a]
        taken = state.taken(np.array([a, b]))
        free = free and not taken[0, rank_b] and not taken[1, rank_a]
        held = state.stays_on_host[a] or state.stays_on_host[b]
        return bool(free and (not held or rank_a // local == rank_b // local))

    def _fits(self, state: PlanState, move: Move) -> bool:
        """Whether a move keeps the rules, and overfills memory no more than the plan does."""
        if self.space.rules and not Neighbourhood(state, Ruler.at(state)).keeps_rules(move):
            return False
        work = state.work + state.work_change(move)
        return float(self.space.overflow_ratio(work)) <= float(
            self.space.overflow_ratio(state.work)
        )

    def _value(self, state: PlanState) -> float:
        return float(self.record.evaluate.values(state.work[None])[0])


def _least(found: list[Scored]) -> Scored | None:
    return min(found, key=lambda s: s[0], default=None)


def _geometric(rank_of: np.ndarray[tuple[int], np.dtype[np.int64]]) -> FloatArray:
    """Probabilities that fall by the factor 0.6 from each position in an order to the next."""
    weight = 0.6 ** rank_of.astype(float)
    return np.asarray(weight / weight.sum())
