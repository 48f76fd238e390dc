"""Neighbours of a state, scored on the linear minorant: move, swap, move a block, re-cut a table.

A score is the change of the minorant plus a little of the change in pressure, so that a tie for the
maximum is broken rank by rank; moves that overfill a memory are left out, moves that relieve an
overfull one come first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from planner.search.construct.placer import EIGHTH, Placer, Pressure
from planner.search.improve.state import Change, Move, PlanState
from planner.space.evaluation import FITTING

_TIE_SHARE: Final = 1e-3
"""Weight of the mean pressure beside the objective."""
_RELIEF: Final = 1e3
"""Weight of overfull memory, as a share of a device, beside the objective, as one of itself."""
_TOLD_APART: Final = 256
"""Moves off one rank whose pressure is looked at, those of least value, and all that equal them."""
_MANY_RANKS: Final = 24
_NEAR_RANKS: Final = 24
"""Above ``_MANY_RANKS`` ranks, partners are sought on this many."""

Scored = tuple[float, Move]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ruler:
    """What loads are measured against while a state is improved; fixed so that scores compare."""

    targets: FloatArray
    scale: float

    @classmethod
    def at(cls, state: PlanState) -> Ruler:
        """Measure against the present maxima."""
        peaks = state.loads.max(axis=0)
        return cls(targets=state.model.targets(peaks), scale=float(state.model.value(peaks)))

    @property
    def pressure(self) -> Pressure:
        """What breaks ties."""
        return Pressure(targets=self.targets, power=EIGHTH)


class Neighbourhood:
    """Scored moves from one state; build a new one after each move."""

    def __init__(self, state: PlanState, ruler: Ruler) -> None:
        """Find the maxima and the room left."""
        self.state = state
        self.space = state.space
        self.model = state.model
        self.ruler = ruler
        self.tangents = state.model.num_tangents
        self.tie = _TIE_SHARE * ruler.scale / self.space.world_size
        pipeline = self.space.pipeline
        self.limits = pipeline.device_limits * FITTING
        self.host_room = pipeline.host_limits * FITTING - self._per_host(state.loads[:, -1])
        self.over = np.maximum(state.loads[:, -2] - self.limits, 0.0)
        self.now = state.value
        self.measure = ruler.pressure
        self.pressure = self.measure.of(state.loads)
        self.relief = _RELIEF * ruler.scale / max(float(np.abs(self.limits).max()), 1.0)
        self.usage = self.space.usage(state.assignment) if self.space.rules else None
        self.top_rank, self.top_load = _top_three(state.loads[:, : self.tangents])

    def critical_ranks(self, count: int) -> list[int]:
        """Overfull ranks, or those that set the maxima, the costliest phase first."""
        over = np.flatnonzero(self.over > 0)
        if len(over):
            return [int(r) for r in over[np.argsort(-self.over[over], kind="stable")]][:count]
        peaks = self.top_load[0]
        phases = self.model.slopes(peaks)[self.model.phase_index] * peaks
        binding = peaks >= self.model.phase_maxima(peaks)[self.model.phase_index] * (1 - 1e-9)
        order = np.argsort(-np.where(binding, phases, 0.0), kind="stable")
        ranks = dict.fromkeys(int(self.top_rank[0][p]) for p in order if phases[p] > 0)
        return list(ranks)[:count]

    # -- one or two shards ------------------------------------------------------------------------

    def relocations(self, rank: int, count: int) -> list[Scored]:
        """Best moves of a shard off ``rank``."""
        state = self.state
        mine = np.flatnonzero(state.shard_rank == rank)
        if not len(mine) or self.space.world_size < 2:
            return []
        rows = self.model.columns[state.shard_row[mine]]
        left = state.loads[rank] - self.model.at(rows, rank)
        there = state.loads[None] + self.model.at(rows[:, None], slice(None))
        peaks = np.maximum(self._rest(rank), left[:, None, : self.tangents])
        peaks = np.maximum(peaks, there[..., : self.tangents])
        score = self._score(rank, left[:, None], there, np.arange(self.space.world_size), peaks)
        allowed = self.space.may_use_rank[state.shard_table[mine]].copy()
        allowed[:, rank] = False
        allowed &= ~state.taken(mine)
        allowed &= self._host_has_room(rank, rows[:, -1])
        hosts = np.arange(self.space.world_size) // self.space.local_world_size
        stays = state.stays_on_host[mine]
        allowed &= ~stays[:, None] | (hosts == hosts[rank])[None]
        if self.usage is not None:
            tables, pieces = state.shard_table[mine], state.shard_piece[mine]
            allowed &= self.usage.relocations(tables, pieces, rank)
        score = np.where(allowed, score, np.inf)
        return [
            (float(score[i, r]), state.moved([(int(mine[i]), int(r))]))
            for i, r in _least(score, count)
        ]

    def swaps(self, rank: int, count: int, near: IntArray | None) -> list[Scored]:
        """Best exchanges of a shard on ``rank`` with one elsewhere."""
        state = self.state
        mine = np.flatnonzero(state.shard_rank == rank)
        elsewhere = state.shard_rank != rank
        if near is not None:
            chosen = np.zeros(self.space.world_size, dtype=bool)
            chosen[near] = True
            elsewhere &= chosen[state.shard_rank]
        others = np.flatnonzero(elsewhere)
        if not len(mine) or not len(others):
            return []
        there = state.shard_rank[others]
        rows, theirs = (self.model.columns[state.shard_row[s]] for s in (mine, others))
        change = theirs[None] - rows[:, None]
        left = state.loads[rank] + self.model.at(change, rank)
        right = state.loads[there][None] - self.model.at(change, there)
        peaks = np.maximum(self._rest(rank)[there][None], left[..., : self.tangents])
        peaks = np.maximum(peaks, right[..., : self.tangents])
        score = self._score(rank, left, right, there, peaks)
        allowed = self._may_swap(rank, mine, others, there)
        if (rows[:, -1] != 0).any() or (theirs[:, -1] != 0).any():
            hosts = there // self.space.local_world_size
            same = hosts == rank // self.space.local_world_size
            own_room = self.host_room[rank // self.space.local_world_size]
            fits = (change[..., -1] <= own_room) & (-change[..., -1] <= self.host_room[hosts])
            allowed &= same[None] | fits
        if self.usage is not None:
            own, other = ((state.shard_table[s], state.shard_piece[s]) for s in (mine, others))
            allowed &= self.usage.swaps(own, rank, other, there)
        score = np.where(allowed, score, np.inf)
        return [
            (
                float(score[i, j]),
                state.moved([(int(mine[i]), int(there[j])), (int(others[j]), rank)]),
            )
            for i, j in _least(score, count)
            if state.shard_table[mine[i]] != state.shard_table[others[j]]
        ]

    def near_ranks(self, rank: int, rng: np.random.Generator) -> IntArray | None:
        """Ranks to look at from ``rank``: the emptiest where it is fullest, and a few others."""
        world = self.space.world_size
        if world <= _MANY_RANKS:
            return None
        share = self.state.loads[:, : self.tangents] / self.ruler.targets[:-2]
        fullest = int(np.argmax(share[rank]))
        half = _NEAR_RANKS // 2
        low = np.argsort(share[:, fullest], kind="stable")[:half]
        idle = np.argsort(share.sum(axis=1), kind="stable")[: half // 2]
        return np.unique(np.concatenate([low, idle, rng.integers(0, world, half // 2)]))

    # -- blocks and options -----------------------------------------------------------------------

    def recut(self, table: int, option: int) -> Scored:
        """Another option for a table, placed greedily; its own option: placed anew."""
        return self.replace([table], [option])

    def replace(self, tables: list[int], options: list[int]) -> Scored:
        """New options for several tables, placed greedily."""
        loads = self.state.loads_without(tables)
        placer = Placer(self.model, self.measure, loads)
        move = tuple(
            Change(table=t, option=o, places=placer.add(t, o))
            for t, o in zip(tables, options, strict=True)
        )
        if not self.keeps_rules(move):
            return np.inf, move
        return self.whole_score(placer.loads), move

    def keeps_rules(self, move: Move) -> bool:
        """Whether the rules on groups, counts and moves hold after a move."""
        if self.usage is None:
            return True
        option = self.space.option
        return self.usage.allows([(c.table, option(c.table, c.option), c.places) for c in move])

    def whole_score(self, loads: FloatArray) -> float:
        """Score of a move from the loads it leads to."""
        value = float(self.model.value(loads.max(axis=0)))
        more = float(self.measure.of(loads).sum() - self.pressure.sum())
        over = np.maximum(loads[:, -2] - self.limits, 0.0)
        grown = float(over.sum() - self.over.sum())
        room = self._per_host(loads[:, -1]) - self.space.pipeline.host_limits * FITTING
        grown += float(np.maximum(room, 0.0).sum() - np.maximum(-self.host_room, 0.0).sum())
        if grown > 0:
            return np.inf
        return value - self.now + self.tie * more + self.relief * grown

    def block_moves(self, ranks: list[int]) -> list[Scored]:
        """Every column block on the hosts of ``ranks`` to every other host."""
        hosts = {r // self.space.local_world_size for r in ranks}
        found: list[Scored] = []
        state, local = self.state, self.space.local_world_size
        for t in state.host_tables:
            rows = self.model.option_rows(state.flat(t))
            for piece, host in enumerate(state.places[t]):
                for other in np.flatnonzero(self.space.may_use_host[t]):
                    if other == host or host not in hosts:
                        continue
                    loads = state.loads.copy()
                    for block, sign in ((host, -1.0), (int(other), 1.0)):
                        inside = slice(block * local, (block + 1) * local)
                        loads[inside] += sign * self.model.at(rows[piece], inside)
                    places = list(state.places[t])
                    places[piece] = int(other)
                    change = Change(table=t, option=state.options[t], places=tuple(places))
                    if self.keeps_rules((change,)):
                        found.append((self.whole_score(loads), (change,)))
        return found

    def recuts(
        self, tables: list[int], prices: FloatArray, allowed: BoolArray, most: int
    ) -> list[Scored]:
        """The ``most`` cheapest options (by flat ``prices``) of each table, its own placed anew.

        With them the next coarser and finer split of its own: prices know means over ranks, not
        how large a shard a rank can still take.
        """
        found: list[Scored] = []
        for t in tables:
            first, last = int(self.space.first[t]), int(self.space.first[t + 1])
            order = np.argsort(prices[first:last], kind="stable")
            cheap = [int(o) for o in order if allowed[first + o]][:most]
            for option in dict.fromkeys([*cheap, *self._next_splits(t)]):
                same = option == self.state.options[t]
                uniform = self.space.options[first + option].is_uniform
                if not (same and uniform):
                    found.append(self.recut(t, option))
        return found

    def _next_splits(self, table: int) -> list[int]:
        own = self.space.option(table, self.state.options[table])
        alike = [
            (len(o.column_widths), i)
            for i, o in enumerate(self.space.tables[table].options)
            if (o.sharding_type, o.kernel) == (own.sharding_type, own.kernel)
            and o.cache_load_factor_ratio == own.cache_load_factor_ratio
        ]
        alike.sort()
        at = [i for _, i in alike].index(self.state.options[table])
        return [i for _, i in alike[max(at - 1, 0) : at] + alike[at + 1 : at + 3]]

    # -- scoring ----------------------------------------------------------------------------------

    def _score(
        self, rank: int, left: FloatArray, right: FloatArray, ranks: IntArray, peaks: FloatArray
    ) -> FloatArray:
        """Score where ``rank`` gets loads ``left`` and ``ranks`` get ``right``.

        Only the best are told apart by their pressure; it can neither lift nor lower them far.
        """
        over = np.maximum(left[..., -2] - self.limits[rank], 0.0)
        over = over + np.maximum(right[..., -2] - self.limits[ranks], 0.0)
        grown = over - self.over[rank] - self.over[ranks]
        score = self.model.value(peaks) - self.now + self.relief * grown
        score = np.where(grown > 0, np.inf, score)
        flat = score.ravel()
        last = np.partition(flat, _TOLD_APART)[_TOLD_APART] if flat.size > _TOLD_APART else np.inf
        i, j = np.nonzero(np.isfinite(score) & (score <= last))
        more = self.measure.of(np.broadcast_to(left, right.shape)[i, j])
        more = more + self.measure.of(right[i, j])
        score[i, j] += self.tie * (more - self.pressure[rank] - self.pressure[ranks[j]])
        return np.asarray(score)

    def _rest(self, rank: int) -> FloatArray:
        """``[W, P]`` maxima over the ranks other than ``rank`` and the row's own."""
        own = np.arange(self.space.world_size)[:, None]
        first, second, third = self.top_load
        hit_first = (self.top_rank[0] == rank) | (self.top_rank[0] == own)
        hit_second = (self.top_rank[1] == rank) | (self.top_rank[1] == own)
        return np.asarray(np.where(~hit_first, first, np.where(~hit_second, second, third)))

    def _host_has_room(self, rank: int, host_bytes: FloatArray) -> BoolArray:
        hosts = np.arange(self.space.world_size) // self.space.local_world_size
        fits = host_bytes[:, None] <= self.host_room[hosts][None]
        return np.asarray(fits | (hosts == hosts[rank])[None] | (host_bytes <= 0)[:, None])

    def _may_swap(self, rank: int, mine: IntArray, others: IntArray, there: IntArray) -> BoolArray:
        state, local = self.state, self.space.local_world_size
        go = self.space.may_use_rank[state.shard_table[mine]][:, there]
        come = self.space.may_use_rank[state.shard_table[others], rank]
        same_host = (there // local) == (rank // local)
        go = go & (~state.stays_on_host[mine][:, None] | same_host[None])
        come = come & (~state.stays_on_host[others] | same_host)
        go = go & ~state.taken(mine)[:, there]
        if state.stays_apart[others].any():
            come = come & ~state.taken(others)[:, rank]
        return np.asarray(go & come[None])

    def _per_host(self, values: FloatArray) -> FloatArray:
        return np.asarray(values.reshape(self.space.num_hosts, -1).sum(axis=-1))


def _top_three(loads: FloatArray) -> tuple[IntArray, FloatArray]:
    """Ranks and loads of the three largest per column, ``[3, P]``; -1 and 0 if there are fewer."""
    count = min(3, len(loads))
    order = np.argsort(-loads, axis=0, kind="stable")[:count]
    values = np.take_along_axis(loads, order, axis=0)
    missing = 3 - count
    ranks = np.concatenate([order, np.full((missing, loads.shape[1]), -1)])
    return ranks, np.concatenate([values, np.zeros((missing, loads.shape[1]))])


def _least(score: FloatArray, count: int) -> list[tuple[int, int]]:
    """Indices of the least finite entries of a matrix, ties by position."""
    flat = score.ravel()
    if count < len(flat):
        cut = np.argpartition(flat, count - 1)[:count]
        cut = cut[np.lexsort((cut, flat[cut]))]
    else:
        cut = np.argsort(flat, kind="stable")
    return [
        (int(i) // score.shape[1], int(i) % score.shape[1]) for i in cut if np.isfinite(flat[i])
    ]
