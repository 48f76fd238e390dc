"""Host time: what the CPU thread of a rank spends to issue the work of an iteration.

Per operator the host spends T1 (gap between operators) + T2 (before the first launch) + T3 (after
the last), and T4 per kernel launch; terms as in Lin et al. 2022 (arXiv 2201.07821), section 4.
A captured CUDA graph replays without them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Seconds per operator (T1 + T2 + T3), by kind, and per kernel launch (T4)."""

    operator_s: float
    lookup_s: float
    collective_s: float
    launch_s: float

    @classmethod
    def of(cls, launch_latency_s: float, *, cuda_graph: bool) -> HostCosts:
        """Costs of a host whose kernel launch takes ``launch_latency_s``.

        The ratios to one launch (about 5 us there) are medians of Lin et al.'s traces: 20 us per
        operator, 60 us per embedding lookup, 40 us per collective.
        """
        if cuda_graph:
            return cls(operator_s=0.0, lookup_s=0.0, collective_s=0.0, launch_s=0.0)
        return cls(
            operator_s=4.0 * launch_latency_s,
            lookup_s=12.0 * launch_latency_s,
            collective_s=8.0 * launch_latency_s,
            launch_s=launch_latency_s,
        )

    def operators(self, num_operators: int, num_kernels: int) -> float:
        """Host seconds to issue ordinary operators."""
        return num_operators * self.operator_s + num_kernels * self.launch_s
