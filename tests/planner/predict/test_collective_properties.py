"""What holds for collectives on every shipped system, at every size, in every shape."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import AbstractCollectiveModel, balanced_s
from costmodels.collective.measured import Measured
from costmodels.collective.ramp import Ramp
from costmodels.datatypes import FloatArray
from costmodels.fabrics import fabric_link
from costmodels.measured.curves import Collective, CollectiveCurve
from costmodels.system_models import collective_model
from costmodels.topology import Topology
from planner import io
from planner.io.documents import names
from planner.io.system.collective_curves import shipped_curves
from tests.networks import with_links
from tests.strategies import make_topology

EVERY = tuple(Collective)
SIZES = np.geomspace(256.0, 2.0**33, 50)
SYSTEMS = tuple(n for n in names("systems") if not io.load_system(n).calibration)
WITHOUT_CURVES = tuple(n for n in SYSTEMS if not io.load_system(n).collective_curves)


@functools.lru_cache(maxsize=8)
def model_of(topology: Topology) -> AbstractCollectiveModel:
    """One for all collectives of a system: its curves take longer to read than to ask."""
    return collective_model(topology)


def times(topology: Topology, collective: Collective) -> FloatArray:
    return balanced_s(model_of(topology), collective, SIZES, topology)


def later(topology: Topology, *, host_s: float = 0.0, network_s: float = 0.0) -> Topology:
    """The system with longer latencies."""
    links = topology.links
    host = replace(links.host, latency_s=links.host.latency_s + host_s)
    network = replace(links.network, latency_s=links.network.latency_s + network_s)
    domain = replace(links.domain, latency_s=links.domain.latency_s + host_s)
    return with_links(topology, replace(links, host=host, domain=domain, network=network))


def steps(collective: Collective, topology: Topology) -> int:
    """Hops over the network that follow one another: one, or a round per doubling of domains."""
    domains = math.ceil(topology.world_size / topology.domain_size)
    return 1 if collective is Collective.ALL_TO_ALL else math.ceil(math.log2(domains))


def shapes() -> st.SearchStrategy[tuple[int, int]]:
    """(hosts, ranks per host), 2 ranks at least."""
    pairs = st.tuples(st.sampled_from([1, 2, 3, 4, 8, 32]), st.sampled_from([1, 2, 4, 8]))
    return pairs.filter(lambda shape: shape[0] * shape[1] > 1)


@given(
    name=st.sampled_from(SYSTEMS),
    shape=shapes(),
    collective=st.sampled_from(EVERY),
    longer_s=st.sampled_from([1e-6, 50e-6, 5e-3]),
)
def test_every_hop_is_felt_at_every_size(
    name: str, shape: tuple[int, int], collective: Collective, longer_s: float
) -> None:
    hosts, local = shape
    base = io.load_system(name, gpus=hosts * local, gpus_per_host=local)
    here = times(base, collective)
    assert (np.diff(here) >= -1e-15).all()
    slack = 1.0 - 1e-6
    if base.world_size > base.domain_size:
        far = times(later(base, network_s=longer_s), collective)
        assert (far - here >= slack * steps(collective, base) * longer_s).all()
    else:
        near = times(later(base, host_s=longer_s), collective)
        assert (near - here >= slack * longer_s).all()


@pytest.mark.parametrize("model", [AlphaBeta(), Ramp()])
@pytest.mark.parametrize("collective", EVERY)
def test_every_hop_is_felt_by_the_models_without_curves(
    model: AbstractCollectiveModel, collective: Collective
) -> None:
    for hosts, local in ((2, 1), (2, 8), (8, 8), (32, 4), (64, 1)):
        base = io.load_system("h100_sxm", gpus=hosts * local, gpus_per_host=local)
        for longer_s in (1e-6, 5e-3):
            slow = balanced_s(model, collective, SIZES, later(base, network_s=longer_s))
            rise = slow - balanced_s(model, collective, SIZES, base)
            assert (rise >= (1 - 1e-6) * steps(collective, base) * longer_s).all()


LEVELS = ("host", "domain", "network")


def with_latency(topology: Topology, level: str, latency_s: float) -> Topology:
    """The system with another latency of one of its links."""
    link = replace(getattr(topology.links, level), latency_s=latency_s)
    return with_links(topology, replace(topology.links, **{level: link}))


def cluster_curves(hosts: int, local: int, first: int) -> tuple[CollectiveCurve, ...]:
    """Of every collective: inside a host of 8 ranks, and over hosts of 100 Gb/s a rank.

    Sizes start at 2 to the power of ``first``.
    """
    sizes = tuple(2.0**k for k in range(first, 30))
    shapes = ((8, 1, 10e-6, 200e9), (hosts * local, hosts, 60e-6, 12e9 * local))
    return tuple(
        CollectiveCurve(
            collective=collective,
            ranks=ranks,
            domains=domains,
            size_bytes=sizes,
            time_s=tuple(floor_s + size / rate for size in sizes),
            network_bytes_per_s=12.5e9 if domains > 1 else 0.0,
        )
        for collective in EVERY
        for ranks, domains, floor_s, rate in shapes
    )


@functools.lru_cache(maxsize=8)
def models_of_a_cluster(hosts: int, local: int, first: int) -> tuple[AbstractCollectiveModel, ...]:
    """Without curves, with those of the cluster itself, and with the same on links that change."""
    curves = cluster_curves(hosts, local, first)
    rescaled = Measured(curves=curves, measured_on=make_topology().links)
    return AlphaBeta(), Ramp(), Measured(curves=curves), rescaled


def assert_slower_by_latency(
    models: Sequence[AbstractCollectiveModel], base: Topology, collective: Collective
) -> None:
    """Each link in turn: its latency takes off nothing, and only a link that is used counts."""
    for model, level in itertools.product(models, LEVELS):
        before = np.zeros_like(SIZES)
        for latency_s in (0.0, 2e-6, 17e-6, 50e-6, 1e-3):
            slower = with_latency(base, level, latency_s)
            now = balanced_s(model, collective, SIZES, slower)
            assert (now >= (1.0 - 1e-9) * before).all(), (model, level, latency_s)
            if level == "host" and base.local_world_size == 1 and latency_s > 0.0:
                np.testing.assert_allclose(now, before, rtol=1e-9)
            before = now


@given(
    shape=shapes(),
    domain_hosts=st.sampled_from([1, 2]),
    measured=st.sampled_from([(2, 8, 9), (4, 8, 9), (2, 1, 9), (2, 8, 20)]),
    collective=st.sampled_from(EVERY),
)
def test_no_longer_latency_makes_a_cluster_faster(
    shape: tuple[int, int],
    domain_hosts: int,
    measured: tuple[int, int, int],
    collective: Collective,
) -> None:
    hosts, local = shape
    base = make_topology(hosts, local, domain_hosts=domain_hosts)
    assert_slower_by_latency(models_of_a_cluster(*measured), base, collective)


@given(name=st.sampled_from(SYSTEMS), shape=shapes(), collective=st.sampled_from(EVERY))
def test_no_longer_latency_makes_a_shipped_system_faster(
    name: str, shape: tuple[int, int], collective: Collective
) -> None:
    hosts, local = shape
    base = io.load_system(name, gpus=hosts * local, gpus_per_host=local)
    assert_slower_by_latency((model_of(base),), base, collective)


@pytest.mark.parametrize("name", SYSTEMS)
def test_more_hosts_make_nothing_faster(name: str) -> None:
    for local in (1, 8):
        before = np.zeros((len(EVERY), len(SIZES)))
        for hosts in (1, 2, 3, 8, 32):
            base = io.load_system(name, gpus=hosts * local, gpus_per_host=local)
            now = np.array([times(base, collective) for collective in EVERY])
            assert (now >= (1.0 - 1e-9) * before).all()
            before = now


def ratios(name: str, hosts: int, local: int) -> FloatArray:
    """Reduce-scatter plus all-gather over all-reduce, from 1 KiB to 1 GiB."""
    base = io.load_system(name, gpus=hosts * local, gpus_per_host=local)
    halves = times(base, Collective.REDUCE_SCATTER) + times(base, Collective.ALL_GATHER)
    return (halves / times(base, Collective.ALL_REDUCE))[(SIZES >= 2**10) & (SIZES <= 2**30)]


@pytest.mark.parametrize("name", [*WITHOUT_CURVES, "v100_32gb_sxm"])
def test_an_all_reduce_is_its_two_halves(name: str) -> None:
    """Inside a host, where the three come from different sources, or from none."""
    for local in (2, 4, 8):
        found = ratios(name, 1, local)
        assert found.min() >= 0.8 - 1e-9
        assert found.max() <= 1.3 + 1e-9


def test_rings_grow_with_the_hosts_and_trees_with_their_doublings() -> None:
    """As on ALCF Polaris: from 8 to 540 hosts an all-gather takes 45 times as long, this one 4."""
    small = np.array([2.0**16])
    few, many = (load_cluster("infiniband", hosts) for hosts in (8, 512))
    grown = {}
    for collective in EVERY:
        seconds = [float(balanced_s(Ramp(), collective, small, t)[0]) for t in (few, many)]
        grown[collective] = seconds[1] / seconds[0]
    assert grown[Collective.ALL_REDUCE] < 5.0
    for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        assert grown[collective] > 30.0
    assert grown[Collective.ALL_TO_ALL] > 20.0


def load_cluster(kind: str, hosts: int) -> Topology:
    """Hosts of four A100 on a network of a kind, with half a card for each GPU."""
    system = io.load_system("a100_40gb_sxm", gpus=4 * hosts, gpus_per_host=4)
    return replace(system, network_link=fabric_link(kind, nic_bytes_per_s=25e9, nics_per_gpu=0.5))


def test_curves_of_one_source_keep_the_ratio_that_was_measured() -> None:
    for name in ("a100_80gb_sxm", "h100_sxm", "h200_sxm", "b200_sxm"):
        records = [r for r in shipped_curves() if r.set_name == name and r.nodes == 1]
        for local in (2, 4, 8):
            by = {
                (r.curve.version, r.curve.collective): r.curve
                for r in records
                if r.curve.ranks == local and r.role == "calibrate"
            }
            measured = [
                (rs + ag) / ar
                for version in {v for v, c in by if c is Collective.REDUCE_SCATTER}
                if (version, Collective.ALL_REDUCE) in by
                for rs, ag, ar in zip(
                    by[version, Collective.REDUCE_SCATTER].time_s,
                    by[version, Collective.ALL_GATHER].time_s,
                    by[version, Collective.ALL_REDUCE].time_s,
                    strict=True,
                )
            ]
            assert np.median(ratios(name, 1, local)) == pytest.approx(np.median(measured), rel=0.08)
