"""Kinds of networks between hosts: start-up, half-size message and efficiency of each.

A message of x bytes over a rank's share of the network cards takes

    t = start-up + x / rate + 2 sqrt(protocol * x / rate),   rate = efficiency * cards' share,

so that half of the rate is reached at ``4 * protocol * rate`` bytes. Every doubling of the domains
adds a start-up and a protocol time. ``python benchmarks/fabrics.py`` fits the constants on the
curves of ``configs/calibrations/collectives.csv`` and prints how far off they are for sources that
are left out.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from costmodels.topology import Link


class Fabric(NamedTuple):
    """One kind of network.

    ``startup_s`` is added per doubling of the domains, ``protocol_s`` sets how slowly the rate is
    reached, ``efficiency_ratio`` is the share of the cards' nominal rate that large messages reach,
    ``num_sources`` says how many sites or systems the figures rest on, and ``source`` which.
    """

    startup_s: float
    protocol_s: float
    efficiency_ratio: float
    num_sources: int
    source: str


_CURVES: Final = "benchmarks/fabrics.py on configs/calibrations/collectives.csv"

FABRICS: Final[dict[str, Fabric]] = {
    "infiniband": Fabric(13.3e-6, 64e-6, 0.93, 4, f"{_CURVES}: ABCI A100 and V100, Vultr, H100"),
    "roce": Fabric(26.7e-6, 14e-6, 0.93, 3, f"{_CURVES}: A3 Ultra, OCI H100, MI355X"),
    "efa": Fabric(66e-6, 82e-6, 0.93, 3, f"{_CURVES}: p4de, p5, p6-b200"),
    "tcpx": Fabric(657e-6, 31e-6, 0.93, 2, f"{_CURVES}: A3 High at two sites"),
    "tcpxo": Fabric(99e-6, 37e-6, 0.93, 2, f"{_CURVES}: A3 Mega at two sites"),
    "slingshot": Fabric(155e-6, 28e-6, 0.93, 1, f"{_CURVES}: one GPU each on two hosts of CSCS"),
    "ethernet": Fabric(
        152e-6,
        37e-6,
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
    half = 4.0 * fabric.protocol_s * rate if half_size_bytes is None else half_size_bytes
    return Link(
        latency_s=fabric.startup_s if startup_s is None else startup_s,
        bandwidth_bytes_per_s=rate,
        half_size_bytes=half,
        fabric=kind,
    )


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
