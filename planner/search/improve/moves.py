"""Moves from a plan, scored on the minorant: move a shard, swap two, move a block, cut anew.

The score of a move is the change of the minorant, plus a little of the change in pressure. So of
two moves with the same maximum the better balanced one is taken. Moves that would make a memory
overfull are left out; moves that relieve an overfull memory come first.
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
"""Weight of the mean pressure over ranks in a score, as a share of the objective. It is so small
that only moves with nearly the same minorant are ordered by it."""
_RELIEF: Final = 1e3
"""Weight of overfull memory in a score: what filling a device by its whole memory too much counts,
in units of the objective. No gain in time is worth an overfull memory."""
_TOLD_APART: Final = 256
"""Moves from one rank whose pressure is computed: those of least minorant, and all that equal the
last of them. Computing the pressure takes longer than the minorant."""
_MANY_RANKS: Final = 24
_NEAR_RANKS: Final = 24
"""With more ranks than ``_MANY_RANKS``, swaps are looked for on about ``_NEAR_RANKS`` of them,
since the number of swaps grows with the number of shards elsewhere."""

Scored = tuple[float, Move]
"""A move with its score, in the unit of the objective; infinite if the move is not possible."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ruler:
    """What loads are measured against while a plan is improved.

    It stays the same during a descent, so that scores of different steps can be compared.

    Attributes:
        targets: ``[P + 2]`` what each load is measured against in the pressure.
        scale: the minorant of the plan that the descent began with.
    """

    targets: FloatArray
    scale: float

    @classmethod
    def at(cls, state: PlanState) -> Ruler:
        """Measure against the largest loads of a plan."""
        peaks = state.loads.max(axis=0)
        return cls(targets=state.model.targets(peaks), scale=float(state.model.value(peaks)))

    @property
    def pressure(self) -> Pressure:
        """The pressure that breaks ties."""
        return Pressure(targets=self.targets, power=EIGHTH)


class Neighbourhood:
    """The scored moves from one plan; after a move a new neighbourhood is needed.

    Args:
        state: the plan.
        ruler: what loads are measured against.
    """

    def __init__(self, state: PlanState, ruler: Ruler) -> None:
        """Compute the largest loads and the memory that is left."""
        self.state = state
        self.space = state.space
        self.model = state.model
        self.ruler = ruler
        self.tangents = state.model.num_tangents
        self.tie = _TIE_SHARE * ruler.scale / self.space.world_size
        pipeline = self.space.pipeline
        self.limits = pipeline.device_limits * FITTING
        self.host_limits = pipeline.host_limits * FITTING
        self.host_room = self.host_limits - self._per_host(state.loads[:, -1])
        self.over = np.maximum(state.loads[:, -2] - self.limits, 0.0)
        self.now = state.value
        self.measure = ruler.pressure
        self.pressure = self.measure.of(state.loads)
        self.relief = _RELIEF * ruler.scale / max(float(np.abs(self.limits).max()), 1.0)
        self.usage = self.space.usage(state.assignment) if self.space.rules else None
        self.top_rank, self.top_load = top_three(state.loads[:, : self.tangents])

    def critical_ranks(self, count: int) -> list[int]:
        """The ranks from which moves can help most, ``count`` at most.

        If any rank is overfull, the overfull ranks, the worst first. Otherwise the ranks that set
        the maxima of the phases, the phase first that counts most in the minorant.
        """
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
        """The ``count`` best moves of one shard from ``rank`` to another rank."""
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
            for i, r in least_entries(score, count)
        ]

    def swaps(self, rank: int, count: int, near: IntArray | None) -> list[Scored]:
        """The best swaps of a shard on ``rank`` with a shard on another rank.

        Args:
            rank: the rank.
            count: most swaps; fewer are returned if some are of two shards of one table.
            near: ranks to look at, as :meth:`near_ranks` gives them; None for all.
        """
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
            for i, j in least_entries(score, count)
            if state.shard_table[mine[i]] != state.shard_table[others[j]]
        ]

    def near_ranks(self, rank: int, rng: np.random.Generator) -> IntArray | None:
        """Ranks for swaps with ``rank``; None if there are so few ranks that all are looked at.

        Half of them have least of the load of which ``rank`` has most, a quarter have least load of
        all kinds together, and the others are drawn at random.
        """
        world = self.space.world_size
        if world <= _MANY_RANKS:
            return None
        share = self.state.loads[:, : self.tangents] / self.ruler.targets[:-2]
        fullest = int(np.argmax(share[rank]))
        half = _NEAR_RANKS // 2
        low = np.argsort(share[:, fullest], kind="stable")[:half]
        idle = np.argsort(share.sum(axis=1), kind="stable")[: half // 2]
        return np.unique(np.concatenate([low, idle, rng.integers(0, world, half // 2)]))

    # -- options ----------------------------------------------------------------------------------

    def recut(self, table: int, option: int) -> Scored:
        """The move that gives a table an option and places it greedily, also its present option."""
        return self.replace([table], [option])

    def replace(self, tables: list[int], options: list[int]) -> Scored:
        """The move that gives several tables new options, placed greedily one after the other."""
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
        """Whether a move keeps the rules that couple tables, and the limit on moves."""
        if self.usage is None:
            return True
        option = self.space.option
        return self.usage.allows([(c.table, option(c.table, c.option), c.places) for c in move])

    def whole_score(self, loads: FloatArray) -> float:
        """The score of a move from the loads of all ranks that it leads to, ``[W, P + 2]``."""
        value = float(self.model.value(loads.max(axis=0)))
        more = float(self.measure.of(loads).sum() - self.pressure.sum())
        over = np.maximum(loads[:, -2] - self.limits, 0.0)
        grown = float(over.sum() - self.over.sum())
        room = self._per_host(loads[:, -1]) - self.host_limits
        grown += float(np.maximum(room, 0.0).sum() - np.maximum(-self.host_room, 0.0).sum())
        if grown > 0:
            return np.inf
        return value - self.now + self.tie * more + self.relief * grown

    def recuts(
        self, tables: list[int], prices: FloatArray, allowed: BoolArray, most: int
    ) -> list[Scored]:
        """Moves that give one table another option, or place its own anew.

        Each table is tried with its cheapest options, and with the next coarser and finer splits of
        its own: prices follow means over ranks, and do not say how large a shard a rank can take.

        Args:
            tables: which tables.
            prices: ``[n]`` the price of each option.
            allowed: ``[n]`` True for options to choose from.
            most: most cheap options of each table.
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
        """Options like the table's own: the one with next fewer pieces, and two with more."""
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
        """Scores, ``[mine, n]``, of moves between one rank and others.

        The pressure is computed for the moves of least minorant alone; it is too small to bring
        others before them.

        Args:
            rank: the rank that moves come from.
            left: ``[mine, n or 1, P + 2]`` its loads after each move.
            right: ``[mine, n, P + 2]`` the loads of the other rank after each move.
            ranks: ``[n]`` the other rank of each move.
            peaks: ``[mine, n, P]`` the largest load of each tangent over all ranks after each move.
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
        """``[W, P]`` for each rank: the largest loads over all ranks but itself and ``rank``."""
        world = self.space.world_size
        rest = largest_elsewhere(self.top_rank, self.top_load, np.array([rank]), world)
        return np.asarray(rest[0])

    def _host_has_room(self, rank: int, host_bytes: FloatArray) -> BoolArray:
        """``[shards, W]`` whether each host has memory for a shard of ``rank``; its own has."""
        hosts = np.arange(self.space.world_size) // self.space.local_world_size
        fits = host_bytes[:, None] <= self.host_room[hosts][None]
        return np.asarray(fits | (hosts == hosts[rank])[None] | (host_bytes <= 0)[:, None])

    def _may_swap(self, rank: int, mine: IntArray, others: IntArray, there: IntArray) -> BoolArray:
        """``[mine, others]`` whether constraints and TorchRec allow each swap of two shards."""
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


def top_three(loads: FloatArray) -> tuple[IntArray, FloatArray]:
    """Places and values of the three largest loads of each tangent, ``[3, P]`` each.

    Places are ranks or hosts. With fewer than three, the missing ones are place -1 with load 0.

    Args:
        loads: ``[places, P]``.
    """
    count = min(3, len(loads))
    order = np.argsort(-loads, axis=0, kind="stable")[:count]
    values = np.take_along_axis(loads, order, axis=0)
    missing = 3 - count
    ranks = np.concatenate([order, np.full((missing, loads.shape[1]), -1)])
    return ranks, np.concatenate([values, np.zeros((missing, loads.shape[1]))])


def largest_elsewhere(
    top_place: IntArray, top_load: FloatArray, own: IntArray, count: int
) -> FloatArray:
    """The largest loads over all places but two: ``own[i]`` and each other one.

    Args:
        top_place: ``[3, P]`` the places of the three largest loads, see :func:`top_three`.
        top_load: ``[3, P]`` these loads.
        own: ``[n]`` one of the two places left out.
        count: number of places.

    Returns:
        ``[n, count, P]``.
    """
    other = np.arange(count)[None, :, None]
    mine = own[:, None, None]

    def left_out(k: int) -> BoolArray:
        return np.asarray((top_place[k] == mine) | (top_place[k] == other))

    first, second, third = top_load
    rest = np.where(~left_out(0), first, np.where(~left_out(1), second, third))
    return np.asarray(rest)


def least_entries(score: FloatArray, count: int) -> list[tuple[int, int]]:
    """Row and column of the ``count`` least finite entries of a matrix; ties by position."""
    flat = score.ravel()
    if count < len(flat):
        cut = np.argpartition(flat, count - 1)[:count]
        cut = cut[np.lexsort((cut, flat[cut]))]
    else:
        cut = np.argsort(flat, kind="stable")
    return [
        (int(i) // score.shape[1], int(i) % score.shape[1]) for i in cut if np.isfinite(flat[i])
    ]
