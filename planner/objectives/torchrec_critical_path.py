"""The path that TorchRec's statistics print."""

from __future__ import annotations

from typing import final

from planner.torchrec_terms.maxima import ColumnMaxima


@final
class TorchrecCriticalPath(ColumnMaxima):
    """The critical path that TorchRec's statistics print, in seconds.

    The most forward and the most backward compute of a rank, and the most forward and backward
    exchange for each module and sharding type (``stats._calculate_critical_path``).
    """

    name = "torchrec-critical-path"
    by_phase = True
