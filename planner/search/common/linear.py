"""The linear model of an objective, on which bounds, constructions and moves all work.

The time of a phase is a convex and homogeneous function of the work of a rank. Tangents therefore
bound it from below: phase k of a rank with work ``y`` takes at least ``gradient @ y`` for the
gradient at any other work. The *minorant* of the objective is the function of a plan that results
if every phase is replaced by its largest tangent; it is nowhere above the objective.

A *load* is one tangent, or the device bytes, or the host bytes, applied to work. Loads add up: the
load of a rank is the sum of the loads of its shards. Arrays of loads have ``P + 2`` columns: the
loads of the P tangents, then device bytes, then host bytes.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import ShardingType
from planner.search.common.lp import TOLERANCE
from planner.space.evaluation import SearchSpace
from planner.space.objective import AbstractObjective, Cut

_NOTHING: Final = 1e-200
"""Least target of a load, so that loads can be divided by it even if all loads are 0."""
_UNUSED: Final = 1e-6
"""Shares of options up to this are taken for the rounding of a solver, not for a choice."""
_SAME_TANGENT: Final = 1e-4
"""Share by which a new tangent has to be above the known ones at the work where it is taken. With a
smaller share the model is a little closer to the objective, and every program larger."""
_MOST_TANGENTS, _MOST_OF_PARTS = 6, 1
"""Most tangents of a phase, and of a phase that is part of another phase. Each tangent adds rows to
every program and a column to every array of loads."""


class LinearModel:
    """The tangents and cuts of an objective over a search space.

    In shapes, W is the number of ranks, F of columns of work, K of phases, K' of phases in use, P
    of tangents, n of options of all tables together and M of distinct rows of work.

    Args:
        space: the options of every table.
        objective: what is minimised; gives tangents and cuts.

    Attributes:
        tangents: ``[P, F]`` seconds per unit of work (or the unit of the objective), by phase.
        phase: ``[P]`` the phase of each tangent, ascending.
        used: ``[K']`` the phases in use: those that have tangents.
        starts: ``[K']`` position of the first tangent of each phase in use.
        phase_index: ``[P]`` position in ``used`` of the phase of each tangent.
        columns: ``[M, P + 2]`` loads of each row of ``space.pool`` on the fastest device.
        slowness: ``[W, P + 2]`` factors by which loads are multiplied on each rank; None if all
            ranks are equally fast.
        mean: ``[n, P + 2]`` loads of each option, mean over all ranks.
        largest, least: the same, the largest and the least over its shards.
    """

    def __init__(self, space: SearchSpace, objective: AbstractObjective) -> None:
        """Begin with tangents at the mean work of a rank if tables were cut in all ways equally."""
        self.space = space
        self.objective = objective
        self._gradients: list[FloatArray] = []
        self._phases: list[int] = []
        self._cuts: tuple[Cut, ...] = ()
        self._looked_at: BoolArray = (objective.weights > 0) & ~objective.hidden
        counts = np.diff(space.first)[space.table_of]
        self.add_tangents((space.mean_work / counts[:, None]).sum(axis=0))
        self.use_cuts([])

    @property
    def num_tangents(self) -> int:
        """Number of tangents, P; loads have two more columns, device and host bytes."""
        return len(self.phase)

    def add_tangents(self, row: FloatArray, gradient: FloatArray | None = None) -> bool:
        """Add the tangents of all phases at one rank's work, ``[F]``.

        Args:
            row: the work.
            gradient: ``[K, F]`` the tangents there, where they are known.

        Returns:
            False if none of them is above the known tangents there.
        """
        gradient = self.objective.gradient(row) if gradient is None else gradient
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
        if not self._gradients:  # no option has any work: one tangent, so that no array is empty
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
        """Add what the solution of a program shows to be missing from this model.

        That is the tangents at the mean work of a rank in the solution, and hidden phases
        (:attr:`AbstractObjective.hidden`) that add time to the longest path there.

        Args:
            shares: ``[n]`` share of each option in the solution.
            types: sharding types of the plans that the program is about; None for the types of the
                options that the solution uses.
            optional: types that each of the plans may have or not.
            touches: whether to add the tangents; otherwise only hidden phases are added.

        Returns:
            False if nothing was added.
        """
        unseen = (self.objective.weights > 0) & ~self._looked_at
        if not (touches or unseen.any()):
            return False
        row = shares @ self.space.mean_work
        gradient = self.objective.gradient(row)
        added = touches and self.add_tangents(row, gradient)
        if not unseen.any():
            return added
        if types is None:
            used = np.flatnonzero(shares > _UNUSED)
            types = frozenset(self.space.options[i].sharding_type for i in used)
        cut = self.objective.cut(gradient @ row, types - optional, types & optional)
        if cut is None or not (unseen & (cut.slopes > 0)).any():
            return added
        self._looked_at |= unseen & (cut.slopes > 0)
        return self.add_tangents(row, gradient) or added

    def option_rows(self, flat: int) -> FloatArray:
        """Loads of each shard of an option on the fastest device.

        Args:
            flat: position of the option among those of all tables.

        Returns:
            ``[W, P + 2]`` for uniform options, ``[pieces, P + 2]`` for pieces on ranks, ``[pieces,
            L, P + 2]`` for pieces on hosts of L ranks.
        """
        return np.asarray(self.columns[self.space.rows[flat]])

    def loads(self, work: FloatArray) -> FloatArray:
        """Loads of every rank, ``[..., W, P + 2]``, from the work of the ranks, ``[..., W, F]``."""
        loads = work @ self._matrix
        return np.asarray(loads if self.slowness is None else loads * self.slowness)

    def at(self, loads: FloatArray, ranks: IntArray | int | slice) -> FloatArray:
        """What loads on the fastest device, ``[..., P + 2]``, become on other ranks.

        Args:
            loads: their axes before the last are those of ``ranks``, or broadcast against them.
            ranks: the rank of each.
        """
        return loads if self.slowness is None else loads * self.slowness[ranks]

    def phase_maxima(self, peaks: FloatArray) -> FloatArray:
        """``[..., K']`` the largest tangent of each phase in use.

        Args:
            peaks: ``[..., P]`` largest load of each tangent over ranks; further columns are
                ignored.
        """
        tangents = peaks[..., : self.num_tangents]
        return np.asarray(np.maximum.reduceat(tangents, self.starts, axis=-1))

    def value(self, peaks: FloatArray) -> FloatArray:
        """The minorant of the objective, ``[...]``, from the largest load of each tangent."""
        return np.asarray(self.paths(self.phase_maxima(peaks)).max(axis=-1))

    def paths(self, phases: FloatArray) -> FloatArray:
        """``[..., cuts]`` the value of each cut at these maxima of the phases in use."""
        return np.asarray(phases @ self._slopes.T + self._bases)

    def slopes_of(self, phases: FloatArray) -> FloatArray:
        """``[K']`` slopes of the cut that is largest at these maxima of the phases in use."""
        return np.asarray(self._slopes[int(np.argmax(self.paths(phases)))])

    def use_cuts(self, cuts: Sequence[Cut]) -> None:
        """Let the minorant be the largest of these cuts and of the one that always holds."""
        self._cuts = (self.objective.always(), *cuts)
        self._bases = np.array([c.base for c in self._cuts])
        self._slopes = np.array([c.slopes[self.used] for c in self._cuts])

    def all_phases(self, maxima: FloatArray) -> FloatArray:
        """``[K]`` all phases from those in use, ``[K']``; the others are 0."""
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
        """The cut of the objective that is highest at some maxima, if it is above ``value`` there.

        Args:
            maxima: ``[K']`` largest value over ranks of each phase in use.
            types: sharding types that all plans have for which the cut has to hold.
            value: the value that known cuts give at these maxima.
            optional: further types that each of the plans may have or not.
        """
        phases = self.all_phases(maxima)
        cut = self.objective.cut(phases, types, optional)
        is_longer = cut is not None and cut.base + cut.slopes @ phases > value * (1 + TOLERANCE)
        return cut if is_longer else None

    def targets(self, peaks: FloatArray) -> FloatArray:
        """``[P + 2]`` what each load is measured against.

        A tangent is measured against the maximum of its phase at ``peaks``, the largest loads over
        ranks; device and host bytes against the mean limit of a rank.
        """
        phases = self.phase_maxima(peaks)[self.phase_index]
        pipeline = self.space.pipeline
        device = float(pipeline.device_limits.mean())
        host = float(pipeline.host_limits.mean()) / self.space.local_world_size
        loads = np.concatenate([phases, [device, host]])
        least = np.concatenate([np.full(len(phases), phases.max()), [1.0, 1.0]])
        return np.asarray(np.maximum(loads, 1e-6 * least + _NOTHING))

    def _rebuild(self) -> None:
        """Compute all that follows from the tangents, after some were added."""
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
        first = space.pool_first
        self.largest: FloatArray = np.maximum.reduceat(self.columns, first, axis=0)
        self.least: FloatArray = np.minimum.reduceat(self.columns, first, axis=0)
        self.mean = space.mean_work @ self._matrix
