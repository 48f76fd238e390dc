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

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.floors.rules import require_rules
from planner.search.bounds.boxes import Box
from planner.search.bounds.relaxation import TypeSet, uses
from planner.search.bounds.room import unlisted_bytes
from planner.search.bounds.rows.counted import counted
from planner.search.bounds.rows.one_place import OnePlace
from planner.search.bounds.scope import EVERYTHING, Name, Scope
from planner.search.common.linear import LinearModel
from planner.search.common.milp import MilpProgram, Rows
from planner.space.evaluation import ROUNDING
from planner.space.objective import Cut

_LIMIT_SLACK = 1e-9
"""Share by which limits of variables are widened, because they are rounded sums: no plan may fall
outside."""


class RankFreeProgram:
    """Builds programs over the options of one model.

    Attributes:
        model: tangents and options.
        space: the space of the model.
        uniform: ``[n]`` True for options that load every rank.
        unlisted_bytes: device bytes by which a plan may need less than its listed options say.
            Tables may be listed without kernels in host memory. The bound holds for plans with
            these kernels too: the same plan with listed kernels is no slower, and needs at most so
            much more device memory, because a cut has the same buffers with every kernel.
        shards: ``[n]`` number of shards of each option that is not uniform.
        uniform_rows: ``[uniform options, W]`` position in ``space.pool`` of each option's row.
        ranks: of all ranks that uniform options, limits of memory and speeds treat alike, the
            first.
        one_place: rows about what has to be on one rank or one host.
    """

    def __init__(self, model: LinearModel) -> None:
        """Find out which ranks are alike; no row is built yet."""
        if model.objective.asks_models:
            for pipeline in getattr(model.space.pipeline, "pipelines", (model.space.pipeline,)):
                require_rules(pipeline.models, pipeline.topology)
        self.model, self.space = model, model.space
        self.unlisted_bytes = unlisted_bytes(model.space)
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
        self.one_place = OnePlace(model, self.uniform)
        self._calls = [(o.sharding_type, o.kernel) for o in self.space.options]
        self._built: dict[tuple[object, ...], Rows] = {}

    @property
    def options(self) -> int:
        """Number of options, n."""
        return len(self.space.options)

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
        whole: bool,
        scope: Scope = EVERYTHING,
    ) -> MilpProgram:
        """The program that minimises the objective.

        Args:
            types: the set of sharding types; None for all plans.
            rows: which rows of :class:`OnePlace` to have, about which loads.
            rank_rows: on which ranks to look at uniform options, about which loads.
            cuts: of the objective.
            whole: whether every table has one whole option; otherwise options have shares.
            scope: which plans it is about.
        """
        scale, box = self.scale, scope.box
        calls = () if box is None else box.launches.calls
        own = self._end + len(calls)
        size = own + 1
        lower, upper = self._limits_of(types, scope.kept, box, size)
        upper[self._end : own] = 1.0
        parts = [*self._common(rows, rank_rows), self._paths(cuts, scale, size)]
        if box is not None and calls:
            parts.append(self._launched(box, scale, size))
        integer = (np.arange(size) < self.options) & whole
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
        """The least and the largest value of every variable, ``[size]`` each.

        The limits of fused calls are not set here.
        """
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
        for kind, names, build in (
            ("table", rows, self._largest),
            ("rank", rank_rows, self._on_rank),
        ):
            parts += [self._once((kind, *n), partial(build, n, unit)) for n in sorted(names)]
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
        """``[P]`` mean over ranks of the speed at each load, as a share of the fastest device's."""
        slowness = self.model.slowness
        tangents = self.model.num_tangents
        if slowness is None:
            return np.ones(tangents)
        return np.asarray(np.mean(1.0 / slowness[:, :tangents], axis=0))

    @property
    def _mean_loads(self) -> FloatArray:
        """``[n, P + 2]`` mean load over ranks of each option, over the mean speed, in the units."""
        speeds = np.append(self._speeds, [1.0, 1.0])
        return np.asarray(self.model.mean / (self._unit * speeds))

    @property
    def _most_uniform(self) -> FloatArray:
        """``[P + 2]`` largest value of ``u``: the dearest uniform option of every table."""
        least = np.where(self.uniform[:, None], self.model.extreme(np.minimum), 0.0)
        each = np.maximum.reduceat(least, self.space.first[:-1], axis=0)
        return np.asarray(each.sum(axis=0) / self._unit * (1 + _LIMIT_SLACK))

    def _uniform_base(self, unit: FloatArray) -> Rows:
        """Rows that define ``u``: the sum of the least loads of uniform options."""
        least = np.where(self.uniform[:, None], self.model.extreme(np.minimum) / unit, 0.0)
        start = len(least) + len(self.model.used)
        matrix = np.zeros((len(unit), start + len(unit)))
        matrix[:, : len(least)] = least.T
        matrix[:, start:] = -np.eye(len(unit))
        zero = np.zeros(len(unit))
        return Rows.dense(matrix, zero, zero)

    def tangent(self, name: Name) -> int:
        """Position of the load that a row is about."""
        return self.members(int(np.searchsorted(self.model.used, name[1])))[name[2]]

    def _largest(self, name: Name, unit: FloatArray) -> Rows:
        """The row of that name about what has to be on one place."""
        p = self.tangent(name)
        options, loads = self.one_place.options(name[0]), self.one_place.loads(name[0], p)
        most = self._most(p, self.rank_limits.max(axis=0))
        return self._below(options, loads / unit[p], p, base=True, most=most)

    def _on_rank(self, name: Name, unit: FloatArray) -> Rows:
        """The row of that name about the uniform options on one rank."""
        p, options = self.tangent(name), np.flatnonzero(self.uniform)
        rank = name[0]
        own = self.model.columns[self.uniform_rows[:, rank]]
        loads = self.model.at(own, rank)[:, p] / unit[p]
        most = self._most(p, self.rank_limits[name[0]])
        return self._below(options, loads, p, base=False, most=most)

    def _most(self, load: int, limits: FloatArray) -> float:
        """What a row about a load adds up to at most: 0 with the phase's maximum, or the memory."""
        if load < self.model.num_tangents:
            return 0.0
        return float((limits / self.limits)[load - self.model.num_tangents])

    def _below(
        self, options: IntArray, loads: FloatArray, load: int, *, base: bool, most: float
    ) -> Rows:
        """A row that keeps a load below its phase's maximum, or memory below its limit.

        It says ``loads @ y[options] + u[load] - z[phase] <= most``, without z for memory.

        Args:
            options: positions of the options with this load.
            loads: what each of them adds, in its unit.
            load: which load it is.
            base: whether u is part of the sum.
            most: the limit of memory, in its unit; 0 for phases.
        """
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
            upper=np.array([most]),
        )

    def _paths(self, cuts: Sequence[Cut], scale: float, size: int) -> Rows:
        """A row ``slopes @ z - t <= -base`` for each cut; ``scale`` is what is 1 in the program."""
        matrix = np.zeros((len(cuts), size))
        for i, cut in enumerate(cuts):
            phases = slice(self.options, self.options + len(self.model.used))
            matrix[i, phases] = cut.slopes[self.model.used]
        matrix[:, -1] = -1.0
        upper = np.array([-cut.base / scale for cut in cuts])
        return Rows.dense(matrix, np.full(len(cuts), -math.inf), upper)

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
        upper = [-least * (1 - _LIMIT_SLACK) for _, least in launches.least_shares]
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
                row[self._end + i] = -box.high[g] / scale * (1 + _LIMIT_SLACK)
                if row[:n].any():
                    rows.append(row)
                    upper.append(0.0)
        matrix = np.array(rows).reshape(len(rows), size)
        return Rows.dense(matrix, np.full(len(rows), -math.inf), np.array(upper))
