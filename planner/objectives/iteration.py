"""The time of an iteration as something to make small, with what is proven about it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Self, final

import numpy as np

from costmodels.floors.exchange_floor import INDICES
from costmodels.floors.phases import (
    ALL_REDUCE,
    BACKWARD_ALONE,
    FETCH,
    FORWARD_ALONE,
    exchange_phase,
)
from costmodels.floors.type_floor import TypeFloor
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.work import CALLS, EXCHANGING_TYPES, REPLICATED
from costmodels.sharding import SPREAD, ComputeKernel, ShardingType, Spread
from planner.search.bounds.boxes import Box, Call, Launches
from planner.space.evaluation import BoolArray, FloatArray, SearchSpace
from planner.space.objective import AbstractNamedObjective, Cut, JudgedWork


@final
class IterationTime(AbstractNamedObjective):
    """Seconds per iteration.

    An iteration is a longest path, so its time is at least the length of every path: some constants
    plus some of the phases. :class:`costmodels.floors.floor.IterationFloor` has the paths that
    every plan of a set of sharding types has; ``cut`` picks the longest one at given phases.
    """

    name = "iteration"
    unit = "s"

    def __init__(
        self,
        pipeline: CostPipeline,
        calls: Iterable[Call] | None = None,
        space: SearchSpace | None = None,
    ) -> None:
        """Keep the pipeline that prices work.

        Args:
            pipeline: the judge.
            calls: sharding types with kernels that plans may have; all unless given.
            space: the plans that are searched, if they are.
        """
        self._pipeline, self._space = pipeline, space
        every = itertools.product(ShardingType, ComputeKernel)
        self._calls = sorted(set(every if calls is None else calls))
        self._fetches = any(k is ComputeKernel.FUSED_UVM_CACHING for _, k in self._calls)
        self._replicates = any(t is ShardingType.DATA_PARALLEL for t, _ in self._calls)

    @classmethod
    def of(cls, space: SearchSpace | JudgedWork) -> Self:
        """The time under the types and kernels that options of the space have."""
        calls = [(o.sharding_type, o.kernel) for o in space.options]
        searched = space if isinstance(space, SearchSpace) else None
        return cls(space.pipeline, calls, searched)

    @property
    def weights(self) -> FloatArray:
        """The pipeline's own; the forward lookup alone counts where caches may be fetched first.

        The all-reduce counts where tables may be replicated, exchanges of indices and fetches of
        caches where tables may have them, even if compute can hide them: the more of them, the
        sooner it cannot. The backward lookup alone counts where there is such a phase.
        """
        weights = np.array(self._pipeline.phase_weights, dtype=float)
        weights[ALL_REDUCE] = float(self._replicates)
        exchanging = {kind for kind, _ in self._calls} & set(EXCHANGING_TYPES)
        weights[[exchange_phase(kind, INDICES) for kind in sorted(exchanging)]] = 1.0
        weights[[FETCH, FORWARD_ALONE]] = float(self._fetches)
        weights[BACKWARD_ALONE:] = 1.0
        return weights

    @property
    def slowness(self) -> FloatArray | None:
        """The pipeline's own."""
        return self._pipeline.phase_slowness(fetches=self._fetches)

    @property
    def parts(self) -> BoolArray:
        """Lookups alone are parts of those with the fetch and with the decoding."""
        return np.asarray(np.arange(len(self.weights)) >= FORWARD_ALONE)

    @property
    def hidden(self) -> BoolArray:
        """Exchanges of indices and fetches that run beside the rest of the iteration."""
        beside = [exchange_phase(kind, INDICES) for kind in EXCHANGING_TYPES] + [FETCH]
        unpaid = self._pipeline.phase_weights == 0
        return np.asarray(np.isin(np.arange(len(unpaid)), beside) & unpaid)

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
        return Cut(base=float(self._pipeline.base_s), slopes=self._pipeline.proven_weights)

    def separable_value(self, work: FloatArray, types: frozenset[ShardingType]) -> float | None:
        """The shortest iteration with the largest phases of this plan."""
        if not types:
            return None
        floor = self._floor(types)
        phases = np.asarray(self._pipeline.phase_times(work)).max(axis=-2)
        return float(floor.seconds(floor.leaf_seconds(phases[None, floor.phases]))[0])

    def cut(
        self,
        phases: FloatArray,
        types: frozenset[ShardingType],
        optional: frozenset[ShardingType] = frozenset(),
    ) -> Cut | None:
        """The longest path at these phases, every duration by a line that is nowhere above it."""
        if not types:
            return None
        floor = self._floor(types, optional)
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
        optional: frozenset[ShardingType] = frozenset(),
        per_second: float = 1.0,
    ) -> Box | None:
        """Plans with exactly these types and phases between the limits, each ``[K]``.

        Without limits, from nothing to one second. None where a rank's exchange depends on what
        others send, for its phases are no functions of the largest then.

        Args:
            types: the sharding types that some table has.
            low: least maximum of each phase.
            high: largest maximum of each phase.
            optional: further types that each of the plans may have or not.
            per_second: turns seconds into the unit of an objective that is time at a price.
        """
        models = self._pipeline.models
        if not types or models.exchange is not None or not models.collective.full_duplex:
            return None
        floor = self._floor(types, optional)
        start = np.zeros(len(floor.phases)) if low is None else np.maximum(low[floor.phases], 0.0)
        end = start + 1.0 if high is None else np.maximum(high[floor.phases], start)
        launches = self._launches(types, floor)
        return Box(floor, len(self.weights), start, end, launches, per_second=per_second)

    def _floor(
        self, types: frozenset[ShardingType], optional: frozenset[ShardingType] = frozenset()
    ) -> TypeFloor:
        return self._pipeline.floor.of(
            types,
            fetches=self._fetches,
            may_replicate=ShardingType.DATA_PARALLEL in optional,
        )

    def _launches(self, types: frozenset[ShardingType], floor: TypeFloor) -> Launches:
        """What a further fused call on a rank costs at least.

        Of the types that are on some ranks only, the slowest rank has one call, or is taken to have
        none where tables cut by rows make ranks differ. Then calls are counted from the first one
        on, which takes for granted that every rank makes the calls of the other types.
        """
        seconds = np.zeros(len(floor.phases))
        none = Launches(calls=(), seconds=seconds, num_counted=0)
        calls = tuple(
            c for c in self._calls if c[0] in types and SPREAD[c[0]] is not Spread.UNIFORM
        )
        uniform = sum(SPREAD[t] is Spread.UNIFORM for t in types)
        counted = self._pipeline.floor.num_calls(types) - uniform
        if len(calls) <= counted or not (counted or self._calls_everywhere):
            return none
        further = self._pipeline.floor.further_call_s(types, fetches=self._fetches)
        forward_s, backward_s, alone_s = further
        seconds[floor.phases == 0] = forward_s
        seconds[np.isin(floor.phases, (1, BACKWARD_ALONE))] = backward_s
        seconds[floor.phases == FORWARD_ALONE] = alone_s
        if not seconds.any():
            return none
        return Launches(calls=calls, seconds=seconds, num_counted=counted)

    @cached_property
    def _calls_everywhere(self) -> bool:
        """Whether every option that loads all ranks makes a fused call on each of them."""
        space = self._space
        if space is None:
            return False
        rows = [space.rows[i] for i in np.flatnonzero(space.is_uniform)]
        return all((space.pool[r, CALLS:REPLICATED] > 0).any(axis=-1).all() for r in rows)
