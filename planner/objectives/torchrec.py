"""The objective ``torchrec``: the rating that TorchRec's planner minimises."""

from typing import final

from planner.torchrec_terms import ColumnMaxima


@final
class TorchrecRating(ColumnMaxima):
    """Seconds of all shards of the rank that has most of them (TorchRec's ``NoopPerfModel``)."""

    name = "torchrec"
    by_phase = False
