"""Finds the links on which the shipped collective curves of a system were measured.

Curves are shipped in sets. The links of a shipped system that names sets are those on which the
sets were measured. A system file that inherits the sets but changes a link needs other times.
"""

from __future__ import annotations

import functools
from typing import Final

from costmodels.topology import Links, Topology
from planner.io.library import names
from planner.io.system.system_file import load_system

_CSV: Final = ".csv"


def links_measured(topology: Topology) -> Links | None:
    """The links of the shipped system whose curves ``topology`` inherits.

    This is the shipped system of the same name. For a renamed copy it is the first of these that
    exists: a shipped system with the same sets of curves, the same device and the same kind of
    network; one with the same sets; the one that has the name of the first set.

    Returns:
        The links. None if the system has curves of its own file, which hold for its own links, or
        if no shipped system has such sets.
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
