"""The objective ``iteration``: the iteration time, with bounds that hold for sets of plans."""

from dataclasses import replace
from functools import cached_property
from typing import final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from costmodels.floors import phases as numbers
from costmodels.floors.floor import TypeFloor
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.wire import EXCHANGING_TYPES
from costmodels.shard_work.work import CALLS, REPLICATED
from costmodels.sharding import SPREAD, ComputeKernel, ShardingType, Spread
from costmodels.stages.exchanges import INDICES
from planner.search.bounds.boxes import Box, BoxLaunches
from planner.space.evaluation import SearchSpace
from planner.space.objective import AbstractNamedObjective, Cut, JudgedWork


@final
class IterationTime(AbstractNamedObjective):
    """Seconds per iteration.

    An iteration takes as long as the longest path through its steps, so that it takes at least as
    long as any one path: some constants plus some of the phases.
    :class:`costmodels.floors.floor.IterationFloor` has the paths that all plans with the same
    sharding types have; :meth:`cut` picks the longest of them at given phases.
    """

    name = "iteration"
    unit = "s"

    def __init__(self, space: SearchSpace | JudgedWork) -> None:
        """The time of plans with the sharding types and kernels of the options in ``space``."""
        self._pipeline = space.pipeline
        self._space = space if isinstance(space, SearchSpace) else None  # None outside a search
        self._calls = sorted({(o.sharding_type, o.kernel) for o in space.options})
        self._fetches = any(k is ComputeKernel.FUSED_UVM_CACHING for _, k in self._calls)
        self._replicates = any(t is ShardingType.DATA_PARALLEL for t, _ in self._calls)

    @property
    def weights(self) -> FloatArray:
        """``[K]`` the pipeline's weights, and 1 for phases that can lengthen an iteration.

        Such phases are: the all-reduce, if tables may be replicated; the exchanges of the types
        that tables may have, of indices and of vectors that travel early; and the fetch of caches,
        if tables may be cached. Compute can hide them, but only up to a point. The forward lookup
        without the fetch counts if tables may be cached, and the backward lookup without decoding
        if there is such a phase.
        """
        weights = np.array(self._pipeline.phases.weights, dtype=float)
        weights[numbers.ALL_REDUCE] = float(self._replicates)
        kinds = sorted({kind for kind, _ in self._calls} & set(EXCHANGING_TYPES))
        may = [numbers.exchange_phase(kind, which) for kind in kinds for which in (0, INDICES)]
        weights[may] = np.maximum(weights[may], 1.0)
        weights[[numbers.FETCH, numbers.FORWARD_ALONE]] = float(self._fetches)
        weights[numbers.BACKWARD_ALONE :] = 1.0
        return weights

    @property
    def slowness(self) -> FloatArray | None:
        """``[W, K]`` as the pipeline says, with the fetch of caches if tables may be cached."""
        return self._pipeline.phases.slowness(fetches=self._fetches)

    @property
    def parts(self) -> BoolArray:
        """True for lookups alone, which are parts of the lookups with fetch and with decoding."""
        return np.asarray(np.arange(len(self.weights)) >= numbers.FORWARD_ALONE)

    @property
    def hidden(self) -> BoolArray:
        """True for exchanges of indices and fetches that run beside the rest of the iteration."""
        beside = [numbers.FETCH, *(numbers.exchange_phase(k, INDICES) for k in EXCHANGING_TYPES)]
        unpaid = self._pipeline.phases.weights == 0
        return np.asarray(np.isin(np.arange(len(unpaid)), beside) & unpaid)

    def values(self, work: FloatArray) -> FloatArray:
        """Seconds per iteration of each plan, in closed form."""
        return self._pipeline.iteration_times(work)

    def proven_values(self, work: FloatArray, values: FloatArray) -> FloatArray:
        """``[...]`` times that no other names of the same shards make shorter.

        They are times under a subadditive collective model, if those are below ``values``, where
        communication does not slow compute down: with more collectives the host issues some later,
        so that fewer of them run beside compute.
        """
        own = self._pipeline
        slows = own.topology.device.overlap_slowdown_ratio > 0
        if own.models.collective.subadditive() is own.models.collective and not slows:
            return values
        return np.minimum(values, self._least_pipeline.iteration_times(work))

    @cached_property
    def _least_pipeline(self) -> CostPipeline:
        """The pipeline with a subadditive collective model, and without such a slow-down."""
        own = self._pipeline
        models = replace(own.models, collective=own.models.collective.subadditive())
        device = replace(own.topology.device, overlap_slowdown_ratio=0.0)
        return CostPipeline(own.workload, replace(own.topology, device=device), models)

    def gradient(self, row: FloatArray) -> FloatArray:
        """Tangents of the pipeline's phases."""
        return self._pipeline.phases.gradient(row)

    def always(self) -> Cut:
        """The path through all compute and all exchanges, which every plan has."""
        return Cut(
            base=float(self._pipeline.phases.base_s), slopes=self._pipeline.phases.proven_weights
        )

    def separable_value(self, work: FloatArray, types: frozenset[ShardingType]) -> float | None:
        """The least time that bounds allow for the types and the largest phases of a plan."""
        if not types:
            return None
        floor = self._floor(types)
        phases = np.asarray(self._pipeline.phases.times(work)).max(axis=-2)
        return float(floor.seconds(floor.leaf_seconds(phases[None, floor.phases]))[0])

    def cut(
        self,
        phases: FloatArray,
        types: frozenset[ShardingType],
        optional: frozenset[ShardingType] = frozenset(),
    ) -> Cut | None:
        """The longest path at these phases; lines from below replace the curves of durations."""
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
        self, types: frozenset[ShardingType], *, optional: frozenset[ShardingType] = frozenset()
    ) -> Box | None:
        """The plans with exactly these types, for parts whose phases lie between limits.

        None if the exchange of a rank depends on what other ranks send, because its time is then
        not a function of the largest phases.

        Args:
            types: the sharding types that the tables of these plans have.
            optional: further types that each of the plans may have or not.
        """
        models = self._pipeline.models
        if not types or models.exchange is not None or not models.collective.full_duplex:
            return None
        floor = self._floor(types, optional)
        low, launches = np.zeros(len(floor.phases)), self._launches(types, floor)
        return Box(floor, len(self.weights), low, low + 1.0, launches)

    def _floor(
        self, types: frozenset[ShardingType], optional: frozenset[ShardingType] = frozenset()
    ) -> TypeFloor:
        """What no plan with these sharding types can take less time than."""
        return self._pipeline.floor.of(
            types, fetches=self._fetches, may_replicate=ShardingType.DATA_PARALLEL in optional
        )

    def _launches(self, types: frozenset[ShardingType], floor: TypeFloor) -> BoxLaunches:
        """What each further fused call on a rank adds to its time at least.

        The floor counts some calls already: those of the types that load all ranks, and one call of
        the types that are only on some ranks. If tables cut by rows make ranks differ, it counts
        none of the latter. Then every call of theirs is a further one, provided that every rank
        makes the calls of the types that load all ranks (:attr:`_calls_everywhere`).
        """
        seconds = np.zeros(len(floor.phases))
        calls = tuple(
            c for c in self._calls if c[0] in types and SPREAD[c[0]] is not Spread.UNIFORM
        )
        uniform = sum(SPREAD[t] is Spread.UNIFORM for t in types)
        counted = self._pipeline.floor.num_calls(types) - uniform
        if len(calls) > counted and (counted or self._calls_everywhere):
            further = self._pipeline.floor.further_call_s(types, fetches=self._fetches)
            seconds[floor.phases == 0] = further[0]
            seconds[np.isin(floor.phases, (1, numbers.BACKWARD_ALONE))] = further[1]
            seconds[floor.phases == numbers.FORWARD_ALONE] = further[2]
        calls = calls if seconds.any() else ()
        shares = tuple((kind, self._least_share(kind)) for kind in sorted({k for k, _ in calls}))
        return BoxLaunches(calls=calls, seconds=seconds, num_counted=counted, least_shares=shares)

    def _least_share(self, kind: ShardingType) -> float:
        """The share of ranks that call for one table of a type, or for one of its pieces if less.

        Several pieces of a table may be on the same host or rank.
        """
        space = self._space
        own = [] if space is None else [o.sharding_type == kind for o in space.options]
        if space is None or not any(own):
            return 0.0
        size = space.local_world_size if SPREAD[kind] is Spread.HOSTS else 1
        rows = [space.rows[i].reshape(-1, size) for i in np.flatnonzero(own)]
        calling = [(space.pool[r, CALLS:REPLICATED] > 0).any(axis=-1).sum(axis=1) for r in rows]
        return min(float(ranks.max()) for ranks in calling) / space.world_size

    @cached_property
    def _calls_everywhere(self) -> bool:
        """Whether every option that loads all ranks makes a fused call on each of the ranks."""
        space = self._space
        if space is None:
            return False
        rows = [space.rows[i] for i in np.flatnonzero(space.is_uniform)]
        return all((space.pool[r, CALLS:REPLICATED] > 0).any(axis=-1).all() for r in rows)
