"""Stage times without any duration, from which the floors of sets of plans are made."""

from __future__ import annotations

import numpy as np

from costmodels.iteration.base import FamilyTimes, StageTimes
from costmodels.sharding import ShardingType


def absent_family(kind: ShardingType) -> FamilyTimes:
    """The collectives of a sharding type, still without any duration."""
    present = np.ones((1, 1), dtype=bool)
    return FamilyTimes(name=kind.value, present=present, input_s=np.zeros(1), outputs_s=())


def no_times(times: StageTimes) -> StageTimes:
    """The same stages without any duration, so that a program consists of leaves alone."""
    none = np.zeros_like(times.lookup_forward_s)
    return StageTimes(
        bottom_forward_s=none,
        top_forward_s=none,
        top_backward_s=none,
        bottom_backward_s=none,
        optimizer_s=none,
        lookup_forward_s=none,
        lookup_backward_s=none,
        cache_fetch_s=none,
        families=(),
        input_splits_s=none,
        bucket_s=(none,) * len(times.bucket_s),
        tail_bucket_s=none,
        bottom_host_s=none,
        top_host_s=none,
        lookup_host_s=none,
        collective_host_s=none,
        dense_names=times.dense_names,
        overlap_slowdown_ratio=0.0,
        floor_s=0.0,
        single_stream=times.single_stream,
        piece_ratio=times.piece_ratio,
        gather_s=(none,) * len(times.gather_s),
        earlier_s=None if times.earlier_s is None else none,
    )
