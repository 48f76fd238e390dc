"""A faster link makes no collective slower, and neither does a shorter latency.

Links are drawn over wide ranges: 0.1 GB/s to 1 TB/s and 0.1 us to 300 us.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import AbstractCollectiveModel, balanced_s
from costmodels.collective.measured import Measured
from costmodels.collective.ramp import Ramp
from costmodels.datatypes import FloatArray
from costmodels.fabrics import FABRICS
from costmodels.measured.curves import Collective, CollectiveCurve
from costmodels.system_models import collective_model
from costmodels.topology import Link, Links, Topology
from costmodels.units import GB, US
from planner import io
from planner.io.documents import names
from tests.networks import matrix_by_level, with_links
from tests.planner.cases import first
from tests.strategies import make_topology

SYSTEMS = tuple(n for n in names("systems") if not io.load_system(n).calibration)
LEVELS = ("host", "domain", "network")
KINDS = ("", *FABRICS)
SIZES = np.array([1.0, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9])
READING = 1e-3
"""Relative error of a time read between two points of a table. The points of a table move with the
links, so that a time may rise by that much."""

load = functools.cache(io.load_system)


def between(rng: np.random.Generator, low: float, high: float) -> float:
    """A number whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def with_link(links: Links, level: str, link: Link) -> Links:
    """The links with another one at a level."""
    return Links(**{name: link if name == level else getattr(links, name) for name in LEVELS})


def draw_link(rng: np.random.Generator, kind: str, *, pods: bool) -> Link:
    """Any link; with pods of up to four hosts where these are wanted."""
    return Link(
        latency_s=between(rng, 1e-7, 3e-4),
        bandwidth_bytes_per_s=between(rng, 1e8, 1e12),
        half_size_bytes=between(rng, 1e3, 1e7) if kind else 0.0,
        fabric=kind,
        pod_hosts=int(rng.integers(5)) if pods else 0,
        oversubscription_ratio=float(rng.choice([1.0, 2.0, 4.0])) if pods else 1.0,
    )


def draw_topology(rng: np.random.Generator) -> Topology:
    """A shipped system on 1 to 16 hosts; each link is drawn in two cases of three."""
    base = load(str(rng.choice(SYSTEMS)))
    local = int(rng.choice([1, 2, 3, 4, 8]))
    kinds = ("", "", str(rng.choice(KINDS)))
    links = base.links
    for level, kind in zip(LEVELS, kinds, strict=True):
        if rng.random() < 2 / 3:
            links = with_link(links, level, draw_link(rng, kind, pods=level == "network"))
    shaped = replace(
        base,
        num_hosts=int(rng.integers(1, 17)),
        local_world_size=local,
        domain_size=local * int(rng.choice([1, 1, 2, 4])),
    )
    return with_links(shaped, links)


def draw_exchanges(rng: np.random.Generator, topology: Topology) -> tuple[FloatArray, FloatArray]:
    """Bytes sent and received by level in three uneven all-to-alls, ``[3, R, levels]`` each."""
    world = topology.world_size
    exchanges = []
    for _ in range(3):
        sent = rng.random((world, world)) < rng.choice([0.1, 1.0])
        exchanges.append(
            matrix_by_level(sent * 10.0 ** rng.uniform(2, 9, size=(world, world)), topology)
        )
    send, receive = zip(*exchanges, strict=True)
    return np.array(send), np.array(receive)


def times(
    model: AbstractCollectiveModel,
    topology: Topology,
    exchanges: tuple[FloatArray, FloatArray],
) -> dict[str, FloatArray]:
    """Seconds of all collectives over all ranks and inside a host, by what they are."""
    found = {str(c): balanced_s(model, c, SIZES, topology) for c in Collective}
    found["uneven all_to_all"] = model.all_to_all_s(*exchanges, topology).max(axis=-1)
    found["its growing part"] = model.all_to_all(*exchanges, topology).max(axis=-1)
    for kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE):
        found[f"{kind} in a host"] = model.buffer_s(kind, SIZES, topology, within_host=True)
    return found


def better(topology: Topology, level: str, factor: float) -> dict[str, Topology]:
    """The system with one link that is faster, and with one whose latency is shorter."""
    links = topology.links
    link: Link = getattr(links, level)
    faster = replace(link, bandwidth_bytes_per_s=factor * link.bandwidth_bytes_per_s)
    sooner = replace(link, latency_s=link.latency_s / factor)
    return {
        f"bandwidth of {level}": with_links(topology, with_link(links, level, faster)),
        f"latency of {level}": with_links(topology, with_link(links, level, sooner)),
    }


def models_of(topology: Topology) -> tuple[AbstractCollectiveModel, ...]:
    """The model of the system, and those that need nothing but links."""
    return collective_model(topology), Ramp(), AlphaBeta()


def assert_no_slower_with_better_links(seed: int) -> None:
    """One drawn system."""
    rng = np.random.default_rng(seed)
    topology = draw_topology(rng)
    exchanges = draw_exchanges(rng, topology)
    before = [times(model, topology, exchanges) for model in models_of(topology)]
    for level in LEVELS:
        for what, changed in better(topology, level, float(rng.choice([1.05, 2.0, 8.0]))).items():
            for model, known in zip(models_of(changed), before, strict=True):
                now = times(model, changed, exchanges)
                for name, time_s in known.items():
                    worst = (now[name] - (1.0 + READING) * time_s).max()
                    assert worst <= 0.0, (seed, topology.name, what, name, worst)


@pytest.mark.parametrize("start", first(range(0, 40, 10), 2))
def test_better_links_make_nothing_slower(start: int) -> None:
    for seed in range(start, start + 10):
        assert_no_slower_with_better_links(seed)


_GROWING_ALONE: Final = 2111
"""The seed whose growing part is longer over a faster network, as the test below it explains."""


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 2500, 100))
def test_better_links_make_nothing_slower_in_many_systems(start: int) -> None:
    for seed in range(start, start + 100):
        if seed != _GROWING_ALONE:
            assert_no_slower_with_better_links(seed)


def test_a_growing_part_may_be_longer_where_the_exchange_is_not() -> None:
    """The growing part is bytes over the best rate of a table: a line below it, not its time.

    The tables of this system (mi355x, 9 hosts of 4) are carried over from other links, and the best
    rate is that of one corner of a table. With the network's rate the corners move, and the best
    rate wobbles by 0.5 %. What an exchange takes, which the fabric decides here, stays the same.
    """
    rng = np.random.default_rng(_GROWING_ALONE)
    topology = draw_topology(rng)
    exchanges = draw_exchanges(rng, topology)
    before = times(collective_model(topology), topology, exchanges)
    for factor in (1.01, 1.02, 1.05, 1.5):
        changed = better(topology, "network", factor)["bandwidth of network"]
        now = times(collective_model(changed), changed, exchanges)
        part = now.pop("its growing part")
        assert (part <= now["uneven all_to_all"]).all()
        assert (part <= 1.005 * before["its growing part"]).all()
        for what, time_s in now.items():
            assert (time_s <= (1.0 + READING) * before[what]).all(), (factor, what)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", first(["h100_sxm", "gcp_a3_mega", "a100_80gb_sxm", "b200_sxm"], 2))
def test_no_rate_is_slower_than_the_rate_below_it(name: str, kind: str) -> None:
    """Rates of all decades one after the other, past all at which curves were measured."""
    base = replace(load(name), num_hosts=4, local_world_size=8, domain_size=8)
    exchanges = draw_exchanges(np.random.default_rng(0), base)
    link = Link(latency_s=40 * US, bandwidth_bytes_per_s=GB, half_size_bytes=1e5, fabric=kind)
    before: dict[str, FloatArray] | None = None
    for rate in np.geomspace(0.5, 500.0, 31) * GB:
        topology = replace(base, network_link=replace(link, bandwidth_bytes_per_s=float(rate)))
        now = times(collective_model(topology), topology, exchanges)
        for what, time_s in (before or {}).items():
            assert (now[what] <= (1.0 + READING) * time_s).all(), (what, rate)
        before = now


def test_a_faster_network_does_not_load_the_fabric() -> None:
    """Mostly inside the host: bytes that leave it count on PCIe whatever the network's rate."""
    send = np.zeros((4, 3))
    send[:, 0], send[:, 2] = 1e9, 1e8
    models: tuple[AbstractCollectiveModel, ...] = (AlphaBeta(), Ramp())
    for model, rate in itertools.product(models, (10.0, 100.0)):
        base = make_topology(2, 2)
        host = replace(base.host_link, bandwidth_bytes_per_s=rate * GB)
        link = base.network_link
        slow, fast = (
            replace(
                base,
                host_link=host,
                network_link=replace(link, bandwidth_bytes_per_s=share * rate * GB),
            )
            for share in (0.49, 0.51)
        )
        np.testing.assert_allclose(
            model.all_to_all(send, send, fast), model.all_to_all(send, send, slow), rtol=1e-12
        )


@pytest.mark.parametrize(("rate", "told"), [(12.0, False), (40.0, True)])
def test_a_network_unlike_that_of_curves_of_ones_own_is_told(rate: float, told: bool) -> None:
    sizes = tuple(2.0**k for k in range(9, 30))
    curve = CollectiveCurve(
        collective=Collective.ALL_REDUCE,
        ranks=16,
        domains=2,
        size_bytes=sizes,
        time_s=tuple(50 * US + s / (20 * GB) for s in sizes),
        network_bytes_per_s=12.5 * GB,
    )
    base = make_topology(2, 8)
    link = replace(base.network_link, bandwidth_bytes_per_s=rate * GB)
    remarks = Measured(curves=(curve,)).remarks(replace(base, network_link=link))
    assert any("is 40 GB/s" in r and "network links of 12.5 GB/s" in r for r in remarks) == told
    one_host = replace(base, num_hosts=1, network_link=link)
    assert Measured(curves=(curve,)).remarks(one_host) == ()
