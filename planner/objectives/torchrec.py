"""The rating that TorchRec's planner minimises."""

from __future__ import annotations

from typing import final

from planner.torchrec_terms.maxima import ColumnMaxima


@final
class TorchrecRating(ColumnMaxima):
    """The most that a rank's shards cost together (``NoopPerfModel``), in seconds."""

    name = "torchrec"
    by_phase = False
