"""Laws, links and shapes of collectives, against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from costmodels.collective._catalogue import distance
from costmodels.collective._law import (
    Group,
    busiest_bytes,
    busiest_factor,
    crossings,
    crowding,
    group_of,
    is_pcie,
    longer_s,
    network_law,
    num_steps,
)
from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import NUM_LEVELS, GrowingPart, LinkLevel
from costmodels.collective.hierarchical import Hierarchical
from costmodels.collective.measured import Measured
from costmodels.measured.curves import Collective, CollectiveCurve
from costmodels.system_models import ScaledCollective
from costmodels.topology import Link
from costmodels.units import GB, US
from tests.strategies import make_topology

HALVES = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
EIGHT = Group(
    ranks=32,
    per_domain=4,
    per_host=4,
    fabric_latency_s=10 * US,
    fabric_rate=200.0 * GB,
    network_latency_s=25 * US,
    network_rate=12.0 * GB,
)
"""Eight domains of four ranks."""


@dataclass(frozen=True, slots=True)
class OneWay(AlphaBeta):
    """A model whose ranks send and receive one after the other."""

    @property
    def full_duplex(self) -> bool:
        return False


def test_startups_of_the_network_by_hand() -> None:
    """A ring once for each domain, peers three at a time, a tree by its depth."""
    for ring in HALVES:
        assert crossings(ring, EIGHT) == 8.0
    assert crossings(Collective.ALL_TO_ALL, EIGHT) == pytest.approx((32 - 4) / 3.0)
    assert crossings(Collective.ALL_TO_ALL, EIGHT._replace(ranks=8)) == 2.0
    assert crossings(Collective.ALL_REDUCE, EIGHT) == 2.0 + 3.0 - 1.0
    assert crossings(Collective.ALL_REDUCE, EIGHT._replace(ranks=20)) == 2.0 + 3.0 - 1.0
    assert crossings(Collective.ALL_REDUCE, EIGHT._replace(ranks=8)) == 2.0


def test_steps_and_longer_latencies_by_hand() -> None:
    assert [num_steps(Collective.ALL_REDUCE, n) for n in (1, 2, 5, 8)] == [0, 1, 3, 3]
    assert [num_steps(Collective.ALL_TO_ALL, n) for n in (1, 2, 8)] == [0, 1, 1]
    slower = EIGHT._replace(fabric_latency_s=11 * US, network_latency_s=27 * US)
    assert longer_s(Collective.ALL_REDUCE, EIGHT, slower) == pytest.approx((1 + 3 * 2) * US)
    assert longer_s(Collective.ALL_TO_ALL, EIGHT, slower) == pytest.approx((1 + 2) * US)
    assert longer_s(Collective.ALL_REDUCE, slower, EIGHT) == 0.0
    alone = slower._replace(ranks=8, per_domain=1, per_host=1)
    before = EIGHT._replace(ranks=8, per_domain=1, per_host=1)
    assert longer_s(Collective.ALL_TO_ALL, before, alone) == pytest.approx(2 * US)


def test_pods_crowd_what_leaves_them() -> None:
    """Pods of 16 of 32 ranks: of the 28 ranks in other domains, 16 are in the other pod."""
    pods = EIGHT._replace(pod_ranks=16, oversubscription=4.0)
    assert crowding(Collective.ALL_TO_ALL, pods) == pytest.approx(4.0 * 16 / 28)
    assert crowding(Collective.ALL_REDUCE, pods) == 1.0
    assert crowding(Collective.ALL_GATHER, pods._replace(oversubscription=8.0)) == 8.0 * 4 / 16
    assert crowding(Collective.ALL_TO_ALL, pods._replace(oversubscription=1.0)) == 1.0
    for inside in (pods._replace(ranks=16), pods._replace(pod_ranks=0)):
        assert crowding(Collective.ALL_TO_ALL, inside) == 1.0


def test_bytes_on_the_busiest_link_by_hand() -> None:
    assert busiest_factor(Collective.ALL_TO_ALL, EIGHT) == 28 / 32
    assert busiest_factor(Collective.ALL_TO_ALL, EIGHT.within_domain) == 3 / 4
    assert busiest_factor(Collective.ALL_REDUCE, EIGHT) == 2 * 31 / 32
    assert busiest_factor(Collective.ALL_GATHER, EIGHT) == 31 / 32


@pytest.mark.parametrize(("rate", "local", "shares"), [(200.0, 2, False), (16.0, 2, True)])
def test_network_bytes_count_on_pcie_alone(rate: float, local: int, shares: bool) -> None:
    link = Link(latency_s=10 * US, bandwidth_bytes_per_s=rate * GB)
    topology = make_topology(2, local, host_link=link)
    group = group_of(topology)
    assert is_pcie(group.fabric_rate) is shares
    send, receive = np.zeros((2, 4, NUM_LEVELS))
    send[:, LinkLevel.HOST], receive[:, LinkLevel.HOST] = 3e6, 5e6
    send[:, LinkLevel.NETWORK], receive[:, LinkLevel.NETWORK] = 7e6, 2e6
    fabric, network = busiest_bytes(send, receive, topology, group)
    assert fabric == pytest.approx(np.full(4, 5e6 + 7e6 * shares))
    assert network == pytest.approx(np.full(4, 7e6))


def test_one_rank_in_each_domain_has_no_fabric() -> None:
    link = Link(latency_s=10 * US, bandwidth_bytes_per_s=16.0 * GB)
    topology = make_topology(4, 1, host_link=link)
    sent = np.zeros((4, NUM_LEVELS))
    sent[:, LinkLevel.NETWORK] = 7e6
    fabric, _ = busiest_bytes(sent, sent, topology, group_of(topology))
    assert not fabric.any()


def test_rates_over_the_network_by_hand() -> None:
    """The network cards of a domain work together, but for an all-to-all."""
    assert network_law(Collective.ALL_TO_ALL, EIGHT).rate == 12.0 * GB
    for ring in HALVES:
        assert network_law(ring, EIGHT).rate == pytest.approx(4 * 12.0 * GB)
    outer = 4 * 12.0 * GB * (2 * 31 / 32) * 8 / (2 * 7)
    assert network_law(Collective.ALL_REDUCE, EIGHT).rate == pytest.approx(outer)


def test_distances_count_doublings() -> None:
    curve = CollectiveCurve(
        collective=Collective.ALL_REDUCE,
        ranks=8,
        domains=2,
        size_bytes=(1e3, 1e6),
        time_s=(1e-5, 1e-4),
        source="a test",
    )
    same = EIGHT._replace(ranks=8)
    assert distance(curve, same) == 0.0
    assert distance(curve, EIGHT) == pytest.approx(2.0)
    wider = Group(*EIGHT)._replace(ranks=32, per_domain=16, per_host=16)
    assert distance(curve, wider) == pytest.approx(2.0)


def test_wrappers_send_and_receive_as_the_model_inside() -> None:
    for inner in (AlphaBeta(), OneWay()):
        for model in (Hierarchical(inner), GrowingPart(inner=inner)):
            assert model.full_duplex is inner.full_duplex
        assert GrowingPart(inner=inner).pays_for_others is not inner.full_duplex
        scaled = ScaledCollective(inner=Hierarchical(inner), factor_ratio=2.0)
        assert scaled.pays_for_others


def test_steps_of_a_hierarchical_exchange_start_one_after_the_other() -> None:
    topology = make_topology(4, 4)
    model, inner = Hierarchical(AlphaBeta()), AlphaBeta()
    both = model.fixed_s(topology, ranks=16, across_hosts=True)
    assert both == pytest.approx((10 + 25) * US)
    one_each = model.fixed_s(topology, ranks=4, across_hosts=True)
    assert one_each == inner.fixed_s(topology, ranks=4, across_hosts=True)


def test_rings_of_the_alpha_beta_model_by_hand() -> None:
    """Inside a domain of two hosts the slower level counts; beyond it the cards of a domain."""
    size = np.array(1e9)
    inside = make_topology(2, 4, domain_hosts=2)
    beyond = make_topology(2, 4)
    ring = AlphaBeta().reduce_scatter
    assert float(ring(size, inside, within_host=True)) == pytest.approx(0.75 / 200.0)
    assert float(ring(size, inside, within_host=False)) == pytest.approx(0.875 / 150.0)
    assert float(ring(size, beyond, within_host=False)) == pytest.approx(0.875 / 48.0)
    assert float(ring(size, make_topology(1, 4), within_host=False)) == pytest.approx(0.75 / 200)


def test_a_single_rank_exchanges_nothing_and_doubts_nothing() -> None:
    alone = make_topology(1, 1)
    model = Measured(curves=())
    assert model.plan_spread_ratio(alone) == 0.0
    assert model.plan_spread_ratio(make_topology(2, 4)) > 0.0
    assert math.isclose(AlphaBeta().fixed_s(alone, ranks=1, across_hosts=False), 0.0)
