"""The objective ``torchrec-critical-path``: the path that TorchRec's statistics print."""

from typing import final

from planner.torchrec_terms import ColumnMaxima


@final
class TorchrecCriticalPath(ColumnMaxima):
    """The critical path that TorchRec's statistics print, in seconds.

    It adds up the largest forward compute and the largest backward compute over ranks, and for each
    module and sharding type the largest forward and the largest backward exchange
    (``stats._calculate_critical_path``).
    """

    name = "torchrec-critical-path"
    by_phase = True
