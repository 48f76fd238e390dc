"""How far to trust a time that follows from the rates of links alone."""

from __future__ import annotations

from typing import Final

from costmodels.topology import Topology

_SPREAD: Final = 1.0
"""90 % spread of a time inside one scale-up domain if only the rates of its links are known: the
true time is within a factor of 1 + this. Nine in ten points of the shipped curves lie within a
factor of 1.8 of the law of link rates (``benchmarks/collectives.py``, links); the spread also
includes how much sites differ (``benchmarks/fabrics.py``)."""
_NETWORK_SPREAD: Final = 1.6
"""The same spread over several domains, if there is no curve inside a domain either."""


def analytic_spread_ratio(topology: Topology) -> float:
    """90 % spread of a collective over all ranks if nothing was measured; 0 for a single rank."""
    if topology.world_size == 1:
        return 0.0
    crosses = topology.world_size > topology.domain_size
    return _NETWORK_SPREAD if crosses else _SPREAD
