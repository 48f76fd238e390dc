"""The time of an iteration as something to make small, with what is proven about it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Self, final

import numpy as np

from costmodels.floors.type_floor import TypeFloor
from costmodels.pipeline import CostPipeline
from costmodels.sharding import SPREAD, ComputeKernel, ShardingType, Spread
from planner.search.bounds.boxes import Box, Call, Launches
from planner.space.evaluation import FloatArray, SearchSpace
from planner.space.objective import AbstractNamedObjective, Cut


@final
class IterationTime(AbstractNamedObjective):
    """Seconds per iteration.

    An iteration is a longest path, so its time is at least the length of every path: some constants
    plus some of the phases. :class:`costmodels.floors.floor.IterationFloor` has the paths that
    every plan of a set of sharding types has; ``cut`` picks the longest one at given phases.
    """

    name = "iteration"
    unit = "s"

    def __init__(self, pipeline: CostPipeline, calls: Iterable[Call] | None = None) -> None:
        """Keep the pipeline that prices work.

        Args:
            pipeline: the judge.
            calls: sharding types with kernels that plans may have; all unless given.
        """
        self._pipeline = pipeline
        every = itertools.product(ShardingType, ComputeKernel)
        self._calls = sorted(set(every if calls is None else calls))
        self._fetches = any(k is ComputeKernel.FUSED_UVM_CACHING for _, k in self._calls)

    @classmethod
    def of(cls, space: SearchSpace) -> Self:
        """The time under the types and kernels that options of the space have."""
        return cls(space.pipeline, [(o.sharding_type, o.kernel) for o in space.options])

    @property
    def weights(self) -> FloatArray:
        """The pipeline's own."""
        return np.asarray(self._pipeline.phase_weights, dtype=float)

    def values(self, work: FloatArray) -> FloatArray:
        """The whole pipeline, in closed form."""
        return self._pipeline.iteration_times(work)

    def proven_values(self, work: FloatArray, values: FloatArray) -> FloatArray:
        """By collectives of which two never take less than one."""
        collective = self._pipeline.models.collective
        least = collective.subadditive()
        if least is collective:
            return values
        return np.minimum(values, self._least_pipeline.iteration_times(work))

    @cached_property
    def _least_pipeline(self) -> CostPipeline:
        own = self._pipeline
        models = replace(own.models, collective=own.models.collective.subadditive())
        return CostPipeline(own.workload, own.topology, models)

    def gradient(self, row: FloatArray) -> FloatArray:
        """The pipeline's own tangents."""
        return self._pipeline.phase_gradient(row)

    def always(self) -> Cut:
        """The path through all compute and all exchanges."""
        return Cut(base=float(self._pipeline.base_s), slopes=self.weights)

    def separable_value(self, work: FloatArray, types: frozenset[ShardingType]) -> float | None:
        """The shortest iteration with the largest phases of this plan."""
        if not types:
            return None
        floor = self._floor(types)
        phases = np.asarray(self._pipeline.phase_times(work)).max(axis=-2)
        return float(floor.seconds(floor.leaf_seconds(phases[None, floor.phases]))[0])

    def cut(self, phases: FloatArray, types: frozenset[ShardingType]) -> Cut | None:
        """The longest path at these phases, every duration by a line that is nowhere above it."""
        if not types:
            return None
        floor = self._floor(types)
        path = floor.longest_path(floor.lines(np.maximum(phases[floor.phases], 0.0)))
        base, slopes = path.constant_s, np.zeros(len(phases))
        for leaf, count in zip(floor.leaves, path.counts, strict=True):
            base += count * leaf.constant_s
            slopes[leaf.phase] += count * leaf.slope_ratio
        return Cut(base=base, slopes=slopes)

    def box(
        self,
        types: frozenset[ShardingType],
        low: FloatArray | None = None,
        high: FloatArray | None = None,
        *,
        per_second: float = 1.0,
    ) -> Box | None:
        """Plans with exactly these types and phases between the limits, each ``[K]``.

        Without limits, from nothing to one second. None where a rank's exchange depends on what
        others send, for its phases are no functions of the largest then.

        Args:
            types: the sharding types that some table has.
            low: least maximum of each phase.
            high: largest maximum of each phase.
            per_second: turns seconds into the unit of an objective that is time at a price.
        """
        models = self._pipeline.models
        if not types or models.exchange is not None or not models.collective.full_duplex:
            return None
        floor = self._floor(types)
        start = np.zeros(len(floor.phases)) if low is None else np.maximum(low[floor.phases], 0.0)
        end = start + 1.0 if high is None else np.maximum(high[floor.phases], start)
        launches = self._launches(types, floor)
        return Box(floor, len(self.weights), start, end, launches, per_second=per_second)

    def _floor(self, types: frozenset[ShardingType]) -> TypeFloor:
        return self._pipeline.floor.of(types, fetches=self._fetches)

    def _launches(self, types: frozenset[ShardingType], floor: TypeFloor) -> Launches:
        """What a further fused call on a rank costs at least."""
        seconds = np.zeros(len(floor.phases))
        calls = tuple(
            c for c in self._calls if c[0] in types and SPREAD[c[0]] is not Spread.UNIFORM
        )
        if len(calls) < 2:
            return Launches(calls=(), seconds=seconds)
        further = self._pipeline.floor.further_call_s(types, fetches=self._fetches)
        for phase, added_s in enumerate(further):
            seconds[floor.phases == phase] = added_s
        return Launches(calls=calls if seconds.any() else (), seconds=seconds)
