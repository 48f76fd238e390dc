"""Which curve answers, what is carried over, and how far it is trusted."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.collective._law import group_of, network_law
from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import Basis, balanced_s, spread_by_level
from costmodels.collective.hierarchical import Hierarchical
from costmodels.collective.measured import Measured
from costmodels.collective.ramp import Ramp
from costmodels.datatypes import FloatArray
from costmodels.measured.curves import Collective, CollectiveCurve
from costmodels.topology import Link, Topology
from costmodels.units import GB, MIB, US
from tests.networks import matrix_by_level, share_network
from tests.strategies import make_topology

SIZES = tuple(2.0**k for k in range(9, 30))
EVERY = tuple(Collective)


def curve(
    collective: Collective,
    ranks: int,
    domains: int = 1,
    *,
    floor_us: float = 10.0,
    rate: float = 200 * GB,
    **changes: object,
) -> CollectiveCurve:
    passes = 2 if collective is Collective.ALL_REDUCE else 1
    factor = passes * (ranks - 1) / ranks
    values: dict[str, object] = {
        "collective": collective,
        "ranks": ranks,
        "domains": domains,
        "size_bytes": SIZES,
        "time_s": tuple(floor_us * US + s * factor / rate for s in SIZES),
    }
    return CollectiveCurve(**{**values, **changes})  # type: ignore[arg-type]


def inside(**changes: object) -> Measured:
    """Curves of 2, 4 and 8 ranks of one host for every collective."""
    found = [curve(c, n, rate=(180 + 3 * n) * GB, **changes) for c in EVERY for n in (2, 4, 8)]
    return Measured(curves=tuple(found))


def one(size: float) -> FloatArray:
    return np.array(size)


@pytest.mark.parametrize("collective", EVERY)
def test_a_measured_shape_is_read_from_its_curve(collective: Collective) -> None:
    model, host = inside(), make_topology(1, 8)
    factor = 14 / 8 if collective is Collective.ALL_REDUCE else 7 / 8
    for size in (1e3, 1e6, 1e8):
        expected = 10 * US + size * factor / (204 * GB)
        assert balanced_s(model, collective, one(size), host) == pytest.approx(expected, rel=0.02)
    trust = model.confidence(collective, 1e6, host)
    assert trust.basis is Basis.MEASURED
    assert trust.spread_ratio < 0.2  # one library version alone


def test_sizes_and_shapes_that_were_not_measured_are_extrapolated() -> None:
    model = inside()
    beyond = model.confidence(Collective.ALL_REDUCE, 1e12, make_topology(1, 8))
    assert beyond.basis is Basis.EXTRAPOLATED
    for topology in (make_topology(1, 6), make_topology(4, 4, domain_hosts=4)):
        trust = model.confidence(Collective.ALL_TO_ALL, 1e6, topology)
        assert trust.basis is Basis.EXTRAPOLATED
    across = model.confidence(Collective.ALL_TO_ALL, 1e6, make_topology(2, 8))
    assert across.basis is Basis.EXTRAPOLATED
    assert across.spread_ratio > trust.spread_ratio


def test_curves_of_a_like_system_serve_where_there_are_no_own() -> None:
    own = curve(Collective.ALL_REDUCE, 8, floor_us=10)
    like = curve(Collective.ALL_REDUCE, 8, floor_us=90, priority=1)
    other = curve(Collective.ALL_TO_ALL, 8, floor_us=90, priority=1)
    model, host = Measured(curves=(own, like, other)), make_topology(1, 8)
    assert balanced_s(model, Collective.ALL_REDUCE, one(1e3), host) < 20 * US
    assert model.confidence(Collective.ALL_REDUCE, 1e6, host).basis is Basis.MEASURED
    assert model.confidence(Collective.ALL_TO_ALL, 1e6, host).basis is Basis.CALIBRATED


def test_without_any_curve_the_other_model_answers() -> None:
    topology = make_topology(2, 4)
    model, plain = Measured(), Ramp()
    for collective in EVERY:
        found = balanced_s(model, collective, one(1e6), topology)
        assert found == balanced_s(plain, collective, one(1e6), topology)
        assert model.confidence(collective, 1e6, topology).basis is Basis.ANALYTIC
    send = np.ones((8, 3))
    np.testing.assert_allclose(
        model.all_to_all(send, send, topology), plain.all_to_all(send, send, topology)
    )
    reduced = model.reduce_scatter(one(1e6), topology, within_host=True)
    assert reduced == plain.reduce_scatter(one(1e6), topology, within_host=True)
    assert model.all_reduce(one(1e6), topology) == plain.all_reduce(one(1e6), topology)
    fixed = {"ranks": 8, "across_hosts": True}
    assert model.fixed_s(topology, **fixed) == plain.fixed_s(topology, **fixed)


def test_reduce_scatter_stands_in_for_all_gather_and_is_marked() -> None:
    model = Measured(curves=(curve(Collective.REDUCE_SCATTER, 8),))
    host = make_topology(1, 8)
    times = [
        float(balanced_s(model, c, one(1e7), host))
        for c in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    ]
    assert times[0] == times[1]
    assert model.confidence(Collective.ALL_GATHER, 1e6, host).basis is Basis.EXTRAPOLATED
    assert model.confidence(Collective.REDUCE_SCATTER, 1e6, host).basis is Basis.MEASURED


# ------------------------------------------------------------------ uneven all-to-all


def test_the_busiest_direction_of_the_busiest_rank_sets_the_pace() -> None:
    model, host = inside(), make_topology(1, 8)
    even = np.full((8, 8), 1 * MIB)
    uneven = even.copy()
    uneven[:, 3] *= 4  # every rank sends more to rank 3
    times = [model.all_to_all_s(*matrix_by_level(matrix, host), host) for matrix in (even, uneven)]
    worst, mean = times[1].max(), times[1].mean()
    assert int(times[1].argmax()) == 3
    received = 7 * 4 * MIB
    assert worst == pytest.approx(10 * US + received / (204 * GB), rel=0.02)
    assert mean < worst
    assert worst > times[0].max()
    turned = model.all_to_all_s(*matrix_by_level(uneven.T, host), host)
    np.testing.assert_allclose(turned, times[1])


def test_leading_axes_are_plans() -> None:
    model, topology = inside(), make_topology(2, 8)
    per_peer = np.random.default_rng(0).uniform(0, 1e6, (3, 2, 16))
    own, others = spread_by_level(per_peer, local=8, domain=8)
    together = model.all_to_all_s(own, others, topology)
    assert together.shape == per_peer.shape
    np.testing.assert_allclose(
        together[1, 1], model.all_to_all_s(own[1, 1], others[1, 1], topology)
    )


@pytest.mark.parametrize("hosts", [1, 2, 3])
@pytest.mark.parametrize("domain_hosts", [1, 2])
def test_the_growing_part_is_never_above_the_time(hosts: int, domain_hosts: int) -> None:
    topology = make_topology(hosts, 4, domain_hosts=domain_hosts)
    across = [curve(c, 16, 2, rate=20 * GB, network_bytes_per_s=12 * GB) for c in EVERY]
    sizes = np.geomspace(1, 1e10, 50)
    for model in (inside(), Measured(curves=(*inside().curves, *across))):
        per_peer = np.random.default_rng(1).uniform(0, 1, (50, topology.world_size))
        own, others = spread_by_level(
            per_peer * sizes[:, None], local=4, domain=topology.domain_size
        )
        grown = model.all_to_all(own, others, topology)
        assert np.all(grown <= model.all_to_all_s(own, others, topology) * (1 + 1e-9))
        for within in (True, False):
            grown = model.reduce_scatter(sizes, topology, within_host=within) * (1 - 1e-9)
            assert np.all(
                grown
                <= model.buffer_s(Collective.REDUCE_SCATTER, sizes, topology, within_host=within)
            )
            assert np.all(
                grown <= model.buffer_s(Collective.ALL_GATHER, sizes, topology, within_host=within)
            )
            grown = model.all_reduce(sizes, topology, within_host=within) * (1 - 1e-9)
            assert np.all(
                grown <= model.buffer_s(Collective.ALL_REDUCE, sizes, topology, within_host=within)
            )


def test_one_rank_takes_no_time() -> None:
    alone = make_topology(1, 1)
    for model in (inside(), Ramp(), Measured()):
        for collective in EVERY:
            assert balanced_s(model, collective, one(1e6), alone) == 0
        assert model.fixed_s(alone, ranks=1, across_hosts=False) == 0


# ------------------------------------------------------------------ over hosts


def cluster(hosts: int, rate_gb: float = 40.0) -> Topology:
    link = Link(latency_s=25 * US, bandwidth_bytes_per_s=rate_gb * GB)
    return make_topology(hosts, 8, network_link=link)


def test_figures_over_hosts_follow_from_one_host_and_the_links() -> None:
    model = inside()
    for collective in EVERY:
        seconds = [
            float(balanced_s(model, collective, one(1e8), cluster(hosts))) for hosts in (1, 2, 4)
        ]
        assert seconds == sorted(seconds)
    exchanged = float(balanced_s(model, Collective.ALL_TO_ALL, one(1e9), cluster(2)))
    assert exchanged >= 0.5e9 / (40 * GB)
    assert exchanged < 1.5 * 0.5e9 / (40 * GB)


def test_a_measured_cluster_is_used_as_it_is_on_the_same_network() -> None:
    measured = curve(
        Collective.ALL_REDUCE, 16, 2, floor_us=60, rate=150 * GB, network_bytes_per_s=50 * GB
    )
    model = Measured(curves=(*inside().curves, measured))
    found = balanced_s(model, Collective.ALL_REDUCE, one(1e8), cluster(2))
    assert found == pytest.approx(60 * US + 1e8 * 30 / 16 / (150 * GB), rel=0.02)
    assert model.confidence(Collective.ALL_REDUCE, 1e8, cluster(2)).basis is Basis.MEASURED
    more = model.confidence(Collective.ALL_REDUCE, 1e8, cluster(4))
    assert more.basis is Basis.EXTRAPOLATED
    four = balanced_s(model, Collective.ALL_REDUCE, one(1e8), cluster(4))
    assert found < four < 3 * found


def test_another_network_keeps_its_own_floor() -> None:
    measured = curve(
        Collective.ALL_TO_ALL, 16, 2, floor_us=500, rate=5 * GB, network_bytes_per_s=6 * GB
    )
    model = Measured(curves=(*inside().curves, measured))
    fast = balanced_s(model, Collective.ALL_TO_ALL, one(1e3), cluster(2))
    assert fast < 100 * US
    assert model.confidence(Collective.ALL_TO_ALL, 1e6, cluster(2)).basis is Basis.EXTRAPOLATED


def test_more_hosts_carry_the_measured_floor_over_as_the_law_moves_it() -> None:
    """Measured on two hosts: twice the law's floor there is twice the law's floor on four."""
    two, four = cluster(2), cluster(4)
    law_s = {
        topology.num_hosts: network_law(Collective.ALL_TO_ALL, group_of(topology)).floor_s
        for topology in (two, four)
    }
    assert law_s[4] > 1.2 * law_s[2]
    measured = curve(
        Collective.ALL_TO_ALL, 16, 2, floor_us=2 * law_s[2] / US, network_bytes_per_s=40 * GB
    )
    model = Measured(curves=(measured,))
    for topology in (two, four):
        found = balanced_s(model, Collective.ALL_TO_ALL, one(512.0), topology)
        assert found == pytest.approx(2 * law_s[topology.num_hosts], rel=0.05)


def test_one_rank_per_host_exchanges_over_the_network_alone() -> None:
    model, topology = inside(), cluster(4)
    lanes = np.full((8, 4), 1e6)
    own, others = spread_by_level(lanes, local=1, domain=1)
    seconds = model.all_to_all_s(own, others, topology)
    assert seconds.shape == (8, 4)
    assert np.all(seconds >= 3e6 / (40 * GB))


def test_groups_that_share_a_network_link_get_their_part() -> None:
    topology = cluster(2)
    shared = share_network(topology, 2)
    assert shared.network_link.bandwidth_bytes_per_s == pytest.approx(20 * GB)
    for model in (Ramp(), AlphaBeta(), inside()):
        alone = balanced_s(model, Collective.ALL_TO_ALL, one(1e10), topology)
        together = balanced_s(model, Collective.ALL_TO_ALL, one(1e10), shared)
        assert together == pytest.approx(2 * alone, rel=0.02)


# ------------------------------------------------------------------ two steps


def test_two_steps_add_up_and_send_each_byte_over_the_network_once() -> None:
    inner, topology = Ramp(), cluster(4)
    model = Hierarchical(inner)
    one_step = balanced_s(inner, Collective.ALL_TO_ALL, one(1e9), topology)
    two_steps = balanced_s(model, Collective.ALL_TO_ALL, one(1e9), topology)
    assert one_step < two_steps < 2 * one_step
    per_peer = np.full((2, 32), 1e6)
    own, others = spread_by_level(per_peer, local=8, domain=8)
    seconds = model.all_to_all_s(own, others, topology)
    assert seconds.shape == (2, 32)
    assert np.ptp(seconds) < 1e-12
    assert model.fixed_s(topology, ranks=32, across_hosts=True) > 0


def test_two_steps_are_as_certain_as_the_inner_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AlphaBeta, "plan_spread_ratio", lambda *_: 0.11)
    assert Hierarchical(AlphaBeta()).plan_spread_ratio(cluster(4)) == 0.11


def test_with_one_domain_there_is_one_step() -> None:
    inner = inside()
    model = Hierarchical(inner)
    for topology in (make_topology(1, 8), make_topology(2, 4, domain_hosts=2)):
        for collective in EVERY:
            assert balanced_s(model, collective, one(1e7), topology) == pytest.approx(
                float(balanced_s(inner, collective, one(1e7), topology))
            )
    fixed = model.fixed_s(make_topology(1, 8), ranks=8, across_hosts=False)
    assert fixed == inner.fixed_s(make_topology(1, 8), ranks=8, across_hosts=False)


def test_the_domain_link_is_part_of_the_first_step() -> None:
    """Domains of two hosts: what is handed on crosses both links of the fabric."""
    topology = make_topology(4, 4, domain_hosts=2)
    seconds = balanced_s(Hierarchical(), Collective.ALL_TO_ALL, one(1e8), topology)
    assert seconds > balanced_s(Ramp(), Collective.ALL_TO_ALL, one(1e8), topology)


def test_the_first_step_shares_what_a_host_sends_among_its_links() -> None:
    """One rank of a host holds all its tables: the host's links carry as much as if all held some.

    Only the step inside the host takes longer.
    """
    model, topology = Hierarchical(AlphaBeta()), cluster(4)
    even = np.full(32, 1e6)
    lone = np.where(np.arange(32) % 8 == 0, 8e6, 0.0)
    across = []
    for per_peer in (even, lone):
        own, others = spread_by_level(per_peer, local=8, domain=8)
        whole = model.all_to_all(own, others, topology).max()
        flat = AlphaBeta().all_to_all(own, others, topology).max()
        across.append((whole, flat))
    fabric, network = topology.host_link.bandwidth_bytes_per_s, 40 * GB
    crossing = 24 * 1e6
    assert across[0][0] == pytest.approx(
        7e6 / fabric + crossing * 7 / 8 / fabric + crossing / network
    )
    assert across[1][0] < across[1][1]
    assert across[1][0] == pytest.approx(
        8 * (7e6 + crossing * 7 / 8) / fabric + crossing / network, rel=0.01
    )
