"""Networks whose links above a pod carry less than its cards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import AbstractCollectiveModel, balanced_s
from costmodels.collective.hierarchical import Hierarchical
from costmodels.collective.ramp import Ramp
from costmodels.datatypes import FloatArray
from costmodels.measured.curves import Collective
from costmodels.system_models import collective_model
from costmodels.topology import Topology
from planner import io
from tests.planner.io.files import SYSTEM, changed, refused, write

PLAIN = "network: {latency: 25 us, bandwidth: 20 GB/s}"
LARGE = np.array([2.0**40])
SIZES = np.geomspace(1024, 2**33, 12)


def podded(base: Topology, hosts: int, oversubscription: float) -> Topology:
    link = replace(base.network_link, pod_hosts=hosts, oversubscription_ratio=oversubscription)
    return replace(base, network_link=link)


def seconds(system: Topology, collective: Collective, sizes: FloatArray = SIZES) -> FloatArray:
    return balanced_s(collective_model(system), collective, sizes, system)


def test_files_say_it(tmp_path: Path) -> None:
    pods = "pods: {hosts: 4, oversubscription: 2}"
    kind = f"network: {{fabric: efa, nic: 12.5 GB/s, nics_per_host: 4, {pods}}}"
    plain = f"network: {{latency: 25 us, bandwidth: 20 GB/s, {pods}}}"
    for text in (kind, plain):
        path = write(tmp_path, "box.yaml", changed(SYSTEM, PLAIN, text))
        link = io.load_system(path).network_link
        assert (link.pod_hosts, link.oversubscription_ratio) == (4, 2.0)
    few = "network: {latency: 25 us, bandwidth: 20 GB/s, pods: {hosts: 4, oversubscription: 0.5}}"
    path = write(tmp_path, "few.yaml", changed(SYSTEM, PLAIN, few))
    refused(lambda: io.load_system(path), path, "oversubscription", "must be at least 1.0")


@pytest.mark.parametrize("model", [AlphaBeta(), Ramp(), None, Hierarchical(inner=AlphaBeta())])
def test_what_leaves_the_pod_takes_as_many_times_longer(
    model: AbstractCollectiveModel | None,
) -> None:
    """8 hosts in pods of 4: of 56 peers on other hosts 32 lie beyond, on a quarter of the rate."""
    base = io.load_system("h100_sxm", gpus=64)
    there = podded(base, 4, 4.0)
    each = [
        balanced_s(model or collective_model(t), Collective.ALL_TO_ALL, LARGE, t)
        for t in (base, there)
    ]
    assert (each[1] / each[0]).item() == pytest.approx(4.0 * 32 / 56, rel=0.2 if model else 0.1)


@pytest.mark.parametrize("name", ["h100_sxm", "aws_p5", "mi300x", "gb200"])
def test_pods_never_help_and_hurt_only_beyond_themselves(name: str) -> None:
    for collective in Collective:
        before = np.zeros_like(SIZES)
        for hosts in (1, 2, 4, 8, 32):
            base = io.load_system(name, gpus=4 * hosts, gpus_per_host=4)
            pods = podded(base, 32, 8.0)
            now, free = seconds(pods, collective), seconds(base, collective)
            np.testing.assert_allclose(now, free)
            tight = seconds(podded(base, 2, 8.0), collective)
            assert (tight >= free * (1 - 1e-9)).all()
            assert (tight >= before * (1 - 1e-9)).all()
            before = tight
