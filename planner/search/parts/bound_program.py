"""The rows of the rank-free problem; see :mod:`planner.search.parts.bound` for what they say.

Variables in order: ``y`` of each option, ``z`` of each phase in use, ``u`` of each load, the share
of ranks that have each fused call, those of special ranks, those of every rank, ``t``. Rows are
built once per set of tangents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from costmodels.sharding import Spread
from planner.evaluation import ROUNDING, BoolArray, FloatArray
from planner.objective import Cut
from planner.search.parts.boxes import Box
from planner.search.parts.every_rank import EveryRank
from planner.search.parts.linear import LinearModel
from planner.search.parts.programs import Program, Rows
from planner.search.parts.relaxation import TypeSet, uses
from planner.search.parts.special_ranks import SpecialRanks

_LIMIT_SLACK = 1e-9


Name = tuple[int, int, int]
"""Which table or rank; which phase in use, the one after the last being memory; which of the
phase's tangents."""


class RankFreeProgram:
    """Builds programs over the options of one model.

    Attributes:
        uniform: ``[n]`` options that load every rank.
        counts_memory: whether programs limit memory. They must not where options are missing that
            only differ from others in needing less of it, for the bound is about those, too.
        shards: ``[n]`` shards of the other options.
        uniform_rows: ``[uniform options, W]`` their rows in the pool.
    """

    def __init__(self, model: LinearModel) -> None:
        """Keep the model; nothing is built yet."""
        self.model, self.space = model, model.space
        self.counts_memory = not model.space.listing.left_out_tables
        spreads = [o.spread is Spread.UNIFORM for o in self.space.options]
        self.uniform: BoolArray = np.array(spreads, dtype=bool)
        self.shards = np.array(
            [0 if u else r.size for u, r in zip(spreads, self.space.rows, strict=True)]
        )
        self.uniform_rows = np.array(
            [self.space.rows[i] for i in np.flatnonzero(self.uniform)], dtype=np.int64
        )
        self._special = SpecialRanks(model, self.uniform)
        self.every_rank = EveryRank(model, self.uniform)
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
        limits = np.array([float(pipeline.device_limits.mean()), host])
        return np.asarray(np.maximum(limits, 1.0) * ROUNDING)

    @property
    def rank_limits(self) -> FloatArray:
        """``[W, 2]`` device bytes of each rank, and bytes of its whole host, for it may use all."""
        pipeline = self.space.pipeline
        hosts = np.repeat(pipeline.host_limits, self.space.local_world_size)
        limits = np.column_stack([pipeline.device_limits, hosts])
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
        kept: BoolArray | None = None,
        box: Box | None = None,
        more: Sequence[Rows] = (),
        special: Sequence[int] = (),
        every_rank: bool = False,
    ) -> Program:
        """Minimise t.

        Args:
            types: the set of sharding types, None for all.
            rows: tables whose largest shard is looked at, with the load.
            rank_rows: ranks on which uniform options are looked at, with the load.
            cuts: of the objective.
            whole: options are whole.
            kept: options to choose from.
            box: limits of phases, and what calls cost.
            more: further rows.
            special: tables whose largest piece's rank is looked at.
            every_rank: look at every rank; only where all are alike.
        """
        scale = self.scale
        calls = () if box is None else box.launches.calls
        own = self._end + len(calls)
        ranks = own + len(special) * self._special.size
        size = ranks + (self.every_rank.size if every_rank else 0) + 1
        lower, upper = self._limits_of(types, kept, box, size)
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
        if every_rank:
            base = self.options + len(self.model.used)
            unit, memory = self._unit, self.counts_memory
            parts.append(
                self.every_rank.rows(ranks, self.options, base, unit, counts_memory=memory)
            )
            upper[ranks:-1], integer[ranks:-1] = self.every_rank.upper, True
        return Program(
            cost=(np.arange(size) == size - 1).astype(float),
            lower=lower,
            upper=upper,
            rows=Rows.stack([*parts, *more]),
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
        upper[self._end - len(self._unit) : self._end] = self._most_uniform
        if box is not None:
            for g, k in self._boxed(box):
                lower[self.options + k] = box.low[g] / self.scale * (1 - _LIMIT_SLACK)
                upper[self.options + k] = box.high[g] / self.scale * (1 + _LIMIT_SLACK)
        return lower, upper

    def members(self, group: int) -> range:
        """Loads of phase ``group``; the group after the phases is memory."""
        starts = [*self.model.starts, self.model.num_tangents, self.model.num_tangents + 2]
        return range(starts[group], starts[group + 1])

    def fixed(self, loads: FloatArray) -> Rows:
        """Rows ``loads[:, c] @ y <= 1``."""
        upper = np.ones(loads.shape[1])
        return Rows.dense(loads.T, np.full(len(upper), -math.inf), upper)

    # -- rows -------------------------------------------------------------------------------------

    @property
    def _end(self) -> int:
        """First variable after y, z and u."""
        return self.options + len(self.model.used) + self.model.num_tangents + 2

    def _common(self, rows: Iterable[Name], rank_rows: Iterable[Name]) -> list[Rows]:
        """Rows of every program, those of tables and ranks as asked for."""
        unit = self._unit
        parts = [
            self._once(("one",), self._one_option_each),
            self._once(("means",), lambda: self._means(unit)),
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

    def _one_option_each(self) -> Rows:
        ones = np.ones(self.space.num_tables)
        return Rows(
            row=self.space.table_of,
            column=np.arange(self.options),
            values=np.ones(self.options),
            lower=ones,
            upper=ones,
        )

    def _means(self, unit: FloatArray) -> Rows:
        counted = len(unit) if self.counts_memory else self.model.num_tangents
        return self._below(self.model.mean / unit, range(counted), base=False)

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
        return self.members(name[1])[name[2]]

    def _on_special(self, table: int, first: int) -> Rows:
        phase = self.options
        base = phase + len(self.model.used)
        return self._special.rows(table, first, phase, base, self.scale)

    def _largest(self, name: Name, unit: FloatArray) -> Rows:
        start, stop = self.space.first[name[0]], self.space.first[name[0] + 1]
        p = self.tangent(name)
        loads = np.zeros_like(self.model.mean)
        largest = self.model.extreme(np.maximum)[start:stop, p] / unit[p]
        loads[start:stop, p] = np.where(self.uniform[start:stop], 0.0, largest)
        most = self._most(p, self.rank_limits.max(axis=0))
        return self._below(loads, range(p, p + 1), base=True, most=most)

    def _on_rank(self, name: Name, unit: FloatArray) -> Rows:
        loads, p = np.zeros_like(self.model.mean), self.tangent(name)
        if len(self.uniform_rows):
            loads[self.uniform] = self.model.columns[self.uniform_rows[:, name[0]]] / unit
        most = self._most(p, self.rank_limits[name[0]])
        return self._below(loads, range(p, p + 1), base=False, most=most)

    def _most(self, load: int, limits: FloatArray) -> float:
        """Most of a load in its unit, for memory; phases have variables for that."""
        if load < self.model.num_tangents:
            return 1.0
        return float((limits / self.limits)[load - self.model.num_tangents])

    def _below(self, loads: FloatArray, chosen: range, *, base: bool, most: float = 1.0) -> Rows:
        """Rows ``loads[:, c] @ y + base u[c] <= z[phase of c]``; memory: ``<= most``."""
        options, phases = len(loads), len(self.model.used)
        tangents = self.model.num_tangents
        matrix = np.zeros((len(chosen), self._end))
        upper = np.zeros(len(chosen))
        for i, c in enumerate(chosen):
            matrix[i, :options] = loads[:, c]
            if base:
                matrix[i, options + phases + c] = 1.0
            if c < tangents:
                matrix[i, options + self.model.phase_index[c]] = -1.0
            else:
                upper[i] = most
        return Rows.dense(matrix, np.full(len(chosen), -math.inf), upper)

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
        """Calls are loads too: their mean, beyond the first on each rank, is part of the phase.

        A rank has a call if it has shards of it. No rank has more than a phase's limit, so the
        share of ranks with the call is at least the call's mean load over that limit.
        """
        launches, n = box.launches, self.options
        share = slice(self._end, self._end + len(launches.calls))
        rows, upper = [], []
        for g, k in self._boxed(box):
            own = launches.seconds[g] / scale
            for p in self.members(k) if own > 0 else ():
                row = np.zeros(size)
                row[:n], row[n + k], row[share] = self.model.mean[:, p] / scale, -1.0, own
                rows.append(row)
                upper.append(own)
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
