"""What laws say of groups in one domain, and how far curves of other shapes are trusted."""

from __future__ import annotations

import math

import numpy as np
import pytest

from costmodels.collective._law import Group, Law, fabric_law
from costmodels.collective.base import Basis, GrowingPart
from costmodels.collective.measured import Measured
from costmodels.collective.ramp import Ramp
from costmodels.measured.curves import Collective, CollectiveCurve
from costmodels.units import GB, US
from tests.strategies import make_topology


def group(ranks: int) -> Group:
    """One domain with a latency of 10 us and 100 GB/s."""
    return Group(
        ranks=ranks,
        per_domain=ranks,
        per_host=ranks,
        fabric_latency_s=10 * US,
        fabric_rate=100 * GB,
        network_latency_s=20 * US,
        network_rate=10 * GB,
    )


@pytest.mark.parametrize(
    ("collective", "ranks", "floor_us", "rate_gb"),
    [
        (Collective.ALL_TO_ALL, 8, 10.0, 100.0),  # one hop, at the rate of the links
        (Collective.ALL_TO_ALL, 2, 10.0, 74.92),  # 2 ranks reach three quarters of it
        (Collective.ALL_TO_ALL, 16, 10.0, 100.0),  # and more than 8 no more than it
        (Collective.ALL_GATHER, 8, 12.73, 100.0),  # 0.45 of the latency, times the root of 8
        (Collective.REDUCE_SCATTER, 2, 6.364, 74.92),
        (Collective.ALL_REDUCE, 8, 20.14, 120.0),  # half of it times 8^0.67; 1.2 times the rate
        (Collective.ALL_GATHER, 16, 14.96, 100.0),  # a doubling beyond 8 adds 0.35 of the root
    ],
)
def test_laws_of_one_domain_by_hand(
    collective: Collective, ranks: int, floor_us: float, rate_gb: float
) -> None:
    law = fabric_law(collective, group(ranks))
    assert law.floor_s == pytest.approx(floor_us * US, rel=1e-3)
    assert law.rate == pytest.approx(rate_gb * GB, rel=1e-3)


def test_a_floor_is_never_nothing() -> None:
    """Curves are moved by the ratio of two floors."""
    law = fabric_law(Collective.ALL_TO_ALL, group(8)._replace(fabric_latency_s=0.0))
    assert law.floor_s > 0


@pytest.mark.parametrize(("hosts", "spread"), [(2, None), (4, 1.0)])
def test_a_curve_of_other_domains_is_within_a_factor_of_two(
    hosts: int, spread: float | None
) -> None:
    sizes = tuple(2.0**k for k in range(9, 30))
    times = tuple(50 * US + s / (20 * GB) for s in sizes)
    known = CollectiveCurve(
        collective=Collective.ALL_GATHER, ranks=16, domains=2, size_bytes=sizes, time_s=times
    )
    trust = Measured(curves=(known,)).confidence(
        Collective.ALL_GATHER, 1e6, make_topology(hosts, 8)
    )
    if spread is None:
        assert trust.basis is Basis.MEASURED
        assert trust.spread_ratio < 1.0
    else:
        assert trust.basis is Basis.EXTRAPOLATED
        assert trust.spread_ratio == pytest.approx(spread)


@pytest.mark.parametrize(
    ("versions", "small", "large"),
    [
        (("1",), math.hypot(0.10, 0.15), math.hypot(0.05, 0.08)),  # versions differ by so much
        (("1", "2"), 0.10, 0.05),
    ],
)
def test_curves_of_one_version_are_trusted_less(
    versions: tuple[str, ...], small: float, large: float
) -> None:
    """Points on a straight line leave no error of their own."""
    sizes = tuple(2.0**k for k in range(9, 30))
    curves = tuple(
        CollectiveCurve(
            collective=Collective.ALL_TO_ALL,
            ranks=8,
            domains=1,
            size_bytes=sizes,
            time_s=tuple(10 * US + s * 7 / 8 / (200 * GB) for s in sizes),
            version=version,
        )
        for version in versions
    )
    model = Measured(curves=curves)
    for size_bytes, spread in ((1e4, small), (1e8, large)):
        trust = model.confidence(Collective.ALL_TO_ALL, size_bytes, make_topology(1, 8))
        assert trust.spread_ratio == pytest.approx(spread)


def test_a_growing_part_is_the_models_without_what_is_fixed() -> None:
    """Of any model whose times are its own."""
    inner, topology = Ramp(), make_topology(2, 2)
    part = GrowingPart(inner=inner)
    own, others = np.full((3, 4), 1e6), np.full((3, 4), 2e6)
    assert part.fixed_s(topology, ranks=4, across_hosts=True) == 0.0
    np.testing.assert_array_equal(
        part.all_to_all(own, others, topology), inner.all_to_all(own, others, topology)
    )
    size = np.array(1e8)
    for within in (True, False):
        assert part.reduce_scatter(size, topology, within_host=within) == inner.reduce_scatter(
            size, topology, within_host=within
        )
        assert part.all_reduce(size, topology, within_host=within) == inner.all_reduce(
            size, topology, within_host=within
        )


def test_an_empty_all_to_all_inside_a_host_costs_what_was_measured_there() -> None:
    """Among as many ranks as a host has; across hosts the network adds to it."""
    sizes = tuple(2.0**k for k in range(9, 30))
    times = tuple(10 * US + s * 7 / 8 / (200 * GB) for s in sizes)
    curve = CollectiveCurve(
        collective=Collective.ALL_TO_ALL, ranks=8, domains=1, size_bytes=sizes, time_s=times
    )
    model, topology = Measured(curves=(curve,)), make_topology(2, 8)
    inside = model.fixed_s(topology, ranks=8, across_hosts=False)
    assert inside == pytest.approx(10 * US, rel=0.01)
    assert model.fixed_s(topology, ranks=16, across_hosts=True) > 1.5 * inside


def test_bytes_rounded_below_nothing_take_as_long_as_none() -> None:
    """A search that took all shards away again had -2e-10 bytes left, and their time was no number.

    Seed 77208 of ``tests.differential.run --together``.
    """
    for law in (Law(1e-5, 1e11), Law(1e-5, 1e11, 1e-6)):
        assert law.time_s(np.array([-2e-10, 0.0])) == pytest.approx(1e-5)
