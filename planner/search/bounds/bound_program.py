"""Builds the programs of the rank-free problem; :mod:`planner.search.bounds.bound` explains it.

The variables of a program are, in this order:

1. ``y``: the share of each option, n of them;
2. ``z``: the maximum of each phase in use over ranks, K';
3. ``u``: the least load that uniform options put on every rank, for each load, P + 2;
4. ``w``: the mean of all options over ranks, for each tangent, P;
5. the share of ranks that have each fused call, if there is a box with such calls;
6. ``t``: the objective.

Every row is built once for each set of tangents, and kept.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.stages.models import require_rules
from planner.problem import Level
from planner.rules.placement_rules import taken
from planner.search.bounds.boxes import Box
from planner.search.common.linear import LinearModel
from planner.search.common.lp import TOLERANCE, LinearProgram, ProgramBasis, Rows
from planner.search.common.schedule import USUAL
from planner.space.evaluation import ROUNDED, ROUNDING, SearchSpace
from planner.space.objective import Cut

# ------------------ the solution of a rank-free program, and the sets of sharding types th

TypeSet = frozenset[ShardingType]
"""Sharding types that plans may use together. Plans that use a type have collectives of it, so that
another set has another longest path, and gets a bound of its own."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relaxation:
    """A solution of the rank-free problem for one set of sharding types.

    Attributes:
        types: the set. The bound holds for plans that use all these types, the optional ones or
            not, and no others; None if it holds for all plans.
        bound: none of these plans has a smaller objective; infinite if none fits.
        shares: ``[n]`` share of each option; None if there is no solution.
        phases: ``[K]`` the largest value of each phase over ranks; 0 for phases that are not in
            use; None if there is no solution.
        reduced_costs: ``[n]`` by how much the bound rises at least if a plan has the option; None
            if nothing is known.
        basis: where the solver can begin a similar program; None if there is none.
    """

    types: TypeSet | None
    bound: float
    shares: FloatArray | None = None
    phases: FloatArray | None = None
    reduced_costs: FloatArray | None = None
    basis: ProgramBasis | None = None

    def choice(self, space: SearchSpace) -> IntArray:
        """``[T]`` index of the option with the largest share of each table."""
        if self.shares is None:
            return np.zeros(space.num_tables, dtype=np.int64)
        return space.least_options(-self.shares) - space.first[:-1]


def usual_optional_types(space: SearchSpace) -> TypeSet:
    """The sharding types that every set leaves open in a search, so that there are few enough sets.

    If there are many tables, replication is always one of them. The others are the types with the
    fewest options, as many as are needed.
    """
    counts = Counter(o.sharding_type for o in space.options)
    optional = {ShardingType.DATA_PARALLEL} if space.num_tables > USUAL.few_tables else set()
    for kind in sorted(counts, key=lambda t: (counts[t], t)):
        if len(type_sets(space, frozenset(optional))) <= USUAL.type_sets:
            break
        optional.add(kind)
    return frozenset(optional)


def type_sets(space: SearchSpace, optional: TypeSet = frozenset()) -> list[TypeSet]:
    """The sets of sharding types, the largest first; every plan belongs to exactly one of them.

    Sets in which some table has no option are left out.

    Args:
        space: the options.
        optional: types that are in every set. A plan of the set may use them or not.
    """
    kinds = space.type_choices
    every = frozenset().union(*kinds)
    certain = sorted(every - optional)
    sets = [
        frozenset(chosen) | (every & optional)
        for size in range(len(certain), -1, -1)
        for chosen in itertools.combinations(certain, size)
    ]
    return [s for s in sets if all(types & s for types in kinds)]


def uses(types: TypeSet | None, space: SearchSpace) -> BoolArray:
    """``[n]`` True for options whose sharding type is in the set; for all if it is None."""
    return np.array([types is None or o.sharding_type in types for o in space.options])


# ------------------ builds the programs of the rank-free problem; :mod:`planner.search.bou

# ------------------ names of rows
#
# Which loads the rows of a program are about.

Name = tuple[int, int, int]
"""The name of a row about one load. Its numbers are: which row of
:meth:`RankFreeProgram._one_place`, or which rank; which of all K phases, or K
for memory; and which tangent of the phase. A name stays valid when more phases come into use."""


# ------------------ limits on counts
#
# Rows about limits on the number of shards or tables per rank or host.
#
# If a limit allows each place so many, all places together have at most that times their number. An
# option adds to this sum at least what it counts in the places where it counts least: pieces of a
# table that share a place count there as one table.


def counted(space: SearchSpace) -> Rows:
    """A row ``counts @ y <= most * number of places`` for each limit."""
    caps, rules = space.rules.caps, space.rules
    least = ([taken(cap, option, rules) for option in space.options] for cap in caps)
    counts = [np.where(c.members[space.table_of], n, 0) for c, n in zip(caps, least, strict=True)]
    matrix = np.array(counts, dtype=float).reshape(len(caps), len(space.options))
    most = np.array([float(c.most * rules.num_places(c.level)) for c in caps])
    return Rows.dense(matrix, -math.inf, most)


def cut_rows(model: LinearModel, cuts: Sequence[Cut], first: int, size: int, unit: float) -> Rows:
    """A row ``slopes @ z - t <= -base`` for each cut.

    Args:
        model: its phases in use are the variables z.
        cuts: of the objective.
        first: position of the first variable z.
        size: number of variables, of which t is the last.
        unit: how much of the objective is 1 in the program.
    """
    matrix = np.zeros((len(cuts), size))
    for row, cut in zip(matrix, cuts, strict=True):
        row[first : first + len(model.used)] = cut.slopes[model.used]
    matrix[:, -1] = -1.0
    return Rows.dense(matrix, -math.inf, np.array([-cut.base / unit for cut in cuts]))


def unlisted_bytes(space: SearchSpace) -> float:
    """Device bytes that tables listed without kernels in host memory hold at most.

    With these kernels the bytes would be in host memory.
    """
    workload, left_out = space.problem.workload, set(space.listing.left_out_tables)
    most = 0.0
    for table, listed in zip(workload.tables, space.tables, strict=True):
        fused = (o for o in listed.options if o.kernel is not ComputeKernel.DENSE)
        widths = {o.column_widths for o in fused} if table.name in left_out else set()
        most += max((workload.trained_bytes(table, w) for w in widths), default=0.0)
    return most


class RankFreeProgram:
    """Builds programs over the options of one model.

    Attributes:
        model: tangents and options.
        space: the space of the model.
        options: number of options, n.
        uniform: ``[n]`` True for options that load every rank.
        unlisted_bytes: device bytes by which a plan may need less than its listed options say.
            Tables may be listed without kernels in host memory. The bound holds for plans with
            these kernels too: the same plan with listed kernels is no slower, and needs at most so
            much more device memory, because a cut has the same buffers with every kernel.
        shards: ``[n]`` number of shards of each option that is not uniform.
        uniform_rows: ``[uniform options, W]`` position in ``space.pool`` of each option's row.
        ranks: of all ranks that uniform options, limits of memory and speeds treat alike, the
            first.
    """

    def __init__(self, model: LinearModel) -> None:
        """Find out which ranks are alike; no row is built yet."""
        if model.objective.asks_models:
            for pipeline in getattr(model.space.pipeline, "pipelines", (model.space.pipeline,)):
                require_rules(pipeline.models, pipeline.topology)
        self.model, self.space = model, model.space
        self.unlisted_bytes = unlisted_bytes(model.space)
        self.options = len(self.space.options)
        self.uniform: BoolArray = self.space.is_uniform
        blocks = np.where(self.space.is_on_hosts, self.space.local_world_size, 1)
        self.shards: IntArray = self.space.pieces * blocks
        self.uniform_rows = np.array(
            [self.space.rows[i] for i in np.flatnonzero(self.uniform)], dtype=np.int64
        )
        own = self.rank_limits
        if model.slowness is not None:
            own = np.column_stack([own, model.slowness])
        limits = np.unique(own, axis=0, return_inverse=True)[1].reshape(1, -1)
        alike = np.concatenate([self.uniform_rows.reshape(-1, limits.size), limits])
        self.ranks = np.sort(np.unique(alike, axis=1, return_index=True)[1])
        self._tied = [
            (np.flatnonzero(members[self.space.table_of]), self.space.rules.num_places(level))
            for level in Level
            for members in self.space.rules.tied(level)
        ]
        self._calls = [(o.sharding_type, o.kernel) for o in self.space.options]
        self._built: dict[tuple[object, ...], Rows] = {}

    @property
    def scale(self) -> float:
        """How much of the objective is 1 in a program, so that its numbers are near 1."""
        typical = float(self.model.mean[:, : self.model.num_tangents].mean())
        return typical * self.space.num_tables if typical > 0 else 1.0

    @property
    def limits(self) -> FloatArray:
        """Device bytes and host bytes of a rank, on average."""
        pipeline = self.space.pipeline
        host = float(pipeline.host_limits.mean()) / self.space.local_world_size
        more = self.unlisted_bytes / self.space.world_size
        limits = np.array([float(pipeline.device_limits.mean()) + more, host])
        return np.asarray(np.maximum(limits, 1.0) * ROUNDING)

    @property
    def rank_limits(self) -> FloatArray:
        """``[W, 2]`` device bytes of each rank, and all host bytes of its host.

        One rank may use the memory of its whole host.
        """
        pipeline = self.space.pipeline
        hosts = np.repeat(pipeline.host_limits, self.space.local_world_size)
        limits = np.column_stack([pipeline.device_limits + self.unlisted_bytes, hosts])
        return np.asarray(np.maximum(limits, 1.0) * ROUNDING)

    @property
    def _unit(self) -> FloatArray:
        """``[P + 2]`` how much of each load is 1 in a program."""
        return np.concatenate([np.full(self.model.num_tangents, self.scale), self.limits])

    def build(
        self,
        types: TypeSet | None,
        rows: Iterable[Name],
        rank_rows: Iterable[Name],
        cuts: Sequence[Cut],
        *,
        kept: BoolArray | None = None,
        box: Box | None = None,
        more: Sequence[Rows] = (),
    ) -> LinearProgram:
        """The program that minimises the objective.

        Args:
            types: the set of sharding types; None for all plans.
            rows: which rows of :meth:`_one_place` to have, about which loads.
            rank_rows: on which ranks to look at uniform options, about which loads.
            cuts: of the objective.
            kept: ``[n]`` True for options to choose from; None for all.
            box: limits of the phases, and what fused calls cost; None for no limits.
            more: further rows about the options.
        """
        scale = self.scale
        calls = () if box is None else box.launches.calls
        own = self._end + len(calls)
        size = own + 1
        lower, upper = np.zeros(size), np.full(size, math.inf)
        inside = uses(types, self.space)
        upper[: self.options] = inside if kept is None else inside & kept
        least = np.where(self.uniform[:, None], self.model.least, 0.0)
        dearest = np.maximum.reduceat(least, self.space.first[:-1], axis=0).sum(axis=0)
        limits = dearest / self._unit * ROUNDING
        upper[self._first_mean - len(limits) : self._first_mean] = limits
        upper[self._end : own] = 1.0
        paths = cut_rows(self.model, cuts, self.options, size, scale)
        parts = [*self._common(rows, rank_rows), paths]
        if box is not None:
            for g, k in self._boxed(box):
                at = self.options + k
                lower[at] = max(lower[at], box.low[g] / scale * (1 - ROUNDED))
                upper[at] = min(upper[at], box.high[g] / scale * ROUNDING)
            parts += [self._launched(box, scale, size)] if calls else []
        return LinearProgram(
            cost=(np.arange(size) == size - 1).astype(float),
            lower=lower,
            upper=upper,
            rows=Rows.stack([*parts, *more]),
            groups=self.space.table_of,
        )

    def members(self, group: int) -> range:
        """The loads of a phase in use; the group after the last one is device and host bytes."""
        starts = [*self.model.starts, self.model.num_tangents, self.model.num_tangents + 2]
        return range(starts[group], starts[group + 1])

    # -- rows -------------------------------------------------------------------------------------

    @property
    def _first_mean(self) -> int:
        """Position of the first variable w, after y, z and u."""
        return self.options + len(self.model.used) + self.model.num_tangents + 2

    @property
    def _end(self) -> int:
        """Position of the first variable after y, z, u and w."""
        return self._first_mean + self.model.num_tangents

    def _common(self, rows: Iterable[Name], rank_rows: Iterable[Name]) -> list[Rows]:
        """The rows that every program has, and those about places and ranks that are asked for."""
        unit = self._unit
        parts = [
            self._once(("one",), lambda: Rows.one_of_each(self.space.table_of)),
            self._once(("counted",), lambda: counted(self.space)),
            self._once(("means",), self._means),
            self._once(("uniform",), lambda: self._uniform_base(unit)),
        ]
        for on_rank, names in ((False, rows), (True, rank_rows)):
            for name in sorted(names):
                build = partial(self._below, name, unit, on_rank=on_rank)
                parts.append(self._once((on_rank, *name), build))
        return parts

    def _once(self, name: tuple[object, ...], build: Callable[[], Rows]) -> Rows:
        """The rows of that name, built only if they were not built for these tangents before."""
        key = (self.model.num_tangents, *name)
        if key not in self._built:
            self._built[key] = build()
        return self._built[key]

    def _means(self) -> Rows:
        """Rows that define the means w, keep them below the maxima, and keep memory in its limits.

        Where devices differ, a rank whose device is f times as slow has at most 1/f of the phase's
        maximum, in loads of the fastest device. The sum of these limits bounds the sum of all
        loads. The means are variables of their own, because several rows are about them, and each
        of these rows would otherwise have every option.
        """
        speeds, tangents = np.append(self._speeds, [1.0, 1.0]), self.model.num_tangents
        loads = self.model.mean / (self._unit * speeds)
        row, means = np.arange(tangents), self._first_mean + np.arange(tangents)
        matrix = np.zeros((2 * tangents + 2, self._end))
        matrix[: tangents + 2, : self.options] = loads.T
        matrix[row, means] = -1.0
        matrix[tangents + 2 + row, means] = 1.0
        matrix[tangents + 2 + row, self.options + self.model.phase_index] = -1.0
        most = np.zeros(len(matrix))
        most[tangents : tangents + 2] = 1.0
        return Rows.dense(matrix, -math.inf, most)

    @property
    def _speeds(self) -> FloatArray:
        """``[P]`` mean over ranks of the speed at each load, as a share of the fastest device's."""
        slowness = self.model.slowness
        tangents = self.model.num_tangents
        if slowness is None:
            return np.ones(tangents)
        return np.asarray(np.mean(1.0 / slowness[:, :tangents], axis=0))

    def _uniform_base(self, unit: FloatArray) -> Rows:
        """Rows that define ``u``: the sum of the least loads of uniform options."""
        least = np.where(self.uniform[:, None], self.model.least / unit, 0.0)
        start = len(least) + len(self.model.used)
        matrix = np.zeros((len(unit), start + len(unit)))
        matrix[:, : len(least)] = least.T
        matrix[:, start:] = -np.eye(len(unit))
        return Rows.dense(matrix, 0.0, 0.0)

    def tangent(self, name: Name) -> int:
        """Position of the load that a row is about."""
        return self.members(int(np.searchsorted(self.model.used, name[1])))[name[2]]

    def _below(self, name: Name, unit: FloatArray, *, on_rank: bool) -> Rows:
        """The row of that name, which keeps a load below its phase's maximum, or memory in limits.

        It says ``loads @ y[options] + u[load] - z[phase] <= most``, without z for memory.

        Args:
            name: which row about which load.
            unit: how much of each load is 1.
            on_rank: whether it is about the uniform options on one rank, which is then the first
                number of the name, and without u; otherwise it is about what has to be on one
                place.
        """
        load, tangents = self.tangent(name), self.model.num_tangents
        row = np.zeros((1, self._end))
        if on_rank:
            options, limits = np.flatnonzero(self.uniform), self.rank_limits[name[0]]
            own = self.model.columns[self.uniform_rows[:, name[0]]]
            loads = self.model.at(own, name[0])[:, load]
        else:
            options, loads = self._one_place(name[0], load)
            limits = self.rank_limits.max(axis=0)
            row[0, self._first_mean - len(unit) + load] = 1.0
        row[0, options] = loads / unit[load]
        most = 0.0
        if load >= tangents:
            most = float((limits / self.limits)[load - tangents])
        else:
            row[0, self.options + self.model.phase_index[load]] = -1.0
        return Rows.dense(row, -math.inf, most)

    def _one_place(self, row: int, load: int) -> tuple[IntArray, FloatArray]:
        """The options of a row about one place, and what each adds to one load of the fullest rank.

        There is a row for each table, then one for each tied group of tables. In every plan some
        rank has the largest shard of a table. Its load is at least that of the shard and of what
        uniform options put on every rank; they add nothing else here. If rules tie tables to one
        rank, that rank has all of their shards. If they tie tables to one host, its ranks share all
        of their shards, and the fullest of them has at least the mean over the host.
        """
        if row < self.space.num_tables:
            options = np.arange(self.space.first[row], self.space.first[row + 1])
            least = self.model.largest[options, load]
        else:
            options, places = self._tied[row - self.space.num_tables]
            least = self.model.mean[options, load] * places
        return options, np.where(self.uniform[options], 0.0, least)

    def _boxed(self, box: Box) -> list[tuple[int, int]]:
        """(side, position of its phase among those in use) for each side of a box."""
        used = {int(phase): k for k, phase in enumerate(self.model.used)}
        return [(g, used[int(p)]) for g, p in enumerate(box.first) if int(p) in used]

    def _launched(self, box: Box, scale: float, size: int) -> Rows:
        """Rows about fused calls: how many ranks have each, and what their launches add to phases.

        A rank has a call if it has shards of it. No rank has more of a phase than the box allows.
        So the share of ranks with the call is at least the call's mean load over that limit, and
        calls of a type are on as many ranks as one of its tables needs. The mean of the launches
        over ranks, beyond those that the box counts already, is added to the mean of the phase.
        """
        launches, n = box.launches, self.options
        share = slice(self._end, self._end + len(launches.calls))
        rows, speeds = [], self._speeds
        upper = [-least * (1 - ROUNDED) for _, least in launches.least_shares]
        for kind, _ in launches.least_shares:
            rows.append(np.zeros(size))
            rows[-1][share] = [-float(c[0] == kind) for c in launches.calls]
        for g, k in self._boxed(box):
            own = launches.seconds[g] / scale
            for p in self.members(k) if own > 0 else ():
                row = np.zeros(size)
                row[self._first_mean + p], row[n + k], row[share] = speeds[p], -1.0, own
                rows.append(row)
                upper.append(own * launches.num_counted)
            mean = self.model.mean[:, self.model.starts[k]] / scale
            for i, call in enumerate(launches.calls):
                row = np.zeros(size)
                row[:n] = np.where([c == call for c in self._calls], mean, 0.0)
                row[self._end + i] = -box.high[g] / scale * ROUNDING
                if row[:n].any():
                    rows.append(row)
                    upper.append(0.0)
        matrix = np.array(rows).reshape(len(rows), size)
        return Rows.dense(matrix, -math.inf, np.array(upper))

    # -- reading a solution -----------------------------------------------------------------------

    def peaks(self, shares: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Loads that some rank has at least, where options have these shares, ``[n]``.

        Returns:
            Loads of the largest shards of each table or tied group, beside what uniform options put
            on every rank, ``[rows, P + 2]``; loads of uniform options on each of the ranks that
            differ, ``[ranks, P + 2]``; and the largest of both and of the means, ``[P + 2]``.
        """
        uniform = np.where(self.uniform, shares, 0.0)
        base = uniform @ self.model.least
        own = np.where(self.uniform, 0.0, shares)[:, None]
        tables = np.add.reduceat(own * self.model.largest, self.space.first[:-1], axis=0)
        tied = [(own[o] * self.model.mean[o] * places).sum(axis=0) for o, places in self._tied]
        largest = np.stack([*tables, *tied]) + base
        everywhere = np.zeros((len(self.ranks), self.model.num_tangents + 2))
        chosen = uniform[self.uniform]
        for i in np.flatnonzero(chosen > TOLERANCE):
            loads = self.model.columns[self.uniform_rows[i, self.ranks]]
            everywhere += chosen[i] * self.model.at(loads, self.ranks)
        peaks = np.maximum(largest.max(axis=0), everywhere.max(axis=0))
        return largest, everywhere, np.maximum(peaks, shares @ self.model.mean)

    def broken(self, loads: FloatArray, allowed: FloatArray) -> set[Name]:
        """Names of the rows that loads break, ``[rows, P + 2]``, with the row in ``loads`` first.

        Args:
            loads: what rows add up to.
            allowed: the most that they may, of a shape that fits ``loads``.
        """
        model = self.model
        phases = np.append(model.used, len(model.objective.weights))
        groups = np.concatenate([model.phase_index, [len(model.used)] * 2])
        within = np.arange(len(groups)) - np.append(model.starts, model.num_tangents)[groups]
        where = np.argwhere(loads > allowed)
        return {(int(i), int(phases[groups[c]]), int(within[c])) for i, c in where}
