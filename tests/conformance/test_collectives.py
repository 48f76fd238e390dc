"""What every collective model must satisfy; new files in the folder are tested at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import costmodels.collective
from costmodels import discovery
from costmodels.collective.base import (
    NUM_LEVELS,
    AbstractCollectiveModel,
    Basis,
    LinkLevel,
    balanced_s,
    group_sums,
    spread_by_level,
)
from costmodels.datatypes import FloatArray
from costmodels.measured.curves import Collective
from costmodels.topology import Topology
from tests.conformance.instances import build
from tests.networks import matrix_by_level, share_network
from tests.strategies import make_topology, topologies

MODELS = discovery.names(costmodels.collective)


@pytest.fixture(params=MODELS, scope="module")
def model(request: pytest.FixtureRequest) -> AbstractCollectiveModel:
    """Every model in the folder."""
    return build(costmodels.collective, request.param, AbstractCollectiveModel)


def bandwidths(topology: Topology) -> FloatArray:
    """Bytes per second of each link level."""
    links = (topology.host_link, topology.domain_link, topology.network_link)
    return np.array([link.bandwidth_bytes_per_s for link in links])


# ------------------------------------------------------------------ fixed part


@given(topology=topologies())
def test_the_fixed_part_is_zero_for_one_rank_and_a_latency_otherwise(
    model: AbstractCollectiveModel, topology: Topology
) -> None:
    for across in (False, True):
        assert model.fixed_s(topology, ranks=1, across_hosts=across) == 0
    inside = model.fixed_s(topology, ranks=topology.local_world_size, across_hosts=False)
    world = model.fixed_s(topology, ranks=topology.world_size, across_hosts=topology.num_hosts > 1)
    assert 0 <= inside < 1
    assert 0 <= world < 1


def test_the_fixed_part_is_that_of_the_outermost_level(model: AbstractCollectiveModel) -> None:
    """Latencies of 10, 12 and 25 us."""
    one, pair = make_topology(1, 4), make_topology(2, 4, domain_hosts=2)
    three = make_topology(3, 4, domain_hosts=2)
    values = [
        model.fixed_s(one, ranks=4, across_hosts=False),
        model.fixed_s(pair, ranks=8, across_hosts=True),
        model.fixed_s(three, ranks=12, across_hosts=True),
    ]
    assert values == sorted(values)
    assert values[0] < values[2]


# ------------------------------------------------------------------ all-to-all


def traffic(seed: int, topology: Topology) -> tuple[FloatArray, FloatArray]:
    """Bytes sent and received of ten random exchanges, ``[10, R, NUM_LEVELS]``, some of them 0."""
    rng = np.random.default_rng(seed)
    world = topology.world_size
    size = (10, world, world)
    matrices = 10 ** rng.uniform(0, 9, size) * (rng.random(size) < 0.7)
    send, receive = zip(*(matrix_by_level(m, topology) for m in matrices), strict=True)
    return np.stack(send), np.stack(receive)


@given(topology=topologies(), seed=st.integers(0, 1000))
def test_all_to_all_is_homogeneous_convex_monotone_and_never_beats_a_link(
    model: AbstractCollectiveModel, topology: Topology, seed: int
) -> None:
    send, receive = traffic(seed, topology)
    other_send, other_receive = traffic(seed + 1, topology)
    time = model.all_to_all(send, receive, topology)
    other = model.all_to_all(other_send, other_receive, topology)
    assert time.shape == send.shape[:2]
    for moved in (send, receive):
        assert np.all(time[..., None] >= moved / bandwidths(topology) * (1 - 1e-12))
    np.testing.assert_allclose(model.all_to_all(3 * send, 3 * receive, topology), 3 * time)
    mean = model.all_to_all((send + other_send) / 2, (receive + other_receive) / 2, topology)
    assert np.all(mean <= (time + other) / 2 * (1 + 1e-12))
    more = model.all_to_all(send + other_send, receive, topology)
    assert np.all(more >= time * (1 - 1e-12))
    assert np.all(model.all_to_all(send, receive + other_receive, topology) >= time * (1 - 1e-12))
    assert np.all(model.all_to_all(0 * send, 0 * receive, topology) == 0)


@example(topology=make_topology(2, 2), seed=0)
@example(topology=make_topology(3, 4, domain_hosts=1), seed=1)
@given(topology=topologies(), seed=st.integers(0, 1000))
def test_a_rank_pays_for_what_others_send_only_in_models_that_say_so(
    model: AbstractCollectiveModel, topology: Topology, seed: int
) -> None:
    """Bounds count a rank by itself otherwise: one sends alone, then all send as much as it."""
    rng, world = np.random.default_rng(seed), topology.world_size
    rank, size = int(rng.integers(world)), 10.0 ** rng.uniform(0, 9)
    shape = {"local": topology.local_world_size, "domain": topology.domain_size}
    alone, everyone = (
        model.all_to_all(*spread_by_level(sent, **shape), topology)[rank]
        for sent in (size * (np.arange(world) == rank), np.full(world, size))
    )
    assert everyone >= alone * (1 - 1e-12)
    if not model.pays_for_others:
        assert everyone == pytest.approx(alone, rel=1e-12)


# ------------------------------------------------------------------ reduce-scatter, all-reduce


@given(topology=topologies(), size=st.floats(1, 1e10))
def test_reduce_scatter_never_beats_a_link(
    model: AbstractCollectiveModel, topology: Topology, size: float
) -> None:
    world, local, domain = topology.world_size, topology.local_world_size, topology.domain_size
    host, _, network = bandwidths(topology)
    inside = float(model.reduce_scatter(np.array(size), topology, within_host=True))
    assert inside >= size * (local - 1) / local / host * (1 - 1e-12)
    across = float(model.reduce_scatter(np.array(size), topology, within_host=False))
    outside = max(0, world - domain) / world
    assert across >= size * outside / (min(domain, world) * network) * (1 - 1e-12)
    assert across >= inside * (1 - 1e-12)
    twice = float(model.reduce_scatter(np.array(2 * size), topology, within_host=False))
    assert twice == pytest.approx(2 * across, rel=1e-12)


@given(topology=topologies(), size=st.floats(1, 1e10))
def test_an_all_reduce_is_at_most_two_halves(
    model: AbstractCollectiveModel, topology: Topology, size: float
) -> None:
    """Trees and switches that add make it cheaper than reduce-scatter and all-gather."""
    for within in (False, True):
        half = float(model.reduce_scatter(np.array(size), topology, within_host=within))
        whole = float(model.all_reduce(np.array(size), topology, within_host=within))
        assert half * (1 - 1e-12) <= whole <= 2 * half * (1 + 1e-12)


@given(topology=topologies(), size=st.floats(0, 1e10))
def test_the_growing_part_is_never_above_the_time(
    model: AbstractCollectiveModel, topology: Topology, size: float
) -> None:
    per_peer = np.random.default_rng(0).uniform(0, size, (5, topology.world_size))
    send, receive = spread_by_level(
        per_peer, local=topology.local_world_size, domain=topology.domain_size
    )
    time = model.all_to_all_s(send, receive, topology)
    assert time.shape == per_peer.shape
    assert np.all(model.all_to_all(send, receive, topology) <= time * (1 + 1e-12))
    whole = np.array(size)
    for within in (False, True):
        grown = float(model.reduce_scatter(whole, topology, within_host=within)) * (1 - 1e-12)
        assert grown <= float(
            model.buffer_s(Collective.REDUCE_SCATTER, whole, topology, within_host=within)
        )
        assert grown <= float(
            model.buffer_s(Collective.ALL_GATHER, whole, topology, within_host=within)
        )
        grown = float(model.all_reduce(whole, topology, within_host=within)) * (1 - 1e-12)
        assert grown <= float(
            model.buffer_s(Collective.ALL_REDUCE, whole, topology, within_host=within)
        )


def test_one_rank_reduces_for_free(model: AbstractCollectiveModel) -> None:
    alone = make_topology(1, 1)
    for within in (False, True):
        assert float(model.reduce_scatter(np.array(1e9), alone, within_host=within)) == 0
        assert float(model.all_reduce(np.array(1e9), alone, within_host=within)) == 0


def test_more_ranks_never_reduce_faster(model: AbstractCollectiveModel) -> None:
    """Inside one host, then a domain of three hosts, then across domains."""
    for domain_hosts in (1, 3):
        times = [
            float(
                model.all_reduce(np.array(1e8), make_topology(hosts, 4, domain_hosts=domain_hosts))
            )
            for hosts in (1, 2, 3, 4, 9)
        ]
        assert times == sorted(times)


@given(topology=topologies())
def test_reductions_keep_the_shape(model: AbstractCollectiveModel, topology: Topology) -> None:
    sizes = np.arange(6.0).reshape(2, 3)
    assert model.reduce_scatter(sizes, topology, within_host=False).shape == (2, 3)


def test_every_model_names_its_sources(model: AbstractCollectiveModel) -> None:
    assert "\n    Sources:\n        " in (type(model).__doc__ or "")


# ------------------------------------------------------------------ whole times


@given(
    topology=topologies(), sizes=st.lists(st.floats(1, 1e10), min_size=2, max_size=2).map(sorted)
)
@pytest.mark.parametrize("collective", list(Collective))
def test_times_are_monotone_and_never_below_their_growing_part(
    model: AbstractCollectiveModel,
    collective: Collective,
    topology: Topology,
    sizes: list[float],
) -> None:
    small, large = balanced_s(model, collective, np.array(sizes), topology)
    assert small <= large * (1 + 1e-12)
    growing = {
        Collective.ALL_REDUCE: model.all_reduce(np.array(sizes[0]), topology),
        Collective.REDUCE_SCATTER: model.reduce_scatter(
            np.array(sizes[0]), topology, within_host=False
        ),
        Collective.ALL_GATHER: model.reduce_scatter(
            np.array(sizes[0]), topology, within_host=False
        ),
    }
    assert small >= float(growing.get(collective, np.zeros(()))) * (1 - 1e-12)
    if topology.world_size == 1:
        assert large == 0


@given(topology=topologies(), seed=st.integers(0, 1000))
def test_an_all_to_all_takes_at_least_its_growing_part(
    model: AbstractCollectiveModel, topology: Topology, seed: int
) -> None:
    send, receive = traffic(seed, topology)
    time = model.all_to_all_s(send, receive, topology)
    assert np.all(time >= model.all_to_all(send, receive, topology) * (1 - 1e-12))
    more = model.all_to_all_s(2 * send, receive, topology)
    assert np.all(more >= time * (1 - 1e-12))


def test_shared_network_links_are_slower(model: AbstractCollectiveModel) -> None:
    topology = make_topology(4, 2)
    size = np.array(1e9)
    alone = balanced_s(model, Collective.ALL_TO_ALL, size, topology)
    shared = balanced_s(model, Collective.ALL_TO_ALL, size, share_network(topology, 2.0))
    assert alone < shared <= 2 * alone


@given(topology=topologies(), size=st.floats(1, 1e10))
def test_confidence_is_a_basis_and_a_spread(
    model: AbstractCollectiveModel, topology: Topology, size: float
) -> None:
    for collective in Collective:
        trust = model.confidence(collective, size, topology)
        assert trust.basis in Basis
        moves = topology.world_size > 1
        assert 0 <= trust.spread_ratio < 10
        assert (trust.spread_ratio > 0) or not moves


# ------------------------------------------------------------------ bytes by level


@given(topology=topologies(max_hosts=5), seed=st.integers(0, 2**32 - 1))
def test_a_spread_equals_the_explicit_matrix(topology: Topology, seed: int) -> None:
    """Also where the domain is larger than the system or does not divide it."""
    world = topology.world_size
    per_peer = np.random.default_rng(seed).integers(0, 1000, world).astype(float)
    matrix = np.repeat(per_peer[:, None], world, axis=1)
    send, receive = matrix_by_level(matrix, topology)
    own, others = spread_by_level(
        per_peer, local=topology.local_world_size, domain=topology.domain_size
    )
    np.testing.assert_allclose(own, send, rtol=1e-12)
    np.testing.assert_allclose(others, receive, rtol=1e-12)


@given(topology=topologies(max_hosts=5), seed=st.integers(0, 2**32 - 1))
def test_a_matrix_by_level_counts_every_pair_once(topology: Topology, seed: int) -> None:
    world, local, domain = topology.world_size, topology.local_world_size, topology.domain_size
    matrix = np.random.default_rng(seed).integers(0, 1000, (world, world)).astype(float)
    send, receive = np.zeros((2, world, NUM_LEVELS))
    for a in range(world):
        for b in range(world):
            if a == b:
                continue
            level = LinkLevel.NETWORK
            if a // local == b // local:
                level = LinkLevel.HOST
            elif a // domain == b // domain:
                level = LinkLevel.DOMAIN
            send[a, level] += matrix[a, b]
            receive[b, level] += matrix[a, b]
    found = matrix_by_level(matrix, topology)
    np.testing.assert_allclose(found, (send, receive), rtol=1e-12)
    np.testing.assert_allclose(send.sum(axis=0), receive.sum(axis=0), rtol=1e-12)


@given(topology=topologies(max_hosts=5))
def test_a_spread_broadcasts_over_plans(topology: Topology) -> None:
    sizes = {"local": topology.local_world_size, "domain": topology.domain_size}
    per_peer = np.random.default_rng(0).uniform(0, 1, (2, 3, topology.world_size))
    own, others = spread_by_level(per_peer, **sizes)
    assert own.shape == others.shape == (*per_peer.shape, NUM_LEVELS)
    single = spread_by_level(per_peer[1, 2], **sizes)
    np.testing.assert_allclose((own[1, 2], others[1, 2]), single, rtol=1e-12, atol=1e-12)


@given(st.integers(1, 20), st.integers(1, 20))
def test_group_sums_also_of_a_last_group_that_is_short(ranks: int, size: int) -> None:
    values = np.arange(1.0, ranks + 1)
    groups = np.arange(ranks) // size
    expected = [values[groups == g].sum() for g in groups]
    np.testing.assert_allclose(group_sums(values, size), expected)
