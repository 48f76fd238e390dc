"""The best way to put one table into a plan in the making.

All options of a table are priced together as one array, each with its pieces on the ranks (or
hosts) where they add least to the smooth objective.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import Spread
from planner.search.common.linear import LinearModel
from planner.search.improve.menu import Menu, Runs
from planner.search.improve.partial_loads import PartialLoads


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Insertion:
    """A way to put a table into a plan.

    Attributes:
        value: the smooth objective with the table; infinite if it cannot be put there.
        option: index of the table's option.
        places: the ranks (or hosts) of its pieces.
    """

    value: float
    option: int
    places: tuple[int, ...]


class PartialPlan(PartialLoads):
    """A plan in the making that finds the best way to put in one more table.

    Args:
        model: tangents and cuts.
        menu: of the same space.
        scale, power, thrift: see :class:`PartialLoads`.
    """

    def __init__(
        self, model: LinearModel, menu: Menu, scale: FloatArray, power: int, thrift: float = 0.0
    ) -> None:
        """Begin without a table."""
        super().__init__(model, scale, power, thrift)
        self.menu = menu

    def best_insertion(
        self, table: int, kept: tuple[list[Runs], list[int]], blocked: BoolArray | None = None
    ) -> Insertion | None:
        """The best way to put in a table that is not placed.

        Args:
            table: which table.
            kept: its options to choose from, as :meth:`Menu.grouped` sorts them.
            blocked: ``[W]`` True for ranks to leave alone if possible; None for none.

        Returns:
            None if the rules that couple tables allow none of them.
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
        """The best of n options with pieces on ranks, of one or two sizes, all priced at once."""
        # The pieces of the first size go where they add least: "ranks" and "taken" are [n, most].
        rise, change, cost = self._rises(self.columns[run.rows], table, blocked)
        ranks, taken = self._cheapest(rise, run.counts)
        at = np.arange(len(ranks))[:, None]
        sums = self.sums[:, None] + (change[:, at, ranks] * taken).sum(axis=2)
        more = (cost[at, ranks] * taken).sum(axis=1)
        # Options with a second size of pieces ("split" of them) put these on other ranks.
        split = np.flatnonzero(run.more)
        rest = ranks[:0]
        if len(split):
            rise, change, cost = self._rises(self.columns[run.more_rows[split]], table, blocked)
            at = np.arange(len(split))[:, None]
            rise[at, np.where(taken[split], ranks[split], ranks[split, :1])] = np.inf
            rest, also = self._cheapest(rise, run.more[split])
            sums[:, split] += (change[:, at, rest] * also).sum(axis=2)
            more[split] += np.where(also, cost[at, rest], 0.0).sum(axis=1)
        value = self._value(sums) + self._penalty + more
        # No option may have more pieces than there are ranks: each of its pieces gets its own.
        value = np.where(run.counts + run.more > self._may(table).sum(), np.inf, value)
        best = int(np.argmin(value))
        places = [int(r) for r in ranks[best, : run.counts[best]]]
        if run.more[best]:
            row = int(np.searchsorted(split, best))
            places += [int(r) for r in rest[row, : run.more[best]]]
        option = int(run.options[best])
        return Insertion(value=float(value[best]), option=option, places=tuple(places))

    def _on_hosts(self, table: int, run: Runs) -> Insertion:
        """The best of n options with equal pieces on whole hosts, all priced at once.

        The part that a rank has of a piece depends on its position in the host.
        """
        space, local = self.space, self.space.local_world_size
        every = np.tile(self.columns[run.rows], (1, space.num_hosts, 1))
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
        """A way to put in any option: its pieces run by run, on places that are not used before."""
        flat = int(self.space.first[table]) + option
        kind = self.space.options[flat]
        loads = self.loads.copy()
        places: list[int] = []
        if kind.is_uniform:
            loads += self.model.at(self.columns[self.space.rows[flat]], slice(None)).T
        elif kind.spread is Spread.HOSTS:
            places = self._place_blocks(table, flat, loads)
        else:
            places = self._place_runs(table, flat, loads)
        if not kind.is_uniform and len(places) < kind.num_pieces:
            return Insertion(value=np.inf, option=option, places=())
        return Insertion(value=self._value_of(loads), option=option, places=tuple(places))

    def _place_runs(self, table: int, flat: int, loads: FloatArray) -> list[int]:
        """Ranks for the pieces of an option, whose loads are added to ``loads``, ``[P + 2, W]``."""
        free = self._may(table).copy()
        local, near = self.space.local_world_size, self.menu.near(flat)
        places: list[int] = []
        for row, count in self.menu.runs(flat):
            rise, _, _ = self._rises(self.columns[row][None], None, None)
            cost = np.where(free, rise[0], np.inf)
            if near and not places:  # all pieces have to be on the host that is best for the first
                inside = np.sort(cost.reshape(-1, local), axis=1)
                host = int(np.argmin(inside[:, :count].sum(axis=1)))
                free &= np.arange(len(free)) // local == host
                cost = np.where(free, cost, np.inf)
            ranks = np.argsort(cost, kind="stable")[: min(count, int(free.sum()))]
            loads[:, ranks] += self.model.at(self.columns[row][None], ranks).T
            free[ranks] = False
            places += [int(r) for r in ranks]
        return places

    def _place_blocks(self, table: int, flat: int, loads: FloatArray) -> list[int]:
        """Hosts for the pieces of an option, whose loads are added to ``loads``, ``[P + 2, W]``."""
        space, local = self.space, self.space.local_world_size
        free = self._may(table, hosts=True).copy()
        places: list[int] = []
        for rows, count in self.menu.runs(flat):
            block = np.tile(self.columns[rows], (space.num_hosts, 1))
            rise, _, _ = self._rises(block[None], None, None)
            cost = np.where(free, rise[0].reshape(-1, local).sum(axis=1), np.inf)
            hosts = np.argsort(cost, kind="stable")[: min(count, int(free.sum()))]
            for host in hosts:
                ranks = slice(host * local, (host + 1) * local)
                loads[:, ranks] += self.model.at(self.columns[rows], ranks).T
            free[hosts] = False
            places += [int(h) for h in hosts]
        return places

    def _rises(
        self, rows: FloatArray, table: int | None, blocked: BoolArray | None
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """What each of n shards would add on each rank.

        Args:
            rows: loads of each shard on the fastest device, ``[n, P + 2]``; or ``[n, W, P + 2]`` if
                they depend on the rank.
            table: whose allowed ranks count; None if all do.
            blocked: ``[W]`` True for ranks to leave alone if possible; None for none.

        Returns:
            ``[n, W]`` how much the smooth objective rises, taken as linear in the sums, penalty
            included; ``[2 K', n, W]`` the change of powers and shares; ``[n, W]`` the penalty.
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

    @staticmethod
    def _cheapest(rise: FloatArray, counts: IntArray) -> tuple[IntArray, BoolArray]:
        """The columns of the least entries of each row, in order.

        Args:
            rise: ``[n, columns]``.
            counts: ``[n]`` how many entries of each row are wanted.

        Returns:
            ``[n, most]`` columns, for the largest count ``most``; and ``[n, most]`` True for those
            that are wanted.
        """
        most = min(int(counts.max()), rise.shape[1])
        if most == 1:
            return rise.argmin(axis=1)[:, None], np.ones((len(rise), 1), dtype=bool)
        columns = np.argsort(rise, axis=1, kind="stable")[:, :most]
        return columns, np.arange(most)[None] < counts[:, None]
