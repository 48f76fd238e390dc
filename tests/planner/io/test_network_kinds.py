"""Networks by kind, systems that start from others, and the presets that rest on both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import Basis, balanced_s
from costmodels.collective.ramp import Ramp
from costmodels.estimates import Source
from costmodels.fabrics import FABRICS, STATES, fabric_link, fabric_named
from costmodels.measured.curves import Collective
from costmodels.system_models import collective_model
from planner import io
from planner.errors import InvalidInputError
from planner.io.documents import configs_folder, read_text
from tests.planner.io.files import SYSTEM, changed, refused, write

PLAIN = "network: {latency: 25 us, bandwidth: 20 GB/s}"
KIND = "network: {fabric: efa, nic: 12.5 GB/s, nics_per_host: 4}"
PRESETS = {
    "aws_p4d": ("efa", 6.25),
    "aws_p4de": ("efa", 6.25),
    "aws_p5": ("efa", 50),
    "aws_p5en": ("efa", 50),
    "gcp_a3_high": ("tcpx", 12.5),
    "gcp_a3_mega": ("tcpxo", 25),
    "gcp_a3_ultra": ("roce", 50),
    "gcp_a4": ("roce", 50),
    "azure_nd_a100_v4": ("infiniband", 25),
    "azure_nd_h100_v5": ("infiniband", 50),
    "azure_nd_h200_v5": ("infiniband", 50),
    "oci_h100": ("roce", 50),
    "lambda_b200": ("infiniband", 50),
}
SIZES = np.geomspace(1024, 2**28, 19)


def test_a_kind_gives_start_up_rate_and_half_size(tmp_path: Path) -> None:
    path = write(tmp_path, "box.yaml", changed(SYSTEM, PLAIN, KIND))
    for gpus, per_host, cards in ((16, None, 0.5), (8, 4, 1.0)):
        link = io.load_system(path, gpus=gpus, gpus_per_host=per_host).network_link
        efa = FABRICS["efa"]
        assert link.latency_s == efa.startup_s
        assert link.bandwidth_bytes_per_s == pytest.approx(efa.efficiency_ratio * 12.5e9 * cards)
    told = {p.name: p for p in io.load_system(path).provenance}
    assert told["links.network.latency"].source is Source.CALIBRATED
    assert "benchmarks/fabrics.py" in told["links.network.bandwidth"].reference


def test_half_of_the_rate_is_reached_at_the_half_size(tmp_path: Path) -> None:
    text = changed(
        SYSTEM,
        PLAIN,
        "network: {fabric: roce, nic: 50 GB/s, nics_per_host: 8, latency: 0 us, efficiency: 0.8,"
        " half_size: 4 MiB}",
    )
    system = io.load_system(write(tmp_path, "box.yaml", text), gpus=2, gpus_per_host=1)
    seconds = balanced_s(Ramp(), Collective.ALL_TO_ALL, np.array([8.0 * 2**20]), system)
    assert seconds.item() == pytest.approx(2 * 4 * 2**20 / 40e9, rel=1e-3)


@pytest.mark.parametrize(
    ("network", "complaint"),
    [
        ("{fabric: myrinet, nic: 1 GB/s, nics_per_host: 1}", "must be one of infiniband, roce"),
        ("{fabric: efa, nic: 12.5 GB/s}", "key 'nics_per_host' is missing"),
        ("{nic: 12.5 GB/s, nics_per_host: 4}", "key 'fabric' is missing"),
        ("{fabric: efa, nic: 12.5 GB/s, nics_per_host: 4, bandwidth: 1 GB/s}", "unknown key"),
        ("{latency: 25 us}", "key 'bandwidth' is missing"),
    ],
)
def test_half_given_networks_are_refused(tmp_path: Path, network: str, complaint: str) -> None:
    path = write(tmp_path, "box.yaml", changed(SYSTEM, PLAIN, f"network: {network}"))
    refused(lambda: io.load_system(path), path, "links.network", complaint)


def test_kinds_are_as_slow_as_they_are() -> None:
    """EFA starts later than verbs, and TCP later than both."""
    times = {}
    for kind in ("infiniband", "efa", "tcpx"):
        link = fabric_link(kind, nic_bytes_per_s=50e9, nics_per_gpu=1.0)
        base = replace(io.load_system("h100_sxm", gpus=32), network_link=link)
        times[kind] = balanced_s(Ramp(), Collective.ALL_TO_ALL, SIZES, base)
    assert (times["infiniband"] < times["efa"]).all()
    assert (times["efa"] < times["tcpx"]).all()


def test_a_longer_start_up_is_felt_at_every_size() -> None:
    for name in ("aws_p5", "mi300x"):
        base = io.load_system(name, gpus=64)
        link = base.network_link
        slow = replace(base, network_link=replace(link, latency_s=link.latency_s + 1e-3))
        for collective in Collective:
            steps = 1 if collective is Collective.ALL_TO_ALL else 3
            before = balanced_s(collective_model(base), collective, SIZES, base)
            after = balanced_s(collective_model(slow), collective, SIZES, slow)
            assert (after - before >= steps * 1e-3 * (1 - 1e-6)).all()


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name: str) -> None:
    kind, rate_gb = PRESETS[name]
    system = io.load_system(name, gpus=16)
    link = system.network_link
    assert link.fabric == kind
    assert link.bandwidth_bytes_per_s == pytest.approx(
        FABRICS[kind].efficiency_ratio * rate_gb * 1e9
    )
    assert len(read_text(configs_folder() / "systems" / f"{name}.yaml").splitlines()) <= 15
    if name in ("aws_p4de", "aws_p5", "gcp_a3_mega"):
        model = collective_model(system)
        assert model.confidence(Collective.ALL_REDUCE, 2.0**24, system).basis is Basis.MEASURED


def test_files_start_from_others(tmp_path: Path) -> None:
    write(
        tmp_path, "box.yaml", changed(SYSTEM, "layout:", "collective_curves: [mine.csv]\nlayout:")
    )
    shipped = configs_folder() / "calibrations" / "collectives.csv"
    (tmp_path / "mine.csv").write_bytes(shipped.read_bytes())
    (tmp_path / "sub").mkdir()
    text = f"base: ../box.yaml\nname: bigger\ndevice: {{hbm_capacity: 96 GiB}}\nlinks:\n  {KIND}\n"
    system = io.load_system(write(tmp_path / "sub", "big.yaml", text), gpus=16)
    plain = io.load_system(tmp_path / "box.yaml", gpus=16)
    assert system.name == "bigger"
    assert system.device == replace(plain.device, hbm_capacity_bytes=96 * 2.0**30)
    assert system.host_link == plain.host_link
    assert system.network_link.fabric == "efa"
    assert Path(system.collective_curves[0]).resolve() == tmp_path / "mine.csv"


def test_a_shipped_system_is_unchanged_by_a_bare_base(tmp_path: Path) -> None:
    copy = io.load_system(write(tmp_path, "mine.yaml", "base: h100_sxm\nname: mine\n"), gpus=16)
    assert replace(copy, name="h100_sxm") == io.load_system("h100_sxm", gpus=16)
    sizes = np.array([1e5, 1e8])
    for collective in Collective:
        np.testing.assert_array_equal(
            balanced_s(collective_model(copy), collective, sizes, copy),
            balanced_s(
                collective_model(io.load_system("h100_sxm", gpus=16)), collective, sizes, copy
            ),
        )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("base: box.yaml\nname: x\n", "leads back to"),
        ("base: other.yaml\nname: x\n", "leads back to"),
        ("base: 3\nname: x\n", "must be the name or file of a system"),
        ("base: h100_sxn\nname: x\n", "did you mean h100_sxm"),
        ("base: h100_sxm\nname: x\ndevice: {hbm_capacity: 3}\n", "device.hbm_capacity"),
        ("base: h100_sxm\nname: x\nlinks: {network: {latency: 1 us}}\n", "'bandwidth' is missing"),
    ],
)
def test_bases_that_do_not_work_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = write(tmp_path, "box.yaml", text)
    write(tmp_path, "other.yaml", "base: box.yaml\nname: y\n")
    with pytest.raises(InvalidInputError, match=complaint):
        io.load_system(path)


def test_names_of_networks() -> None:
    assert fabric_named("GPUDirect-TCPXO 8x200G per node") == "tcpxo"
    assert fabric_named("GPUDirect-TCPX 4x200G per node") == "tcpx"
    assert fabric_named("IB NDR 8x400G per node") == "infiniband"
    assert fabric_named("RoCEv2 cluster network") == "roce"
    assert fabric_named("cloud network, rate not stated") == ""


@pytest.mark.parametrize("per_host", [1, 2, 4, 8])
@pytest.mark.parametrize("cards", [1, 2, 4, 8, 16])
def test_one_layout_of_cards_takes_as_long_however_it_is_said(
    tmp_path: Path, per_host: int, cards: int
) -> None:
    """By the layout of the file, by the flag on another layout, and by the rows of a table."""
    times = []
    for said in (1, 4, 8, per_host):
        text = (
            f"base: h100_sxm\nname: box\nlayout: {{gpus_per_host: {said}}}\n"
            f"links:\n  network: {{fabric: roce, nic: 25 GB/s, nics_per_host: {cards}}}\n"
        )
        path = write(tmp_path, "box.yaml", text)
        system = io.load_system(path, gpus=2 * per_host, gpus_per_host=per_host)
        share = min(cards / per_host, 51 // 25)
        rate = FABRICS["roce"].efficiency_ratio * 25e9 * share
        assert system.network_link.bandwidth_bytes_per_s == pytest.approx(rate)
        times.append([balanced_s(collective_model(system), c, SIZES, system) for c in Collective])
    assert all(np.array_equal(times[0], other) for other in times)


def test_a_single_gpu_of_a_host_uses_the_card_beside_it() -> None:
    """812 us were measured for an all-reduce of 32 MiB between two hosts with one H100 each."""
    system = io.load_system("azure_nd_h100_v5", gpus=2, gpus_per_host=1)
    size = np.array(32.0 * 2**20)
    seconds = balanced_s(collective_model(system), Collective.ALL_REDUCE, size, system)
    assert seconds == pytest.approx(812e-6, rel=0.1)


def test_networks_that_are_not_tuned_are_slower(tmp_path: Path) -> None:
    rates = {}
    for state in STATES:
        text = changed(SYSTEM, PLAIN, f"{KIND[:-1]}, state: {state}}}")
        link = io.load_system(write(tmp_path, "box.yaml", text)).network_link
        rates[state] = link.bandwidth_bytes_per_s
    assert rates["untuned"] == pytest.approx(0.4 * rates["tuned"])
    assert rates["untuned"] < rates["through_host"] < rates["tuned"]
    for state, complaint in (("lossy", "must be one of tuned"), ("untuned", "contradicts")):
        keys = f"{KIND[:-1]}, state: {state}" + ", efficiency: 0.5" * (state == "untuned")
        path = write(tmp_path, "box.yaml", changed(SYSTEM, PLAIN, f"{keys}}}"))
        refused(lambda path=path: io.load_system(path), path, "links.network", complaint)


def test_some_gpus_of_a_mesh_reach_their_share_of_the_links() -> None:
    """Each pair of MI355X has one of the seven links of either GPU."""
    size = np.array(2.0**30)
    for name in ("mi300x", "mi355x"):
        rates = {}
        for gpus in (2, 4, 8):
            system = io.load_system(name, gpus=gpus)
            for model in (collective_model(system), Ramp(), AlphaBeta()):
                seconds = balanced_s(model, Collective.ALL_TO_ALL, size, system)
                rates[gpus, type(model)] = float(size * (gpus - 1) / gpus / seconds)
        for (gpus, model), rate in rates.items():
            assert rate == pytest.approx(rates[8, model] * (gpus - 1) / 7, rel=0.06)


def test_domains_of_unequal_size_are_as_slow_as_the_smallest(tmp_path: Path) -> None:
    text = "base: gb300\nname: box\nlayout:\n  gpus_per_host: 4\n  domain_size: {}\n"
    path = write(tmp_path, "box.yaml", text.format("[32, 64]"))
    uneven = io.load_system(path, gpus=96)
    assert (uneven.domain_size, io.load_system(path, gpus=40).domain_size) == (32, 8)
    assert io.load_system(path, gpus=32).domain_size == 32
    times = []
    for sizes in ("[32, 64]", "32", "48"):
        system = io.load_system(write(tmp_path, "box.yaml", text.format(sizes)), gpus=96)
        model = collective_model(system)
        times.append([balanced_s(model, c, SIZES, system) for c in Collective])
    assert np.array_equal(times[0], times[1])
    assert (np.array(times[0]) >= np.array(times[2])).all()
    path = write(tmp_path, "box.yaml", text.format("[32, 64]"))
    refused(lambda: io.load_system(path, gpus=100), path, "box.yaml:5", "96 GPUs")
    for wrong in ("[32, 62]", "[]", "[32, x]", "many"):
        path = write(tmp_path, "box.yaml", text.format(wrong))
        refused(lambda path=path: io.load_system(path), path, "box.yaml:", "layout")


def test_a_value_of_the_user_is_not_blamed_on_a_shipped_file(tmp_path: Path) -> None:
    text = "base: gb300\nname: box\nlinks:\n  network: {fabric: efa, nic: 12.5 GB/s}\n"
    path = write(tmp_path, "box.yaml", text)
    refused(lambda: io.load_system(path), path, "box.yaml:4", "nics_per_host")


def test_intervals_cover_ranks_that_one_process_starts() -> None:
    """58 us were measured for all-to-alls of 1 to 4 MiB between 8 GPUs of one process."""
    system = io.load_system("h200_sxm", gpus=8)
    model = collective_model(system)
    for size in (2.0**20, 2.0**22):
        seconds = float(balanced_s(model, Collective.ALL_TO_ALL, np.array(size), system))
        spread = model.confidence(Collective.ALL_TO_ALL, size, system).spread_ratio
        assert seconds < 58e-6 < seconds * (1.0 + spread)


def test_an_all_reduce_on_mi300x_by_links_alone() -> None:
    """85 us were measured for 8 MiB with one process for each of 8 GPUs."""
    system = io.load_system("mi300x", gpus=8)
    seconds = balanced_s(Ramp(), Collective.ALL_REDUCE, np.array(2.0**23), system)
    assert seconds == pytest.approx(84.8e-6, rel=0.12)
