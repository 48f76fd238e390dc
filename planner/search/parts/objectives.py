"""What can be minimised, and what is proven about it from the phases' maxima alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Final, final

import numpy as np

from costmodels.collective._affine import AffineMinorant
from costmodels.iteration.base import LOOKUP_FORWARD, StageTimes
from costmodels.pipeline import CostPipeline
from costmodels.sharding import SPREAD, ComputeKernel, ShardingType, Spread
from costmodels.work import CALLS, REPLICATED, call_column
from planner.enumeration import memory_coefficients
from planner.errors import InvalidInputError
from planner.evaluation import AbstractObjective, BoolArray, Cut, FloatArray, IntArray, SearchSpace
from planner.search.parts.boxes import Box, Call, Launches, leaves_of
from planner.search.parts.priced import Cost, TimeObjective
from planner.search.parts.torchrec import TorchrecCriticalPath, TorchrecRating

_STEP: Final = 1e-5
_JITTER: Final = 1e-4
_ATTEMPTS: Final = 6
_SAME: Final = 1e-6
_MOST_TYPES: Final = 4
_FOREVER_S: Final = 1e6
_LAUNCHED: Final = ("lookup_forward_s", "lookup_backward_s", "lookup_host_s")


@final
class FullestDevice(AbstractObjective):
    """Embedding bytes on the fullest device."""

    name = "memory"

    def __init__(self, pipeline: CostPipeline) -> None:
        """Work out the bytes per unit of work."""
        self._device, _ = memory_coefficients(pipeline)

    @property
    def weights(self) -> FloatArray:
        """One phase: the bytes themselves."""
        return np.ones(1)

    def values(self, work: FloatArray) -> FloatArray:
        """Largest device."""
        return np.asarray((work @ self._device).max(axis=-1))

    def gradient(self, row: FloatArray) -> FloatArray:
        """Bytes are linear in work, so the same everywhere."""
        del row
        return self._device[None, :]

    def always(self) -> Cut:
        """The value is the phase."""
        return Cut(base=0.0, slopes=np.ones(1))


@final
class SynchronizedPhases(AbstractObjective):
    """The slowest rank's seconds in each phase that ranks wait for one another after, added up.

    What does not depend on the plan is part of it; launches, overlap and start-up costs of the
    collectives are not, so it is no more than the iteration time. It is separable, and its
    bound exact up to how shards share ranks.
    """

    name = "phases"

    def __init__(self, pipeline: CostPipeline) -> None:
        """Keep the pipeline that prices phases."""
        self._pipeline = pipeline

    @property
    def weights(self) -> FloatArray:
        """The pipeline's own."""
        return np.asarray(self._pipeline.phase_weights, dtype=float)

    def values(self, work: FloatArray) -> FloatArray:
        """Base plus weighted phase maxima."""
        phases = np.asarray(self._pipeline.phase_times(work)).max(axis=-2)
        return np.asarray(self._pipeline.base_s + phases @ self.weights)

    def gradient(self, row: FloatArray) -> FloatArray:
        """The pipeline's own tangents."""
        return self._pipeline.phase_gradient(row)

    def always(self) -> Cut:
        """The value is this sum."""
        return Cut(base=float(self._pipeline.base_s), slopes=self.weights)


@final
class IterationTime(TimeObjective):
    """Seconds per iteration.

    An iteration is a longest path, so its time is at least the length of every path: some constants
    plus some of the phases. Which path is longest depends on the phases; ``cut`` finds it by
    pricing a made-up plan in which every rank has exactly the given phases, and reading off which
    of them the time follows. That plan is never slower than a real one with these maxima:

    - phases are separated by collectives, which wait for the slowest rank;
    - each sharding type has a fused call on one rank; loaded ranks have one call of each uniform
      type, which every real plan has everywhere, and one of another type if there are such. A rank
      with a shard of those is the slowest of each phase where uniform types load all ranks alike;
      row-wise does not quite, nor do ranks of several speeds, and then that call is left out;
    - devices are as fast as the fastest, and overlap does not slow compute.
    """

    name = "iteration"

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

    @property
    def weights(self) -> FloatArray:
        """The pipeline's own."""
        return np.asarray(self._pipeline.phase_weights, dtype=float)

    def values(self, work: FloatArray) -> FloatArray:
        """The whole pipeline, in closed form."""
        return self._pipeline.iteration_times(work)

    def gradient(self, row: FloatArray) -> FloatArray:
        """The pipeline's own tangents."""
        return self._pipeline.phase_gradient(row)

    def always(self) -> Cut:
        """The path through all compute and all exchanges."""
        return Cut(base=float(self._pipeline.base_s), slopes=self.weights)

    def separable_value(self, work: FloatArray, types: frozenset[ShardingType]) -> float | None:
        """Iteration time of the made-up plan with the largest phases of this one."""
        if self._units is None or not types or len(types) > _MOST_TYPES:
            return None
        first = [int(group[0]) for group in self._units[1]]
        phases = np.asarray(self._relaxed.phase_times(work)).max(axis=-2)
        made = self._work(phases[None, first], types)
        return float(self._relaxed.iteration_times(made)[0])

    def cut(self, phases: FloatArray, types: frozenset[ShardingType]) -> Cut | None:
        """The longest path of the made-up plan with these phases and sharding types."""
        if self._units is None or not types or len(types) > _MOST_TYPES:
            return None
        first = [group[0] for group in self._units[1]]
        scale = max(float(phases.max()), 1e-9)
        step = _STEP * scale
        rng = np.random.default_rng(0)
        at = np.maximum(phases[first], 0.0) + 2.0 * step
        for _ in range(_ATTEMPTS):
            moves = np.eye(len(first)) * step
            times = self._times(np.concatenate([at[None], at + moves, at - moves]), types)
            up = (times[1 : len(first) + 1] - times[0]) / step
            down = (times[0] - times[len(first) + 1 :]) / step
            if np.abs(up - down).max() < _SAME:
                slopes = np.zeros(len(phases))
                slopes[first] = up
                return Cut(base=float(times[0] - up @ at), slopes=slopes)
            at = np.maximum(phases[first], 0.0) + scale * (
                2.0 * _STEP + _JITTER * rng.random(len(first))
            )
        return None

    def box(
        self,
        types: frozenset[ShardingType],
        low: FloatArray | None = None,
        high: FloatArray | None = None,
        *,
        per_second: float = 1.0,
    ) -> Box | None:
        """Plans with exactly these types and phases between the limits, each ``[K]``.

        ``per_second`` turns seconds into the unit of an objective that is time at a price.

        Without limits, from nothing to the longest iteration that is of interest. None where stage
        times cannot be told apart, or where a rank's exchange depends on what others send.
        """
        if self._units is None or not types or len(types) > _MOST_TYPES:
            return None
        if self._relaxed.models.exchange is not None:
            return None
        if not self._relaxed.models.collective.full_duplex:
            return None
        inside = self._moving(types)
        first = np.array([group[0] for group in self._units[1]], dtype=np.int64)[inside]
        start = np.zeros(len(first)) if low is None else np.maximum(low[first], 0.0)
        end = start + 1.0 if high is None else np.maximum(high[first], start)

        def stages(points: FloatArray) -> StageTimes:
            full = np.zeros((len(points), len(inside)))
            full[:, inside] = points
            times: StageTimes = self._relaxed.stage_times(self._work(full, types))
            return times

        def iteration(times: StageTimes, count: int) -> FloatArray:
            shape = (count, self._relaxed.topology.world_size)
            return self._relaxed.times_of_stages(times, shape) * per_second

        try:
            return Box(
                stages,
                iteration,
                first,
                len(self.weights),
                start,
                end,
                self._launches(types, inside),
                per_second=per_second,
            )
        except ValueError:
            return None

    def _moving(self, types: frozenset[ShardingType]) -> BoolArray:
        """``[G]`` groups that set some stage time of plans with these types."""
        count = len((self._units or ([], []))[0])
        points = np.concatenate([np.zeros((1, count)), np.eye(count)])
        leaves = leaves_of(self._relaxed.stage_times(self._work(points, types)))
        return np.array(
            [any(not np.allclose(s[0], s[1 + g], rtol=1e-9) for s in leaves) for g in range(count)]
        )

    def _launches(self, types: frozenset[ShardingType], inside: BoolArray) -> Launches:
        """What a further fused call on a rank costs at least.

        The device runs its kernels in both lookups. The host issues the forward one before that
        starts; where the lookup waits for the host and nothing else, however large the phases, it
        starts that much later.
        """
        columns, groups = self._units or ([], [])
        seconds = np.zeros(len(columns))
        spread = sorted(t for t in types if SPREAD[t] is not Spread.UNIFORM)
        if not spread or not (self.even(types) or len(spread) == len(types)):
            return Launches(calls=(), seconds=seconds[inside])
        calls = tuple(c for c in self._calls if c[0] in spread)
        points = np.array([[0.0], [_FOREVER_S]]) * np.ones(len(columns))
        work = self._work(points, types)
        more = work.copy()
        free = [c for c in range(CALLS, REPLICATED) if not work[..., c].any()]
        if len(calls) < 2 or not free:
            return Launches(calls=(), seconds=seconds[inside])
        more[..., free[0]] = 1.0
        few, many = self._relaxed.stage_times(work), self._relaxed.stage_times(more)
        added = [getattr(many, n) - getattr(few, n) for n in _LAUNCHED]
        forward_s, backward_s, host_s = (float(np.min(a)) for a in added)
        shape = (len(points), self._pipeline.topology.world_size)
        starts = []
        for times in (few, many):
            program, found = self._relaxed.scheduled(times, shape)
            lookup = next(i for i, step in enumerate(program.steps) if step.name == LOOKUP_FORWARD)
            starts.append(found.start_s[lookup])
        if (starts[1] - starts[0] >= host_s * (1 - 1e-6)).all():
            forward_s += host_s
        for k, one_s in ((0, forward_s), (1, backward_s)):
            own = [i for i, g in enumerate(groups) if k in g]
            seconds[own] = one_s
        return Launches(calls=calls, seconds=seconds[inside])

    def _times(self, seconds: FloatArray, types: frozenset[ShardingType]) -> FloatArray:
        """Iteration times of made-up plans, ``[N]``, from each group's first phase, ``[N, G]``."""
        return self._minorant.iteration_times(self._work(seconds, types))

    def _work(self, seconds: FloatArray, types: frozenset[ShardingType]) -> FloatArray:
        """Work of made-up plans, ``[N, W, F]``."""
        columns, groups = self._units or ([], [])
        topology = self._pipeline.topology
        work = np.zeros((len(seconds), topology.world_size, self._pipeline.num_features))
        for i, (column, group) in enumerate(zip(columns, groups, strict=True)):
            work[:, :, column] = (seconds[:, i] / self._response[column, group[0]])[:, None]
        spread = sorted(t for t in types if SPREAD[t] is not Spread.UNIFORM)
        idle = min(len(spread), topology.world_size - 1)
        work[:, :idle] = 0.0
        for sharding_type in types - set(spread):
            work[..., _call(sharding_type)] = 1.0
        for rank, sharding_type in enumerate(spread[: idle or 1]):
            work[:, rank, _call(sharding_type)] = 1.0
        if spread and (self.even(types) or len(spread) == len(types)):
            work[:, idle:, _call(spread[0])] = 1.0
        return work

    def even(self, types: frozenset[ShardingType]) -> bool:
        """Whether tables of uniform types load all ranks alike."""
        speeds = self._pipeline.topology.speeds()
        return ShardingType.ROW_WISE not in types and bool((speeds == speeds[0]).all())

    @cached_property
    def _minorant(self) -> CostPipeline:
        """The relaxed pipeline with convex collectives, so that its tangents hold everywhere."""
        relaxed = self._relaxed
        models = replace(relaxed.models, collective=AffineMinorant(inner=relaxed.models.collective))
        return CostPipeline(relaxed.workload, relaxed.topology, models)

    @cached_property
    def _relaxed(self) -> CostPipeline:
        """The pipeline on equally fast devices that overlap for free."""
        topology = self._pipeline.topology
        device = replace(topology.device, overlap_slowdown_ratio=0.0)
        fastest = float(topology.speeds().max())
        speeds = (fastest,) * topology.world_size if topology.speed_by_rank_ratio else ()
        relaxed = replace(topology, device=device, speed_by_rank_ratio=speeds)
        return CostPipeline(self._pipeline.workload, relaxed, self._pipeline.models)

    @cached_property
    def _response(self) -> FloatArray:
        """``[F, K]`` phases of a rank when all ranks have one unit of one column."""
        size, world = self._pipeline.num_features, self._pipeline.topology.world_size
        probe = np.zeros((size, world, size))
        probe[np.arange(size), :, np.arange(size)] = 1.0
        return np.asarray(self._relaxed.phase_times(probe)[:, -1, :] * (self.weights > 0))

    @cached_property
    def _units(self) -> tuple[list[int], list[IntArray]] | None:
        """Columns that set the phases, each with the phases it sets; None if there are none such.

        The forward phase is set by the cache fetch, its earliest part, where there is one.
        """
        response = self._response
        moved = response > 0
        columns: list[int] = []
        phases: list[IntArray] = []
        left = set(np.flatnonzero(moved.any(axis=0)).tolist())
        while left:
            k = min(left)
            users = np.flatnonzero(moved[:, k])
            narrow = moved[users].sum(axis=1)
            best = int(users[np.flatnonzero(narrow == narrow.min())[-1 if self._fetches else 0]])
            group = np.flatnonzero(moved[best])
            if not set(group.tolist()) <= left:
                return None
            columns.append(best)
            phases.append(group)
            left -= set(group.tolist())
        return columns, phases


def _call(sharding_type: ShardingType) -> int:
    replicated = sharding_type is ShardingType.DATA_PARALLEL
    return call_column(sharding_type, ComputeKernel.DENSE if replicated else ComputeKernel.FUSED)


OBJECTIVES: Final = (
    IterationTime.name,
    SynchronizedPhases.name,
    FullestDevice.name,
    Cost.name,
    TorchrecRating.name,
    TorchrecCriticalPath.name,
)


def objective_named(name: str, space: SearchSpace) -> AbstractObjective:
    """The objective of that name, for plans of ``space``.

    Raises:
        InvalidInputError: there is none; the message lists those there are.
    """
    if name not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        msg = f"objective {name!r} is not one of {known}"
        raise InvalidInputError(msg)
    if name == FullestDevice.name:
        return FullestDevice(space.pipeline)
    if name == SynchronizedPhases.name:
        return SynchronizedPhases(space.pipeline)
    if name == TorchrecRating.name:
        return TorchrecRating(space)
    if name == TorchrecCriticalPath.name:
        return TorchrecCriticalPath(space)
    time = IterationTime(space.pipeline, [(o.sharding_type, o.kernel) for o in space.options])
    if name == Cost.name:
        return Cost(time, space.pipeline.workload, space.pipeline.topology)
    return time
