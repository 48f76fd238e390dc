"""How long collectives take at least, from the largest growing part that any rank has.

The *growing part* of a collective is its time without what is fixed, such as start-up times. A rank
sends the same number of bytes to every other rank. So the rank that sends most has the largest
growing part, and the collective takes at least as long as if all ranks sent as much as that rank.

Prices are those of a subadditive model (:meth:`AbstractCollectiveModel.subadditive`): several
collectives take at least as long as one with all their bytes. The bounds therefore also hold for
the sum of the growing parts of several sharding types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from costmodels.collective.base import balanced_s
from costmodels.datatypes import FloatArray
from costmodels.measured.curves import Collective
from costmodels.shard_work.wire import EXCHANGING_TYPES
from costmodels.stages.exchanges import AllToAll, Reduction, whole_times
from costmodels.stages.stage_model import StageModel

Seconds = Callable[[FloatArray], FloatArray]
"""From growing parts ``[N]`` to seconds ``[N]``; the function never falls."""

_MOST_ENTRIES: Final = 500_000
"""Sizes times ranks that are priced in one call, so that arrays fit into some megabytes."""

NUM_EXCHANGES: Final = 3
FIRST, SECOND, INDICES = range(NUM_EXCHANGES)
"""The exchanges of one sharding type, in the order of ``EmbeddingExchanges.growth``."""


def exchange_floor(
    stages: StageModel, family: int, which: int, share_ratio: float = 1.0
) -> Seconds:
    """The least time of one exchange of a sharding type, as a function of its growing part.

    Args:
        stages: prices exchanges.
        family: index of the sharding type in ``EXCHANGING_TYPES``.
        which: ``FIRST`` or ``SECOND`` exchange of vectors, or that of ``INDICES``.
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
    one, growing = np.ones((1, world)), (model.all_to_all, model.reduce_scatter)
    unit_s = float(_exchange(stages, family, which, one, *growing).max())
    whole_s = whole_times(least)
    lengths_s = stages.exchanges.lengths_s if which == INDICES else 0.0

    def seconds_at(growth_s: FloatArray) -> FloatArray:
        """Least seconds ``[N]`` of the exchange if its growing part is ``growth_s`` ``[N]``."""
        per_peer = growth_s * share_ratio / unit_s if unit_s > 0 else np.zeros_like(growth_s)
        parts = np.array_split(per_peer, max(per_peer.size * world // _MOST_ENTRIES, 1))
        times = []
        for part in parts:
            sent = np.repeat(part[:, None], world, axis=1)
            times.append(_exchange(stages, family, which, sent, *whole_s).min(axis=1))
        return np.concatenate(times) + lengths_s

    return seconds_at


def tail_floor(stages: StageModel, *, replicates: bool) -> Seconds:
    """The least time of the last all-reduce, by the growing part of replicated tables.

    Args:
        stages: prices the all-reduce.
        replicates: whether plans have replicated tables.
    """
    own, whole = stages.reduction.tail_bytes, stages.models.exchange
    unit_s = float(stages.all_reduce_growth(np.ones(1)).max())
    least = stages.exchanges.least_collective

    def seconds_at(growth_s: FloatArray) -> FloatArray:
        """Least seconds ``[N]`` of the all-reduce if tables add a growing part ``growth_s``."""
        num_bytes = growth_s / unit_s if unit_s > 0 else np.zeros_like(growth_s)
        if whole is not None:
            fixed_s = whole.gradient_fixed_s if replicates else 0.0
            return np.asarray(stages.all_reduce_growth(own + num_bytes) + fixed_s)
        if own <= 0 and not replicates:
            return growth_s
        trainers = stages.topology.trainers
        return balanced_s(least, Collective.ALL_REDUCE, own + num_bytes, trainers)

    return seconds_at


def _exchange(
    stages: StageModel,
    family: int,
    which: int,
    sent: FloatArray,
    all_to_all: AllToAll,
    reduce_scatter: Reduction,
) -> FloatArray:
    """An exchange, priced by these, in which every rank sends ``sent`` bytes to each other rank."""
    if which == SECOND:
        return stages.exchanges.across_hosts(sent, all_to_all)
    if which == INDICES:
        return stages.exchanges.index_exchange(sent, all_to_all)
    kind = EXCHANGING_TYPES[family]
    return stages.exchanges.first_exchange(kind, sent, all_to_all, reduce_scatter)
