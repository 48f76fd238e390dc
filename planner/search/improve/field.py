"""Loads of a plan in the making, and the best way to put one table into them.

What is minimised is smooth: for each phase the p-norm over ranks in place of the maximum, so that
every rank near the maximum counts and not only the one that sets it. All options of a table are
priced together as one array, each with its pieces on the ranks (or hosts) where they add least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import Spread
from planner.rules.placement_rules import Usage
from planner.search.common.linear import LinearModel
from planner.search.improve.menu import Menu, Runs
from planner.space.evaluation import FITTING, Assignment

_RELIEF: Final = 1e3
"""Weight of overfull memory, as a share of a device, beside the objective, as one of itself."""
_MOST_DIGITS: Final = 150.0
"""Loads are cut off where their powers reach as many digits, so that sums stay finite."""
_LEAST_SUM: Final = 0.5
"""Prices are taken as if at least this much were there: the first shard of a phase has no slope."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Insertion:
    """A way to put a table in: its option, its places, and the smooth value it leads to."""

    value: float
    option: int
    places: tuple[int, ...]


class PartialPlan:
    """Loads of the tables placed so far.

    Attributes:
        loads: ``[P + 2, W]``; phases come first, then device and host bytes.
        options, places: of each table; option -1 where it is not placed.
    """

    def __init__(
        self, model: LinearModel, menu: Menu, scale: FloatArray, power: int, thrift: float = 0.0
    ) -> None:
        """Start empty.

        Args:
            model: tangents and cuts.
            menu: of the same space.
            scale: ``[K']`` about the size of each phase's maximum; only rounding depends on it.
            power: the p of the norm, a power of two.
            thrift: weight of the mean over ranks beside the norm. Balance alone is easiest with
                many small pieces, and those cost more in total.
        """
        self.model, self.menu, self.space = model, menu, model.space
        space = self.space
        largest = float(scale.max())
        self.scale = np.maximum(scale, 1e-9 * largest if largest > 0 else 1.0)[:, None]
        self.power, self.thrift = power, thrift
        self._most_share = 10.0 ** (_MOST_DIGITS / power)
        self._columns = np.ascontiguousarray(model.columns)
        slow = model.slowness
        self._slow = None if slow is None else np.ascontiguousarray(slow.T)
        self._tangents = model.num_tangents
        self._limits = space.pipeline.device_limits * FITTING
        self._host_limits = space.pipeline.host_limits * FITTING
        self._per_byte = _RELIEF / max(float(np.abs(self._limits).max()), 1.0)
        self._uses_host = bool((self._columns[:, -1] > 0).any())
        self.loads: FloatArray = np.zeros((self._tangents + 2, space.world_size))
        self.options = [-1] * space.num_tables
        self.places: list[tuple[int, ...]] = [()] * space.num_tables
        self.on_rank: list[set[int]] = [set() for _ in range(space.world_size)]
        self.usage = Usage(space.rules, [None] * space.num_tables) if space.rules else None
        self._refresh()

    # -- values -----------------------------------------------------------------------------------

    @property
    def smooth(self) -> float:
        """The smooth objective with a penalty for overfull memory."""
        return float(self._value(self.sums[:, None])[0]) + self._penalty

    @property
    def minorant(self) -> float:
        """The linear model's value; infinite where memory does not suffice."""
        if self.overflow > 0:
            return np.inf
        return float(self.model.value(self.loads.max(axis=1)))

    @property
    def overflow(self) -> float:
        """Bytes over the limits."""
        return float(self.over.sum() + np.maximum(-self.host_room, 0.0).sum())

    def heat(self) -> FloatArray:
        """``[W]`` how much of the smooth objective each rank is to blame for; adds up to one."""
        if self.over.any():
            return np.asarray(self.over / self.over.sum())
        count = len(self.scale)
        share = self._prices[:count] @ self.powers[:count]
        total = float(share.sum())
        return np.asarray(share / total if total > 0 else np.full(len(share), 1 / len(share)))

    @property
    def assignment(self) -> Assignment:
        """The plan, once every table is placed."""
        return Assignment(options=tuple(self.options), places=tuple(self.places))

    # -- changes ----------------------------------------------------------------------------------

    def put(self, table: int, option: int, places: tuple[int, ...]) -> None:
        """Place a table."""
        self._add(table, option, places, 1.0)
        self._note(table, option, places)
        for rank in self._ranks(table):
            self.on_rank[rank].add(table)
        self._refresh()

    def take(self, tables: list[int]) -> None:
        """Remove tables."""
        for table in tables:
            self._add(table, self.options[table], self.places[table], -1.0)
            for rank in self._ranks(table):
                self.on_rank[rank].discard(table)
            self._note(table, -1, ())
        np.maximum(self.loads, 0.0, out=self.loads)
        self._refresh()

    def restore(self, loads: FloatArray, old: dict[int, tuple[int, tuple[int, ...]]]) -> None:
        """Go back to earlier loads, with these tables as they were."""
        for table in old:
            if self.options[table] >= 0:
                for rank in self._ranks(table):
                    self.on_rank[rank].discard(table)
        for table, (option, places) in old.items():
            self._note(table, option, places)
            for rank in self._ranks(table):
                self.on_rank[rank].add(table)
        self.loads = loads
        self._refresh()

    def load(self, assignment: Assignment) -> None:
        """Become this assignment."""
        for ranks in self.on_rank:
            ranks.clear()
        self.options, self.places = list(assignment.options), list(assignment.places)
        self.usage = self.space.usage(assignment) if self.space.rules else None
        self.loads = np.ascontiguousarray(self.model.loads(self.space.work(assignment)).T)
        for table in range(self.space.num_tables):
            for rank in self._ranks(table):
                self.on_rank[rank].add(table)
        self._refresh()

    # -- insertion --------------------------------------------------------------------------------

    def best_insertion(
        self, table: int, kept: tuple[list[Runs], list[int]], blocked: BoolArray | None = None
    ) -> Insertion | None:
        """The best of the options ``kept`` (from :meth:`Menu.grouped`) of a table not placed.

        ``blocked`` (``[W]``) are ranks to leave alone if possible.
        """
        found: list[Insertion] = []
        (on_ranks, on_hosts), others = kept
        if len(on_ranks.options):
            found.append(self._on_ranks(table, on_ranks, blocked))
        if len(on_hosts.options):
            found.append(self._on_hosts(table, on_hosts))
        found += [self._single(table, option) for option in others]
        if self.usage is not None:
            options, usage = self.space.tables[table].options, self.usage
            found = [i for i in found if usage.allows([(table, options[i.option], i.places)])]
        return min(found, key=lambda i: i.value, default=None)

    def _on_ranks(self, table: int, run: Runs, blocked: BoolArray | None) -> Insertion:
        rise, change, cost = self._rises(self._columns[run.rows], table, blocked)
        ranks, taken = self._cheapest(rise, run.counts)
        at = np.arange(len(ranks))[:, None]
        sums = self.sums[:, None] + (change[:, at, ranks] * taken).sum(axis=2)
        more = (cost[at, ranks] * taken).sum(axis=1)
        split = np.flatnonzero(run.more)
        rest = ranks[:0]
        if len(split):
            rise, change, cost = self._rises(self._columns[run.more_rows[split]], table, blocked)
            at = np.arange(len(split))[:, None]
            rise[at, np.where(taken[split], ranks[split], ranks[split, :1])] = np.inf
            rest, also = self._cheapest(rise, run.more[split])
            sums[:, split] += (change[:, at, rest] * also).sum(axis=2)
            more[split] += np.where(also, cost[at, rest], 0.0).sum(axis=1)
        value = self._value(sums) + self._penalty + more
        value = np.where(run.counts + run.more > self._may(table).sum(), np.inf, value)
        best = int(np.argmin(value))
        places = [int(r) for r in ranks[best, : run.counts[best]]]
        if run.more[best]:
            row = int(np.searchsorted(split, best))
            places += [int(r) for r in rest[row, : run.more[best]]]
        option = int(run.options[best])
        return Insertion(value=float(value[best]), option=option, places=tuple(places))

    def _on_hosts(self, table: int, run: Runs) -> Insertion:
        """Blocks on whole hosts; a rank's share of a block depends on its place in the host."""
        space, local = self.space, self.space.local_world_size
        every = np.tile(self._columns[run.rows], (1, space.num_hosts, 1))
        rise, change, cost = self._rises(every, None, None)
        shape = (len(run.options), space.num_hosts, local)
        per_host = rise.reshape(shape).sum(axis=2)
        per_host[:, ~self._may(table, hosts=True)] = np.inf
        hosts, taken = self._cheapest(per_host, run.counts)
        at = np.arange(len(hosts))[:, None]
        sums = change.reshape(-1, *shape).sum(axis=3)[:, at, hosts]
        sums = self.sums[:, None] + (sums * taken).sum(axis=2)
        more = cost.reshape(shape).sum(axis=2)[at, hosts]
        value = self._value(sums) + self._penalty + (more * taken).sum(axis=1)
        value = np.where(run.counts > self._may(table, hosts=True).sum(), np.inf, value)
        best = int(np.argmin(value))
        places = tuple(int(h) for h in hosts[best, : run.counts[best]])
        return Insertion(value=float(value[best]), option=int(run.options[best]), places=places)

    def _single(self, table: int, option: int) -> Insertion:
        """Any option: its runs one after the other, on ranks (or hosts) not used before."""
        flat = int(self.space.first[table]) + option
        kind = self.space.options[flat]
        loads = self.loads.copy()
        places: list[int] = []
        if kind.is_uniform:
            loads += self.model.at(self._columns[self.space.rows[flat]], slice(None)).T
        elif kind.spread is Spread.HOSTS:
            places = self._place_blocks(table, flat, loads)
        else:
            places = self._place_runs(table, flat, loads)
        if not kind.is_uniform and len(places) < kind.num_pieces:
            return Insertion(value=np.inf, option=option, places=())
        return Insertion(value=self._value_of(loads), option=option, places=tuple(places))

    def _place_runs(self, table: int, flat: int, loads: FloatArray) -> list[int]:
        free = self._may(table).copy()
        local, near = self.space.local_world_size, self.menu.near(flat)
        places: list[int] = []
        for row, count in self.menu.runs(flat):
            rise, _, _ = self._rises(self._columns[row][None], None, None)
            cost = np.where(free, rise[0], np.inf)
            if near and not places:
                inside = np.sort(cost.reshape(-1, local), axis=1)
                host = int(np.argmin(inside[:, :count].sum(axis=1)))
                free &= np.arange(len(free)) // local == host
                cost = np.where(free, cost, np.inf)
            ranks = np.argsort(cost, kind="stable")[: min(count, int(free.sum()))]
            loads[:, ranks] += self.model.at(self._columns[row][None], ranks).T
            free[ranks] = False
            places += [int(r) for r in ranks]
        return places

    def _place_blocks(self, table: int, flat: int, loads: FloatArray) -> list[int]:
        space, local = self.space, self.space.local_world_size
        free = self._may(table, hosts=True).copy()
        places: list[int] = []
        for rows, count in self.menu.runs(flat):
            block = np.tile(self._columns[rows], (space.num_hosts, 1))
            rise, _, _ = self._rises(block[None], None, None)
            cost = np.where(free, rise[0].reshape(-1, local).sum(axis=1), np.inf)
            hosts = np.argsort(cost, kind="stable")[: min(count, int(free.sum()))]
            for host in hosts:
                ranks = slice(host * local, (host + 1) * local)
                loads[:, ranks] += self.model.at(self._columns[rows], ranks).T
            free[hosts] = False
            places += [int(h) for h in hosts]
        return places

    def _rises(
        self, rows: FloatArray, table: int | None, blocked: BoolArray | None
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """What a shard costs on each rank, from loads ``[n, P + 2]`` or ``[n, W, P + 2]``.

        Returns:
            Linear rise of the smooth value and penalty ``[n, W]``; change of the powers
            ``[2 K', n, W]``; penalty ``[n, W]``.
        """
        more = rows.T[:, :, None] if rows.ndim == 2 else rows.transpose(2, 0, 1)
        more = more if self._slow is None else more * self._slow[:, None]
        new = self.loads[:, None] + more
        phases = np.maximum.reduceat(new[: self._tangents], self.model.starts, axis=0)
        change = self._powers(phases / self.scale[..., None])
        change -= self.powers[:, None]
        over = np.maximum(new[-2] - self._limits, 0.0) - self.over
        if self._uses_host:
            room = np.repeat(self.host_room, self.space.local_world_size)
            over = over + np.maximum(more[-1] - np.maximum(room, 0.0), 0.0)
        cost = over * (self._per_byte * self._level)
        rise = (self._prices @ change.reshape(len(change), -1)).reshape(cost.shape) + cost
        if table is not None:
            rise[:, ~self._may(table)] = np.inf
        if blocked is not None:
            rise[:, blocked] += 1e3 * self._level
        return rise, change, cost

    # -- private ----------------------------------------------------------------------------------

    @staticmethod
    def _cheapest(rise: FloatArray, counts: IntArray) -> tuple[IntArray, BoolArray]:
        """The ``counts`` least entries of each row, in order, padded to the largest count.

        Returns:
            Columns ``[n, most]``, and which of them count.
        """
        most = min(int(counts.max()), rise.shape[1])
        if most == 1:
            return rise.argmin(axis=1)[:, None], np.ones((len(rise), 1), dtype=bool)
        columns = np.argsort(rise, axis=1, kind="stable")[:, :most]
        return columns, np.arange(most)[None] < counts[:, None]

    def _powers(self, share: FloatArray) -> FloatArray:
        """``[2 K', ...]`` p-th powers, then the shares themselves."""
        count = len(share)
        both = np.empty((2 * count, *share.shape[1:]))
        power = np.minimum(share, self._most_share, out=both[:count])
        both[count:] = share
        exponent = self.power
        while exponent > 1:
            np.square(power, out=power)
            exponent //= 2
        return both

    def _value(self, sums: FloatArray) -> FloatArray:
        """``[n]`` smooth objective from sums of powers ``[2 K', n]``."""
        count = len(self.scale)
        norms = np.maximum(sums[:count], 0.0) ** (1.0 / self.power) * self.scale
        value = self.model.paths(norms.T).max(axis=-1)
        return np.asarray(value + self._mean_prices @ sums[count:])

    def _value_of(self, loads: FloatArray) -> float:
        phases = np.maximum.reduceat(loads[: self._tangents], self.model.starts, axis=0)
        sums = self._powers(phases / self.scale).sum(axis=1)
        over = np.maximum(loads[-2] - self._limits, 0.0).sum()
        if self._uses_host:
            used = loads[-1].reshape(self.space.num_hosts, -1).sum(axis=1)
            over = over + np.maximum(used - self._host_limits, 0.0).sum()
        return float(self._value(sums[:, None])[0] + over * self._per_byte * self._level)

    def _refresh(self) -> None:
        """Everything that follows from the loads."""
        phases = np.maximum.reduceat(self.loads[: self._tangents], self.model.starts, axis=0)
        self.powers = self._powers(phases / self.scale)
        self.sums = self.powers.sum(axis=1)
        self.over = np.maximum(self.loads[-2] - self._limits, 0.0)
        used = self.loads[-1].reshape(self.space.num_hosts, -1).sum(axis=1)
        self.host_room = self._host_limits - used
        count = len(self.scale)
        norms = self.sums[:count] ** (1.0 / self.power) * self.scale[:, 0]
        slopes = self.model.slopes_of(norms) * self.scale[:, 0]
        self._level = float(self.scale.sum())
        self._penalty = self.overflow * self._per_byte * self._level
        sums = np.maximum(self.sums[:count], _LEAST_SUM)
        self._mean_prices = self.thrift * slopes / self.space.world_size
        steep = slopes * sums ** (1.0 / self.power - 1.0) / self.power
        self._prices = np.concatenate([steep, self._mean_prices])

    def _add(self, table: int, option: int, places: tuple[int, ...], sign: float) -> None:
        flat = int(self.space.first[table]) + option
        spread = self.space.options[flat].spread
        rows = self._columns[self.space.rows[flat]].reshape(-1, len(self.loads)) * sign
        if spread is Spread.UNIFORM:
            self.loads += self.model.at(rows, slice(None)).T
            return
        ranks = self.space.host_ranks(places) if spread is Spread.HOSTS else np.array(places)
        rows = self.model.at(rows, ranks)
        if len(set(places)) == len(places):
            self.loads[:, ranks] += rows.T
        else:
            np.add.at(self.loads.T, ranks, rows)

    def _note(self, table: int, option: int, places: tuple[int, ...]) -> None:
        self.options[table], self.places[table] = option, places
        if self.usage is not None:
            placed = None if option < 0 else (self.space.option(table, option), places)
            self.usage.put(table, placed)

    def _may(self, table: int, *, hosts: bool = False) -> BoolArray:
        """Ranks (hosts) that constraints, and the tables placed so far, leave to a table."""
        allowed: BoolArray = (self.space.may_use_host if hosts else self.space.may_use_rank)[table]
        if self.usage is not None:
            allowed = allowed & (self.usage.hosts_for if hosts else self.usage.ranks_for)(table)
        return allowed

    def _ranks(self, table: int) -> list[int]:
        """Ranks that a table's free shards or blocks lie on."""
        flat = int(self.space.first[table]) + self.options[table]
        spread = self.space.options[flat].spread
        if spread is Spread.UNIFORM:
            return []
        if spread is Spread.HOSTS:
            return [int(r) for r in self.space.host_ranks(self.places[table])]
        return list(self.places[table])
