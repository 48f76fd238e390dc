"""A plan that is changed a few tables at a time, and its moves, scored on the minorant.

The score of a move is the change of the minorant, plus a little of the change in pressure. So of
two moves with the same maximum the better balanced one is taken. Moves that would make a memory
overfull are left out; moves that relieve an overfull memory come first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import Spread
from planner.search.common.linear import LinearModel
from planner.search.construct.placer import EIGHTH, Placer, Pressure
from planner.space.evaluation import FITTING, Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The new option of a table (its index), and the ranks (or hosts) of its pieces."""

    table: int
    option: int
    places: tuple[int, ...]


Move = tuple[Change, ...]
"""The changes of a move; no table is in it twice."""


class PlanState:
    """An assignment that can be changed in place.

    Args:
        model: tangents; the loads of a state are only right as long as the model has the same ones.
        assignment: the plan to begin with.

    Attributes:
        options: index of the option of each table.
        places: ranks (or hosts) of the pieces of each table.
        work: ``[W, F]`` work of each rank.
        loads: ``[W, P + 2]`` loads of each rank.
        shard_table: ``[S]`` the table of each of the S shards that have a rank of their own; not of
            uniform options, nor of pieces on hosts.
        shard_piece: ``[S]`` which piece of the table it is.
        shard_rank: ``[S]`` its rank.
        shard_row: ``[S]`` its row in ``space.pool``.
        stays_on_host: ``[S]`` True if all pieces of its table have to be on one host.
        stays_apart: ``[S]`` True if no two pieces of its table may share a rank.
    """

    def __init__(self, model: LinearModel, assignment: Assignment) -> None:
        """Compute work and loads of the assignment."""
        self.model = model
        self.space = model.space
        self.options = list(assignment.options)
        self.places = list(assignment.places)
        self.work: FloatArray = self.space.work(assignment)
        self.loads: FloatArray = model.loads(self.work)
        self._list_shards()

    @property
    def assignment(self) -> Assignment:
        """The plan as a value that does not change."""
        return Assignment(options=tuple(self.options), places=tuple(self.places))

    @property
    def value(self) -> float:
        """The minorant of the objective."""
        return float(self.model.value(self.loads.max(axis=0)))

    def flat(self, table: int) -> int:
        """Position of the table's option among the options of all tables."""
        return int(self.space.first[table]) + self.options[table]

    def work_change(self, move: Move) -> FloatArray:
        """``[W, F]`` the work that a move adds to each rank."""
        change = np.zeros_like(self.work)
        for part in move:
            now = self.options[part.table], self.places[part.table]
            ranks, rows = self.space.placed_rows(part.table, *now)
            np.subtract.at(change, ranks, rows)
            ranks, rows = self.space.placed_rows(part.table, part.option, part.places)
            np.add.at(change, ranks, rows)
        return change

    def loads_without(self, tables: list[int]) -> FloatArray:
        """``[W, P + 2]`` the loads of each rank without these tables."""
        loads = self.loads.copy()
        for t in tables:
            flat = self.flat(t)
            rows = self.model.option_rows(flat).reshape(-1, loads.shape[1])
            ranks = self.table_ranks(t)
            np.subtract.at(loads, ranks, self.model.at(rows, ranks))
        return np.maximum(loads, 0.0)

    def table_ranks(self, table: int) -> IntArray:
        """The rank of each shard of a table, in the order of its rows of work."""
        spread = self.space.options[self.flat(table)].spread
        if spread is Spread.UNIFORM:
            return np.arange(self.space.world_size)
        if spread is Spread.HOSTS:
            return self.space.host_ranks(self.places[table])
        return np.array(self.places[table], dtype=np.int64)

    def apply(self, move: Move) -> None:
        """Make a move: change options, places, work, loads and shards."""
        change = self.work_change(move)
        self.work = self.work + change
        self.loads = self.loads + self.model.loads(change)
        relisted = False
        for part in move:
            relisted = relisted or self.options[part.table] != part.option
            self.options[part.table] = part.option
            self.places[part.table] = part.places
        if relisted:
            self._list_shards()
        else:
            for part in move:
                if self.space.options[self.flat(part.table)].spread is Spread.RANKS:
                    start = self._shard_first[part.table]
                    self.shard_rank[start : start + len(part.places)] = part.places

    def moved(self, shards: list[tuple[int, int]]) -> Move:
        """The move that puts shards on ranks, given as pairs of shard and rank."""
        places: dict[int, list[int]] = {}
        for shard, rank in shards:
            table = int(self.shard_table[shard])
            new = places.setdefault(table, list(self.places[table]))
            new[int(self.shard_piece[shard])] = int(rank)
        return tuple(
            Change(table=t, option=self.options[t], places=tuple(new)) for t, new in places.items()
        )

    def taken(self, shards: IntArray) -> BoolArray:
        """``[shards, W]`` True for ranks where a shard may not go.

        They have another piece of the shard's table, of a width that may differ, and TorchRec
        cannot run two of them on one rank.
        """
        ranks = np.zeros((len(shards), self.space.world_size), dtype=bool)
        for i in np.flatnonzero(self.stays_apart[shards]):
            ranks[i, list(self.places[int(self.shard_table[shards[i]])])] = True
        return ranks

    def on_rank(self, rank: int) -> list[int]:
        """The tables with a piece on a rank, or on its host; uniform options do not count."""
        tables = set(self.shard_table[self.shard_rank == rank].tolist())
        host = rank // self.space.local_world_size
        tables |= {t for t in self._host_tables if host in self.places[t]}
        return sorted(tables)

    def _list_shards(self) -> None:
        """List the shards with ranks of their own, as after every change of an option."""
        tables: list[int] = []
        pieces: list[int] = []
        rows: list[IntArray] = []
        ranks: list[int] = []
        self._shard_first: dict[int, int] = {}
        self._host_tables: list[int] = []
        for t in range(self.space.num_tables):
            flat = self.flat(t)
            spread = self.space.options[flat].spread
            if spread is Spread.HOSTS:
                self._host_tables.append(t)
            if spread is not Spread.RANKS:
                continue
            self._shard_first[t] = len(tables)
            count = len(self.places[t])
            tables.extend([t] * count)
            pieces.extend(range(count))
            rows.append(self.space.rows[flat])
            ranks.extend(self.places[t])
        self.shard_table: IntArray = np.array(tables, dtype=np.int64)
        self.shard_piece: IntArray = np.array(pieces, dtype=np.int64)
        self.shard_rank: IntArray = np.array(ranks, dtype=np.int64)
        self.shard_row: IntArray = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
        kept = [self.space.options[self.flat(t)].keeps_pieces_on_host for t in tables]
        self.stays_on_host = np.array(kept, dtype=bool)
        unequal = [self.space.options[self.flat(t)].keeps_pieces_apart for t in tables]
        self.stays_apart = np.array(unequal, dtype=bool)


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

_LOOKED_AT: Final = 64
"""Moves of least score that are held against rules that couple tables. More take longer to check,
and are worth less."""

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

    def critical_ranks(self, count: int) -> list[int]:
        """The ranks from which moves can help most, ``count`` at most.

        If any rank is overfull, the overfull ranks, the worst first. Otherwise the ranks that set
        the maxima of the phases, the phase first that counts most in the minorant.
        """
        over = np.flatnonzero(self.over > 0)
        if len(over):
            return [int(r) for r in over[np.argsort(-self.over[over], kind="stable")]][:count]
        loads = self.state.loads[:, : self.tangents]
        peaks, fullest = loads.max(axis=0), loads.argmax(axis=0)
        phases = self.model.slopes(peaks)[self.model.phase_index] * peaks
        binding = peaks >= self.model.phase_maxima(peaks)[self.model.phase_index] * (1 - 1e-9)
        order = np.argsort(-np.where(binding, phases, 0.0), kind="stable")
        ranks = dict.fromkeys(int(fullest[p]) for p in order if phases[p] > 0)
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
        return self.least(
            np.where(allowed, score, np.inf),
            count,
            lambda i, r: state.moved([(int(mine[i]), r)]),
        )

    def swaps(self, rank: int, count: int, near: IntArray | None) -> list[Scored]:
        """The best swaps of a shard on ``rank`` with a shard on another rank.

        Args:
            rank: the rank.
            count: most swaps.
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
        same_table = state.shard_table[mine][:, None] == state.shard_table[others][None]
        return self.least(
            np.where(allowed & ~same_table, score, np.inf),
            count,
            lambda i, j: state.moved([(int(mine[i]), int(there[j])), (int(others[j]), rank)]),
        )

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
        loads = self.state.loads_without([table])
        placer = Placer(self.model, self.measure, loads)
        move = (Change(table=table, option=option, places=placer.add(table, option)),)
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

    def least(
        self, score: FloatArray, count: int, move: Callable[[int, int], Move]
    ) -> list[Scored]:
        """The ``count`` moves of least score that keep the rules that couple tables.

        Args:
            score: ``[n, m]`` of each move; infinite for those that are not possible.
            count: most moves. Under rules only so many of the best moves are looked at.
            move: makes the move of a row and a column.
        """
        most = count if self.usage is None else max(count, _LOOKED_AT)
        found = ((float(score[i, j]), move(i, j)) for i, j in least_entries(score, most))
        return list(itertools.islice((f for f in found if self.keeps_rules(f[1])), count))

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
        loads = self.state.loads[:, : self.tangents].copy()
        loads[rank] = 0.0
        fullest, most = loads.argmax(axis=0), loads.max(axis=0)
        loads[fullest, np.arange(self.tangents)] = 0.0
        is_fullest = np.arange(len(loads))[:, None] == fullest
        return np.asarray(np.where(is_fullest, loads.max(axis=0), most))

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
