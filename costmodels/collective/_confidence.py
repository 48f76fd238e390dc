"""How far to trust a time that follows from measured curves.

All spreads are 90 % spreads as in :class:`costmodels.collective.base.Confidence`. Messages below
1 MiB are small: constants with two values have the one for small messages first and the one for
large messages second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.collective._consistent import Found
from costmodels.collective._curve import left_out_residuals
from costmodels.collective._group import Group
from costmodels.collective.base import Basis, Confidence
from costmodels.fabrics import FABRICS

_LARGE_BYTES: Final = 2**20
"""Messages of this size and more are large."""
_SMALLEST_SPREADS: Final = (0.10, 0.05)
"""Least 90 % spread of a measured time. That of small messages is larger, because their time also
depends on how kernels were launched."""
_ONE_VERSION: Final = (0.15, 0.08)
"""Spread that is joined with the others if only one version of the library was measured: nine in
ten times of different versions in one harness differ by no more (``benchmarks/collectives.py``,
repeats)."""
_OTHER_SYSTEM: Final = 0.10
"""Spread that is added if the curve is one of a like system. The larger it is, the wider are the
intervals of such systems."""
_OTHER_LINKS: Final = (0.55, 0.30)
"""Spread that is added if a curve was rescaled to another link. If the curves of A100, H100 and
B200 are rescaled to one another's links, nine in ten points are predicted within this
(``benchmarks/collectives.py``, moved)."""
_OTHER_SITE: Final = (2.0, 0.40)
"""Spread of curves of another site inside one host, which is joined with the others as independent:
nine in ten points of another site's harness on the same device lie within it
(``benchmarks/fabrics.py``, one host). Over several domains the spread between clusters includes
it."""
_LAUNCH_S: Final = 7.5e-6
"""Seconds for each rank of a host that a collective takes at least if one process launches it on
all GPUs of the host, one after the other. Small all-to-alls on 8 H200 take 58 us then, and 8 to 30
us if each rank has a thread or a process of its own."""
_BY_LAW: Final = (1.3, 1.0)
"""Spread over a network that no curve of its kind crosses. Nine in ten points of sources that were
left out lie within factors of 2.2 and 1.9 (``benchmarks/fabrics.py``, several hosts); the spread is
no less than that of a curve that is carried over."""
_BY_FEW: Final = (1.5, 3.0)
"""The same for kinds of networks of which fewer than three sources are known: of sources that were
left out, 88 % of the small points lie within a factor of 2.5, and 75 % of the large ones within
4."""
_MANY_SOURCES: Final = 3
_ONE_CLUSTER: Final = 0.45
"""Spread that is added over several domains if one cluster was measured. Clusters with the same
nominal rate differ by more than repeats on one of them: three clusters of H100 with 400 Gb/s are
apart by 0.3 to 0.4 in the logarithm from 1 MiB on."""
_OTHER_CLUSTER: Final = 0.15
"""The same if several clusters were measured and joined: their differences are in the spread of the
curve already."""
_OTHER_SIZE: Final = 0.30
"""Spread that is added at sizes beyond those of the curve (``benchmarks/collectives.py``)."""
_OTHER_RANKS: Final = 0.25
"""Spread inside a domain for a number of ranks that was not measured (the same benchmark)."""
_OTHER_DOMAINS: Final = 1.0
"""Spread over a number of domains that was not measured (the same benchmark)."""


def is_large(size_bytes: float) -> bool:
    """Whether a message of this size counts as large."""
    return bool(size_bytes >= _LARGE_BYTES)


def confidence_of(
    found: Found, group: Group, size_bytes: float, spread_ratio: Callable[[], float]
) -> Confidence:
    """What the time of a collective rests on, and its interval, at the site of the curves.

    Args:
        found: the table that tells the time, and its curves.
        group: the ranks that take part.
        size_bytes: size as nccl-tests counts it.
        spread_ratio: computes the spread of the table around its curves, on the links that these
            were measured on; called only if it is needed.
    """
    large = is_large(size_bytes)
    if group.domains > 1 and all(c.domains == 1 for c in found.curves):
        kind = FABRICS.get(group.fabric)
        few = kind is not None and kind.num_sources < _MANY_SOURCES
        spread = (_BY_FEW if few else _BY_LAW)[large]
        return Confidence(basis=Basis.EXTRAPOLATED, spread_ratio=spread)
    carried = _OTHER_SYSTEM if any(c.priority for c in found.curves) else 0.0
    carried += _OTHER_LINKS[large] if found.other_links else 0.0
    if not found.same_shape:
        spread = _OTHER_RANKS if group.domains == 1 else _OTHER_DOMAINS
        return Confidence(basis=Basis.EXTRAPOLATED, spread_ratio=spread + carried)
    spread = carried + spread_ratio()
    if len({c.version for c in found.curves}) == 1:
        spread = math.hypot(spread, _ONE_VERSION[large])
    if group.domains > 1:
        clusters = {c.source for c in found.curves}
        spread += _ONE_CLUSTER if len(clusters) == 1 else _OTHER_CLUSTER
    smallest = min(c.size_bytes[0] for c in found.curves)
    largest = max(c.size_bytes[-1] for c in found.curves)
    if not smallest <= size_bytes <= largest:
        return Confidence(basis=Basis.EXTRAPOLATED, spread_ratio=spread + _OTHER_SIZE)
    if found.other_links:
        return Confidence(basis=Basis.EXTRAPOLATED, spread_ratio=spread)
    basis = Basis.CALIBRATED if carried else Basis.MEASURED
    return Confidence(basis=basis, spread_ratio=spread)


def of_another_site(own: Confidence, size_bytes: float, time_s: float, group: Group) -> Confidence:
    """The confidence in a time whose curves were measured at another site, inside one domain.

    There, a single process of each host may have started the ranks.

    Args:
        own: the confidence at the site of the curves.
        size_bytes: size as nccl-tests counts it.
        time_s: the time.
        group: the ranks that take part.
    """
    site = math.log1p(_OTHER_SITE[is_large(size_bytes)])
    spread = math.expm1(math.hypot(math.log1p(own.spread_ratio), site))
    launched = group.per_host * _LAUNCH_S / max(time_s, _LAUNCH_S) - 1.0
    return replace(own, spread_ratio=max(spread, launched))


def spread_around(found: Found, factor: float, *, large: bool) -> float:
    """90 % spread of a table around the curves that it was made from.

    It is the 90th percentile of two kinds of errors: those of single points that were left out in
    turn, and those of each curve against the joined table.

    Args:
        found: the table and its curves.
        factor: bytes on the busiest link per byte of size.
        large: whether to look at large messages, or at small ones.
    """
    errors: list[float] = []
    for curve in found.curves:
        sizes = np.array(curve.size_bytes)
        whole = found.table.log_time_at(np.log(sizes * factor)) - np.log(curve.time_s)
        inner, left_out = left_out_residuals(curve)
        errors.extend(np.abs(whole)[(sizes >= _LARGE_BYTES) == large])
        errors.extend(np.abs(left_out)[(inner >= _LARGE_BYTES) == large])
    smallest = _SMALLEST_SPREADS[large]
    return max(smallest, math.expm1(float(np.quantile(errors, 0.9)))) if errors else smallest
