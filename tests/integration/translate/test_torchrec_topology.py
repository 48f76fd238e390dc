"""TorchRec's topology and ours describe the same machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torchrec")

from torchrec.distributed.planner.types import (
    CustomTopologyData,
    HardwareConfig,
    KernelConfig,
    Topology,
    TopologyFactory,
    TrainerConfig,
)

from costmodels.units import GIB
from planner.errors import InfeasibleError, InvalidInputError
from planner.integrations.torchrec_parts import PredictedIteration
from planner.integrations.torchrec_topology import (
    POD_SIZE_VARIABLE,
    base_system,
    pod_size_mismatch,
    topology_from_torchrec,
    topology_to_torchrec,
)
from tests.integration.builders import make_topology
from tests.integration.models import torchrec_topology

pytestmark = pytest.mark.torchrec


def factory(device: str = "cuda", **trainer: object) -> Topology:
    return TopologyFactory.create_topology(
        trainer_config=TrainerConfig(**trainer),
        kernel_config=KernelConfig(compute_device=device),
    )


def test_bandwidths_per_ms_become_bandwidths_per_s() -> None:
    theirs = TopologyFactory.create_topology(
        trainer_config=TrainerConfig(world_size=16, local_world_size=8),
        hardware_config=HardwareConfig(
            hbm_cap_bytes=80 * GIB,
            ddr_cap_bytes=100 * GIB,
            hbm_mem_bw=2.0e9,
            ddr_mem_bw=1.0e8,
            hbm_to_ddr_mem_bw=3.0e7,
            intra_host_bw=4.5e8,
            inter_host_bw=5.0e7,
        ),
        kernel_config=KernelConfig(use_hardware_based_bandwidth=True),
    )
    ours = topology_from_torchrec(theirs, make_topology(), rates_from_base=False)
    assert (ours.num_hosts, ours.local_world_size, ours.domain_size) == (2, 8, 8)
    assert ours.device.hbm_capacity_bytes == 80 * GIB
    assert ours.device.hbm_bandwidth_bytes_per_s == pytest.approx(2.0e12)
    assert ours.host.ddr_capacity_bytes == 8 * 100 * GIB
    assert ours.host.ddr_bandwidth_bytes_per_s == pytest.approx(1.0e11)
    assert ours.host.device_link_bandwidth_bytes_per_s == pytest.approx(3.0e10)
    assert ours.host_link.bandwidth_bytes_per_s == pytest.approx(4.5e11)
    assert ours.network_link.bandwidth_bytes_per_s == pytest.approx(5.0e10)
    assert ours.network_link.latency_s == make_topology().network_link.latency_s
    assert any(p.reference == "TorchRec topology" for p in ours.provenance)


def test_rates_of_the_base_can_be_kept() -> None:
    base = make_topology()
    ours = topology_from_torchrec(torchrec_topology(4, 2), base, rates_from_base=True)
    assert ours.world_size == 4
    assert ours.device.hbm_bandwidth_bytes_per_s == base.device.hbm_bandwidth_bytes_per_s
    assert ours.device.hbm_capacity_bytes == 2**30


def test_defaults_of_torchrec() -> None:
    ours = topology_from_torchrec(
        factory(world_size=8, local_world_size=8), make_topology(), rates_from_base=False
    )
    assert ours.device.hbm_capacity_bytes == 32 * GIB
    assert ours.device.hbm_bandwidth_bytes_per_s == pytest.approx(897 * GIB, rel=1e-3)
    assert ours.host_link.bandwidth_bytes_per_s == pytest.approx(600 * GIB, rel=1e-3)


def test_a_pod_is_one_host_of_ours() -> None:
    theirs = factory(world_size=16, local_world_size=4, pod_size=2)
    ours = topology_from_torchrec(theirs, make_topology(), rates_from_base=False)
    assert (ours.num_hosts, ours.local_world_size) == (2, 8)


def test_a_pod_that_the_runtime_does_not_know_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(POD_SIZE_VARIABLE, raising=False)
    theirs = factory(world_size=16, local_world_size=4, pod_size=2)
    assert "2 hosts per pod but TORCHREC_RESOLVED_POD_SIZE is 1" in str(pod_size_mismatch(theirs))
    assert pod_size_mismatch(factory(world_size=16, local_world_size=4)) == []
    monkeypatch.setenv(POD_SIZE_VARIABLE, "2")
    assert pod_size_mismatch(theirs) == []


def test_a_base_of_the_same_size_keeps_the_speed_of_its_ranks() -> None:
    base = replace(make_topology(1, 2), speed_by_rank_ratio=(1.0, 0.5))
    ours = topology_from_torchrec(torchrec_topology(2, 2), base, rates_from_base=True)
    assert ours.speed_by_rank_ratio == (1.0, 0.5)


def test_ranks_may_differ_in_memory() -> None:
    caps = [GIB, 2 * GIB, 2 * GIB, 2 * GIB]
    custom = CustomTopologyData(data={"hbm_cap": caps}, world_size=4)
    theirs = factory(
        world_size=4, local_world_size=2, additional_params={"custom_topology_data": custom}
    )
    ours = topology_from_torchrec(theirs, make_topology(), rates_from_base=False)
    assert ours.hbm_capacities().tolist() == caps
    back = topology_to_torchrec(ours, "cuda")
    assert [d.storage.hbm for d in back.devices] == caps


def test_the_device_memory_of_a_cpu_is_its_share_of_ddr() -> None:
    theirs = torchrec_topology(2, 2, device="cpu")
    ours = topology_from_torchrec(theirs, make_topology(), rates_from_base=True)
    assert ours.hbm_capacities().tolist() == [2.0**33, 2.0**33]


def test_no_memory_left_is_infeasible() -> None:
    theirs = torchrec_topology(2, 2)
    theirs.devices[1].storage.hbm = -5
    with pytest.raises(InfeasibleError, match="rank 1 has -5 bytes") as caught:
        topology_from_torchrec(theirs, make_topology(), rates_from_base=True)
    assert caught.value.shortfall_bytes == 5


def test_ranks_that_do_not_fill_hosts_are_cut_into_smaller_ones() -> None:
    ours = topology_from_torchrec(torchrec_topology(12, 8), make_topology(), rates_from_base=True)
    assert (ours.num_hosts, ours.local_world_size) == (3, 4)


def test_parts_of_torchrecs_planner_need_whole_hosts() -> None:
    with pytest.raises(InvalidInputError, match="world size 6 is no multiple of the 4"):
        PredictedIteration(torchrec_topology(6, 4))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_there_and_back(device: str) -> None:
    base = make_topology(num_hosts=2, local=4)
    theirs = topology_to_torchrec(base, device)
    assert (theirs.world_size, theirs.local_world_size, theirs.compute_device) == (8, 4, device)
    back = topology_from_torchrec(theirs, base, rates_from_base=False)
    assert back.hbm_capacities().tolist() == base.hbm_capacities().tolist()
    assert back.device.hbm_bandwidth_bytes_per_s == base.device.hbm_bandwidth_bytes_per_s
    assert back.network_link == base.network_link


def test_hosts_may_differ_in_memory() -> None:
    """The memory of the first host was taken for all, and that of the system for TorchRec's."""
    custom = CustomTopologyData(
        data={"ddr_cap": [4 * GIB, 4 * GIB, GIB, 2 * GIB], "hbm_cap": [GIB] * 4}, world_size=4
    )
    theirs = factory(
        world_size=4, local_world_size=2, additional_params={"custom_topology_data": custom}
    )
    base = replace(make_topology(2, 2), ddr_capacity_by_host_bytes=(1.0, 2.0))
    ours = topology_from_torchrec(theirs, base, rates_from_base=True)
    assert ours.ddr_capacities().tolist() == [8 * GIB, 3 * GIB]
    back = topology_to_torchrec(ours, "cuda")
    assert [d.storage.ddr for d in back.devices] == [4 * GIB] * 2 + [1.5 * GIB] * 2


def test_ranks_of_a_named_system_keep_their_speed_at_the_size_of_the_job(tmp_path: Path) -> None:
    """The file was read at the size of one host, so that other sizes lost it or were refused."""
    path = tmp_path / "box.yaml"
    path.write_text("base: h100_sxm\ndifferent_ranks: [{ranks: [9, 15], speed: 0.5}]\n")
    ours = base_system(str(path), factory(world_size=16, local_world_size=8))
    assert ours.speeds().tolist() == [1.0] * 9 + [0.5] + [1.0] * 5 + [0.5]
    with pytest.raises(InvalidInputError, match=r"value 9: must be 0\.\.7 at this size"):
        base_system(str(path), factory(world_size=8, local_world_size=8))
    slow = replace(make_topology(1, 2), speed_by_rank_ratio=(1.0, 0.5))
    with pytest.raises(InvalidInputError, match="the job has 4 with 2 on a host"):
        base_system(slow, factory(world_size=4, local_world_size=2))
