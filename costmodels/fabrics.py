"""Kinds of networks between hosts: start-up, half-size message and efficiency of each.

A message of x bytes over a rank's share of the network cards takes

    t = start-up + y + protocol sqrt(y / (y + protocol)),   y = x / (efficiency * cards' share).

Large messages lose the protocol time, which fills their pipeline; small ones are sent by cheaper
protocols and lose sqrt(protocol * y). Half of the rate is reached where y is 0.62 protocol times.
A tree over two domains takes two start-ups, and one more with every doubling of the domains; a ring
takes one for each domain, and an all-to-all one for every three ranks of other domains, two at
least. Each doubling loses a protocol time of an exchange and 2.5 of a tree; a ring loses 1.25 with
each domain (:mod:`costmodels.collective._law`). ``python benchmarks/fabrics.py`` fits the constants
on the curves of ``configs/calibrations/collectives.csv`` and prints how far off they are for
sources that are left out.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from costmodels.topology import Link


class Fabric(NamedTuple):
    """One kind of network.

    ``startup_s`` is what one step of a small collective takes from domain to domain,
    ``protocol_s`` is what large messages lose in it before they run at the full rate,
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
    "infiniband": Fabric(7.2e-6, 133e-6, 0.86, 4, f"{_CURVES}: ABCI A100 and V100, Vultr, H100"),
    "roce": Fabric(8.0e-6, 63e-6, 0.87, 3, f"{_CURVES}: A3 Ultra, OCI H100, MI355X"),
    "efa": Fabric(32e-6, 162e-6, 0.81, 3, f"{_CURVES}: p4de, p5, p6-b200"),
    "tcpx": Fabric(253e-6, 110e-6, 0.95, 2, f"{_CURVES}: A3 High at two sites"),
    "tcpxo": Fabric(54e-6, 156e-6, 0.95, 2, f"{_CURVES}: A3 Mega at two sites"),
    "slingshot": Fabric(9.2e-6, 159e-6, 0.65, 2, f"{_CURVES}: ALCF Polaris, CSCS Alps"),
    "ethernet": Fabric(
        24e-6,
        139e-6,
        0.31,
        1,
        f"{_CURVES}: sockets at ALCF Polaris; of the rate 0.13 there, 0.32 to 0.71 in NVIDIA/nccl "
        "issues 209 and 450, of which this is the geometric mean",
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
