"""Kinds of networks between hosts: start-up, half-size message and efficiency of each.

A message of x bytes over a rank's share of the network cards takes

    t = start-up + y + protocol sqrt(y / (y + protocol)),   y = x / (efficiency * cards' share).

Large messages lose the protocol time, which fills their pipeline; small ones are sent by cheaper
protocols and lose sqrt(protocol * y). Half of the rate is reached where y is 0.62 protocol times.
The first crossing takes two start-ups, and every doubling of the domains one more; each doubling
loses a protocol time of an exchange, and 2.5 of a ring or tree. ``python benchmarks/fabrics.py``
fits the constants on the curves of ``configs/calibrations/collectives.csv`` and prints how far off
they are for sources that are left out.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from costmodels.topology import Link


class Fabric(NamedTuple):
    """One kind of network.

    ``startup_s`` is added twice from one domain to two and once for every further doubling,
    ``protocol_s`` is what large messages lose per doubling before they run at the full rate,
    ``efficiency_ratio`` is the share of the cards' nominal rate that large messages reach,
    ``num_sources`` says how many sites or systems the figures rest on, and ``source`` which.
    """

    startup_s: float
    protocol_s: float
    efficiency_ratio: float
    num_sources: int
    source: str


_CURVES: Final = "benchmarks/fabrics.py on configs/calibrations/collectives.csv"

FABRICS: Final[dict[str, Fabric]] = {
    "infiniband": Fabric(7.9e-6, 127e-6, 0.90, 4, f"{_CURVES}: ABCI A100 and V100, Vultr, H100"),
    "roce": Fabric(9.6e-6, 54e-6, 0.91, 3, f"{_CURVES}: A3 Ultra, OCI H100, MI355X"),
    "efa": Fabric(35e-6, 150e-6, 0.90, 3, f"{_CURVES}: p4de, p5, p6-b200"),
    "tcpx": Fabric(262e-6, 89e-6, 0.91, 2, f"{_CURVES}: A3 High at two sites"),
    "tcpxo": Fabric(57e-6, 129e-6, 0.91, 2, f"{_CURVES}: A3 Mega at two sites"),
    "slingshot": Fabric(66e-6, 85e-6, 0.91, 1, f"{_CURVES}: one GPU each on two hosts of CSCS"),
    "ethernet": Fabric(
        107e-6,
        100e-6,
        0.47,
        0,
        "start-up of TCP kinds, no curve; 0.32 to 0.71 of the rate, NVIDIA/nccl issues 209 and 450",
    ),
}


def fabric_link(
    kind: str,
    *,
    nic_bytes_per_s: float,
    nics_per_gpu: float,
    startup_s: float | None = None,
    efficiency_ratio: float | None = None,
    half_size_bytes: float | None = None,
) -> Link:
    """A rank's link to a network of a kind, as messages see it.

    Args:
        kind: one of :data:`FABRICS`.
        nic_bytes_per_s: nominal rate of one network card and direction.
        nics_per_gpu: cards of a host over its GPUs.
        startup_s: instead of the kind's.
        efficiency_ratio: instead of the kind's.
        half_size_bytes: message that reaches half of the rate, instead of the kind's.
    """
    fabric = FABRICS[kind]
    efficiency = fabric.efficiency_ratio if efficiency_ratio is None else efficiency_ratio
    rate = efficiency * nic_bytes_per_s * nics_per_gpu
    if half_size_bytes is None:
        half_size_bytes = half_size_of(fabric.protocol_s, rate)
    return Link(
        latency_s=fabric.startup_s if startup_s is None else startup_s,
        bandwidth_bytes_per_s=rate,
        half_size_bytes=half_size_bytes,
        fabric=kind,
    )


_HALF: Final = (math.sqrt(5.0) - 1.0) / 2.0
"""Protocol times that half of the rate is reached at: y = P sqrt(y / (y + P))."""


def half_size_of(protocol_s: float, bytes_per_s: float) -> float:
    """The message that reaches half of a rate, without the start-up."""
    return _HALF * protocol_s * bytes_per_s


def protocol_of(half_size_bytes: float, bytes_per_s: float) -> float:
    """The protocol time at which a message reaches half of a rate."""
    return half_size_bytes / (_HALF * bytes_per_s)


_WORDS: Final = (
    ("tcpxo", "tcpxo"),
    ("tcpx", "tcpx"),
    ("efa", "efa"),
    ("slingshot", "slingshot"),
    ("roce", "roce"),
    ("ib ", "infiniband"),
    ("infiniband", "infiniband"),
    ("ethernet", "ethernet"),
)


def fabric_named(text: str) -> str:
    """The kind that a text such as ``EFA 32x100G per node`` names; empty where it names none."""
    return next((kind for word, kind in _WORDS if word in f"{text.lower()} "), "")
