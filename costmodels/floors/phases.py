"""Phases and their tangents, which a search needs to prove a lower bound.

Between two collectives every rank works alone, and all ranks wait for the slowest one. Such a part
of the iteration is a phase. An iteration takes at least ``base_s`` plus the weighted sum of the
phases' maxima over ranks. The growing part of a phase (its time without what is fixed) is convex
and homogeneous in the work: twice the work takes twice the time. So the mean over ranks, and the
tangent at any point, bound the largest phase of all ranks from below.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Final

import numpy as np

from costmodels.collective.base import balanced_s
from costmodels.datatypes import FloatArray
from costmodels.iteration.base import TrainingPipeline, require_times
from costmodels.lookup.base import KERNELS, NUM_LOOKUP_WORK
from costmodels.measured.curves import Collective
from costmodels.shard_work import work as at
from costmodels.shard_work.wire import EXCHANGING_TYPES
from costmodels.sharding import BY_HOSTS, ShardingType
from costmodels.stages.exchanges import INDICES, NUM_EXCHANGES
from costmodels.stages.stage_model import StageModel

# ------------------ floors of exchanges
#
# How long collectives take at least, from the largest growing part that any rank has.
#
# The *growing part* of a collective is its time without what is fixed, such as start-up times. A
# rank sends the same number of bytes to every other rank. So the rank that sends most has the
# largest growing part, and the collective takes at least as long as if all ranks sent as much as
# that rank.
#
# Prices are those of a subadditive model (:meth:`AbstractCollectiveModel.subadditive`): several
# collectives take at least as long as one with all their bytes. The bounds therefore also hold
# for the sum of the growing parts of several sharding types.

Seconds = Callable[[FloatArray], FloatArray]
"""From growing parts ``[N]`` to seconds ``[N]``; the function never falls."""

_MOST_ENTRIES: Final = 500_000
"""Sizes times ranks that are priced in one call, so that arrays fit into some megabytes."""


def exchange_floor(
    stages: StageModel, family: int, which: int, share_ratio: float = 1.0
) -> Seconds:
    """The least time of one exchange of a sharding type, as a function of its growing part.

    Args:
        stages: prices exchanges.
        family: index of the sharding type in ``EXCHANGING_TYPES``.
        which: first (0) or second (1) exchange of vectors, or that of ``INDICES`` (2).
        share_ratio: the least share of the growing part's bytes that travels in this direction.
    """
    whole = stages.models.exchange
    if whole is not None:
        input_fixed_s, output_fixed_s = whole.fixed_s(EXCHANGING_TYPES[family])
        added_s = (output_fixed_s, 0.0, input_fixed_s)[which]
        return lambda growth_s: growth_s * share_ratio + added_s
    model = stages.models.collective
    if not model.full_duplex:
        return lambda growth_s: growth_s * share_ratio
    least, world = stages.exchanges.least_collective, stages.topology.world_size
    kind, exchange = EXCHANGING_TYPES[family], stages.exchanges.exchange
    unit_s = float(exchange(kind, which, np.ones((1, world)), model, whole=False).max())
    lengths_s = stages.exchanges.lengths_s if which == INDICES else 0.0

    def seconds_at(growth_s: FloatArray) -> FloatArray:
        """Least seconds ``[N]`` of the exchange if its growing part is ``growth_s`` ``[N]``."""
        per_peer = growth_s * share_ratio / unit_s if unit_s > 0 else np.zeros_like(growth_s)
        parts = np.array_split(per_peer, max(per_peer.size * world // _MOST_ENTRIES, 1))
        times = []
        for part in parts:
            sent = np.repeat(part[:, None], world, axis=1)
            times.append(exchange(kind, which, sent, least, whole=True).min(axis=1))
        return np.concatenate(times) + lengths_s

    return seconds_at


def tail_floor(stages: StageModel, *, replicates: bool) -> Seconds:
    """The least time of the last all-reduce, by the growing part of replicated tables.

    Args:
        stages: prices the all-reduce.
        replicates: whether plans have replicated tables.
    """
    own, whole = stages.reduction.tail_bytes, stages.models.exchange
    unit_s = float(stages.reduction.growth(np.ones(1)).max())
    least = stages.exchanges.least_collective

    def seconds_at(growth_s: FloatArray) -> FloatArray:
        """Least seconds ``[N]`` of the all-reduce if tables add a growing part ``growth_s``."""
        num_bytes = growth_s / unit_s if unit_s > 0 else np.zeros_like(growth_s)
        if whole is not None:
            fixed_s = whole.gradient_fixed_s if replicates else 0.0
            return np.asarray(stages.reduction.growth(own + num_bytes) + fixed_s)
        if own <= 0 and not replicates:
            return growth_s
        trainers = stages.topology.trainers
        return balanced_s(least, Collective.ALL_REDUCE, own + num_bytes, trainers)

    return seconds_at


# ------------------ phases

ALL_REDUCE: Final = 2 + len(EXCHANGING_TYPES) * NUM_EXCHANGES
"""Index of the phase of the gradients of replicated tables; it follows those of all exchanges."""
FETCH: Final = ALL_REDUCE + 1
"""Index of the phase of cache fetches that run beside the rest of an iteration; 0 s elsewhere."""
FORWARD_ALONE: Final = FETCH + 1
BACKWARD_ALONE: Final = FORWARD_ALONE + 1
"""Indices of the last phases, which are parts of the first two: see :meth:`PhaseModel.times`."""
_STEP = 1e-4
"""Relative step of the differences that give tangents. Tangents are lowered by the same share, so
that they stay below the phase although differences are not exact."""
_FLOOR = 1e-4
"""Least entry of a point at which a tangent is taken, relative to the largest entry.

Below 3e-5 the rounding of differences is larger than the share by which tangents are lowered.
"""


def exchange_phase(kind: ShardingType, which: int) -> int:
    """The phase of an exchange of a sharding type; ``which`` as in :func:`exchange_floor`."""
    return 2 + EXCHANGING_TYPES.index(kind) * NUM_EXCHANGES + which


def lookups_add_up(stages: StageModel, types: frozenset[ShardingType]) -> bool:
    """Whether an iteration takes at least the slowest forward plus the slowest backward lookup.

    The two may be lookups of different ranks. They add up if ranks wait for one another in the
    exchange of vectors between them. Plans that only replicate tables have no such exchange; there
    all ranks look up the same rows, so that one rank is slowest in both. This is not so where
    batches are unequal: a backward lookup updates distinct rows, whose number grows less than the
    batch.

    Args:
        stages: knows the batches.
        types: the sharding types that all the plans have.
    """
    exchanges = bool(types - {ShardingType.DATA_PARALLEL})
    return exchanges or stages.exchanges.batch_ratio is None


class PhaseModel:
    """Phases of one workload on one topology under one training pipeline."""

    def __init__(self, stages: StageModel, pipeline: TrainingPipeline) -> None:
        """Keep the arguments; nothing is computed yet."""
        self._stages = stages
        self._pipeline = pipeline
        is_plain = stages.exchanges.wire is None
        self._num_columns = at.NUM_COLUMNS if is_plain else at.NUM_COMPRESSED_COLUMNS

    def times(self, work: FloatArray) -> FloatArray:
        """Growing parts of the phases on every rank, ``[..., W, K]``: convex, homogeneous.

        The phases are, in this order:

        - lookup forward and lookup backward, with the codecs of what they send and receive; where
          the iteration waits for a cache fetch, it is part of the first;
        - for each sharding type: the first and the second exchange of vectors (the mean of forward
          and backward), and the exchange of indices;
        - the all-reduce of the gradients of replicated tables;
        - the cache fetch where it runs beside the iteration, else nothing;
        - lookup forward without the cache fetch;
        - only where exchanges are compressed: lookup backward without the decoding of gradients.
        """
        lookup = self._lookup_phases(work, self._stages.speeds)
        columns, alone = [lookup[..., 0], lookup[..., 1]], lookup[..., 3]
        if self._stages.codecs is not None:
            coded = [s / self._stages.speeds for s in self._stages.codecs.growth(work)]
            columns, alone = [c + s for c, s in zip(columns, coded, strict=True)], alone + coded[0]
        for f in range(len(EXCHANGING_TYPES)):
            columns.extend(self._stages.exchanges.growth(work, f))
        columns += [self._stages.reduction.growth(work[..., at.REPLICATED]), lookup[..., 2], alone]
        if self._stages.codecs is not None:
            columns.append(lookup[..., 1])
        return np.stack(np.broadcast_arrays(*columns), axis=-1)

    def slowness(self, *, fetches: bool) -> FloatArray | None:
        """``[W, K]`` how many times as long a phase takes on each rank as on the fastest device.

        None if all devices are alike. Exchanges and cache fetches do not depend on the device.

        Args:
            fetches: whether plans may have a cache fetch that the forward lookup waits for. The
                phase of both then counts as on the fastest device, which is a valid lower bound.
        """
        speeds = self._stages.speeds
        if speeds.min() == speeds.max():
            return None
        slow = np.ones((len(speeds), len(self.weights)))
        lookups = [1, *range(FORWARD_ALONE, len(self.weights))]
        lookups += [] if fetches and self._pipeline.exposes_fetch else [0]
        slow[:, lookups] = (speeds.max() / speeds)[:, None]
        return slow

    @cached_property
    def weights(self) -> FloatArray:
        """How often each phase counts in an iteration, ``[K]``; 0 for parts of other phases."""
        weights = [1.0, 1.0]
        for kind in EXCHANGING_TYPES:
            by_rows = kind is ShardingType.ROW_WISE
            paid = 2.0 * (self._stages.exchanges.next_batch_ratio if by_rows else 1.0)
            weights.extend([paid, paid, 1.0 if self._pipeline.exposes_input_dist else 0.0])
        weights.append(0.0 if self._pipeline.overlaps_bottom else 1.0)
        weights.append(0.0)
        num_parts = 1 if self._stages.codecs is None else 2
        return np.array([*weights, *[0.0] * num_parts])

    @cached_property
    def proven_weights(self) -> FloatArray:
        """Weights ``[K]`` with which ``base_s`` and the phases' maxima bound every iteration.

        They are :attr:`weights` if the two lookups add up (:func:`lookups_add_up`). Otherwise an
        iteration takes at least the longer of the two lookups, and so at least half of each.
        """
        weights = self.weights.copy()
        if not lookups_add_up(self._stages, frozenset({ShardingType.DATA_PARALLEL})):
            weights[:2] *= 0.5
        return weights

    @cached_property
    def base_s(self) -> float:
        """Seconds of every iteration that no plan avoids; see :attr:`proven_weights`."""
        dense, fastest = self._stages.least_dense, float(self._stages.speeds.max())
        chain_s = dense.top_forward_s + dense.top_backward_s + dense.optimizer_s
        if self._pipeline.overlaps_bottom:
            return float(chain_s / fastest)
        chain_s += dense.bottom_forward_s + dense.bottom_backward_s
        copy_s = float(np.min(self._stages.input_copy_s)) * self._pipeline.exposes_input_dist
        tail = np.array(self._stages.reduction.tail_bytes)
        return float(chain_s / fastest) + copy_s + float(self._stages.reduction.growth(tail))

    def gradient(self, work_row: FloatArray) -> FloatArray:
        """Tangents ``[K, num_features]`` of the phases at one rank's work.

        For every work ``y``, phase k of a rank is at least ``gradient[k] @ y[rank]``. Where the
        time of a rank also depends on other ranks, the tangent counts only what the rank itself
        sends.
        """
        size = len(self.weights)
        gradient = np.zeros((size, self._num_columns))
        columns, growth = self._exchange_gradient
        gradient[2:, columns] = growth[2:]
        lookups = self._lookup_gradient(work_row[: at.NUM_COLUMNS])
        gradient[[0, 1, FETCH, FORWARD_ALONE], : at.NUM_COLUMNS] = lookups
        codecs = self._stages.codecs
        if codecs is not None:
            fastest = codecs.rate_bytes_per_s * float(self._stages.speeds.max())
            gradient[[0, 1, FORWARD_ALONE], [at.CODECS, at.CODECS + 1, at.CODECS]] = 1.0 / fastest
            gradient[BACKWARD_ALONE, : at.NUM_COLUMNS] = lookups[1]
        return gradient

    @cached_property
    def _exchange_gradient(self) -> tuple[list[int], FloatArray]:
        """The columns that exchanges depend on, and the least cost of one unit of each, over ranks.

        Where the exchange of a rank also takes longer when others send more, each rank is probed
        alone; otherwise all ranks are probed at once.
        """
        world = self._stages.topology.world_size
        columns = [*range(at.INPUT, at.CALLS), at.REPLICATED]
        if self._stages.codecs is not None:
            columns += range(at.SECOND, at.SECOND + len(BY_HOSTS))
        growth = np.full((len(self.weights), len(columns)), np.inf)
        groups = [slice(r, r + 1) for r in range(world)]
        for ranks in groups if self._stages.exchanges.pays_for_others else [slice(0, world)]:
            probe = np.zeros((len(columns), world, self._num_columns))
            for i, column in enumerate(columns):
                probe[i, ranks, column] = 1.0
            growth = np.minimum(growth, self.times(probe)[:, ranks].min(axis=1).T)
        return columns, growth

    def _lookup_gradient(self, work_row: FloatArray) -> FloatArray:
        """Tangents of the lookup phases by central differences, kernel by kernel.

        The tangent of a convex homogeneous function at any point bounds the function everywhere. So
        a kernel without work can have its tangent at any point; it gets work in the proportions of
        the other kernels.
        """
        work = work_row[at.LOOKUP : at.INPUT].reshape(len(KERNELS), NUM_LOOKUP_WORK)
        point = _positive_blocks(work)
        up, down = np.zeros((2, point.size, at.NUM_COLUMNS))
        each = np.eye(point.size).reshape(-1, *point.shape)
        alone = np.where(each.any(axis=-1, keepdims=True), point, 0.0)
        up[:, at.LOOKUP : at.INPUT] = (alone * (1.0 + _STEP * each)).reshape(point.size, -1)
        down[:, at.LOOKUP : at.INPUT] = (alone * (1.0 - _STEP * each)).reshape(point.size, -1)
        rise = self._fastest_lookup_s(up) - self._fastest_lookup_s(down)
        width = 2.0 * _STEP * point.ravel()
        gradient = np.zeros((rise.shape[-1], at.NUM_COLUMNS))
        gradient[:, at.LOOKUP : at.INPUT] = np.maximum(rise / width[:, None], 0.0).T
        # A tangent may lie above the function only by rounding: lower it until it does not.
        value = self._fastest_lookup_s(work_row[None, :])[0]
        tangent = gradient @ work_row
        shrink = np.where(tangent > value, value / np.maximum(tangent, 1e-300), 1.0) * (1.0 - _STEP)
        return gradient * shrink[:, None]

    def _fastest_lookup_s(self, rows: FloatArray) -> FloatArray:
        """The four lookup phases on the fastest rank, ``[rows, 4]``."""
        return self._lookup_phases(rows, self._stages.speeds.max())

    def _lookup_phases(self, work: FloatArray, speeds: FloatArray | float) -> FloatArray:
        """The four lookup phases; a cache fetch does not depend on the speed of the device.

        Returns:
            ``[..., 4]`` seconds: lookup forward with the fetch that it waits for, lookup backward,
            a fetch that nothing waits for, and lookup forward alone.

        Raises:
            InvalidValueError: the lookup model gives a time that is below 0 or not finite.
        """
        forward, backward, fetch = self._stages.lookup_times(work)
        nothing = np.zeros_like(fetch)
        exposed, hidden = (fetch, nothing) if self._pipeline.exposes_fetch else (nothing, fetch)
        alone = forward / speeds
        phases = np.stack([alone + exposed, backward / speeds, hidden, alone], axis=-1)
        require_times(phases, "a lookup")
        return phases


def _positive_blocks(work: FloatArray) -> FloatArray:
    """Lookup work ``[kernels, columns]`` with positive entries, in the given proportions.

    Each kernel is scaled to a largest entry of 1: its times are homogeneous, so the tangent is the
    same at every scale.
    """
    work = np.maximum(work, 0.0)
    totals = work.sum(axis=0)
    typical = totals if totals.any() else np.ones(NUM_LOOKUP_WORK)
    filled = np.where(work.any(axis=1, keepdims=True), work, typical)
    return np.asarray(np.maximum(filled / filled.max(axis=1, keepdims=True), _FLOOR))
