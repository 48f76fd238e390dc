"""A plan in the making: its loads, the smooth objective, and the best way to put in one more table.

The smooth objective has for each phase the p-norm over ranks instead of the maximum. So every rank
near the maximum counts, and not only the one that sets it. All options of a table are priced
together as one array, each with its pieces on the ranks (or hosts) where they add least to the
smooth objective.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import Spread
from planner.rules.placement_rules import Usage
from planner.search.common.linear import LinearModel
from planner.space.evaluation import FITTING, Assignment, Choice, SearchSpace

HARD: Final = 1e3
"""Penalty of overfull memory that is so high that no gain in time is worth it: plans do not stay
overfull."""
_MOST_DIGITS: Final = 150.0
"""Shares of loads are cut off where their powers have this many digits, so that sums of powers, and
products of them, are finite numbers."""
_NOWHERE: Final[Choice] = (-1, ())
_LEAST_SUM: Final = 0.5
"""Least sum of powers for which the price of a load is computed. If a phase has no load yet, the
norm has no slope there: the first shard would seem infinitely dear."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Alike:
    """Options of one table whose pieces are equal, and on ranks or on hosts.

    Attributes:
        options: ``[n]`` index of each option within the table.
        rows: row of ``space.pool`` of a piece: ``[n]``, or ``[n, L]`` for pieces on hosts of L
            ranks.
        counts: ``[n]`` number of pieces.
    """

    options: IntArray
    rows: IntArray
    counts: IntArray


Grouped = tuple[dict[Spread, Alike], list[int]]


def grouped(space: SearchSpace, table: int, kept: IntArray) -> Grouped:
    """Sort some options of a table by how they can be priced.

    Args:
        space: the options.
        table: which table.
        kept: indices of the options.

    Returns:
        The options that are priced together: those with equal pieces on ranks, and those with equal
        pieces on hosts. Then the indices of all others, which are priced one by one.
    """
    first = int(space.first[table])
    alike: dict[Spread, list[int]] = {}
    others: list[int] = []
    for option in kept.tolist():
        kind = space.options[first + option]
        is_alone = kind.keeps_pieces_on_host or len(space.runs(first + option)) > 1
        if kind.is_uniform or is_alone:
            others.append(option)
        else:
            alike.setdefault(kind.spread, []).append(option)
    groups = {}
    for spread, members in alike.items():
        rows, counts = zip(*(space.runs(first + o)[0] for o in members), strict=True)
        groups[spread] = Alike(
            options=np.array(members), rows=np.array(rows), counts=np.array(counts)
        )
    return groups, others


Insertion = tuple[float, Choice]
"""The smooth objective with a table, infinite if it cannot be put there, and where it is put."""


class PartialPlan:
    """The tables placed so far, their loads, and the smooth objective.

    Args:
        model: tangents and cuts.
        scale: ``[K']`` about the maximum over ranks of each phase in use. Norms are computed in
            this unit, and the penalty of overfull memory is in proportion to it.
        power: the exponent p of the norm, a power of two.
        thrift: weight of the mean over ranks beside the norm. Loads are easiest to balance with
            many small pieces; but these cost more in total, which the mean sees.
        penalty: of bytes over a limit that would fill a whole device, in units of about the
            objective.

    Attributes:
        columns: ``[M, P + 2]`` loads of each row of work on the fastest device: tangents, then
            device bytes, then host bytes.
        loads: ``[P + 2, W]`` the same loads of each rank.
        options: index of the option of each table; -1 if the table is not placed.
        places: ranks (or hosts) of the pieces of each table.
        on_rank: for each rank the tables with a piece there, uniform ones not counted.
        usage: what the placed tables count under the rules that couple tables; None without rules.
        powers: ``[2 K', W]`` p-th powers of the phases of each rank, then the phases themselves,
            all as a share of the scale.
        sums: ``[2 K']`` sums of these over ranks.
        over: ``[W]`` bytes over the device limit of each rank.
        host_room: ``[hosts]`` bytes of host memory left.
    """

    def __init__(
        self,
        model: LinearModel,
        scale: FloatArray,
        power: int,
        thrift: float = 0.0,
        penalty: float = HARD,
    ) -> None:
        """Begin without a table."""
        space = model.space
        self.model, self.space = model, space
        largest = float(scale.max())
        self.scale = np.maximum(scale, 1e-9 * largest if largest > 0 else 1.0)[:, None]
        self.power, self.thrift = power, thrift
        self._most_share = 10.0 ** (_MOST_DIGITS / power)
        self.columns = np.ascontiguousarray(model.columns)
        slow = model.slowness
        self._slow = None if slow is None else np.ascontiguousarray(slow.T)
        self._tangents = model.num_tangents
        self._limits = space.pipeline.device_limits * FITTING
        self._host_limits = space.pipeline.host_limits * FITTING
        self._per_byte = penalty / max(float(np.abs(self._limits).max()), 1.0)
        self._uses_host = bool((self.columns[:, -1] > 0).any())
        self.loads: FloatArray = np.zeros((self._tangents + 2, space.world_size))
        self.options = [-1] * space.num_tables
        self.places: list[tuple[int, ...]] = [()] * space.num_tables
        self.on_rank: list[set[int]] = [set() for _ in range(space.world_size)]
        self.usage = Usage(space.rules, [None] * space.num_tables) if space.rules else None
        self._refresh()

    # -- values -----------------------------------------------------------------------------------

    @property
    def smooth(self) -> float:
        """The smooth objective, with the penalty of overfull memory."""
        return float(self._value(self.sums[:, None])[0]) + self._penalty

    @property
    def minorant(self) -> float:
        """The minorant of the objective, see ``linear.py``; infinite if some memory is overfull."""
        if self.overflow > 0:
            return np.inf
        return float(self.model.value(self.loads.max(axis=1)))

    @property
    def overflow(self) -> float:
        """Bytes over the limits of all devices and hosts together."""
        return float(self.over.sum() + np.maximum(-self.host_room, 0.0).sum())

    def heat(self) -> FloatArray:
        """``[W]`` the part of each rank in the smooth objective; the parts add up to 1.

        If any device is overfull, it is the rank's part of the bytes over the limits instead.
        """
        if self.over.any():
            return np.asarray(self.over / self.over.sum())
        count = len(self.scale)
        share = self._prices[:count] @ self.powers[:count]
        total = float(share.sum())
        return np.asarray(share / total if total > 0 else np.full(len(share), 1 / len(share)))

    @property
    def assignment(self) -> Assignment:
        """The plan; only complete if every table is placed."""
        return Assignment(options=tuple(self.options), places=tuple(self.places))

    def values_with(self, ranks: IntArray, loads: FloatArray) -> FloatArray:
        """``[n]`` the smooth objective, penalty included, if some ranks had other loads.

        Args:
            ranks: ``[R]`` the ranks.
            loads: ``[P + 2, R, n]`` their loads in each of n cases.
        """
        powers = self._powers(loads).sum(axis=1)
        rest = self.sums - self.powers[:, ranks].sum(axis=1)
        over = np.maximum(loads[-2] - self._limits[ranks, None], 0.0).sum(axis=0)
        over += self.overflow - self.over[ranks].sum()
        if self._uses_host:
            hosts = ranks // self.space.local_world_size
            more = loads[-1] - self.loads[-1, ranks, None]
            for host in np.unique(hosts):
                room = self.host_room[host]
                grown = np.maximum(more[hosts == host].sum(axis=0) - room, 0.0)
                over += grown - max(-room, 0.0)
        value = self._value(rest[:, None] + powers)
        return np.asarray(value + over * (self._per_byte * self._level))

    # -- changes ----------------------------------------------------------------------------------

    def change(self, choices: Mapping[int, Choice | None], loads: FloatArray | None = None) -> None:
        """Place tables anew, or take them out.

        Args:
            choices: option and places of each of the tables; None to take it out.
            loads: ``[P + 2, W]`` all loads afterwards where they are known, to undo changes.
        """
        for table, choice in choices.items():
            if loads is None:
                self._add(table, self.options[table], self.places[table], -1.0)
                self._add(table, *(choice or _NOWHERE), 1.0)
            self._note(table, *(choice or _NOWHERE))
        self.loads = np.maximum(self.loads, 0.0) if loads is None else loads
        self._refresh()

    def load(self, assignment: Assignment) -> None:
        """Replace everything by an assignment."""
        for ranks in self.on_rank:
            ranks.clear()
        self.options, self.places = list(assignment.options), list(assignment.places)
        self.usage = self.space.usage(assignment) if self.space.rules else None
        self.loads = np.ascontiguousarray(self.model.loads(self.space.work(assignment)).T)
        for table in range(self.space.num_tables):
            for rank in self._ranks(table):
                self.on_rank[rank].add(table)
        self._refresh()

    # -- insertions -------------------------------------------------------------------------------

    def best_insertion(
        self, table: int, kept: Grouped, blocked: BoolArray | None = None
    ) -> Insertion | None:
        """The best way to put in a table that is not placed.

        Args:
            table: which table.
            kept: its options to choose from, as :func:`grouped` sorts them.
            blocked: ``[W]`` True for ranks to leave alone if possible; None for none.

        Returns:
            None if the rules that couple tables allow none of them.
        """
        alike, others = kept
        found = [self._alike(table, spread, some, blocked) for spread, some in alike.items()]
        found += [self._single(table, option) for option in others]
        if self.usage is not None:
            options, usage = self.space.tables[table].options, self.usage
            home = None if self.space.in_use is None else self.space.in_use[table]
            if home is not None and self.space.rules.budget is not None:
                found.append(self._fixed(table, *home))
            found = [
                (v, (o, at)) for v, (o, at) in found if usage.allows([(table, options[o], at)])
            ]
        return min(found, key=lambda insertion: insertion[0], default=None)

    def _alike(
        self, table: int, spread: Spread, some: Alike, blocked: BoolArray | None
    ) -> Insertion:
        """The best of n options with equal pieces on ranks (or hosts), all priced at once.

        No option may have more pieces than there are places: each of its pieces gets its own. The
        part that a rank has of a piece on a host depends on its position in the host.
        """
        hosts = spread is Spread.HOSTS
        rise, change, cost = self._rises(some.rows, blocked, hosts=hosts)
        may = self._may(table, hosts=hosts)
        rise[:, ~may] = np.inf
        most = min(int(some.counts.max()), rise.shape[1])
        if most == 1:
            places = rise.argmin(axis=1)[:, None]
        else:
            places = np.argsort(rise, axis=1, kind="stable")[:, :most]
        taken = np.arange(most)[None] < some.counts[:, None]
        at = np.arange(len(places))[:, None]
        sums = self.sums[:, None] + (change[:, at, places] * taken).sum(axis=2)
        value = self._value(sums) + self._penalty + (cost[at, places] * taken).sum(axis=1)
        best = int(np.argmin(np.where(some.counts > may.sum(), np.inf, value)))
        count = int(some.counts[best])
        choice = int(some.options[best]), tuple(places[best, :count].tolist())
        return float(value[best]) if count <= may.sum() else np.inf, choice

    def _fixed(self, table: int, option: int, places: tuple[int, ...]) -> Insertion:
        """A way to put in an option on given places."""
        before, self.loads = self.loads, self.loads.copy()
        self._add(table, option, places, 1.0)
        loads, self.loads = self.loads, before
        over = np.maximum(loads[-2] - self._limits, 0.0).sum()
        if self._uses_host:
            used = loads[-1].reshape(self.space.num_hosts, -1).sum(axis=1)
            over = over + np.maximum(used - self._host_limits, 0.0).sum()
        smooth = self._value(self._powers(loads).sum(axis=1)[:, None])[0]
        return float(smooth + over * self._per_byte * self._level), (option, places)

    def _single(self, table: int, option: int) -> Insertion:
        """A way to put in any option: its pieces run by run, on places that are not used before."""
        space, local = self.space, self.space.local_world_size
        flat = int(space.first[table]) + option
        kind = space.options[flat]
        if kind.is_uniform:
            return self._fixed(table, option, ())
        hosts = kind.spread is Spread.HOSTS
        free, places = self._may(table, hosts=hosts).copy(), list[int]()
        for run, count in space.runs(flat):
            rise, _, _ = self._rises(run[None], None, hosts=hosts)
            cost = np.where(free, rise[0], np.inf)
            if kind.keeps_pieces_on_host and not places:  # the host that is best for the first run
                inside = np.sort(cost.reshape(-1, local), axis=1)
                host = int(np.argmin(inside[:, :count].sum(axis=1)))
                free &= np.arange(len(free)) // local == host
                cost = np.where(free, cost, np.inf)
            chosen = np.argsort(cost, kind="stable")[: min(count, int(free.sum()))]
            free[chosen] = False
            places += chosen.tolist()
        if len(places) < kind.num_pieces:
            return np.inf, (option, tuple(places))
        return self._fixed(table, option, tuple(places))

    # -- private ----------------------------------------------------------------------------------

    def _powers(self, loads: FloatArray) -> FloatArray:
        """``[2 K', ...]`` p-th powers of the phases, as a share of their scale, then the shares.

        Args:
            loads: ``[P + 2, ...]`` as in :attr:`loads`.
        """
        phases = np.maximum.reduceat(loads[: self._tangents], self.model.starts, axis=0)
        share = phases / self.scale.reshape(-1, *[1] * (loads.ndim - 1))
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
        """``[n]`` the smooth objective.

        Args:
            sums: ``[2 K', n]`` sums over ranks of powers, then of shares.
        """
        count = len(self.scale)
        norms = np.maximum(sums[:count], 0.0) ** (1.0 / self.power) * self.scale
        value = self.model.paths(norms.T).max(axis=-1)
        return np.asarray(value + self._mean_prices @ sums[count:])

    def _refresh(self) -> None:
        """Compute everything that follows from the loads.

        ``_prices``, ``[2 K']``, is how much the smooth objective grows with each sum of powers and
        of shares; :meth:`_rises` uses it to price shards linearly.
        """
        self.powers = self._powers(self.loads)
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
        """Add the loads of a table to the ranks, or take them away if ``sign`` is -1."""
        if option < 0:
            return
        flat = int(self.space.first[table]) + option
        ranks = self.space.ranks_of(flat, places)
        rows = self.model.at(self.columns[self.space.rows[flat].ravel()] * sign, ranks)
        if len(set(places)) == len(places):
            self.loads[:, ranks] += rows.T
        else:
            np.add.at(self.loads.T, ranks, rows)

    def _note(self, table: int, option: int, places: tuple[int, ...]) -> None:
        """Note where a table is, in the plan, on its ranks and for the rules.

        Option -1 says that it is nowhere.
        """
        for rank in self._ranks(table):
            self.on_rank[rank].discard(table)
        self.options[table], self.places[table] = option, places
        for rank in self._ranks(table):
            self.on_rank[rank].add(table)
        if self.usage is not None:
            placed = None if option < 0 else (self.space.option(table, option), places)
            self.usage.put(table, placed)

    def _may(self, table: int, *, hosts: bool = False) -> BoolArray:
        """``[W]`` or ``[hosts]``: True for places that rules and placed tables leave to a table."""
        spread = Spread.HOSTS if hosts else Spread.RANKS
        allowed = self.space.allowed(table, spread)
        return allowed if self.usage is None else allowed & self.usage.free_for(table, spread)

    def _ranks(self, table: int) -> list[int]:
        """The ranks that have pieces of a table; none if it is nowhere, or for uniform options."""
        if self.options[table] < 0:
            return []
        flat = int(self.space.first[table]) + self.options[table]
        is_uniform = self.space.is_uniform[flat]
        return [] if is_uniform else self.space.ranks_of(flat, self.places[table]).tolist()

    def _rises(
        self, pieces: IntArray, blocked: BoolArray | None, *, hosts: bool
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """What each of n pieces would add on each of the ranks or hosts.

        Args:
            pieces: rows of work, ``[n]`` of pieces on ranks, ``[n, L]`` of pieces on hosts.
            blocked: ``[W]`` True for ranks to leave alone if possible; None for none.
            hosts: whether pieces are on hosts, which are never left alone.

        Returns:
            ``[n, places]`` how much the smooth objective rises, taken as linear in the sums,
            penalty included; ``[2 K', n, places]`` the change of powers and shares; ``[n, places]``
            the penalty.
        """
        rows, local = self.columns[pieces], self.space.local_world_size
        if hosts:
            more = np.tile(rows, (1, self.space.num_hosts, 1)).transpose(2, 0, 1)
        else:
            more = rows.T[:, :, None]
        more = more if self._slow is None else more * self._slow[:, None]
        new = self.loads[:, None] + more
        change = self._powers(new)
        change -= self.powers[:, None]
        over = np.maximum(new[-2] - self._limits, 0.0) - self.over
        if self._uses_host:
            room = np.repeat(self.host_room, local)
            over = over + np.maximum(more[-1] - np.maximum(room, 0.0), 0.0)
        cost = over * (self._per_byte * self._level)
        rise = (self._prices @ change.reshape(len(change), -1)).reshape(cost.shape) + cost
        if hosts:
            rise, change, cost = (
                v.reshape(*v.shape[:-1], -1, local).sum(axis=-1) for v in (rise, change, cost)
            )
        elif blocked is not None:
            rise[:, blocked] += 1e3 * self._level
        return rise, change, cost
