"""Which links the shipped collective curves of a system stand for.

Curves are shipped in sets, and every shipped system that names sets says by its own links what they
were measured on. A system file that inherits the sets and changes a link asks for other times.
"""

from __future__ import annotations

import functools
from typing import Final

from costmodels.topology import Links, Topology
from planner.io.library import names
from planner.io.system.system_file import load_system

_CSV: Final = ".csv"


def links_measured(topology: Topology) -> Links | None:
    """Links of the shipped system whose curves ``topology`` inherits.

    That is the shipped system of the same name; of a renamed copy the one with the same sets of
    curves, the same device and the same kind of network, then one with the same sets, then the one
    that the first set is named after.

    Returns:
        None where nothing shipped tells: the system has curves of a file of its own, which hold for
        the links beside them, or no shipped system has such sets.
    """
    sets = topology.collective_curves
    if not sets or any(name.endswith(_CSV) for name in sets):
        return None
    shipped = _shipped_names()
    if topology.name in shipped:
        known = _shipped(topology.name)
        if known.collective_curves in (sets, ()):
            return known.links
    alike = [s for s in map(_shipped, shipped) if s.collective_curves == sets]
    alike.sort(
        key=lambda s: (
            s.device.name != topology.device.name,
            s.network_link.fabric != topology.network_link.fabric,
            s.name != sets[0],
        )
    )
    if not alike and sets[0] in shipped:
        alike = [_shipped(sets[0])]
    return alike[0].links if alike else None


@functools.cache
def _shipped_names() -> tuple[str, ...]:
    return names("systems")


@functools.lru_cache(maxsize=64)
def _shipped(name: str) -> Topology:
    return load_system(name)
