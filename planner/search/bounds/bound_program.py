"""The rows of the rank-free problem; see :mod:`planner.search.bounds.bound` for what they say.

Variables in order: ``y`` of each option, ``z`` of each phase in use, ``u`` of each load, ``w`` of
each load of a phase, the share of ranks that have each fused call, those of special ranks, those of
every rank, ``t``. ``u`` is the least load of the uniform options, ``w`` the mean over ranks of all.
Rows are built once per set of tangents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import ComputeKernel
from planner.search.bounds.boxes import Box
from planner.search.bounds.counted import counted
from planner.search.bounds.every_rank import EveryRank
from planner.search.bounds.one_place import OnePlace
from planner.search.bounds.relaxation import TypeSet, uses
from planner.search.bounds.special_ranks import SpecialRanks
from planner.search.common.linear import LinearModel
from planner.search.common.milp import MilpProgram, Rows
from planner.space.evaluation import ROUNDING, SearchSpace
from planner.space.objective import Cut

_LIMIT_SLACK = 1e-9
"""Share by which limits from floating-point sums are widened, so that no plan falls outside."""

Name = tuple[int, int, int]
"""Which row of :class:`OnePlace`, or which rank; which of all K phases, or K itself for memory;
which of the phase's tangents. It stays valid when more phases come into use."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scope:
    """Which plans a program is about, and what it looks at beside means and largest shards.

    Attributes:
        kept: options to choose from, flat; None for all.
        box: limits of phases, and what calls cost.
        more: further rows.
        special: tables whose largest piece's rank is looked at.
        every_rank: look at every rank; only where all are alike.
    """

    kept: BoolArray | None = None
    box: Box | None = None
    more: Sequence[Rows] = ()
    special: Sequence[int] = ()
    every_rank: bool = False


EVERYTHING: Final = Scope()
"""All plans, and nothing further."""


class RankFreeProgram:
    """Builds programs over the options of one model.

    Attributes:
        uniform: ``[n]`` options that load every rank.
        unlisted_bytes: device bytes that tables may take less than their listed options say. Where
            kernels in host memory are not listed for them, the bound holds for those kernels too:
            the same plan with listed ones is no slower, and takes so much more memory at most,
            for a cut has the same buffers with every kernel.
        shards: ``[n]`` shards of the other options.
        uniform_rows: ``[uniform options, W]`` their rows in the pool.
        ranks: the first of the ranks that uniform options and limits of memory treat alike.
    """

    def __init__(self, model: LinearModel) -> None:
        """Keep the model; nothing is built yet."""
        self.model, self.space = model, model.space
        self.unlisted_bytes = _unlisted_bytes(model.space)
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
        self._special = SpecialRanks(model, self.uniform)
        self.one_place = OnePlace(model, self.uniform)
        self.every_rank = EveryRank(model)
        self._calls = [(o.sharding_type, o.kernel) for o in self.space.options]
        self._built: dict[tuple[object, ...], Rows] = {}

    @property
    def options(self) -> int:
        """Number of options n."""
        return len(self.space.options)

    @property
    def scale(self) -> float:
        """Seconds that are 1 in the program."""
        typical = float(self.model.mean[:, : self.model.num_tangents].mean())
        return typical * self.space.num_tables if typical > 0 else 1.0

    @property
    def limits(self) -> FloatArray:
        """Device and host bytes per rank, on average."""
        pipeline = self.space.pipeline
        host = float(pipeline.host_limits.mean()) / self.space.local_world_size
        more = self.unlisted_bytes / self.space.world_size
        limits = np.array([float(pipeline.device_limits.mean()) + more, host])
        return np.asarray(np.maximum(limits, 1.0) * ROUNDING)

    @property
    def rank_limits(self) -> FloatArray:
        """``[W, 2]`` device bytes of each rank, and bytes of its whole host, for it may use all."""
        pipeline = self.space.pipeline
        hosts = np.repeat(pipeline.host_limits, self.space.local_world_size)
        limits = np.column_stack([pipeline.device_limits + self.unlisted_bytes, hosts])
        return np.asarray(np.maximum(limits, 1.0) * ROUNDING)

    @property
    def _unit(self) -> FloatArray:
        """``[P + 2]`` seconds and bytes that are 1 in the program."""
        return np.concatenate([np.full(self.model.num_tangents, self.scale), self.limits])

    def build(
        self,
        types: TypeSet | None,
        rows: Iterable[Name],
        rank_rows: Iterable[Name],
        cuts: Sequence[Cut],
        *,
        whole: bool,
        scope: Scope = EVERYTHING,
    ) -> MilpProgram:
        """Minimise t.

        Args:
            types: the set of sharding types, None for all.
            rows: of :class:`OnePlace`, tables and tied groups, with the load.
            rank_rows: ranks on which uniform options are looked at, with the load.
            cuts: of the objective.
            whole: options are whole.
            scope: which plans, and what else is looked at.
        """
        scale, box, special = self.scale, scope.box, scope.special
        calls = () if box is None else box.launches.calls
        own = self._end + len(calls)
        ranks = own + len(special) * self._special.size
        size = ranks + (self.every_rank.size if scope.every_rank else 0) + 1
        lower, upper = self._limits_of(types, scope.kept, box, size)
        upper[self._end : own] = 1.0
        upper[own:ranks] = np.tile(self._special.upper, len(special))
        parts = [*self._common(rows, rank_rows), self._paths(cuts, scale, size)]
        if box is not None and calls:
            parts.append(self._launched(box, scale, size))
        for i, table in enumerate(special):
            first = own + i * self._special.size
            key = ("special", table, first)
            parts.append(self._once(key, partial(self._on_special, table, first)))
        integer = (np.arange(size) < self.options) & whole
        if scope.every_rank:
            base = self.options + len(self.model.used)
            room = float(self.rank_limits[0, 0] / self.limits[0])
            every = self.every_rank.rows(ranks, self.options, base, self._unit, device_room=room)
            parts.append(every)
            upper[ranks:-1], integer[ranks:-1] = self.every_rank.upper, True
        return MilpProgram(
            cost=(np.arange(size) == size - 1).astype(float),
            lower=lower,
            upper=upper,
            rows=Rows.stack([*parts, *scope.more]),
            integer=integer,
            groups=self.space.table_of,
        )

    def _limits_of(
        self, types: TypeSet | None, kept: BoolArray | None, box: Box | None, size: int
    ) -> tuple[FloatArray, FloatArray]:
        """(least, most) of every variable: options, phases in a box, and the uniform loads."""
        lower, upper = np.zeros(size), np.full(size, math.inf)
        inside = uses(types, self.space)
        upper[: self.options] = inside if kept is None else inside & kept
        first = self._first_mean
        upper[first - len(self._unit) : first] = self._most_uniform
        if box is not None:
            for g, k in self._boxed(box):
                at = self.options + k
                lower[at] = max(lower[at], box.low[g] / self.scale * (1 - _LIMIT_SLACK))
                upper[at] = min(upper[at], box.high[g] / self.scale * (1 + _LIMIT_SLACK))
        return lower, upper

    def members(self, group: int) -> range:
        """Loads of phase ``group``; the group after the phases is memory."""
        starts = [*self.model.starts, self.model.num_tangents, self.model.num_tangents + 2]
        return range(starts[group], starts[group + 1])

    def at_most_one(self, loads: FloatArray) -> Rows:
        """Rows ``loads[:, c] @ y <= 1``."""
        upper = np.ones(loads.shape[1])
        return Rows.dense(loads.T, np.full(len(upper), -math.inf), upper)

    # -- rows -------------------------------------------------------------------------------------

    @property
    def _first_mean(self) -> int:
        """First variable w, after y, z and u."""
        return self.options + len(self.model.used) + self.model.num_tangents + 2

    @property
    def _end(self) -> int:
        """First variable after y, z, u and w."""
        return self._first_mean + self.model.num_tangents

    def _common(self, rows: Iterable[Name], rank_rows: Iterable[Name]) -> list[Rows]:
        """Rows of every program, those of tables and ranks as asked for."""
        unit = self._unit
        parts = [
            self._once(("one",), lambda: Rows.one_of_each(self.space.table_of)),
            self._once(("counted",), lambda: counted(self.space)),
            self._once(("means",), self._means),
            self._once(("uniform",), lambda: self._uniform_base(unit)),
        ]
        for kind, names, build in (
            ("table", rows, self._largest),
            ("rank", rank_rows, self._on_rank),
        ):
            parts += [self._once((kind, *n), partial(build, n, unit)) for n in sorted(names)]
        return parts

    def _once(self, name: tuple[object, ...], build: Callable[[], Rows]) -> Rows:
        key = (self.model.num_tangents, *name)
        if key not in self._built:
            self._built[key] = build()
        return self._built[key]

    def _means(self) -> Rows:
        """Means over ranks; where devices differ, what all of them can do at most in a phase.

        A rank whose device is f times as slow has at most 1/f of the phase's maximum, in units of
        the fastest device. The sum of these limits bounds the sum of all loads. The means are
        variables of their own, for several rows are about them and they have every option.
        """
        loads, tangents = self._mean_loads, self.model.num_tangents
        means = self._first_mean + np.arange(tangents)
        matrix = np.zeros((tangents + 2, self._end))
        matrix[:, : self.options] = loads.T
        matrix[np.arange(tangents), means] = -1.0
        most = np.append(np.zeros(tangents), [1.0, 1.0])
        of_phases = Rows(
            row=np.repeat(np.arange(tangents), 2),
            column=np.stack([means, self.options + self.model.phase_index], axis=1).ravel(),
            values=np.tile([1.0, -1.0], tangents),
            lower=np.full(tangents, -math.inf),
            upper=np.zeros(tangents),
        )
        return Rows.stack([Rows.dense(matrix, np.full(tangents + 2, -math.inf), most), of_phases])

    @property
    def _speeds(self) -> FloatArray:
        """``[P]`` mean speed of the devices at each load, as a share of the fastest one's."""
        slowness = self.model.slowness
        tangents = self.model.num_tangents
        if slowness is None:
            return np.ones(tangents)
        return np.asarray(np.mean(1.0 / slowness[:, :tangents], axis=0))

    @property
    def _mean_loads(self) -> FloatArray:
        """``[n, P + 2]`` each option's loads, mean over ranks by their speed, in the units."""
        speeds = np.append(self._speeds, [1.0, 1.0])
        return np.asarray(self.model.mean / (self._unit * speeds))

    @property
    def _most_uniform(self) -> FloatArray:
        """``[P + 2]`` most that ``u`` can be: the dearest uniform option of every table."""
        least = np.where(self.uniform[:, None], self.model.extreme(np.minimum), 0.0)
        each = np.maximum.reduceat(least, self.space.first[:-1], axis=0)
        return np.asarray(each.sum(axis=0) / self._unit * (1 + _LIMIT_SLACK))

    def _uniform_base(self, unit: FloatArray) -> Rows:
        """``u`` equals the least load of the uniform options."""
        least = np.where(self.uniform[:, None], self.model.extreme(np.minimum) / unit, 0.0)
        start = len(least) + len(self.model.used)
        matrix = np.zeros((len(unit), start + len(unit)))
        matrix[:, : len(least)] = least.T
        matrix[:, start:] = -np.eye(len(unit))
        zero = np.zeros(len(unit))
        return Rows.dense(matrix, zero, zero)

    def tangent(self, name: Name) -> int:
        """The load that a row is about."""
        return self.members(int(np.searchsorted(self.model.used, name[1])))[name[2]]

    def _on_special(self, table: int, first: int) -> Rows:
        phase = self.options
        base = phase + len(self.model.used)
        return self._special.rows(table, first, phase, base, self.scale)

    def _largest(self, name: Name, unit: FloatArray) -> Rows:
        p = self.tangent(name)
        options, loads = self.one_place.options(name[0]), self.one_place.loads(name[0], p)
        most = self._most(p, self.rank_limits.max(axis=0))
        return self._below(options, loads / unit[p], p, base=True, most=most)

    def _on_rank(self, name: Name, unit: FloatArray) -> Rows:
        p, options = self.tangent(name), np.flatnonzero(self.uniform)
        rank = name[0]
        own = self.model.columns[self.uniform_rows[:, rank]]
        loads = self.model.at(own, rank)[:, p] / unit[p]
        most = self._most(p, self.rank_limits[name[0]])
        return self._below(options, loads, p, base=False, most=most)

    def _most(self, load: int, limits: FloatArray) -> float:
        """Most of a load in its unit, for memory; phases have variables for that."""
        if load < self.model.num_tangents:
            return 1.0
        return float((limits / self.limits)[load - self.model.num_tangents])

    def _below(
        self, options: IntArray, loads: FloatArray, load: int, *, base: bool, most: float = 1.0
    ) -> Rows:
        """A row ``loads @ y[options] + base u[load] <= z[phase of load]``; memory: ``<= most``."""
        phases, tangents = len(self.model.used), self.model.num_tangents
        there = loads != 0.0
        columns, values = [options[there]], [loads[there]]
        if base:
            columns.append(np.array([self.options + phases + load]))
            values.append(np.ones(1))
        if load < tangents:
            columns.append(np.array([self.options + self.model.phase_index[load]]))
            values.append(np.full(1, -1.0))
        column = np.concatenate(columns)
        return Rows(
            row=np.zeros(len(column), dtype=np.int64),
            column=column,
            values=np.concatenate(values),
            lower=np.array([-math.inf]),
            upper=np.array([0.0 if load < tangents else most]),
        )

    def _paths(self, cuts: Sequence[Cut], scale: float, size: int) -> Rows:
        """``slopes @ z - t <= -base`` for each cut."""
        matrix = np.zeros((len(cuts), size))
        for i, cut in enumerate(cuts):
            phases = slice(self.options, self.options + len(self.model.used))
            matrix[i, phases] = cut.slopes[self.model.used]
        matrix[:, -1] = -1.0
        upper = np.array([-cut.base / scale for cut in cuts])
        return Rows.dense(matrix, np.full(len(cuts), -math.inf), upper)

    def _boxed(self, box: Box) -> list[tuple[int, int]]:
        """(group, phase in use) for each side of a box."""
        used = {int(phase): k for k, phase in enumerate(self.model.used)}
        return [(g, used[int(p)]) for g, p in enumerate(box.first) if int(p) in used]

    def _launched(self, box: Box, scale: float, size: int) -> Rows:
        """Calls are loads too: their mean, beyond those counted, is part of the phase.

        A rank has a call if it has shards of it. No rank has more than a phase's limit, so the
        share of ranks with the call is at least the call's mean load over that limit.
        """
        launches, n = box.launches, self.options
        share = slice(self._end, self._end + len(launches.calls))
        rows, upper = [], []
        speeds = self._speeds
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
                row[self._end + i] = -box.high[g] / scale * (1 + _LIMIT_SLACK)
                if row[:n].any():
                    rows.append(row)
                    upper.append(0.0)
        matrix = np.array(rows).reshape(len(rows), size)
        return Rows.dense(matrix, np.full(len(rows), -math.inf), np.array(upper))


def _unlisted_bytes(space: SearchSpace) -> float:
    """Bytes that tables hold in device memory, at most, which are listed without host kernels."""
    workload, left_out = space.problem.workload, set(space.listing.left_out_tables)
    most = 0.0
    for table, listed in zip(workload.tables, space.tables, strict=True):
        fused = (o for o in listed.options if o.kernel is not ComputeKernel.DENSE)
        widths = {o.column_widths for o in fused} if table.name in left_out else set()
        most += max((workload.trained_bytes(table, w) for w in widths), default=0.0)
    return most
