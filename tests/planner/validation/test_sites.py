"""Intervals of collectives: wider with less evidence, and held by sources that were left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.fabrics import left_out, one_host_sources
from costmodels.measured.curves import Collective
from costmodels.system_models import collective_model
from costmodels.topology import Topology
from planner import io
from planner.validation.intervals import (
    HeldOut,
    never_fitted,
    predicting_records,
)


def spread(topology: Topology) -> float:
    found = collective_model(topology).plan_spread_ratio(topology)
    assert found is not None
    return found


def test_less_evidence_is_a_wider_interval() -> None:
    measured = io.load_system("h100_sxm", gpus=8)
    slower = replace(measured.host_link, bandwidth_bytes_per_s=100e9)
    one_host = [
        measured,
        io.load_system("h100_sxm", gpus=6, gpus_per_host=6),
        replace(measured, host_link=slower, domain_link=slower),
        replace(measured, collective_curves=()),
    ]
    found = [spread(t) for t in one_host]
    assert found == sorted(found)
    several = [
        io.load_system("b200_sxm", gpus=16),
        io.load_system("b200_sxm", gpus=64),
        replace(io.load_system("b200_sxm", gpus=64), collective_curves=()),
    ]
    found = [spread(t) for t in several]
    assert found == sorted(found)
    assert spread(io.load_system("h100_sxm", gpus=1)) == 0


def test_small_exchanges_on_four_v100() -> None:
    """Predicted by the plain all-to-all of the same machine; this one has a size per peer."""
    found = [
        abs(p.error_ratio)
        for p in never_fitted(predicting_records())
        if p.case.name.startswith("v100_32gb_sxm all_to_all") and p.size_bytes < 8 * 2**20
    ]
    assert len(found) > 15
    assert np.mean(found) <= 0.25


def test_one_host_by_sources_left_out() -> None:
    found = list(one_host_sources(predicting_records()))
    assert np.median([abs(p.error_ratio) for _, p in found]) <= 0.10
    assert np.mean([p.is_inside for _, p in found]) >= 0.85
    elsewhere = [p for whose, p in found if whose == "another site"]
    assert len(elsewhere) > 150
    assert np.mean([p.is_inside for p in elsewhere]) >= 0.80


@pytest.mark.slow
def test_several_hosts_by_sources_left_out() -> None:
    """The aim is a median of 15 %. It is missed since curves of 16 to 540 hosts are among them,
    and 81 % instead of 90 % lie inside their intervals.
    """
    found: list[HeldOut] = [p for _, p in left_out(predicting_records())]
    assert np.median([abs(p.error_ratio) for p in found]) <= 0.23
    whole = [abs(p.error_ratio) for p in found if p.case.name == Collective.ALL_REDUCE]
    assert np.median(whole) <= 0.21
    assert np.mean([p.is_inside for p in found]) >= 0.80


def test_spreads_are_told_for_each_collective() -> None:
    system = io.load_system("aws_p5", gpus=32)
    model = collective_model(system)
    for collective in Collective:
        assert model.confidence(collective, 2.0**24, system).spread_ratio >= 0.9
