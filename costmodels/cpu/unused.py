"""Which numbers of a system the models of calibrated CPU cores do not use."""

from __future__ import annotations

from typing import Final

from costmodels.estimates import Source
from costmodels.topology import Topology

_UNUSED: Final = (
    *("device.l2_", "device.flops", "device.row_half", "device.update_efficiency"),
    *("device.sort_rate", "host.ddr_bandwidth", "host.device_link_bandwidth", "links."),
)
"""How their names begin. Launches, memories and the rate of device memory are used: the last one by
codecs of exchanges."""


def unused_remark(topology: Topology) -> str | None:
    """A remark on numbers that the user gave and that change nothing; None if there are none.

    Args:
        topology: a system whose ranks are priced by a calibration.
    """
    given = (p.name for p in topology.provenance if p.source is Source.USER)
    names = [name for name in given if name.startswith(_UNUSED)]
    if not names:
        return None
    return (
        f"calibrated cores are priced by their calibration, so that {', '.join(names)} of the "
        "system change nothing; correct times with 'shardplan fit', or calibrate again"
    )
