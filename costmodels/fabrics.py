"""Kinds of networks between hosts: the start-up time, protocol time and efficiency of each.

A message of x bytes over a rank's share of the network cards takes, in seconds,

    t = start-up + y + protocol * sqrt(y / (y + protocol)),   y = x / (efficiency * cards' rate).

The start-up and the protocol time are constants of the kind of network. Large messages lose the
whole protocol time until their pipeline is full. Small messages are sent by cheaper protocols and
lose only sqrt(protocol * y). A message reaches half of the rate if y is 0.62 protocol times.

Collectives over several domains take several start-ups and protocol times
(:mod:`costmodels.collective._law`):

- A tree takes two start-ups over two domains, and one more with each doubling of the domains. It
  loses 2.5 protocol times with each doubling.
- A ring takes one start-up and loses 1.25 protocol times for each domain.
- An all-to-all takes one start-up for every three ranks of other domains, at least two. It loses
  one protocol time with each doubling of the domains.

``python benchmarks/fabrics.py`` fits the constants to the curves of
``configs/calibrations/collectives.csv``, and prints how far off they are for sources that are left
out of the fit.
"""

import math
import re
from typing import Final, NamedTuple

from costmodels.topology import Link


class Fabric(NamedTuple):
    """The constants of one kind of network.

    Attributes:
        startup_s: seconds that one step of a small collective takes from domain to domain.
        protocol_s: seconds that a large message loses until it runs at the full rate.
        efficiency_ratio: share of the nominal rate of the network cards that large messages reach.
        num_sources: how many sites or systems were measured.
        source: which sites or systems these are, and how the constants were found.
    """

    startup_s: float
    protocol_s: float
    efficiency_ratio: float
    num_sources: int
    source: str


_CURVES: Final = "benchmarks/fabrics.py on configs/calibrations/collectives.csv"
"""How the constants were found."""
_SOCKETS: Final = (
    "sockets at ALCF Polaris; of the rate 0.13 there, 0.32 to 0.71 in NVIDIA/nccl issues 209 and "
    "450, of which this is the geometric mean"
)

FABRICS: Final[dict[str, Fabric]] = {
    "infiniband": Fabric(7.2e-6, 133e-6, 0.86, 4, f"{_CURVES}: ABCI A100 and V100, Vultr, H100"),
    "roce": Fabric(8.0e-6, 63e-6, 0.87, 3, f"{_CURVES}: A3 Ultra, OCI H100, MI355X"),
    "efa": Fabric(32e-6, 162e-6, 0.81, 3, f"{_CURVES}: p4de, p5, p6-b200"),
    "tcpx": Fabric(253e-6, 110e-6, 0.95, 2, f"{_CURVES}: A3 High at two sites"),
    "tcpxo": Fabric(54e-6, 156e-6, 0.95, 2, f"{_CURVES}: A3 Mega at two sites"),
    "slingshot": Fabric(9.2e-6, 159e-6, 0.65, 2, f"{_CURVES}: ALCF Polaris, CSCS Alps"),
    "ethernet": Fabric(24e-6, 139e-6, 0.31, 1, f"{_CURVES}: {_SOCKETS}"),
}
"""The kinds of networks by the names that system files use."""
UNNAMED: Final = Fabric(25e-6, 0.0, 0.82, 3, "")
"""A network of no named kind. Shipped systems of GPUs with such a network have 25 or 30 us, except
the one that has TorchRec's defaults. The efficiency is what all-gathers and all-reduces over two
hosts reach on tuned networks."""


STATES: Final = {"tuned": 1.0, "untuned": 0.4, "through_host": 0.56}
"""Rates of networks over those of the tuned ones on which the kinds were measured. Untuned fabrics
with lossless Ethernet reach 35 of 100 Gb/s, which is 0.4 of what tuned ones do. Through the memory
of the host, without GPUDirect, it is 6 GB/s of a card with 12.5 (NVIDIA/nccl issue 465), which is
0.56 of what tuned networks reach."""


def fabric_link(
    kind: str,
    *,
    nic_bytes_per_s: float,
    nics_per_gpu: float,
    startup_s: float | None = None,
    efficiency_ratio: float | None = None,
    half_size_bytes: float | None = None,
    state: str = "tuned",
) -> Link:
    """The link of a rank to a network of a kind.

    Args:
        kind: one of the names in :data:`FABRICS`.
        nic_bytes_per_s: nominal rate of one network card, in bytes per second and direction.
        nics_per_gpu: number of network cards of a host divided by the number of its GPUs.
        startup_s: start-up in seconds; None for that of the kind.
        efficiency_ratio: share of the nominal rate; None for that of the kind.
        half_size_bytes: size of the message that reaches half of the rate; None for that which
            follows from the protocol time of the kind.
        state: one of the names in :data:`STATES`.
    """
    fabric = FABRICS[kind]
    if efficiency_ratio is None:
        efficiency_ratio = fabric.efficiency_ratio * STATES[state]
    rate = efficiency_ratio * nic_bytes_per_s * nics_per_gpu
    if half_size_bytes is None:
        half_size_bytes = half_size_of(fabric.protocol_s, rate)
    return Link(
        latency_s=fabric.startup_s if startup_s is None else startup_s,
        bandwidth_bytes_per_s=rate,
        half_size_bytes=half_size_bytes,
        fabric=kind,
    )


_HALF: Final = (math.sqrt(5.0) - 1.0) / 2.0
"""A message reaches half of the rate if it takes this many protocol times P at the full rate: the
root of y = P sqrt(y / (y + P)), over P."""


def half_size_of(protocol_s: float, bytes_per_s: float) -> float:
    """Size of the message that reaches half of a rate, if the start-up is not counted.

    Args:
        protocol_s: protocol time in seconds.
        bytes_per_s: rate that large messages reach.
    """
    return _HALF * protocol_s * bytes_per_s


_WORDS: Final = (*("tcpxo", "tcpx", "efa", "slingshot", "roce"), *("ib", "infiniband", "ethernet"))
"""Whole words in the name of a network: the kinds, or ``ib`` for ``infiniband``. A word may have a
version at its end, as in ``RoCEv2``; the first word that is there decides."""


def fabric_named(text: str) -> str:
    """The kind that a text such as ``EFA 32x100G per node`` names; empty if it names none."""
    words = {re.sub(r"v?\d+$", "", word) for word in re.findall(r"[a-z0-9]+", text.lower())}
    found = next((word for word in _WORDS if word in words), "")
    return "infiniband" if found == "ib" else found
