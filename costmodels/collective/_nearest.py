"""How near measured curves are to a group of ranks in shape and in links."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from costmodels.collective._group import TYPICAL_EFFICIENCY, Group
from costmodels.measured.curves import CollectiveCurve

_LIKE_LINK: Final = (0.55, 1.15)
"""A network link is taken for the one that a curve was measured on if the rate that it achieves is
within these multiples of the nominal rate there. Tuned networks achieve some 0.82 of it
(:data:`TYPICAL_EFFICIENCY`)."""
_PRIORITY_DISTANCE: Final = 0.5
"""How far, in doublings of shape or rate, a curve of a like system counts as away for each step of
its priority: one step decides only between curves of nearly the same shape and rate."""


def best(curves: Iterable[CollectiveCurve]) -> tuple[CollectiveCurve, ...]:
    """The curves with the lowest priority number among those given."""
    listed = tuple(curves)
    first = min((c.priority for c in listed), default=0)
    return tuple(c for c in listed if c.priority == first)


def is_repeat(one: CollectiveCurve, other: CollectiveCurve) -> bool:
    """Whether two curves have the same shape and the same nominal rate of the network."""
    same_network = one.network_bytes_per_s == other.network_bytes_per_s
    return one.shape == other.shape and same_network


def is_on_like_link(curve: CollectiveCurve, group: Group) -> bool:
    """Whether the group's network link is taken for the one that the curve was measured on.

    A curve without a nominal rate holds for any link.
    """
    low, high = _LIKE_LINK
    nominal = curve.network_bytes_per_s
    return not nominal or low <= group.network_rate / nominal <= high


def group_measured(curve: CollectiveCurve, group: Group) -> Group:
    """The group that a curve was measured on.

    It has the links of ``group``, except that a network unlike the one of ``group`` has the typical
    share of its own nominal rate.
    """
    rate = group.network_rate
    if not is_on_like_link(curve, group):
        rate = TYPICAL_EFFICIENCY * curve.network_bytes_per_s
    return group._replace(
        ranks=curve.ranks, per_domain=curve.ranks // curve.domains, network_rate=rate
    )


def distance(curve: CollectiveCurve, group: Group) -> float:
    """How unlike a curve's shape and network are to those of a group, in doublings.

    It adds up the doublings between ranks per domain, between numbers of domains and between rates
    of the network, and half a doubling for each step of priority.
    """
    there = group_measured(curve, group)
    apart = abs(math.log2(there.per_domain / group.per_domain))
    apart += abs(math.log2(curve.domains / group.domains))
    apart += abs(math.log2(there.network_rate / group.network_rate))
    return apart + _PRIORITY_DISTANCE * curve.priority
