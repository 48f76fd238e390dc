"""System files: numbers with units and sources, and the number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodels.estimates import Source
from costmodels.topology import Topology
from costmodels.workload import DataType
from planner.errors import InvalidInputError
from planner.io import load_system
from tests.planner.io.files import SYSTEM, changed, refused, write


def load(
    tmp_path: Path,
    text: str = SYSTEM,
    *,
    gpus: int | None = None,
    gpus_per_host: int | None = None,
) -> Topology:
    path = write(tmp_path, "box.yaml", text)
    return load_system(path, gpus=gpus, gpus_per_host=gpus_per_host)


def test_numbers_arrive_in_si(tmp_path: Path) -> None:
    system = load(tmp_path)
    device = system.device
    assert (system.name, device.name) == ("box", "gpu")
    assert device.hbm_capacity_bytes == 80 * 2**30
    assert device.hbm_bandwidth_bytes_per_s == 2e12
    assert device.l2_capacity_bytes == 40e6
    assert dict(device.flops_per_s) == {DataType.FP32: 2e13, DataType.BF16: 3e14}
    assert device.kernel_latency_s == pytest.approx(3e-6)
    assert device.row_half_bytes == 32
    assert device.update_efficiency_ratio == 0.6
    assert device.sort_rate_per_s == 5e9
    assert device.overlap_slowdown_ratio == 0
    assert device.num_multiprocessors == 0
    assert system.host.device_link_bandwidth_bytes_per_s == 25e9
    assert system.host_link.latency_s == pytest.approx(1e-5)
    assert system.domain_link == system.host_link
    assert system.network_link.bandwidth_bytes_per_s == 2e10
    assert system.price_per_device_usd_per_hour is None


def test_sources_arrive(tmp_path: Path) -> None:
    found = {p.name: p for p in load(tmp_path).provenance}
    assert len(found) == 19
    capacity = found["device.hbm_capacity"]
    assert capacity.value == "80 GiB"
    assert (capacity.source, capacity.reference) == (Source.DATASHEET, "some GPU")
    assert found["device.hbm_bandwidth"].source is Source.MEASURED
    assert found["device.flops_efficiency"].source is Source.DEFAULT
    assert found["device.flops.fp32"].source is Source.USER
    assert found["device.sort_rate"].value == "5000000000.0"
    assert found["links.host.latency"].value == "10 us"


@pytest.mark.parametrize(
    ("written", "source", "reference"),
    [
        ("2 TB/s", Source.USER, ""),
        ("2 TB/s (user)", Source.USER, ""),
        ("2 TB/s(datasheet,x)", Source.DATASHEET, "x"),
        ("'2 TB/s (measured: a, b)'", Source.MEASURED, "a, b"),
        (
            "2 TB/s (calibrated, curves (2026) of it)",
            Source.CALIBRATED,
            "curves (2026) of it",
        ),
    ],
)
def test_grammar_of_sources(tmp_path: Path, written: str, source: Source, reference: str) -> None:
    text = changed(SYSTEM, "2 TB/s (measured, triad)", written)
    (found,) = (p for p in load(tmp_path, text).provenance if p.name == "device.hbm_bandwidth")
    assert (found.value, found.source, found.reference) == ("2 TB/s", source, reference)


def test_optional_numbers(tmp_path: Path) -> None:
    text = changed(SYSTEM, "  sort_rate: 5e9", "  sort_rate: 5e9\n  num_multiprocessors: 108")
    text = changed(text, "  row_half", "  overlap_slowdown: 0.1 (default, a guess)\n  row_half")
    text = changed(text, "gpus_per_host: 8}", "gpus_per_host: 4, domain_size: 72}")
    text = changed(
        text, "  network:", "  domain: {latency: 12 us, bandwidth: 150 GB/s}\n  network:"
    )
    system = load(tmp_path, f"{text}price: 4 USD/h (default)\n", gpus=16)
    assert system.device.num_multiprocessors == 108
    assert system.device.overlap_slowdown_ratio == 0.1
    assert (system.num_hosts, system.local_world_size, system.domain_size) == (4, 4, 72)
    assert system.domain_link.bandwidth_bytes_per_s == 1.5e11
    assert system.price_per_device_usd_per_hour == 4


# ------------------------------------------------------------------ size


@pytest.mark.parametrize(
    ("size", "hosts", "local"),
    [
        ({}, 1, 8),
        ({"gpus": 8}, 1, 8),
        ({"gpus": 16}, 2, 8),
        ({"gpus": 4}, 1, 4),
        ({"gpus": 1}, 1, 1),
        ({"gpus": 16, "gpus_per_host": 4}, 4, 4),
        ({"gpus": 6, "gpus_per_host": 2}, 3, 2),
        ({"gpus": 4, "gpus_per_host": 16}, 1, 4),
        ({"gpus_per_host": 4}, 1, 4),
    ],
)
def test_size(tmp_path: Path, size: dict[str, int], hosts: int, local: int) -> None:
    system = load(tmp_path, gpus=size.get("gpus"), gpus_per_host=size.get("gpus_per_host"))
    assert (system.num_hosts, system.local_world_size) == (hosts, local)
    assert system.domain_size == local


def test_a_domain_of_several_hosts_keeps_to_whole_hosts(tmp_path: Path) -> None:
    text = changed(SYSTEM, "gpus_per_host: 8}", "gpus_per_host: 4, domain_size: 72}")
    assert load(tmp_path, text, gpus=20, gpus_per_host=5).domain_size == 70
    assert load(tmp_path, text, gpus=100, gpus_per_host=100).domain_size == 100


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ({"gpus": 12}, "--gpus 12 is not a multiple of 8 GPUs per host; use 8 or 16"),
        ({"gpus": 0}, "--gpus 0"),
        ({"gpus": -8}, "--gpus -8"),
        ({"gpus": 10**6}, "--gpus 1000000"),
        ({"gpus": 8, "gpus_per_host": 0}, "0 per host"),
    ],
)
def test_bad_size(tmp_path: Path, size: dict[str, int], expected: str) -> None:
    with pytest.raises(InvalidInputError, match=expected):
        load(tmp_path, gpus=size["gpus"], gpus_per_host=size.get("gpus_per_host"))


# ------------------------------------------------------------------ slips

SLIPS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "no unit": ("40 MB", "40", (":6: device.l2_capacity", "value 40", "number with a unit")),
    "no unit in text": ("40 MB", "'40'", ("device.l2_capacity", "'40'", "80 GiB")),
    "unknown unit": ("40 MB", "40 MX", ("device.l2_capacity", "'40 MX'", "GiB")),
    "unit of another kind": ("40 MB", "40 us", ("device.l2_capacity", "'us'")),
    "bytes for a rate": ("4 TB/s", "4 TB", ("device.l2_bandwidth", "'TB'", "TB/s")),
    "negative": ("40 MB", "-40 MB", ("device.l2_capacity", "not negative")),
    "zero rate": ("4 TB/s", "0 TB/s", ("device.l2_bandwidth", "must be 1..")),
    "absurd latency": ("latency: 10 us", "latency: 10 h", ("links.host.latency", "0..10")),
    "unknown source": ("(datasheet, some GPU)", "(rumour, x)", ("'rumour'", "calibrated")),
    "no source in parentheses": ("(datasheet, some GPU)", "()", ("device.hbm_capacity", "source")),
    "parenthesis open": ("(datasheet, some GPU)", "(datasheet", ("device.hbm_capacity",)),
    "a list": ("40 MB", "[40 MB]", ("device.l2_capacity", "number with its unit")),
    "very long": ("40 MB", "4" * 5000, ("device.l2_capacity", "...")),
    "share above one": ("update_efficiency: 0.6", "update_efficiency: 60", ("0.01..1", "60")),
    "share in percent": ("0.6", "60 %", ("device.update_efficiency", "'60 %'")),
    "share as bool": ("update_efficiency: 0.6", "update_efficiency: true", ("value True",)),
    "share infinite": ("update_efficiency: 0.6", "update_efficiency: .inf", ("0.01..1", "inf")),
    "share not a number": ("update_efficiency: 0.6", "update_efficiency: .nan", ("0.01..1", "nan")),
    "no rate by type": (
        "{fp32: 20 TFLOP/s, bf16: 300 TFLOP/s}",
        "{}",
        ("device.flops", "at least"),
    ),
    "unknown type": ("bf16: 300", "bf15: 300", ("device.flops", "'bf15'", "bf16")),
    "missing number": ("  row_half: 32 B\n", "", ("device: key 'row_half' is missing",)),
    "missing section": ("layout: {gpus_per_host: 8}", "network: {}", ("network", "unknown key")),
    "missing link": ("  network: {", "  nettwork: {", ("links.nettwork", "'network'?")),
    "unknown key": ("layout: {", "layout: {racks: 2, ", ("layout.racks", "value 2", "domain_size")),
    "no ranks": ("gpus_per_host: 8", "gpus_per_host: 0", ("layout.gpus_per_host", "at least 1")),
    "ranks as text": ("gpus_per_host: 8", "gpus_per_host: '8'", ("layout", "'8'", "whole number")),
    "domain inside a host": (
        "gpus_per_host: 8",
        "gpus_per_host: 8, domain_size: 4",
        ("layout", "domain_size 4 must be a multiple of gpus_per_host 8"),
    ),
    "link of no domain": (
        "links:\n",
        "links:\n  domain: {latency: 12 us, bandwidth: 150 GB/s}\n",
        ("links.domain needs layout.domain_size",),
    ),
    "curves beside a calibration": (
        "layout:",
        "calibration: box.json\ncollective_curves: [h100_sxm]\nlayout:",
        ("collective_curves contradicts calibration",),
    ),
    "part of a multiprocessor": (
        "  row_half",
        "  num_multiprocessors: 107.9\n  row_half",
        ("device.num_multiprocessors", "107.9", "whole number"),
    ),
    "ranks that do not differ": (
        "layout:",
        "different_ranks: [{ranks: [1]}]\nlayout:",
        ("different_ranks[0]", "give hbm_capacity or speed"),
    ),
    "a rank twice": (
        "layout:",
        "different_ranks: [{ranks: [1, 2], speed: 0.5}, {ranks: [2, 3], speed: 2}]\nlayout:",
        ("different_ranks: 2 entries give speed of 2",),
    ),
    "a host twice": (
        "layout:",
        "different_hosts: [{hosts: [0], ddr_capacity: 1 TB}, {hosts: [0], ddr_capacity: 2 TB}]"
        "\nlayout:",
        ("different_hosts: 2 entries give ddr_capacity of 0",),
    ),
    "a workload": ("device:\n", "tables:\n", ("tables", "unknown key")),
}


@pytest.mark.parametrize("name", SLIPS)
def test_slip(name: str, tmp_path: Path) -> None:
    old, new, expected = SLIPS[name]
    path = write(tmp_path, "box.yaml", changed(SYSTEM, old, new))
    refused(lambda: load_system(path), path, *expected)


def test_unknown_name() -> None:
    lines = refused(lambda: load_system("h100-sxm"), Path("h100-sxm"), "known: a100_40gb_sxm")
    assert "did you mean h100_sxm" in lines[0]


def test_a_spread_without_finite_intervals_is_refused(tmp_path: Path) -> None:
    """Prices failed later, with words of no file."""
    rows = "[{}], [0, 1], [0, 0, 1], [0, 0, 0, 1]"
    fitted = "fitted: {{lookup: 1, collective: 1, dense: 1, host: 1, spread: [{}]}}\n"
    text = f"{SYSTEM}{fitted.format(rows.format(9.7))}"
    assert load(tmp_path, text).fitted is not None
    with pytest.raises(InvalidInputError, match=r"fitted\.spread: .* must be -50\.\.50"):
        load(tmp_path, changed(text, "9.7", "1e300"))
