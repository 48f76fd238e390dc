"""Random systems: shipped ones and made-up ones, of one to four ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from costmodels.topology import Link, Topology
from costmodels.units import GB, GIB, MIB, US
from planner import load_system
from tests.strategies import make_device, make_host, make_topology

_SHIPPED = {
    "h100_sxm": 8,
    "a100_80gb_sxm": 3,
    "a100_40gb_sxm": 2,
    "v100_32gb_sxm": 2,
    "b200_sxm": 2,
    "gb200": 2,
    "h200_sxm": 1,
    "h100_pcie": 1,
    "l40": 2,
    "l40s": 1,
    "a40": 2,
    "torchrec_defaults": 2,
    "cpu_gloo": 1,
}
_PRICES_USD_PER_HOUR = {
    "h100_sxm": 4.5,
    "a100_80gb_sxm": 3.4,
    "a100_40gb_sxm": 2.7,
    "v100_32gb_sxm": 3.1,
    "b200_sxm": 7.5,
    "gb200": 9.0,
    "h200_sxm": 5.5,
    "h100_pcie": 3.3,
    "l40": 1.3,
    "l40s": 1.9,
    "a40": 1.2,
}
"""Shipped systems state no price; the problems that are drawn have these."""
_LAYOUTS = {
    (1, 1): 4,
    (1, 2): 24,
    (2, 1): 14,
    (1, 3): 12,
    (3, 1): 10,
    (1, 4): 14,
    (2, 2): 20,
    (4, 1): 2,
}
"""(hosts, ranks of each): how often."""

_LARGER_LAYOUTS = {(1, 4): 2, (1, 8): 4, (2, 2): 2, (2, 4): 4, (4, 2): 2, (8, 1): 1}


def draw_topology(rng: np.random.Generator, *, larger: bool = False) -> Topology:
    """A system with a price, on which ranks and hosts may differ."""
    table = _LARGER_LAYOUTS if larger else _LAYOUTS
    layouts = list(table)
    weights = np.array(list(table.values()), dtype=float)
    hosts, local = layouts[int(rng.choice(len(layouts), p=weights / weights.sum()))]
    topology = _shipped(rng, hosts, local) if rng.random() < 0.7 else _made_up(rng, hosts, local)
    world = hosts * local
    if rng.random() < 0.2:
        slowdown = float(rng.choice([0.0, 0.1, 0.3]))
        device = replace(topology.device, overlap_slowdown_ratio=slowdown)
        topology = replace(topology, device=device)
    if rng.random() < 0.15:
        speeds = rng.choice([0.4, 0.8, 1.0, 1.3], size=world)
        topology = replace(topology, speed_by_rank_ratio=tuple(speeds.tolist()))
    if rng.random() < 0.2:
        shares = rng.choice([0.25, 0.6, 1.0, 1.5], size=world)
        sizes = shares * topology.device.hbm_capacity_bytes
        topology = replace(topology, hbm_capacity_by_rank_bytes=tuple(sizes.tolist()))
    if rng.random() < 0.12:
        shares = rng.choice([0.0, 0.01, 0.5, 1.0], size=hosts)
        sizes = shares * topology.host.ddr_capacity_bytes
        topology = replace(topology, ddr_capacity_by_host_bytes=tuple(sizes.tolist()))
    if topology.price_per_device_usd_per_hour is None:
        topology = replace(topology, price_per_device_usd_per_hour=float(rng.choice([1.0, 4.5])))
    return topology


def _shipped(rng: np.random.Generator, hosts: int, local: int) -> Topology:
    weights = np.array(list(_SHIPPED.values()), dtype=float)
    name = str(rng.choice(list(_SHIPPED), p=weights / weights.sum()))
    return _loaded(name, hosts, local)


@lru_cache
def _loaded(name: str, hosts: int, local: int) -> Topology:
    topology = load_system(name, gpus=hosts * local, gpus_per_host=local)
    price = _PRICES_USD_PER_HOUR.get(name)
    return replace(topology, price_per_device_usd_per_hour=price)


def _made_up(rng: np.random.Generator, hosts: int, local: int) -> Topology:
    device = make_device(
        hbm_capacity_bytes=float(rng.choice([2.0, 16.0, 80.0])) * GIB,
        hbm_bandwidth_bytes_per_s=float(rng.choice([300.0, 1300.0, 3000.0])) * GB,
        l2_capacity_bytes=float(rng.choice([0.0, 0.0625, 40.0])) * MIB,
        row_half_bytes=float(rng.choice([0.0, 32.0, 200.0])),
        kernel_latency_s=float(rng.choice([0.0, 2.0, 10.0])) * US,
    )
    call_s = float(rng.choice([0.0, 1.0, 5.0])) * US
    device = replace(
        device,
        overlap_slowdown_ratio=float(rng.choice([0.0, 0.0, 0.15, 0.4])),
        num_multiprocessors=int(rng.choice([0, 108])),
    )
    host = make_host(
        eager_call_s=call_s,
        ddr_capacity_bytes=float(rng.choice([0.0, 8.0, 1000.0], p=[0.1, 0.3, 0.6])) * GIB,
        device_link_bandwidth_bytes_per_s=float(rng.choice([5.0, 20.0, 60.0])) * GB,
    )
    return make_topology(
        hosts,
        local,
        domain_hosts=int(rng.integers(1, hosts + 1)),
        device=device,
        host=host,
        host_link=_link(rng),
        domain_link=_link(rng),
        network_link=_link(rng),
    )


def _link(rng: np.random.Generator) -> Link:
    """Between Ethernet and NVLink."""
    return Link(
        latency_s=float(rng.choice([0.0, 5.0, 30.0])) * US,
        bandwidth_bytes_per_s=float(rng.choice([1.0, 12.5, 200.0, 450.0])) * GB,
    )
