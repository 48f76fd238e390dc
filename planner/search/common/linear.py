"""The piecewise linear minorant that bounds, constructions and moves all work on.

A phase is convex and homogeneous, so tangents bound it from below: phase k of a rank with work y is
at least ``gradient @ y``. A *column* here is one tangent (or device or host memory) applied to all
distinct work rows at once; the load of a rank is the sum of its shards' columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import ShardingType
from planner.space.evaluation import SearchSpace
from planner.space.objective import AbstractObjective, Cut

_NOTHING: Final = 1e-200
"""Least target of a load, so that loads can be measured by it where there are none at all."""
_UNUSED: Final = 1e-6
"""Shares up to this come from the rounding of a solver."""
_SAME_TANGENT: Final = 1e-4
_LONGER: Final = 1e-5
"""Share by which a cut has to be above what is known."""
_MOST_TANGENTS, _MOST_OF_PARTS = 6, 1
"""Tangents kept per phase, and of phases that are part of another one."""


class LinearModel:
    """Tangents of an objective over a search space.

    Attributes:
        tangents: ``[P, F]``, sorted by phase; ``phase[p]`` is the phase of tangent p.
        used: ``[K']`` phases that have tangents (others cannot bind); those of ``used[k]`` begin at
            ``starts[k]``; ``phase_index[p]`` is the position of tangent p's phase.
        columns: ``[M, P + 2]`` loads of each row of ``space.pool``: tangents, device, host bytes,
            on the fastest device.
        slowness: ``[W, P + 2]`` factors that each rank multiplies them by; None if ranks are alike.
        mean: ``[n, P + 2]`` mean load over ranks of each option once placed.
    """

    def __init__(self, space: SearchSpace, objective: AbstractObjective) -> None:
        """Start with the tangents at the mean over all options."""
        self.space = space
        self.objective = objective
        self._gradients: list[FloatArray] = []
        self._phases: list[int] = []
        self._cuts: tuple[Cut, ...] = ()
        self._looked_at: BoolArray = (objective.weights > 0) & ~objective.hidden
        self.add_tangents(self._typical_work())
        self.use_cuts([])

    @property
    def num_tangents(self) -> int:
        """Number of tangents P; loads have two more columns, device and host bytes."""
        return len(self.phase)

    def add_tangents(self, row: FloatArray) -> bool:
        """Add the tangents at one rank's work; False if none says anything new."""
        return self._add(self.objective.gradient(row), row)

    def _add(self, gradient: FloatArray, row: FloatArray) -> bool:
        """The same with the tangents ``[K, F]`` at that work."""
        parts, added = self.objective.parts, False
        for k in np.flatnonzero(self._looked_at):
            known = [g for g, p in zip(self._gradients, self._phases, strict=True) if p == k]
            if len(known) >= (_MOST_OF_PARTS if parts[k] else _MOST_TANGENTS):
                continue
            value = float(gradient[k] @ row)
            if value > (1 + _SAME_TANGENT) * max((float(g @ row) for g in known), default=0.0):
                self._gradients.append(gradient[k])
                self._phases.append(int(k))
                added = True
        if not self._gradients:  # nothing is ever looked up or sent
            first = int(np.argmax(self._looked_at))
            self._gradients.append(gradient[first])
            self._phases.append(first)
            added = True
        if added or not hasattr(self, "phase"):
            self._rebuild()
        return added

    def follow(
        self,
        shares: FloatArray,
        types: frozenset[ShardingType] | None,
        optional: frozenset[ShardingType],
        *,
        touches: bool,
    ) -> bool:
        """Look at hidden phases that the mean rank of a solution does not hide; False if none.

        Args:
            shares: ``[n]`` of each option in the solution.
            types: sharding types of the plans that are asked about; None for those of the solution.
            optional: types that each of the plans may have or not.
            touches: add the tangents at that rank's work first; False only if nothing is new.
        """
        unseen = (self.objective.weights > 0) & ~self._looked_at
        if not (touches or unseen.any()):
            return False
        row = shares @ self.space.mean_work
        gradient = self.objective.gradient(row)
        added = touches and self._add(gradient, row)
        if not unseen.any():
            return added
        if types is None:
            used = np.flatnonzero(shares > _UNUSED)
            types = frozenset(self.space.options[i].sharding_type for i in used)
        cut = self.objective.cut(gradient @ row, types - optional, types & optional)
        if cut is None or not (unseen & (cut.slopes > 0)).any():
            return added
        self._looked_at |= unseen & (cut.slopes > 0)
        return self._add(gradient, row) or added

    def option_rows(self, flat: int) -> FloatArray:
        """Loads of an option's rows, ``[W | pieces | pieces x L, P + 2]``."""
        return np.asarray(self.columns[self.space.rows[flat]])

    def loads(self, work: FloatArray) -> FloatArray:
        """Loads ``[..., W, P + 2]`` of work ``[..., W, F]``."""
        loads = work @ self._matrix
        return np.asarray(loads if self.slowness is None else loads * self.slowness)

    def at(self, loads: FloatArray, ranks: IntArray | int | slice) -> FloatArray:
        """Loads ``[..., P + 2]`` of the fastest device as they are on other ranks.

        The axes of ``loads`` before the last are those of ``ranks``, or are spread over them.
        """
        return loads if self.slowness is None else loads * self.slowness[ranks]

    def phase_maxima(self, peaks: FloatArray) -> FloatArray:
        """``[..., K']`` phases from the largest load of each tangent, ``[..., >= P]``."""
        tangents = peaks[..., : self.num_tangents]
        return np.asarray(np.maximum.reduceat(tangents, self.starts, axis=-1))

    def value(self, peaks: FloatArray) -> FloatArray:
        """Minorant of the objective from the largest load of each tangent, ``[...]``."""
        paths = self.phase_maxima(peaks) @ self._slopes.T + self._bases
        return np.asarray(paths.max(axis=-1))

    def extreme(self, reduce: np.ufunc) -> FloatArray:
        """``[n, P + 2]`` largest or least load over the rows of each option."""
        if reduce.__name__ not in self._extremes:
            loads = reduce.reduceat(self.columns, self.space.pool_first, axis=0)
            self._extremes[reduce.__name__] = np.asarray(loads)
        return self._extremes[reduce.__name__]

    @property
    def cuts(self) -> list[tuple[float, FloatArray]]:
        """(base, slopes of the phases in use) of each cut followed."""
        return list(zip(self._bases.tolist(), self._slopes, strict=True))

    def paths(self, phases: FloatArray) -> FloatArray:
        """``[..., cuts]`` each cut's value from the phases' maxima, ``[..., K']``."""
        return np.asarray(phases @ self._slopes.T + self._bases)

    def slopes_of(self, phases: FloatArray) -> FloatArray:
        """``[K']`` slopes of the cut that binds at these maxima."""
        return np.asarray(self._slopes[int(np.argmax(self.paths(phases)))])

    def slopes(self, peaks: FloatArray) -> FloatArray:
        """``[K']`` how the minorant grows with each phase's maximum."""
        paths = self.phase_maxima(peaks) @ self._slopes.T + self._bases
        return np.asarray(self._slopes[int(np.argmax(paths))])

    def use_cuts(self, cuts: Sequence[Cut]) -> None:
        """Use these cuts for the minorant, with the one that always holds."""
        self._cuts = (self.objective.always(), *cuts)
        self._bases = np.array([c.base for c in self._cuts])
        self._slopes = np.array([c.slopes[self.used] for c in self._cuts])

    def all_phases(self, maxima: FloatArray) -> FloatArray:
        """``[K]`` from the phases in use, ``[K']``."""
        full = np.zeros(len(self.objective.weights))
        full[self.used] = maxima
        return full

    def longer_cut(
        self,
        maxima: FloatArray,
        types: frozenset[ShardingType],
        value: float,
        optional: frozenset[ShardingType] = frozenset(),
    ) -> Cut | None:
        """The objective's cut at some maxima, ``[K']``, if it is above ``value`` there.

        Args:
            maxima: of the phases in use.
            types: sharding types that all plans have for which it has to hold.
            value: what is known already.
            optional: further types that each of the plans may have or not.
        """
        phases = self.all_phases(maxima)
        cut = self.objective.cut(phases, types, optional)
        is_longer = cut is not None and cut.base + cut.slopes @ phases > value * (1 + _LONGER)
        return cut if is_longer else None

    def targets(self, peaks: FloatArray) -> FloatArray:
        """``[P + 2]`` what each load may reach: its phase's maximum, or the memory limit."""
        phases = self.phase_maxima(peaks)[self.phase_index]
        pipeline = self.space.pipeline
        device = float(pipeline.device_limits.mean())
        host = float(pipeline.host_limits.mean()) / self.space.local_world_size
        loads = np.concatenate([phases, [device, host]])
        least = np.concatenate([np.full(len(phases), phases.max()), [1.0, 1.0]])
        return np.asarray(np.maximum(loads, 1e-6 * least + _NOTHING))

    def _rebuild(self) -> None:
        order = np.argsort(self._phases, kind="stable")
        space = self.space
        self.phase: IntArray = np.array(self._phases, dtype=np.int64)[order]
        self.tangents = np.array([self._gradients[i] for i in order])
        self.used, starts, index = np.unique(self.phase, return_index=True, return_inverse=True)
        self.starts: IntArray = starts.astype(np.int64)
        self.phase_index: IntArray = index.astype(np.int64)
        if self._cuts:
            self.use_cuts(self._cuts[1:])
        self._matrix = np.column_stack([self.tangents.T, space.device, space.host])
        slow = self.objective.slowness
        bytes_too = np.ones((space.world_size, 2))
        self.slowness = None if slow is None else np.hstack([slow[:, self.phase], bytes_too])
        self.columns = space.pool @ self._matrix
        self._extremes: dict[str, FloatArray] = {}
        self.mean = space.mean_work @ self._matrix

    def _typical_work(self) -> FloatArray:
        """Mean over ranks if every table were cut in all its ways at once."""
        space = self.space
        counts = np.diff(space.first)[space.table_of]
        return np.asarray((space.mean_work / counts[:, None]).sum(axis=0))
